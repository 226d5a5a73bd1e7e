"""The places of jobs: the colocated Slurm and the pools."""
