"""The pool scheduler: binds pods to the virtual nodes of pools."""
