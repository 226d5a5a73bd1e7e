"""The subjects of a JetStream key-value bucket, and what its one user must be allowed to publish.

Source: NATS' reference of the JetStream wire API, and its ADR-8 (key-value stores).
"""

from __future__ import annotations

import re

from bridge.errors import ConfigError
from bridge.wire.subjects import ANY, decode, encode

BUCKET_PATTERN = r"^[0-9A-Za-z_-]{1,64}$"
DEFAULT_BUCKET = "podbridge"


class BucketSubjects:
    """Everything about one bucket is asked for on one of these; answers and values come to the user's own inbox.

    ``owner``: the cluster whose values they are; ``ANY`` where that does not matter.
    """

    def __init__(self, bucket: str, owner: str = ANY) -> None:
        if not re.fullmatch(BUCKET_PATTERN, bucket):
            raise ConfigError(f"bucket {bucket!r}: only letters, digits, - and _, at most 64")
        self.bucket, self._owner = bucket, owner if owner == ANY else encode(owner)
        self.stream = f"KV_{bucket}"
        self.everything = f"$KV.{bucket}.>"
        self.info = f"$JS.API.STREAM.INFO.{self.stream}"
        self.create = f"$JS.API.STREAM.CREATE.{self.stream}"
        self.purge = f"$JS.API.STREAM.PURGE.{self.stream}"
        self.consumer = f"$JS.API.CONSUMER.CREATE.{self.stream}"

    def key(self, kind: str, key: str) -> str:
        """Of one value; whatever the key holds, it is one token."""
        return f"$KV.{self.bucket}.{self._owner}.{kind}.{encode(key)}"

    def keys(self, kind: str) -> str:
        """Pattern of the values of a kind."""
        return f"$KV.{self.bucket}.{self._owner}.{kind}.*"

    @staticmethod
    def key_of(subject: str) -> str:
        """Give the key that a subject of :meth:`key` stands for."""
        return decode(subject.rpartition(".")[2])

    def publish(self) -> list[str]:
        """Give what its user must be allowed to publish."""
        return [self.info, self.create, self.purge, self.consumer, self.everything]
