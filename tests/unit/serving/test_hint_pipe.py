"""The pipe that receives hints: what it accepts, who may write, and that no writer ever waits."""

from __future__ import annotations

import os
import subprocess
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from bridge.errors import BridgeError
from bridge.serving.hints import LONGEST_LINE, HintPipe, read_lines, remove_stale_pipes
from cluster.polling import eventually

PAGE = Path(__file__).parents[3] / "docs/admins/slurm-hints.md"


def script(directory: Path) -> str:
    """The script of the documentation."""
    blocks = [textwrap.dedent(block.split("```")[0]) for block in PAGE.read_text().split("```bash\n")[1:]]
    [text] = [block for block in blocks if block.startswith("#!/bin/sh\nfor pipe")]
    assert "/run/podbridge/" in text
    return text.replace("/run/podbridge/", f"{directory}/")


def run_script(directory: Path, job: str = "17") -> tuple[int, float]:
    began = time.monotonic()
    done = subprocess.run(["sh", "-c", script(directory)], timeout=30, env={**os.environ, "SLURM_JOB_ID": job})
    return done.returncode, time.monotonic() - began


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hints-") as folder:
        yield Path(folder)


@pytest.fixture
def start() -> Iterator[Callable[[Path], list[int | None]]]:
    """Start a reader of a pipe; return the jobs of the hints."""
    stop, threads = threading.Event(), []

    def start(path: Path) -> list[int | None]:
        jobs: list[int | None] = []
        pipe = HintPipe(path, lambda job: bool(jobs.append(job)) or job != 99)
        pipe.start()
        threads.append(threading.Thread(target=pipe.run, args=(stop,)))
        threads[-1].start()
        return jobs

    yield start
    stop.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def counted(result: str) -> float:
    return REGISTRY.get_sample_value("podbridge_slurm_hints_total", {"result": result}) or 0.0


def test_the_script_of_the_documentation_sends_a_hint_to_each_process(
    directory: Path, start: Callable[[Path], list[int | None]]
) -> None:
    first, second = start(directory / "podbridge-a.pipe"), start(directory / "podbridge-b.pipe")
    (directory / "podbridge-old.sock").touch()
    assert run_script(directory)[0] == 0
    assert run_script(directory, "")[0] == 0
    eventually(lambda: first == second == [17, None])


def test_a_pipe_has_a_reader_before_writers_find_it(
    directory: Path, start: Callable[[Path], list[int | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path] = []

    def mkfifo(path: Path, mode: int, make: Callable[..., None] = os.mkfifo) -> None:
        make(path, mode)
        found.extend(directory.glob("*.pipe"))

    monkeypatch.setattr(os, "mkfifo", mkfifo)
    jobs = start(directory / "podbridge-a.pipe")
    assert (found, list(directory.iterdir())) == ([], [directory / "podbridge-a.pipe"])
    assert run_script(directory)[0] == 0
    eventually(lambda: jobs == [17])


def test_hints_are_counted_by_result(directory: Path, start: Callable[[Path], list[int | None]]) -> None:
    before = {result: counted(result) for result in ("accepted", "standby", "invalid")}
    jobs = start(directory / "p")
    (directory / "p").write_bytes(b"1\n99\nJobId=3\n\n2\n")
    eventually(lambda: jobs == [1, 99, None, 2])
    eventually(lambda: counted("invalid") == before["invalid"] + 1)
    assert (counted("accepted"), counted("standby")) == (before["accepted"] + 3, before["standby"] + 1)


def test_the_script_never_waits(directory: Path) -> None:
    assert run_script(directory)[0] == 0, "no pipe"
    assert sorted(directory.iterdir()) == []
    os.mkfifo(directory / "podbridge-killed.pipe")
    hanging = HintPipe(directory / "podbridge-hanging.pipe", lambda _: True)
    hanging.start()  # it never reads
    writer = os.open(directory / "podbridge-hanging.pipe", os.O_WRONLY | os.O_NONBLOCK)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"1\n" * 1000)
    os.close(writer)
    status, seconds = run_script(directory)
    assert status == 0
    assert seconds < 10, "a writer that waits for the reader waits for ever"
    os.close(hanging._file)


def test_the_script_writes_into_no_other_file(directory: Path, start: Callable[[Path], list[int | None]]) -> None:
    precious = directory / "job_state"
    precious.write_text("state")
    (directory / "podbridge-link.pipe").symlink_to(precious)
    jobs = start(directory / "podbridge-real.pipe")
    assert run_script(directory)[0] == 0
    eventually(lambda: jobs == [17])
    assert precious.read_text() == "state"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_group_may_write_and_nobody_else(directory: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        pipe = HintPipe(directory / "p", lambda _: True)
        pipe.start()
    finally:
        os.umask(before)
    assert (directory / "p").stat().st_mode & 0o777 == 0o620
    os.close(pipe._file)


def test_a_file_in_its_place_is_an_error(directory: Path) -> None:
    (directory / "p").touch()
    with pytest.raises(BridgeError, match="File exists"):
        HintPipe(directory / "p", lambda _: True).start()
    with pytest.raises(BridgeError, match="No such file"):
        HintPipe(directory / "absent" / "p", lambda _: True).start()


def test_the_pipe_is_removed_at_the_end(directory: Path) -> None:
    stop = threading.Event()
    pipe = HintPipe(directory / "p", lambda _: True)
    pipe.start()
    stop.set()
    pipe.run(stop)
    assert not (directory / "p").exists()


def test_only_pipes_of_ended_processes_are_removed(directory: Path) -> None:
    alive, dead, young = (directory / f"podbridge-{name}.pipe" for name in ("alive", "dead", "young"))
    other, plain = directory / "other.pipe", directory / "podbridge-plain.pipe"
    unfinished = directory / "podbridge-killed.pipe.new"
    for path in (alive, dead, young, other, unfinished):
        os.mkfifo(path)
    reader = os.open(alive, os.O_RDWR | os.O_NONBLOCK)
    plain.touch()
    for path in (alive, dead, other, plain, unfinished):
        os.utime(path, (0, 0))
    remove_stale_pipes(directory, "podbridge-")
    os.close(reader)
    assert sorted(directory.iterdir()) == sorted([alive, young, other, plain])


@given(st.lists(st.one_of(st.none(), st.integers(0, 9_999_999_999))), st.lists(st.integers(1, 8)))
def test_lines_are_read_whatever_their_pieces(jobs: list[int | None], sizes: list[int]) -> None:
    data = "".join("\n" if job is None else f"{job}\n" for job in jobs).encode()
    found: list[int | None] = []
    rest, at = b"", 0
    for size in [*sizes, len(data)]:
        read, invalid, rest = read_lines(rest + data[at : at + size])
        found += read
        at += size
        assert not invalid
    assert (found, rest) == (jobs, b"")


@given(st.binary(max_size=4 * LONGEST_LINE))
def test_any_bytes_are_hints_or_counted(data: bytes) -> None:
    jobs, invalid, rest = read_lines(data)
    assert len(jobs) + invalid == data.count(b"\n")
    assert all(job is None or 0 <= job < 10**10 for job in jobs)
    assert len(rest) <= LONGEST_LINE
    assert b"\n" not in rest
