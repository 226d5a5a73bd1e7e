from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.serving.framing import HEADER_LIMIT, Frame, frame

HEAD = b"POST /validate HTTP/1.1\r\nHost: x\r\ncontent-length:  5 \r\nA: Content-Length: 9\r\n\r\n"


@given(st.lists(st.integers(1, len(HEAD) - 1)), st.binary(max_size=20))
def test_the_end_is_found_however_the_bytes_come(cuts: list[int], body: bytes) -> None:
    searched = 0
    for cut in sorted(cuts):
        assert frame(HEAD[:cut], 100, searched) is None
        searched = cut
    assert frame(HEAD + body, 100, searched) == Frame(len(HEAD), len(HEAD) + 5)


@given(st.binary(max_size=300))
def test_no_bytes_break_it(text: bytes) -> None:
    for received in (text, b"GET / HTTP/1.1\r\n" + text, b"GET / HTTP/1.1\r\nContent-Length:" + text + b"\r\n\r\n"):
        found = frame(received, 100)
        assert found is None or 0 < found.head <= found.size <= len(received) + 100


@pytest.mark.parametrize(
    ("fields", "size", "refusal"),
    [
        (b"", 0, None),
        (b"Content-Length: 7\r\n", 7, None),
        (b"Content-Length: 7\r\nContent-Length: 7\r\n", 7, None),
        (b"Content-Length: 7\r\nContent-Length: 8\r\n", 0, "400 Bad Request"),
        (b"Content-Length: 7, 7\r\n", 0, "400 Bad Request"),
        (b"Content-Length:\r\n", 0, "400 Bad Request"),
        (b"Content-Length: 1_0\r\n", 0, "400 Bad Request"),
        (b"Content-Length: " + b"9" * 5000 + b"\r\n", 0, "400 Bad Request"),
        (b"Content-Length: 101\r\n", 0, None),  # cheroot answers 413
        (b"Content-Length: 7\r\nTransfer-Encoding: chunked\r\n", 0, "411 Length Required"),
    ],
)
def test_the_length_of_a_body(fields: bytes, size: int, refusal: str | None) -> None:
    text = b"POST / HTTP/1.1\r\n" + fields + b"\r\n"
    whole = size > 0 or not fields
    assert frame(text, 100) == Frame(len(text), len(text) + size, refusal=refusal, whole=whole)


def test_headers_that_are_too_long_are_left_to_the_parser() -> None:
    text = b"GET / HTTP/1.1\r\nX: "
    assert frame(text + b"x" * (HEADER_LIMIT - len(text)), 100) is None
    text += b"x" * HEADER_LIMIT
    assert frame(text, 100) == Frame(len(text), len(text), whole=False)
