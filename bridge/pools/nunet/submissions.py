"""The submissions to a DMS that may still become jobs: those in progress, and those without an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bridge.clock import Clock
from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError, UnknownJobError


@dataclass(frozen=True, slots=True)
class Sent:
    """A submission that has got no answer.

    ``until``: monotonic time until which the DMS may carry it out. ``word``: what the user had stated before it.
    """

    until: float
    word: str


class Submissions:
    """The submissions of one pool by the pod's UID. Thread-safe.

    ``lasts``: seconds after its start for which a submission may be carried out.
    """

    def __init__(self, lifetime: float, clock: Clock) -> None:
        self._lifetime, self._clock = lifetime, clock
        self._lock = threading.Lock()
        self._callers: set[str] = set()
        self._sent: dict[str, Sent] = {}

    @contextmanager
    def only_caller(self, uid: str) -> Iterator[None]:
        """Let one caller at once submit a pod; raise UnknownJobError for the others, before they send anything."""
        with self._lock:
            if uid in self._callers:
                raise UnknownJobError("another request submits the pod now")
            self._callers.add(uid)
        try:
            yield
        finally:
            with self._lock:
                self._callers.discard(uid)

    @contextmanager
    def sending(self, uid: str, word: str) -> Iterator[None]:
        """Record a submission while it is in progress, and after it unless its outcome is known."""
        earlier_submission = self._sent.get(uid)
        self._sent[uid] = Sent(self._clock.monotonic() + self._lifetime, word)
        try:
            yield
        except SiteError as error:
            if not isinstance(error, SiteUnknownOutcomeError):
                self.forget(uid)
                if earlier_submission is not None:  # this one was not carried out, but an earlier one may have been
                    self._sent[uid] = earlier_submission
            raise
        self.forget(uid)

    def sent(self, uid: str) -> Sent | None:
        """Return the last submission without an answer; ``None``: there is none."""
        return self._sent.get(uid)

    def may_arrive(self, uid: str) -> bool:
        """Return whether the DMS may still carry out a submission. Until then, an answer without a job is no proof."""
        submission = self._sent.get(uid)
        return submission is not None and self._clock.monotonic() <= submission.until

    def forget(self, uid: str) -> None:
        """Remove what is recorded of a pod."""
        self._sent.pop(uid, None)


@contextmanager
def retryable() -> Iterator[None]:
    """Turn an answer that cannot be read into a retryable error: nothing was submitted, and the pod is not to blame."""
    try:
        yield
    except SiteError as error:
        if error.retryable:
            raise
        raise SiteDownError(str(error)) from error
