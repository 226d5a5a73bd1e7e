"""Devices of pods: ResourceClaims, device classes, CEL selectors, and gres of Slurm."""
