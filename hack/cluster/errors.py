"""The error of a local cluster."""

from __future__ import annotations


class ClusterError(Exception):
    """A daemon, a tool or an installation failed; the message names it and the cause."""
