"""The project's errors. A package that speaks to an outside system converts exceptions of client libraries to them."""

from __future__ import annotations

import traceback


class BridgeError(Exception):
    """The base class of podbridge's errors.

    Attributes
    ----------
    retryable
        Whether the same call may succeed later without a change by a user.
    reason
        CamelCase reason for Events and conditions.
    hint
        What the user can do; may be empty.
    """

    retryable: bool = False
    reason: str = "BridgeError"
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint

    @property
    def with_hint(self) -> str:
        """The message, and in brackets what the user can do."""
        return f"{self} ({self.hint})" if self.hint else str(self)


class UnexpectedError(BridgeError):
    """A defect of podbridge that concerns one object; the message has no values, which may be secret."""

    reason = "InternalError"
    retryable = True


def unexpected(error: Exception) -> UnexpectedError:
    """Return an error without its values; a BridgeError may show its text."""
    if isinstance(error, BridgeError):
        return UnexpectedError(f"internal error: {error}")
    at = traceback.extract_tb(error.__traceback__)[-1]
    return UnexpectedError(f"internal error: {type(error).__name__} at {at.filename}:{at.lineno}")


class ShareExceededError(BridgeError):
    """Somebody has as many places as it may take from others, for example for logs."""

    reason = "TooManyRequests"
    retryable = True


class ConfigError(BridgeError):
    """An invalid configuration; the message names the key, the value and the allowed values."""

    reason = "InvalidConfiguration"


class CertificateError(BridgeError):
    """An unusable certificate or private key."""

    reason = "BadCertificate"


class LostLeadershipError(BridgeError):
    """A write was not sent, because the lease had expired."""

    reason = "LostLeadership"


class KubeError(BridgeError):
    """The Kubernetes API refused a request, or did not answer.

    ``status`` is the HTTP status, 0 without an answer.
    """

    reason = "KubernetesError"

    def __init__(
        self, message: str, *, status: int = 0, kube_reason: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kube_reason = kube_reason
        self.retry_after = retry_after
        self.retryable = status in (0, 429) or status >= 500


class KubeNotFoundError(KubeError):
    """404: no such object."""

    reason = "NotFound"


class KubeConflictError(KubeError):
    """409, or 422 for a patch with another UID: a precondition (UID, resourceVersion) failed, or the object exists."""

    reason = "Conflict"


class KubeGoneError(KubeError):
    """410: the resource version is too old; list again."""

    reason = "Expired"


class KubeForbiddenError(KubeError):
    """401 or 403."""

    reason = "Forbidden"


class KubeInvalidError(KubeError):
    """400 or 422: the request is invalid."""

    reason = "Invalid"


class KubeUnavailableError(KubeError):
    """No usable answer: refused, reset, timed out, 429 or 5xx. The outcome of a write is unknown."""

    reason = "Unavailable"


class KubeTooLargeError(KubeUnavailableError):
    """An answer with too many bytes."""


class SlurmError(BridgeError):
    """Slurm refused a request, or did not answer.

    Attributes
    ----------
    code
        Slurm's error number (``SLURM_ERRNO``), 0 without one.
    status
        HTTP status, 0 without an answer.
    """

    reason = "SlurmError"

    def __init__(self, message: str, *, code: int = 0, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.status = status


class SlurmRefusedError(SlurmError):
    """slurmctld refused the request, with a code and a text."""

    reason = "SlurmRefused"


class SlurmFederationError(SlurmRefusedError):
    """The Slurm cluster is in a federation: another cluster of it could run the job."""

    reason = "SlurmFederation"


class SlurmNotFoundError(SlurmRefusedError):
    """slurmctld answered that it knows no such job, node or partition."""

    reason = "SlurmNotFound"


class SlurmAuthError(SlurmError):
    """The token is missing, expired, malformed or refused."""

    reason = "SlurmAuth"
    retryable = True


class SlurmUnavailableError(SlurmError):
    """No answer from slurmctld, and the request was certainly not processed (connection refused)."""

    reason = "SlurmUnavailable"
    retryable = True


class SlurmUnknownOutcomeError(SlurmUnavailableError):
    """No answer, and Slurm may process the request: look for the job by UID before a retry."""

    reason = "SlurmUnknownOutcome"


class ServiceRefusedError(BridgeError):
    """A Service that a pod at a site may not reach, or that has no usable endpoint."""

    reason = "ServiceNotReached"


class SiteError(BridgeError):
    """A site refused a request, or did not answer."""

    reason = "SiteError"


class SiteDownError(SiteError):
    """No subscriber at the site, or no connection: the request was certainly not processed."""

    reason = "SiteDown"
    retryable = True


class SiteUnknownOutcomeError(SiteError):
    """The site did not answer in time and may have processed the request: look for the job by UID before a retry."""

    reason = "SiteUnknownOutcome"
    retryable = True


class SiteNoStateError(SiteError):
    """The site's answer does not contain the state of the job. It says nothing about the job: request it again."""

    reason = "SiteNoState"
    retryable = True


class UnknownJobError(SiteError):
    """It is not known whether the site has a job of a pod."""

    reason = "JobUnknown"
    retryable = True


class UntracedJobError(UnknownJobError):
    """No job of a pod can be found at the site, and no submission by this process has an unknown outcome."""


class SiteTooLargeError(SiteError):
    """The message exceeds the maximum payload of the NATS server and was not sent."""

    reason = "MessageTooLarge"


class SiteRefusedError(SiteError):
    """The site refused the request; ``reason``, ``retryable`` and ``hint`` come from the site."""

    def __init__(self, message: str, *, reason: str = "SiteRefused", retryable: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.retryable = retryable


class BatchError(BridgeError):
    """A batch system refused a request or did not answer (``retryable``: a retry may succeed)."""

    reason = "BatchSystemRefused"

    def __init__(self, message: str, *, retryable: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable


class BatchUnknownOutcomeError(BatchError):
    """The batch system did not answer a submission in time: look for the job by its name before a retry."""

    reason = "BatchUnknownOutcome"


class ScriptError(BridgeError):
    """A pod that the site cannot run; the message names the field, the value and the allowed values."""

    reason = "NotPossibleAtSite"


class MissingReferenceError(BridgeError):
    """A ConfigMap, Secret or key that the pod needs does not exist yet."""

    reason = "WaitingForReference"
    retryable = True


class UntranslatableError(BridgeError):
    """A pod that cannot be converted; the message goes into the condition of the pod."""

    reason = "Unschedulable"
