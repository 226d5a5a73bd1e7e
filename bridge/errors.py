"""The project's own errors: library exceptions stop at the door of the room that speaks to the outside system."""

from __future__ import annotations


class BridgeError(Exception):
    """Anything podbridge can say went wrong.

    Attributes
    ----------
    retryable
        Whether the same call may succeed later without anybody changing anything.
    reason
        CamelCase, fit for an Event or a condition.
    hint
        What the user can do, or empty.
    """

    retryable: bool = False
    reason: str = "BridgeError"
    hint: str = ""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        if hint is not None:
            self.hint = hint


class ConfigError(BridgeError):
    """A configuration that can't be used; the message names the key, the value and what is allowed."""

    reason = "InvalidConfiguration"


class CertificateError(BridgeError):
    """A certificate or key that can't be used."""

    reason = "BadCertificate"


class LostLeadershipError(BridgeError):
    """A write was about to happen after the lease had run out: it was not sent."""

    reason = "LostLeadership"


class KubeError(BridgeError):
    """The Kubernetes API refused, or could not be reached.

    ``status`` is the HTTP status, 0 where no answer came.
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
    """409: a precondition (UID, resourceVersion) failed, or the object exists."""

    reason = "Conflict"


class KubeGoneError(KubeError):
    """410: the resource version is too old; list again."""

    reason = "Expired"


class KubeForbiddenError(KubeError):
    """401 or 403."""

    reason = "Forbidden"


class KubeInvalidError(KubeError):
    """400 or 422: the request itself is wrong."""

    reason = "Invalid"


class KubeUnavailableError(KubeError):
    """No usable answer: refused, reset, timed out, 429 or 5xx. A write may or may not have happened."""

    reason = "Unavailable"


class SlurmError(BridgeError):
    """Slurm refused, or could not be reached.

    Attributes
    ----------
    code
        Slurm's own error number (``SLURM_ERRNO``), 0 where none came.
    status
        HTTP status, 0 where no answer came.
    """

    reason = "SlurmError"

    def __init__(self, message: str, *, code: int = 0, status: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.status = status


class SlurmRefusedError(SlurmError):
    """slurmctld itself said no, with a code and a text."""

    reason = "SlurmRefused"


class SlurmNotFoundError(SlurmRefusedError):
    """slurmctld itself said that it knows no such job, node or partition."""

    reason = "SlurmNotFound"


class SlurmAuthError(SlurmError):
    """The token is missing, expired, malformed or not accepted."""

    reason = "SlurmAuth"
    retryable = True


class SlurmUnavailableError(SlurmError):
    """No answer from slurmctld, and the request was surely not carried out (connection refused)."""

    reason = "SlurmUnavailable"
    retryable = True


class SlurmUnknownOutcomeError(SlurmUnavailableError):
    """No answer, and the request may have been carried out, or may yet be: look by UID before asking again."""

    reason = "SlurmUnknownOutcome"


class SiteError(BridgeError):
    """A site refused, or could not be reached."""

    reason = "SiteError"


class SiteDownError(SiteError):
    """Nobody at the site listens (no responders), or there is no connection: the request was surely not taken."""

    reason = "SiteDown"
    retryable = True


class SiteUnknownOutcomeError(SiteError):
    """The site did not answer in time: the request may have been carried out. Look by UID before asking again."""

    reason = "SiteUnknownOutcome"
    retryable = True


class SiteTooLargeError(SiteError):
    """The message is larger than the NATS server takes; it was not sent."""

    reason = "MessageTooLarge"


class SiteRefusedError(SiteError):
    """The site itself said no; ``reason``, ``retryable`` and ``hint`` are the site's own words."""

    def __init__(self, message: str, *, reason: str = "SiteRefused", retryable: bool = False, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        self.retryable = retryable


class BatchError(BridgeError):
    """A batch system refused or could not be asked (``retryable``: it may answer later)."""

    reason = "BatchSystemRefused"

    def __init__(self, message: str, *, retryable: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable


class BatchUnknownOutcomeError(BatchError):
    """The batch system did not answer a submit in time: look for the job by its name before asking again."""

    reason = "BatchUnknownOutcome"


class ScriptError(BridgeError):
    """A pod that can't become a script at this site; the message names the field, the value and what is allowed."""

    reason = "NotPossibleAtSite"


class MissingReferenceError(BridgeError):
    """A ConfigMap, Secret or key that the pod needs does not exist (yet)."""

    reason = "WaitingForReference"
    retryable = True
