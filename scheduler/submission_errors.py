"""Why the scheduler itself submits no job for a pod."""

from __future__ import annotations

from bridge.errors import BridgeError, UntranslatableError


class LostJobsError(BridgeError):
    """Slurm lost the last jobs of a pod, or their comments. podbridge would not find another job either."""

    reason = "SlurmJobsLost"
    hint = "does a plugin of slurmctld change admin_comment?"


class NoNodeError(UntranslatableError):
    """Kubernetes would refuse every node that Slurm could allocate."""
