"""The kinds of groups: the object that a pod names, and the group that it defines. Pure."""
