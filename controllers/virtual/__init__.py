"""Virtual nodes: one for each pool, and the life of the pods that are bound there."""
