"""slurmrestd: its API versions, its answers and one shared snapshot of what it knows."""
