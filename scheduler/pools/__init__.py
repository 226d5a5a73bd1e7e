"""Which pool a pod goes to: chosen among the virtual nodes that it tolerates, and bound."""
