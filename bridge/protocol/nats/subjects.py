"""The subjects of the protocol. Names in a subject are encoded: see :func:`encode`."""

from __future__ import annotations

import re
from typing import Any

from bridge.errors import ConfigError
from bridge.protocol.model.identifiers import POOL_PATTERN, UID_PATTERN
from bridge.protocol.nats.messages import Announce, BuildConfigMessage, Event, Published
from bridge.protocol.nats.request_table import REQUESTS, RequestKind

ANY = "*"
_UNSAFE = re.compile(rb"[^0-9A-Za-z_-]")
_PREFIX = re.compile(r"[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*")
_LONGEST = 1000
"""Characters of a token, at most: the server accepts protocol lines of 4096 bytes."""
BUCKET_PATTERN = r"^[0-9A-Za-z_-]{1,64}$"
DEFAULT_BUCKET = "podbridge"


def encode(text: str) -> str:
    """Return any text as one token: letters, digits, ``-`` and ``_`` unchanged, other bytes (UTF-8) as ``=XX``."""
    raw = text.encode("utf-8", "surrogatepass")
    token = _UNSAFE.sub(lambda match: b"=%02X" % ord(match[0]), raw).decode("ascii")
    return token[:_LONGEST] or "="


def decode(encoded: str) -> str:
    """Return the text of a token from :func:`encode`, which may be truncated. Never raises."""
    if encoded == "=":
        return ""
    raw = re.sub(rb"=([0-9A-F]{2})", lambda match: bytes.fromhex(match[1].decode()), encoded.encode("utf-8", "replace"))
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


class Subjects:
    """The subjects of one pool and one owner; with ``ANY``, of all pools or all owners.

    ``owner``: the cluster whose jobs a subject concerns. The server enforces permissions on it, so a site trusts it.
    """

    def __init__(self, prefix: str, pool: str, owner: str) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"NATS prefix {prefix!r}: must be parts of letters, digits, - and _, joined by dots")
        if pool != ANY and not re.fullmatch(POOL_PATTERN, pool):
            raise ConfigError(f"pool {pool!r}: must be 1 to 63 of a-z, 0-9 and -, without - at the beginning or end")
        if owner != ANY and not re.fullmatch(UID_PATTERN, owner):
            raise ConfigError(f"owner {owner!r}: must be the UID of a cluster: 1 to 64 letters, digits and -")
        self.prefix = prefix
        self.pool = pool
        self.owner = owner
        base = f"{prefix}.{pool}"
        self.announce = f"{base}.announce"
        self.buildconfig = f"{base}.buildconfig"
        self.event = f"{base}.event.{owner}"
        self._base = base

    def published(self) -> dict[type[Published], str]:
        """Return the subject of each message that a site publishes."""
        return {Announce: self.announce, BuildConfigMessage: self.buildconfig, Event: self.event}

    def of(self, owner: str) -> Subjects:
        """Return the subjects of the same pool and another owner."""
        return Subjects(self.prefix, self.pool, owner)

    def request(self, kind: RequestKind[Any, Any], *parts: str) -> str:
        """Return the subject of a request. ``parts``: see :meth:`RequestKind.parts`."""
        return ".".join((self._base, kind.name, self.owner, *map(encode, parts)))

    def stream(self, stream: str) -> str:
        """Return the subject of what a site sends of one log or session."""
        return f"{self._base}.stream.{self.owner}.{encode(stream)}"

    def input(self, stream: str) -> str:
        """Return the subject of what the hub sends of one log or session."""
        return f"{self._base}.input.{self.owner}.{encode(stream)}"

    def requests(self) -> dict[str, str]:
        """Return the pattern of subjects for each kind of request."""
        return {
            name: ".".join((self._base, name, self.owner, *[ANY] * kind.part_count)) for name, kind in REQUESTS.items()
        }

    @property
    def streams(self) -> str:
        """Pattern of the chunks of all logs and sessions."""
        return f"{self._base}.stream.{self.owner}.*"

    @property
    def inputs(self) -> str:
        """Pattern of what hubs send of all logs and sessions."""
        return f"{self._base}.input.{self.owner}.*"


def pool_of(prefix: str, subject: str) -> str:
    """Return the pool in a subject; empty if it is no subject of the protocol."""
    if not subject.startswith(prefix + "."):
        return ""
    pool, dot, _ = subject[len(prefix) + 1 :].partition(".")
    return pool if dot and re.fullmatch(POOL_PATTERN, pool) else ""


def kind_of(prefix: str, subject: str) -> str:
    """Return the kind of a subject, such as ``event``; empty if it is no subject of the protocol."""
    parts = subject[len(prefix) + 1 :].split(".", 2) if subject.startswith(prefix + ".") else []
    return parts[1] if len(parts) > 1 else ""


def owner_of(prefix: str, subject: str) -> str:
    """Return the owner in a subject; empty if it has none."""
    parts = subject[len(prefix) + 1 :].split(".", 3) if subject.startswith(prefix + ".") else []
    return parts[2] if len(parts) > 2 and re.fullmatch(UID_PATTERN, parts[2]) else ""


def last_token(subject: str) -> str:
    """Return the text of the last token of a subject: the pod's UID, or the stream."""
    return decode(subject.rpartition(".")[2])


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
