"""For sites that switch from the interLink Slurm plugin: its configuration, and the jobs that it left running."""
