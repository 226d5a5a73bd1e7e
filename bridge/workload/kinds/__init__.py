"""The kinds of groups, one module each: the object that a pod names, and the group that it defines. Pure."""
