"""A store in a NATS key-value bucket, over the hub's own link.

It sends requests of the JetStream API over the link, so that the link's guarantees hold (no request is sent late, each
answer belongs to its request). A load reads all values of a kind from a consumer that it creates for the purpose. A
deletion purges the key.
"""

from __future__ import annotations

import json
import queue
import secrets
from collections.abc import Collection, Mapping
from typing import Any

from bridge.core.threads import at_once
from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError
from bridge.pools.store.synchronizer import StoreError
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.subjects import BucketSubjects
from bridge.protocol.nats.subscription import Respond

TIMEOUT = 5.0
"""Seconds to wait for an answer, and for the next value of a load."""
MOST_BYTES = 64 * 1024 * 1024
"""Size of a new bucket, in bytes: a limit on one load and on the space that a faulty site can fill."""
_THREADS = 4
_NOT_FOUND = 10059
_HINT = "Is JetStream on, and may this user use the bucket? podbridge nats config --jetstream writes both."


class NatsStore:
    """One bucket, created if it does not exist. ``inbox_prefix``: prefix of subjects that this user may subscribe to.

    ``owner``: the cluster that the values belong to. Values of other clusters in the same bucket are not visible.
    """

    def __init__(self, link: Link, bucket: str, inbox_prefix: str, owner: str, replicas: int = 1) -> None:
        self._link = link
        self._subjects = BucketSubjects(bucket, owner)
        self._inbox_prefix = inbox_prefix
        self._replicas = replicas
        self._is_open = False

    def load(self, kind: str) -> dict[str, bytes]:
        """Return all values of a kind by key."""
        self._open()
        arrived: queue.SimpleQueue[tuple[str, bytes]] = queue.SimpleQueue()

        def receive(subject: str, data: bytes, _respond: Respond | None) -> None:
            arrived.put((subject, data))

        inbox = f"{self._inbox_prefix}.store.{secrets.token_hex(12)}"
        subscription = self._link.subscribe(inbox, receive, threads=0)
        try:
            consumer = {
                "deliver_policy": "last_per_subject",
                "deliver_subject": inbox,
                "filter_subject": self._subjects.keys(kind),
                "ack_policy": "none",
                "replay_policy": "instant",
                "mem_storage": True,
                "num_replicas": 1,
            }
            body = {"stream_name": self._subjects.stream, "config": consumer}
            consumer_info = self._ask(self._subjects.consumer, json.dumps(body).encode())
            values = {}
            # the server counts values that it sent before this answer as delivered
            for _ in range(
                _number(consumer_info, "num_pending") + _number(consumer_info.get("delivered"), "consumer_seq")
            ):
                subject, data = arrived.get(timeout=TIMEOUT)
                values[self._subjects.key_of(subject)] = data
        except queue.Empty:
            raise StoreError(f"{self}: the list of {kind} is incomplete: no value for {TIMEOUT:g} s") from None
        finally:
            subscription.close()  # the server deletes a consumer without subscribers
        return {key: data for key, data in values.items() if data}  # other tools mark a deletion with an empty value

    def put(self, kind: str, values: Mapping[str, bytes]) -> None:
        """Store these values."""
        self._open()
        at_once(_THREADS, lambda key: self._ask(self._subjects.key(kind, key), values[key]), values)

    def delete(self, kind: str, keys: Collection[str]) -> None:
        """Delete these keys."""
        self._open()

        def purge(key: str) -> None:
            self._ask(self._subjects.purge, json.dumps({"filter": self._subjects.key(kind, key)}).encode())

        at_once(_THREADS, purge, keys)

    def close(self) -> None:
        """Check at the next call that the bucket exists. The link stays open: it belongs to the hub."""
        self._is_open = False

    def __str__(self) -> str:
        return f"NATS bucket {self._subjects.bucket}"

    def _open(self) -> None:
        """Create the bucket unless it exists. An administrator may have created it with other settings."""
        if self._is_open:
            return
        # the settings of a key-value bucket by ADR-8 of NATS, so that its other tools can read it
        stream = {
            "name": self._subjects.stream,
            "subjects": [self._subjects.everything],
            "max_msgs_per_subject": 1,
            "max_bytes": MOST_BYTES,
            "discard": "new",
            "storage": "file",
            "num_replicas": self._replicas,
            "allow_rollup_hdrs": True,
            "allow_direct": True,
            "deny_delete": True,
        }
        try:
            info = self._ask(self._subjects.info, b"")
        except _RefusedError as refused:
            if refused.code != _NOT_FOUND:
                raise
            info = self._ask(self._subjects.create, json.dumps(stream).encode())
        config = info.get("config")
        if not isinstance(config, dict) or config.get("subjects") != stream["subjects"]:
            raise StoreError(f"{self}: the stream {self._subjects.stream} is not a key-value bucket")
        self._is_open = True

    def _ask(self, subject: str, data: bytes) -> dict[str, Any]:
        try:
            answer = json.loads(self._link.request(subject, data, TIMEOUT))
        except SiteDownError as error:
            reason = "no responder on the JetStream API" if self._link.connected else str(error)
            raise StoreError(f"{self}: {reason}", hint=_HINT if self._link.connected else "") from error
        except SiteUnknownOutcomeError as error:  # NATS does not answer a request that the user may not send
            raise StoreError(f"{self}: {error}", hint=_HINT) from error
        except (SiteError, ValueError, RecursionError) as error:
            raise StoreError(f"{self}: {error}") from error
        if not isinstance(answer, dict):
            raise StoreError(f"{self}: the answer is not a JSON object")
        problem = answer.get("error")
        if isinstance(problem, dict):
            raise _RefusedError(f"{self}: {problem.get('description')}", _number(problem, "err_code"))
        return answer


class _RefusedError(StoreError):
    """JetStream refused a request; ``code`` is its ``err_code``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def _number(part: object, key: str) -> int:
    value = part.get(key) if isinstance(part, dict) else None
    return value if isinstance(value, int) else 0
