"""The kinds of groups, one module each: which object a pod names as its group, and what that object says. Pure."""
