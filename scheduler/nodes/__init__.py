"""The nodes that a pod may get: fit, occupancy and placement."""
