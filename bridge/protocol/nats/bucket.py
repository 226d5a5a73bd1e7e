"""The subjects of a JetStream key-value bucket, and the permissions that its user needs.

Source: NATS' reference of the JetStream wire API, and its ADR-8 (key-value stores).
"""

from __future__ import annotations

import re

from bridge.errors import ConfigError
from bridge.protocol.nats.subjects import ANY, decode, encode

BUCKET_PATTERN = r"^[0-9A-Za-z_-]{1,64}$"
DEFAULT_BUCKET = "podbridge"


class BucketSubjects:
    """The subjects of requests about one bucket. Answers and values arrive on the user's inbox.

    ``owner``: the cluster that the values belong to; ``ANY`` for the values of all clusters.
    """

    def __init__(self, bucket: str, owner: str = ANY) -> None:
        if not re.fullmatch(BUCKET_PATTERN, bucket):
            raise ConfigError(f"bucket {bucket!r}: must be 1 to 64 letters, digits, - and _")
        self.bucket, self._owner = bucket, owner if owner == ANY else encode(owner)
        self.stream = f"KV_{bucket}"
        self.everything = f"$KV.{bucket}.>"
        self.info = f"$JS.API.STREAM.INFO.{self.stream}"
        self.create = f"$JS.API.STREAM.CREATE.{self.stream}"
        self.purge = f"$JS.API.STREAM.PURGE.{self.stream}"
        self.consumer = f"$JS.API.CONSUMER.CREATE.{self.stream}"

    def key(self, kind: str, key: str) -> str:
        """Return the subject of one value. A key is one token, whatever characters it has."""
        return f"$KV.{self.bucket}.{self._owner}.{kind}.{encode(key)}"

    def keys(self, kind: str) -> str:
        """Return the pattern of all values of a kind."""
        return f"$KV.{self.bucket}.{self._owner}.{kind}.*"

    @staticmethod
    def key_of(subject: str) -> str:
        """Return the key of a subject that :meth:`key` has returned."""
        return decode(subject.rpartition(".")[2])

    def publish(self) -> list[str]:
        """Return the subjects to which the user must be allowed to publish."""
        return [self.info, self.create, self.purge, self.consumer, self.everything]
