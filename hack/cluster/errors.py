"""What can go wrong with a local cluster."""

from __future__ import annotations


class ClusterError(Exception):
    """A daemon, a tool or an installation failed; the text says which and why."""
