"""Sets up a pool: the files of its site, its key at the hub, and a pod that runs there."""
