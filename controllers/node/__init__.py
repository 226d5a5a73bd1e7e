"""Kubernetes nodes and Slurm's: the taint, and cordon and drain in both directions."""
