"""The submissions to a DMS that may still become jobs: those in progress, and those without an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError, UnknownJobError


class Submissions:
    """The submissions of one pool by the pod's UID. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callers: set[str] = set()
        self._words: dict[str, str] = {}

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
        """Record a submission while it is in progress, and after it unless its outcome is known.

        ``word``: what the user had stated before it.
        """
        with self._lock:
            earlier_word = self._words.get(uid)
            # before the request: another caller must see it while it is in progress
            self._words[uid] = word
        try:
            yield
        except SiteError as error:
            if not isinstance(error, SiteUnknownOutcomeError):
                with self._lock:
                    self._words.pop(uid, None)
                    if earlier_word is not None:  # this one was not carried out, but an earlier one may have been
                        self._words[uid] = earlier_word
            raise
        self.forget(uid)

    def word(self, uid: str) -> str | None:
        """Return what the user had stated before the submission without an answer; ``None``: there is none."""
        with self._lock:
            return self._words.get(uid)

    def forget(self, uid: str) -> None:
        """Remove what is recorded of a pod."""
        with self._lock:
            self._words.pop(uid, None)


@contextmanager
def retryable() -> Iterator[None]:
    """Turn an answer that cannot be read into a retryable error: nothing was submitted, and the pod is not to blame."""
    try:
        yield
    except SiteError as error:
        if error.retryable:
            raise
        raise SiteDownError(str(error)) from error
