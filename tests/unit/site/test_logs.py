"""Logs as ``kubectl logs`` asks for them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SiteRefusedError
from bridge.protocol.model.sessions import STDOUT
from bridge.protocol.nats.messages import Logs
from bridge.protocol.nats.two_way import StreamClosedError
from bridge.site.jobs.job_record import JobRecord, Meta
from bridge.site.logs import log_files, log_reader
from bridge.site.logs.log_reader import LOOK_PERIOD, POLL, read_log
from tests.fakes.clock import FakeClock
from tests.unit.site.conftest import OWNER, UID


def record(**more: Any) -> JobRecord:
    return JobRecord(uid="u", meta=Meta("ns", "n", 1, 1, 0, "", None, (), "", 1, 1, 1), started=True, **more)


def job(tmp_path: Path, content: bytes, index: str = "") -> Path:
    for name in ("logs", "state"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "logs" / "main.log").write_bytes(content)
    if index:
        (tmp_path / "logs" / "main.index").write_text(index)
    return tmp_path


def read(path: Path, over: bool = True, wait: Any = None, told: JobRecord | None = None, **ask: Any) -> bytes:
    clock = FakeClock()

    def pause(seconds: float) -> bool:
        clock.advance(seconds)
        return bool(wait and wait())

    options = Logs(container=ask.pop("container", "main"), stream="x" * 8, **ask)
    return b"".join(read_log(path, options, told or record(), lambda: over, pause, clock))


LINES = b"".join(b"line %d\n" % number for number in range(1, 11))
INDEX = "14 100.0\n35 200.5\n71 300\n"
"""Two lines by 100, five by 200.5, all ten by 300."""


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        ({}, LINES),
        ({"tail": 0}, b""),
        ({"tail": 1}, b"line 10\n"),
        ({"tail": 3}, b"line 8\nline 9\nline 10\n"),
        ({"tail": 99}, LINES),
        ({"limit_bytes": 9}, LINES[:9]),  # the first, as kubelets give them: interlink.md 3.6
        ({"limit_bytes": 4, "tail": 1}, b"line"),
        ({"since": 50.0}, LINES),
        ({"since": 100.0}, LINES),
        ({"since": 150.0}, LINES[14:]),
        ({"since": 250.0}, LINES[35:]),
        ({"since": 250.0, "tail": 2}, b"line 9\nline 10\n"),
        ({"since": 301.0}, b""),
    ],
)
def test_options(tmp_path: Path, ask: dict[str, Any], expected: bytes) -> None:
    assert read(job(tmp_path, LINES, INDEX), **ask) == expected


@pytest.mark.parametrize("previous", [False, True])
@pytest.mark.parametrize("kept_apart", [0, 21], ids=["hole", "copy"])
@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        ({}, LINES[14:]),
        ({"tail": 1}, LINES[63:]),
        ({"tail": 8}, LINES[14:]),
        ({"tail": 9}, LINES[14:]),
        ({"limit_bytes": 9}, LINES[14:23]),
        ({"since": 50.0}, LINES[14:]),
        ({"since": 150.0}, LINES[14:]),
        ({"since": 250.0}, LINES[35:]),
        ({"since": 301.0}, b""),
        ({"timestamps": True, "tail": 6, "limit_bytes": 38}, b"1970-01-01T00:03:20.500000000Z line 5\n"),
    ],
)
def test_what_was_cut_off_is_in_no_answer(
    tmp_path: Path, ask: dict[str, Any], expected: bytes, kept_apart: int, previous: bool
) -> None:
    """Two lines are cut off; of the rest, three are in a file of their own where there are no holes."""
    base = 14 + kept_apart if kept_apart else 0
    content = LINES[base:] if kept_apart else b"\0" * 14 + LINES[14:]
    path = job(tmp_path, content, INDEX)
    (path / "logs" / "main.first").write_text(f"14 {base}\n")
    if kept_apart:
        (path / "logs" / "main.kept").write_bytes(LINES[14:base])
    if previous:
        for file in list((path / "logs").iterdir()):
            file.rename(file.with_name(file.name.replace("main.", "main.previous.")))
    assert read(path, previous=previous, **ask) == expected


@pytest.mark.parametrize("timestamps", [False, True])
def test_a_follower_who_is_overtaken_goes_on_with_the_first_line_that_is_kept(tmp_path: Path, timestamps: bool) -> None:
    path = job(tmp_path, b"one\ntw")
    log, times = path / "logs" / "main.log", 0

    def cut() -> bool:
        nonlocal times
        times += 1
        if times == 1:
            (path / "logs" / "main.first").write_text("10 0\n")
            log.write_bytes(b"\0" * 10 + b"three\nfour\n")
        return False

    lines = read(path, over=True, wait=cut, follow=True, timestamps=timestamps).splitlines()
    assert [line.rpartition(b" ")[2] for line in lines] == [b"one", b"tw", b"three", b"four"]


def test_timestamps_are_when_lines_were_written(tmp_path: Path) -> None:
    got = read(job(tmp_path, LINES, INDEX), timestamps=True).decode().splitlines()
    assert got[0] == "1970-01-01T00:01:40.000000000Z line 1"
    assert got[4] == "1970-01-01T00:03:20.500000000Z line 5"
    assert got[9] == "1970-01-01T00:05:00.000000000Z line 10"


def test_a_last_line_without_an_end_counts(tmp_path: Path) -> None:
    path = job(tmp_path, b"a\nb\nc")
    assert read(path, tail=2) == b"b\nc"
    assert read(path, tail=1, timestamps=True).endswith(b"Z c")


def test_9_1_bytes_that_are_no_text_pass_unchanged(tmp_path: Path) -> None:
    content = bytes(range(256)) * 1000
    assert read(job(tmp_path, content)) == content


def test_a_line_in_progress_at_since_is_shown_whole(tmp_path: Path) -> None:
    assert read(job(tmp_path, LINES, "10 100\n70 200\n"), since=150.0) == LINES[7:]


def test_previous_is_the_run_before(tmp_path: Path) -> None:
    path = job(tmp_path, b"now")
    (path / "logs" / "main.previous.log").write_bytes(b"before")
    assert read(path, previous=True) == b"before"


RUN = {"exitCode": 1}
OTHER = {"exitCode": 2}


@pytest.mark.parametrize(
    ("state", "log", "previous"),
    [
        # as a kubelet: the run that runs, else the last one that ran; with previous, the last one that has ended
        ({"state": "running", "ended": None, "last": RUN}, b"now", b"before"),
        ({"state": "waiting", "reason": "CrashLoopBackOff", "ended": RUN, "last": RUN}, b"now", b"now"),
        ({"state": "waiting", "reason": "ContainerCreating", "ended": None, "last": RUN}, b"before", b"before"),
        ({"state": "waiting", "reason": "ContainerCreating", "ended": None, "last": None}, b"now", b"before"),
        ({"state": "terminated", "ended": RUN, "last": OTHER}, b"now", b"before"),
        ({"state": "terminated", "ended": RUN, "last": RUN}, b"now", b"now"),  # it was deleted while it waited
    ],
)
@pytest.mark.parametrize("follow", [False, True])
def test_which_run_is_sent_is_what_a_kubelet_sends(
    tmp_path: Path, state: dict[str, Any], log: bytes, previous: bytes, follow: bool
) -> None:
    path = job(tmp_path, b"now")
    (path / "logs" / "main.previous.log").write_bytes(b"before")
    (path / "state" / "main.json").write_text(json.dumps(state))
    assert read(path, follow=follow) == log
    assert read(path, previous=True, follow=follow) == previous
    if state["state"] != "running":
        # a run that has ended is not waited for
        assert read(path, previous=True, follow=True, over=False, wait=lambda: pytest.fail("waits")) == previous


@pytest.mark.parametrize(
    ("ask", "over", "known", "reason"),
    [
        ({"container": "../job"}, True, (), "ContainerNotFound"),
        ({"container": "other"}, False, (("main", {}),), "ContainerNotFound"),
        ({"container": "main2"}, False, (("main2", {}),), "ContainerWaiting"),
        ({"previous": True}, False, (), "NotFound"),
    ],
)
def test_what_there_is_no_log_of(tmp_path: Path, ask: Any, over: bool, known: Any, reason: str) -> None:
    with pytest.raises(SiteRefusedError) as refused:
        read(job(tmp_path, b""), over, told=record(containers=known), **ask)
    assert refused.value.reason == reason


def test_a_container_that_never_ran_has_an_empty_log(tmp_path: Path) -> None:
    assert read(tmp_path, over=True) == b""


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    path = job(tmp_path, b"")
    (path / "secret").write_text("secret")
    (path / "logs" / "main.log").unlink()
    (path / "logs" / "main.log").symlink_to(path / "secret")
    assert read(path) == b""


def test_a_log_is_followed_until_its_container_ends(tmp_path: Path) -> None:
    path = job(tmp_path, b"1\n")
    steps = iter([b"2\n", b"", b"3\n", None])

    def more() -> bool:
        step = next(steps, b"")
        if step is None:
            (path / "state" / "main.json").write_text('{"state":"terminated"}')
            step = b"4\n"
        with (path / "logs" / "main.log").open("ab") as file:
            file.write(step)
        return False

    assert read(path, over=False, wait=more, follow=True) == b"1\n2\n3\n4\n"


def test_a_log_without_new_lines_costs_a_look_at_its_container_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(log_reader, "_has_ended", looks.append)
    polls = round(10 * LOOK_PERIOD / POLL)
    waits = iter([False] * polls)
    assert read(job(tmp_path, b"1\n"), over=False, wait=lambda: next(waits, True), follow=True) == b"1\n"
    assert 5 < len(looks) <= 11  # one at the beginning


def test_a_followed_log_ends_with_its_run_when_the_container_starts_again(tmp_path: Path) -> None:
    path = job(tmp_path, b"first\n")

    def restart() -> bool:
        log = path / "logs" / "main.log"
        if log.read_bytes() == b"first\n":
            log.rename(path / "logs" / "main.previous.log")
            log.write_bytes(b"second\n")
        return False

    assert read(path, over=False, wait=restart, follow=True) == b"first\n"


def test_a_followed_log_ends_with_the_submitter(tmp_path: Path) -> None:
    assert read(job(tmp_path, b"x\n"), over=False, wait=lambda: True, follow=True) == b"x\n"


def test_a_followed_log_ends_when_the_job_is_lost(tmp_path: Path) -> None:
    path = job(tmp_path, b"x\n")
    (path / "state" / "main.json").write_text('{"state":"running"}')
    assert read(path, over=True, follow=True) == b"x\n"


def test_lines_followed_with_timestamps_are_whole(tmp_path: Path) -> None:
    path = job(tmp_path, b"be")
    steps = iter([b"gun\nen", b"d\n"])

    def more() -> bool:
        with (path / "logs" / "main.log").open("ab") as file:
            file.write(next(steps, b""))
        return False

    lines = read(path, over=True, wait=more, follow=True, timestamps=True).splitlines()
    assert [line.split(b" ", 1)[1] for line in lines] == [b"begun", b"end"]


@given(st.binary(max_size=400), st.integers(0, 12))
def test_tail_gives_what_python_would(tmp_path_factory: Any, content: bytes, tail: int) -> None:
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    kept = [line + b"\n" for line in lines]
    if not content.endswith(b"\n") and kept:
        kept[-1] = kept[-1][:-1]
    expected = b"".join(kept[-tail:]) if tail else b""
    assert read(job(tmp_path_factory.mktemp("log"), content), tail=tail) == expected


def test_a_long_log_has_a_quick_end(tmp_path: Path) -> None:
    line = b"x" * 99 + b"\n"
    path = job(tmp_path, line * 200_000)
    assert read(path, tail=3) == line * 3
    assert len(read(path, tail=1500)) == 150_000


@pytest.mark.parametrize("options", [{"tail": 1}, {"since": 200.0}])
def test_the_start_of_a_line_is_not_searched_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """A container can make its log a file of eight exabytes without a line, which takes no space."""
    monkeypatch.setattr(log_reader, "MOST_SEARCHED", 2**18)
    path = job(tmp_path, b"", index=f"{2**20} 100\n")
    os.truncate(path / "logs" / "main.log", 2**20)
    assert len(read(path, **options)) == 2**18


@pytest.mark.parametrize("moment", ["nan", "inf", "-inf", "1e300", "-1e300"])
def test_a_time_of_a_line_that_is_none_does_not_count(tmp_path: Path, moment: str) -> None:
    path = job(tmp_path, b"a\n", index=f"2 {moment}\n2 100\n")
    assert read(path, timestamps=True).startswith(b"1970-01-01T00:01:40")


def test_no_more_of_an_index_is_read_than_a_script_writes(tmp_path: Path) -> None:
    """A container can make it a file of any length."""
    path = job(tmp_path, b"a\n", index="2 100\n") / "logs" / "main.index"
    os.truncate(path, log_files.LARGEST_INDEX * 16)
    index = log_files.Index(path)
    tracemalloc.start()
    index.grow()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert index.time_of(2) == 100
    assert most < log_files.LARGEST_INDEX * 8


def test_what_the_submitter_writes(world: Any) -> None:
    world.submit()
    world.begin()
    world.write("logs/main.log", b"hello")
    world.finish()
    stream = LogStream()
    world.submitter.logs(OWNER, UID, Logs(container="main", stream="x" * 8, follow=True))(stream)
    assert stream.sent == [(STDOUT, b"hello", False), (STDOUT, b"", True)]


@pytest.mark.parametrize("is_over", [False, True], ids=["while a piece is sent", "while the log does not grow"])
def test_a_reader_that_is_gone_ends_the_reading(world: Any, is_over: bool) -> None:
    world.submit()
    world.begin()
    world.write("logs/main.log", b"" if is_over else b"hello")
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    run, stream = world.submitter.logs(OWNER, UID, Logs(container="main", stream="x" * 8, follow=True)), LogStream()
    stream.is_over = True
    with contextlib.nullcontext() if is_over else pytest.raises(StreamClosedError):
        run(stream)
    assert stream.sent == []
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


class LogStream:
    """The site's end of a stream, which records what is sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, bool]] = []
        self.is_over = False

    def send(self, channel: int, data: bytes = b"", *, end: bool = False) -> None:
        if self.is_over:
            raise StreamClosedError
        self.sent.append((channel, data, end))


@pytest.mark.parametrize("timestamps", [False, True])
@pytest.mark.parametrize("pieces", [0, 1])
def test_a_log_that_is_closed_has_no_open_file(tmp_path: Path, pieces: int, timestamps: bool) -> None:
    path, options = job(tmp_path, LINES, INDEX), Logs(container="main", stream="x" * 8, timestamps=timestamps)
    (path / "logs" / "main.kept").write_bytes(b"")
    before = os.listdir("/proc/self/fd")
    log = read_log(path, options, record(), lambda: False, lambda _: False, FakeClock())
    for _ in range(pieces):
        next(log)
    assert len(os.listdir("/proc/self/fd")) == len(before) + 2
    log.close()
    assert len(os.listdir("/proc/self/fd")) == len(before)
