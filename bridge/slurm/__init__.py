"""The client of slurmrestd, its API versions, and one shared snapshot of Slurm."""
