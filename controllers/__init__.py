"""The controllers: they synchronize nodes and pods with Slurm."""
