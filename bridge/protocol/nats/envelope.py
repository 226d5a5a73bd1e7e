"""Conversion of messages to bytes (JSON, compressed above 64 KiB), and of untrusted bytes to messages."""

from __future__ import annotations

import zlib
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from bridge.errors import SiteError
from bridge.protocol.nats.messages import (
    VERSION,
    Announce,
    BuildConfigMessage,
    Event,
    Message,
    Reply,
    StreamHead,
)

M = TypeVar("M", bound=Message)

COMPRESS_ABOVE = 64 * 1024
"""Bytes. A pod with one container is smaller; its compression would cost more time than its transfer."""
MOST = 64 * 1024 * 1024
"""Bytes of a message before compression, at most."""
LIMITS: dict[type[Message], int] = {
    Announce: 2**20,
    BuildConfigMessage: 4 * 2**20,
    Event: 2**19,
    StreamHead: 2**16,
    Reply: 32 * 2**20,
}
"""Lower limits for messages to the hub. ``Event``: a snapshot makes up for a larger one. ``Reply``: a page of 500 jobs
with 64 KiB each; the site shortens a larger page. ``StreamHead``: the line before the data."""
_LEVEL = 1
# first byte of zlib data with the usual window of 32 KiB (RFC 1950)
_ZLIB = 0x78
_PROBLEMS = 3
MOST_PROBLEMS = 1000
"""Invalid fields, beyond which none is named: a peer may send millions in a few compressed kB."""


class GarbledError(SiteError):
    """The message is invalid: not JSON, too large, of another version, or with a missing or invalid field."""

    reason = "GarbledMessage"


def pack(message: Message, most: int | None = None) -> bytes:
    """Return a message as bytes; raise GarbledError if it has no JSON form, or one of more than ``most`` bytes."""
    most = MOST if most is None else most
    try:
        data = message.model_dump_json().encode()
    except (PydanticSerializationError, UnicodeError) as error:  # a lone surrogate
        raise GarbledError(f"{type(message).__name__}: has no JSON form") from error
    if len(data) > most:
        raise GarbledError(f"{type(message).__name__}: {len(data)} bytes; the limit is {most}")
    return zlib.compress(data, _LEVEL) if len(data) > COMPRESS_ABOVE else data


def unpack(data: bytes, most: int | None = None) -> bytes:
    """Return the JSON text of a message; raise GarbledError if it has more than ``most`` bytes (:data:`MOST`)."""
    most = MOST if most is None else most
    if data[:1] == b"{":
        text = data
    elif data[:1] == bytes((_ZLIB,)):
        # a small message can expand to a very large one: stop at the limit instead of checking the size afterwards
        inflater = zlib.decompressobj()
        try:
            text = inflater.decompress(data, most + 1)
        except zlib.error as error:
            raise GarbledError("the compressed message is invalid") from error
        if len(text) <= most and not inflater.eof:
            raise GarbledError("the compressed message is truncated")
    else:
        raise GarbledError("the message is neither JSON nor compressed JSON")
    if len(text) > most:
        raise GarbledError(f"the message has more than {most} bytes")
    return text


def parse(kind: type[M], data: bytes) -> M:
    """Parse a message of one kind."""
    try:
        return kind.model_validate_json(unpack(data, LIMITS.get(kind, MOST)))
    except ValidationError as error:
        raise GarbledError(f"{kind.__name__}: {explain(error)}") from None


def parse_body(kind: type[M], body: object) -> M:
    """Parse the body of a request or of a reply."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise GarbledError(f"{kind.__name__}: {explain(error)}") from None


def check_pool(subject_pool: str, pool: str) -> None:
    """Refuse a message whose pool differs from the pool of its subject."""
    if pool != subject_pool:
        raise GarbledError(f"a message of pool {pool} on a subject of pool {subject_pool}")


def explain(error: ValidationError) -> str:
    """Return the invalid fields and the reasons, without the values, which may be secret."""
    if (count := error.error_count()) > MOST_PROBLEMS:  # a list of them all takes longer than the validation
        return f"{count} invalid fields"
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    if any(problem["loc"] == ("v",) for problem in problems):
        return f"v: unsupported version of the protocol; supported: {VERSION}"
    descriptions = [
        f"{'.'.join(map(str, problem['loc'])) or 'message'}: {problem['msg']}" for problem in problems[:_PROBLEMS]
    ]
    return "; ".join(descriptions) + ("; ..." if len(problems) > _PROBLEMS else "")


def pack_chunk(head: Message, data: bytes) -> bytes:
    """Return a chunk as bytes: its head as one line of JSON, then the data."""
    return head.model_dump_json().encode() + b"\n" + data


def parse_chunk(kind: type[M], data: bytes) -> tuple[M, bytes]:
    """Parse a chunk with a head of one kind."""
    line, _, content = data.partition(b"\n")
    return parse(kind, line), content
