"""The port: values by kind and key. Nothing is decided by what is in a store; it may be down, empty or wrong."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from bridge.errors import BridgeError


class StoreError(BridgeError):
    """A store refused, or could not be reached; whether what was asked has been done is not known."""

    reason = "StoreError"
    retryable = True


class KeyValueStore(Protocol):
    """One store, used by one thread. Every method waits for the answer, some seconds at most, and raises StoreError.

    A kind is a word of a-z; keys are any text up to 300 characters, values are bytes, never empty.
    """

    def load(self, kind: str) -> dict[str, bytes]:
        """Give all values of a kind by key."""

    def put(self, kind: str, values: Mapping[str, bytes]) -> None:
        """Keep these values; each takes the place of the one before."""

    def delete(self, kind: str, keys: Collection[str]) -> None:
        """Drop these keys; one that is not there is no error."""

    def close(self) -> None:
        """Let go of what is open; the next call opens it again."""
