"""Groups of pods that run as one job of the batch system."""
