"""Virtual nodes: one for each pool, and the pods that are bound to it."""
