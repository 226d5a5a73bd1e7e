from __future__ import annotations

import itertools
import struct
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.serving import spdy
from bridge.serving.spdy import Data, Decoder, Encoder, Frame, GoAway, Open, Ping, Reset, SpdyError
from tests.fakes.spdy_client import GOAWAY, PING, RST_STREAM, SYN_REPLY, SYN_STREAM, Headers, control, data

SETTINGS, HEADERS, WINDOW_UPDATE = 4, 8, 9


def test_the_dictionary_is_the_protocols() -> None:
    # moby/spdystream, spdy/dictionary.go: 1423 bytes with this checksum, which is also in the text of each first block
    assert (len(spdy.DICTIONARY), zlib.adler32(spdy.DICTIONARY)) == (1423, 0xE3C6A7C2)


def test_a_block_of_spdystream_is_read() -> None:
    """SYN_STREAM of spdystream 0.5.1 with {"streamType": "error"}."""
    frame = "80030001000000290000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a0a0a6800000000ffff"
    assert Decoder().decode(bytes.fromhex(frame)) == [Open(1, {"streamtype": "error"})]


# --- what a client sends ----------------------------------------------------------------------------------------------
def joined(frames: list[Frame]) -> list[Any]:
    """Join the pieces of each data frame, whose number depends on how the bytes arrived."""
    result: list[Any] = []
    for frame in frames:
        last = result[-1] if result else None
        if isinstance(frame, Data) and isinstance(last, Data) and last.stream == frame.stream and not last.end:
            result[-1] = Data(frame.stream, last.data + frame.data, frame.end)
        else:
            result.append(frame)
    return result


@st.composite
def conversations(draw: st.DrawFn) -> tuple[bytes, list[Any]]:
    """What a client of up to five streams sends, and the frames that it means."""
    headers = Headers()
    sent, meant = b"", []
    names = st.text("abcdefghij-", min_size=1, max_size=12)
    number, alive = 1, set()
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from(["open", "data", "reset", "ping", "ignored"]))
        if kind == "open" and number < 10:
            given_headers = draw(st.dictionaries(names, st.text(max_size=20), max_size=4))
            sent += headers.open(number, given_headers)
            meant.append(
                Open(number, {name: value.encode().decode("latin-1") for name, value in given_headers.items()})
            )
            alive.add(number)
            number += 2
        elif kind == "data" and alive:
            stream = draw(st.sampled_from(sorted(alive)))
            content, end = draw(st.binary(max_size=300)), draw(st.booleans())
            sent += data(stream, content, end=end)
            if content or end:
                meant.append(Data(stream, content, end))
            if end:
                alive.discard(stream)
        elif kind == "reset" and alive:
            stream = draw(st.sampled_from(sorted(alive)))
            alive.discard(stream)
            sent += control(RST_STREAM, struct.pack(">II", stream, 5)) + data(stream, b"late")
            meant.append(Reset(stream))
        elif kind == "ping":
            sent += control(PING, struct.pack(">I", 7)) + control(PING, struct.pack(">I", 8))
            meant.append(Ping(7))
        elif kind == "ignored":
            sent += control(SETTINGS, bytes(12)) + control(WINDOW_UPDATE, bytes(8))
            sent += control(HEADERS, struct.pack(">I", 1) + headers.block({"more": "text"}))
    return sent + control(GOAWAY, bytes(8)), [*joined(meant), GoAway()]


