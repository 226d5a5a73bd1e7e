"""The node controller: the taint of Slurm nodes, and cordon and drain in both directions."""
