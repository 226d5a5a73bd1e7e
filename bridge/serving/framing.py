"""Where a request ends: found in the bytes that have come so far, before a thread is given to it.

Only the framing is read here (RFC 9112, section 6); cheroot parses the request, and refuses what is malformed. A body
must have a ``Content-Length``: all clients of these servers send one, and the end of a chunked body is found only by
parsing it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

HEADER_LIMIT = 64 * 2**10
"""Bytes of a request's first line and headers."""
_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\nContent-Length[ \t]*:([^\r\n]*)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\nTransfer-Encoding[ \t]*:", re.IGNORECASE)
_EXPECTS = re.compile(rb"\r\nExpect[ \t]*:[ \t]*100-continue", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Frame:
    """The extent of a request; ``size`` is its bytes with the body, ``head`` those before the body.

    ``refusal`` is the status line of the answer to a request whose end is not known; nothing after it can be read.
    """

    head: int
    size: int
    expects_continue: bool = False
    refusal: str | None = None


def frame(received: bytes | bytearray, body_limit: int, searched: int = 0) -> Frame | None:
    """Return the extent of the first request in ``received``, or None while its headers are incomplete.

    The first ``searched`` bytes are known to hold no end of headers. A request that cheroot refuses by its headers
    alone (no CRLF, headers too long, a body above ``body_limit`` bytes) ends where its headers end.
    """
    begin = received.find(_END, max(0, searched - len(_END) + 1))
    if begin < 0:
        newline = received.find(b"\n")
        if len(received) > HEADER_LIMIT or newline == 0 or (newline > 0 and received[newline - 1 : newline] != b"\r"):
            return Frame(len(received), len(received))
        return None
    head = begin + len(_END)
    fields = received[: begin + 2]
    lengths = {value.strip() for value in _LENGTH.findall(fields)}
    if _CHUNKED.search(fields):
        return Frame(head, head, refusal="411 Length Required")
    if not lengths:
        return Frame(head, head)
    length = lengths.pop()
    # "+1" and "1_0" are numbers to Python, but not to RFC 9110; 19 digits are more than any file has
    if lengths or not length.isdigit() or len(length) > 19:
        return Frame(head, head, refusal="400 Bad Request")
    if int(length) > body_limit:
        return Frame(head, head)
    return Frame(head, head + int(length), expects_continue=_EXPECTS.search(fields) is not None)