def decoded(sent: bytes, cuts: list[int]) -> list[Frame]:
    decoder, frames = Decoder(), []
    bounds = sorted({0, len(sent), *(cut % (len(sent) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(bounds):
        frames += decoder.decode(sent[begin:end])
    return frames


@given(conversations(), st.lists(st.integers(0, 10_000), max_size=20))
def test_the_frames_do_not_depend_on_how_the_bytes_arrive(
    conversation: tuple[bytes, list[Any]], cuts: list[int]
) -> None:
    sent, meant = conversation
    assert joined(decoded(sent, cuts)) == meant


@given(conversations(), st.data())
def test_changed_bytes_are_an_error_of_the_protocol_or_other_frames(
    conversation: tuple[bytes, list[Any]], choose: st.DataObject
) -> None:
    sent = bytearray(conversation[0])
    for _ in range(choose.draw(st.integers(1, 5))):
        sent[choose.draw(st.integers(0, len(sent) - 1))] = choose.draw(st.integers(0, 255))
    survives(bytes(sent))


@given(st.binary(max_size=2000))
@example(b"\x80\x03\x00\x01" + bytes(12))
def test_any_bytes_are_an_error_of_the_protocol_or_frames(received: bytes) -> None:
    survives(received)


def survives(received: bytes) -> None:
    decoder = Decoder()
    try:
        for position in range(0, len(received), 7):
            decoder.decode(received[position : position + 7])
            assert len(decoder._received) <= spdy.HEADERS_LIMIT + 16
            assert len(decoder._open) <= spdy.STREAMS
    except SpdyError:
        pass


@given(st.binary(max_size=200), st.binary(max_size=100))
def test_any_header_text_is_an_error_of_the_protocol_or_headers(text: bytes, compressed: bytes) -> None:
    for block in (Headers().compress(text), compressed):
        survives(control(SYN_STREAM, struct.pack(">IIH", 1, 0, 0) + block))


# --- limits -----------------------------------------------------------------------------------------------------------
def refused(sent: bytes) -> str:
    with pytest.raises(SpdyError) as error:
        Decoder().decode(sent)
    return str(error.value)


def test_a_header_block_that_explodes_is_refused_before_it_is_large() -> None:
    bomb = Headers().compress(bytes(10_000_000))
    assert len(bomb) < spdy.HEADERS_LIMIT
    assert "header block of more than 16384" in refused(control(SYN_STREAM, struct.pack(">IIH", 1, 0, 0) + bomb))


def test_a_header_block_at_the_limit_is_read() -> None:
    value = "x" * (spdy.HEADERS_LIMIT - 13)
    assert Decoder().decode(Headers().open(1, {"a": value})) == [Open(1, {"a": value})]
    assert "more than" in refused(Headers().open(1, {"a": value + "x"}))


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (control(SETTINGS, bytes(2**15)), "control frame of 32768"),
        (control(SYN_REPLY, bytes(8)), "type 2"),
        (control(5, bytes(8)), "type 5"),
        (control(PING, b""), "without an id"),
        (struct.pack(">HHI", 0x8002, 6, 4) + bytes(4), "another version"),
        (data(1, b""), "stream 1, which is not open"),
        (data(0, b"x"), "stream 0, which is not open"),
        (Headers().open(2, {}), "odd and increase"),
        (Headers().open(0, {}), "odd and increase"),
        (control(SYN_STREAM, bytes(4)), "ends early"),
        (control(SYN_STREAM, struct.pack(">IIH", 1, 0, 0) + Headers().compress(bytes(5))), "after its end"),
        (control(SYN_STREAM, struct.pack(">IIH", 1, 0, 0) + b"no zlib"), "cannot be decompressed"),
    ],
)
def test_what_violates_the_protocol_is_refused_with_a_reason(sent: bytes, words: str) -> None:
    assert words in refused(sent)


def test_numbers_of_streams_increase_and_their_number_is_limited() -> None:
    headers, decoder = Headers(), Decoder()
    for stream in range(1, 2 * spdy.STREAMS, 2):
        decoder.decode(headers.open(stream, {}))
    decoder.decode(data(1, b"", end=True))
    decoder.decode(headers.open(101, {}))
    with pytest.raises(SpdyError, match="more than 16 streams"):
        decoder.decode(headers.open(103, {}))
    headers, decoder = Headers(), Decoder()
    decoder.decode(headers.open(5, {}))
    with pytest.raises(SpdyError, match="stream 3 after stream 5"):
        decoder.decode(headers.open(3, {}))


def test_a_large_data_frame_is_passed_on_as_it_arrives() -> None:
    decoder = Decoder()
    decoder.decode(Headers().open(1, {}))
    frame = data(1, bytes(2**24 - 1), end=True)
    assert decoder.decode(frame[:1000]) == [Data(1, bytes(992))]
    assert decoder.decode(frame[1000:1010]) == [Data(1, bytes(10))]
    assert len(decoder._received) == 0
    assert decoder.decode(frame[1010:]) == [Data(1, bytes(2**24 - 1 - 1002), end=True)]


def test_a_stream_that_is_opened_and_ended_in_one() -> None:
    assert Decoder().decode(Headers().open(1, {}, end=True)) == [Open(1, {}), Data(1, b"", end=True)]


# --- what the server sends --------------------------------------------------------------------------------------------
def test_frames_of_the_server() -> None:
    encoder, inflate = Encoder(), zlib.decompressobj(zdict=spdy.DICTIONARY)
    for stream in (1, 3):
        reply = encoder.reply(stream)
        assert reply[:4] == b"\x80\x03\x00\x02"
        assert int.from_bytes(reply[4:8], "big") == len(reply) - 8
        assert int.from_bytes(reply[8:12], "big") == stream
        assert inflate.decompress(reply[12:]) == bytes(4)
    assert encoder.data(3, b"xy", end=True) == b"\0\0\0\3\1\0\0\2xy"
    assert encoder.data(3, b"xy") == b"\0\0\0\3\0\0\0\2xy"
    assert encoder.reset(5, spdy.REFUSED_STREAM) == control(RST_STREAM, struct.pack(">II", 5, 3))
    assert encoder.ping(9) == control(PING, struct.pack(">I", 9))
    assert encoder.go_away(spdy.OK) == control(GOAWAY, bytes(8))
