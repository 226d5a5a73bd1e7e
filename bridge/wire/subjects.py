"""Subjects of the protocol. Whatever a name holds, it can't break one: see :func:`encode`."""

from __future__ import annotations

import re

from bridge.errors import ConfigError
from bridge.poolapi.identifiers import POOL_PATTERN, UID_PATTERN

ANY = "*"
_UNSAFE = re.compile(rb"[^0-9A-Za-z_-]")
_PREFIX = re.compile(r"[0-9A-Za-z_-]+(\.[0-9A-Za-z_-]+)*")
_LONGEST = 1000
"""Characters of a token; the server takes protocol lines of 4096."""


def encode(text: str) -> str:
    """Write any text as one token: letters, digits, ``-`` and ``_`` as they are, other bytes (UTF-8) as ``=XX``."""
    raw = text.encode("utf-8", "surrogatepass")
    token = _UNSAFE.sub(lambda found: b"=%02X" % ord(found[0]), raw).decode("ascii")
    return token[:_LONGEST] or "="


def decode(word: str) -> str:
    """Read what :func:`encode` wrote, cut or not; never raises."""
    if word == "=":
        return ""
    raw = re.sub(rb"=([0-9A-F]{2})", lambda found: bytes.fromhex(found[1].decode()), word.encode("utf-8", "replace"))
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "replace")


class Subjects:
    """The subjects of one pool and one owner, or with ``ANY`` of all pools, or of all owners.

    ``owner`` is the cluster whose jobs a subject is about. The server's permissions go by it, so a site believes it.
    """

    def __init__(self, prefix: str, pool: str, owner: str) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"NATS prefix {prefix!r}: only letters, digits, - and _, in parts joined by dots")
        if pool != ANY and not re.fullmatch(POOL_PATTERN, pool):
            raise ConfigError(f"pool {pool!r}: only a-z, 0-9 and -, at most 63, beginning and ending with no -")
        if owner != ANY and not re.fullmatch(UID_PATTERN, owner):
            raise ConfigError(f"owner {owner!r}: only letters, digits and -, at most 64: the UID of a cluster")
        self.prefix = prefix
        self.pool = pool
        self.owner = owner
        base = f"{prefix}.{pool}"
        self.announce = f"{base}.announce"
        self.buildconfig = f"{base}.buildconfig"
        self.event = f"{base}.event.{owner}"
        self.snapshot = f"{base}.snapshot.{owner}"
        self.describe = f"{base}.describe.{owner}"
        self._base = base

    def of(self, owner: str) -> Subjects:
        """Return the subjects of the same pool and another owner."""
        return Subjects(self.prefix, self.pool, owner)

    def submit(self, namespace: str, name: str, uid: str) -> str:
        """Of a request to run a pod."""
        return f"{self._base}.submit.{self.owner}.{encode(f'{namespace}-{name}')}.{encode(uid)}"

    def cancel(self, uid: str) -> str:
        """Of a request to end a job."""
        return f"{self._base}.cancel.{self.owner}.{encode(uid)}"

    def status(self, uid: str) -> str:
        """Of a question about one job."""
        return f"{self._base}.status.{self.owner}.{encode(uid)}"

    def logs(self, uid: str) -> str:
        """Of a request for a log."""
        return f"{self._base}.logs.{self.owner}.{encode(uid)}"

    def files(self, uid: str) -> str:
        """Of a request to replace files of volumes."""
        return f"{self._base}.files.{self.owner}.{encode(uid)}"

    def stream(self, stream: str) -> str:
        """Of the chunks of one log."""
        return f"{self._base}.stream.{self.owner}.{encode(stream)}"

    def ack(self, stream: str) -> str:
        """Of the reader's acknowledgements."""
        return f"{self._base}.ack.{self.owner}.{encode(stream)}"

    def requests(self) -> dict[str, str]:
        """Give for each kind of request the pattern of its subjects."""
        return {
            "submit": f"{self._base}.submit.{self.owner}.*.*",
            **{kind: f"{self._base}.{kind}.{self.owner}.*" for kind in ("cancel", "status", "logs", "files")},
            "snapshot": self.snapshot,
            "describe": self.describe,
        }

    @property
    def streams(self) -> str:
        """Pattern of the chunks of all logs."""
        return f"{self._base}.stream.{self.owner}.*"

    @property
    def acks(self) -> str:
        """Pattern of all acknowledgements."""
        return f"{self._base}.ack.{self.owner}.*"


def pool_of(prefix: str, subject: str) -> str:
    """Give the pool that a subject speaks of; empty if the subject is none of the protocol's."""
    if not subject.startswith(prefix + "."):
        return ""
    pool, dot, _ = subject[len(prefix) + 1 :].partition(".")
    return pool if dot and re.fullmatch(POOL_PATTERN, pool) else ""


def kind_of(prefix: str, subject: str) -> str:
    """Return what a subject of a pool is for, such as ``event``; empty if it is none of the protocol's."""
    parts = subject[len(prefix) + 1 :].split(".", 2) if subject.startswith(prefix + ".") else []
    return parts[1] if len(parts) > 1 else ""


def owner_of(prefix: str, subject: str) -> str:
    """Return the owner that a subject names; empty if it names none."""
    parts = subject[len(prefix) + 1 :].split(".", 3) if subject.startswith(prefix + ".") else []
    return parts[2] if len(parts) > 2 and re.fullmatch(UID_PATTERN, parts[2]) else ""


def last_token(subject: str) -> str:
    """Give what the last token of a subject stands for: the pod's UID, or the stream."""
    return decode(subject.rpartition(".")[2])
