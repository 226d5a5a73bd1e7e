"""The end of a request in the bytes received so far. The selector needs it before a worker gets the request.

This module reads only the framing (RFC 9112, section 6). cheroot parses the request and refuses malformed ones. A body
must have a ``Content-Length``: all clients of these servers send one, and a chunked body has to be parsed to find its
end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER_LIMIT = 64 * 2**10
"""Maximum bytes of a request's first line and headers."""
_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\nContent-Length[ \t]*:([^\r\n]*)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\nTransfer-Encoding[ \t]*:", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nExpect[ \t]*:[ \t]*100-continue", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Frame:
    """The extent of a request."""

    head: int
    """Bytes before the body."""
    size: int
    """Bytes with the body; of a request that is refused by its headers, without it."""
    expects_continue: bool = False
    """Whether the client waits for "100 Continue" before it sends the body."""
    refusal: str | None = None
    """Status line of the answer to a request whose end is unknown; the connection is closed after it."""
    whole: bool = True
    """Whether the request ends at ``size``. If not, the client may send more bytes of it, which are not read."""


def frame(received: bytes | bytearray, body_limit: int, searched: int = 0) -> Frame | None:
    """Return the extent of the first request in ``received``, or None while its headers are incomplete.

    The first ``searched`` bytes contain no end of headers. A request that cheroot refuses by its headers alone (no
    CRLF, headers too long, a body above ``body_limit`` bytes) has the size of its headers.
    """
    begin = received.find(_END, max(0, searched - len(_END) + 1))
    if begin < 0:
        newline = received.find(b"\n")
        if len(received) > HEADER_LIMIT or newline == 0 or (newline > 0 and received[newline - 1 : newline] != b"\r"):
            return Frame(len(received), len(received), whole=False)
        return None
    head = begin + len(_END)
    fields = received[: begin + 2]
    lengths = {value.strip() for value in _LENGTH.findall(fields)}
    if _CHUNKED.search(fields):
        return Frame(head, head, refusal="411 Length Required", whole=False)
    if not lengths:
        return Frame(head, head)
    length = lengths.pop()
    # int() accepts "+1" and "1_0", RFC 9110 does not; 19 digits exceed any body
    if lengths or not length.isdigit() or len(length) > 19:
        return Frame(head, head, refusal="400 Bad Request", whole=False)
    if int(length) > body_limit:
        return Frame(head, head, whole=False)
    return Frame(head, head + int(length), expects_continue=_EXPECTS.search(fields) is not None)
