"""The controllers: they keep nodes and pods in step with Slurm."""
