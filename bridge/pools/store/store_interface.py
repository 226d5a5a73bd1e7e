"""The interface of a store: values by kind and key. It may be down, empty or wrong; no decision depends on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from bridge.errors import BridgeError


class StoreError(BridgeError):
    """The store refused a request or did not answer. The request may have been carried out."""

    reason = "StoreError"
    retryable = True


class KeyValueStore(Protocol):
    """One store, used by one thread. Every method waits for the answer for some seconds, and may raise StoreError.

    A kind matches ``[a-z]+``. A key is any text of up to 300 characters. A value is not empty.
    """

    def load(self, kind: str) -> dict[str, bytes]:
        """Return all values of a kind by key."""

    def put(self, kind: str, values: Mapping[str, bytes]) -> None:
        """Store these values; each replaces the previous value of its key."""

    def delete(self, kind: str, keys: Collection[str]) -> None:
        """Delete these keys. A missing key is no error."""

    def close(self) -> None:
        """Close the connection. The next call opens a new one."""
