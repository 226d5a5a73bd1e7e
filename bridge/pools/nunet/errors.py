"""Errors about jobs that a DMS may have."""

from __future__ import annotations

from bridge.errors import SiteError


class UnknownJobError(SiteError):
    """It is not known whether the DMS has a job of a pod."""

    reason = "JobUnknown"
    retryable = True


class UntracedJobError(UnknownJobError):
    """No peer shows a job of a pod, and no submission by this process has an unknown outcome."""
