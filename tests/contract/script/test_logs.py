"""Logs that are longer than they may be: cut while the container writes and somebody reads, on real file systems."""

import contextlib
import hashlib
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from bridge.clock import SystemClock
from bridge.protocol.nats.messages import Logs
from bridge.site.jobs.job_record import JobRecord, Meta
from bridge.site.logs.log_reader import read_log
from tests.contract.site.images import made, mounted

pytestmark = pytest.mark.real

MIB = 2**20
FIRST = 10_000_000
TURN = 450_000
"""Bytes of 50,000 lines."""
RECORD = JobRecord(uid="u", meta=Meta("ns", "n", 1, 1, 0, "", None, (), "", 1, 1, 1), started=True)
LIMIT = 240
"""Seconds until the last turn must have begun: the figures then tell what the program waits for."""
SMALL = {"PODBRIDGE_LOG_MAX_SIZE": str(MIB), "PODBRIDGE_LOG_MAX_FILES": "3"}
"""3 MiB at most, 2 MiB at least; without holes 1.5 MiB at least."""


def counting(turns, lines, between="sleep 0.1"):
    """A program that counts from FIRST, one number a line of nine bytes, so many in each turn."""
    return (
        f"n={FIRST}; for i in $$(seq {turns}); do seq $$n $$((n + {lines - 1})); n=$$((n + {lines})); {between}; done"
    )


def read(job, **ask):
    return b"".join(read_pieces(job, **ask))


def read_pieces(job, **ask):
    def over():
        return job.process.poll() is not None

    def wait(seconds):
        time.sleep(seconds)
        return False

    options = Logs(container="main", stream="x" * 8, **ask)
    with contextlib.closing(read_log(job.folder, options, RECORD, over, wait, SystemClock())) as pieces:
        yield from pieces


class Follower(threading.Thread):
    """Follows the log of a job until it ends."""

    def __init__(self, job):
        super().__init__(daemon=True)
        self.job, self.text, self.size = job, b"", 0
        job.eventually(lambda: (job.folder / "logs" / "main.log").exists())
        self.start()

    def run(self):
        pieces = []
        for piece in read_pieces(self.job, follow=True):
            pieces.append(piece)
            self.size += len(piece)
        self.text = b"".join(pieces)


def used(job):
    """Bytes that the logs of a job take on disk."""
    size = 0
    for path in (job.folder / "logs").iterdir():
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_blocks * 512
    return size


def data(job):
    """Bytes in the logs of a job, without holes and without the room that XFS keeps behind the end of a file."""
    size = 0
    for path in (job.folder / "logs").iterdir():
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            begin = end = 0
            with contextlib.suppress(OSError):  # no data behind the offset
                while True:
                    begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
                    end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
                    size += end - begin
    return size


def peak_until_the_end(job):
    most = 0
    while job.process.poll() is None:
        most = max(most, used(job))
        time.sleep(0.01)
    return most


class Turns:
    """Lets a counting program begin its next turn when no cut is due and, with holes, its follower has read everything.

    Without this, a machine with other load decides how long the log grows between two cuts, and how much a cut loses.
    """

    def __init__(self, folder, by_hole):
        self.folder, self.by_hole, self.turn = folder, by_hole, 1
        self.wait = f"touch {folder}/$$i.over; while [ ! -e {folder}/$$i.go ]; do sleep 0.05; done"

    def peak_until_the_end(self, job, follower):
        log, most, begun = job.folder / "logs" / "main.log", 0, time.monotonic()
        while job.process.poll() is None:
            now = data(job) if self.by_hole else used(job)
            most = max(most, now)
            if self.by_hole:
                calm = now <= 3 * MIB + 64 * 1024 and follower.size >= TURN * self.turn
            else:
                calm = log.stat().st_size <= 1.5 * MIB  # a cut can lose lines: no size to wait for
            if calm and (self.folder / f"{self.turn}.over").exists():
                (self.folder / f"{self.turn}.go").touch()
                self.turn += 1
            state = f"turn {self.turn}: {now} bytes, {log.stat().st_size} long, {follower.size} followed"
            assert time.monotonic() - begun < LIMIT, state
            time.sleep(0.01)
        return most


@pytest.fixture(params=["here", "xfs", "btrfs", "ramfs"])
def file_system(request, tmp_path, monkeypatch):
    """Jobs are on a file system that has holes, or on one (ramfs) that has none."""
    if request.param == "here":
        yield request.param
        return
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="script-disk-")))
        if request.param == "ramfs":
            if subprocess.run(["mount", "-t", "ramfs", "none", place], check=False).returncode:
                pytest.skip("only root can mount a ramfs")
            stack.callback(subprocess.run, ["umount", place], check=True)
        else:
            stack.enter_context(mounted(made(request.param, tmp_path), place))
        place.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        site = request.getfixturevalue("ordinary")
        yield request.param
        site.close()


def test_a_log_is_bounded_while_it_is_written_and_followed(file_system, ordinary):
    lines = 20 * 50_000
    by_hole = file_system != "ramfs"
    turns = Turns(ordinary.home_for_host_path(), by_hole)
    program = counting(20, 50_000, turns.wait) + "; exit 3"
    job = ordinary.job(
        {"containers": [ordinary.shell(program, terminationMessagePolicy="FallbackToLogsOnError")]}, environment=SMALL
    ).start()
    follower = Follower(job)
    peak = turns.peak_until_the_end(job, follower)
    follower.join(10)
    assert peak < (5 if by_hole else 7) * MIB, "of 8.6 MiB"
    assert data(job) <= 3 * MIB + 64 * 1024
    # XFS keeps room behind the end of a file for some minutes: a power of two, at most twice the data (measured)
    assert used(job) <= (3 + (4 if file_system == "xfs" else 0)) * MIB + 64 * 1024
    kept = read(job)
    assert (2 * MIB if by_hole else MIB) <= len(kept) <= 3 * MIB + 64 * 1024
    numbers = [int(line) for line in kept.splitlines()]
    assert numbers[-1] == FIRST + lines - 1
    followed = [int(line) for line in follower.text.splitlines()]
    if by_hole:
        assert numbers == list(range(numbers[0], FIRST + lines))
        assert followed == list(range(FIRST, FIRST + lines)), "a follower that keeps up misses nothing"
    else:
        assert "no holes" in (job.folder / "script.log").read_text()
        assert len(followed) > lines * 0.95 and followed[-1] == FIRST + lines - 1
    last = b"".join(b"%d\n" % number for number in range(FIRST + lines - 80, FIRST + lines))
    assert job.message().encode() == last
    assert read(job, tail=80) == last
    assert read(job, tail=10**7) == kept
    assert read(job, limit_bytes=16) == kept[:16]
    assert read(job, since=time.time() - 3600) == kept
    assert read(job, since=time.time() + 60) == b""
    stamped = read(job, timestamps=True).splitlines()
    assert [line.split(b" ", 1)[1] for line in stamped] == kept.splitlines()
    times = [line.split(b" ", 1)[0] for line in stamped]
    assert times == sorted(times)
    some = read(job, since=time.time() - 2)
    assert kept.endswith(some)


def test_the_usual_bound_holds_for_a_program_that_writes_as_fast_as_it_can(ordinary):
    job = ordinary.job({"containers": [ordinary.shell(counting(14, 1_000_000, "sleep 0.15"))]}).start()
    follower = Follower(job)
    peak = peak_until_the_end(job)
    follower.join(20)
    assert peak < 90 * MIB, "of 120 MiB"
    assert used(job) <= 50 * MIB + 64 * 1024
    assert len(read(job)) >= 40 * MIB
    assert (job.folder / "logs" / "main.log").stat().st_size == 126_000_000, "offsets stay as they are"
    said = subprocess.run(["seq", str(FIRST), str(FIRST + 13_999_999)], stdout=subprocess.PIPE, check=True).stdout
    assert hashlib.sha256(follower.text).digest() == hashlib.sha256(said).digest(), "a follower that keeps up"


def test_the_log_before_a_restart_is_bounded_too(ordinary):
    home = ordinary.home_for_host_path()
    text = f"[ -e {home}/again ] && exec echo again; touch {home}/again; {counting(5, 200_000)}; exit 1"
    job = ordinary.run({"restartPolicy": "OnFailure", "containers": [ordinary.shell(text)]}, environment=SMALL)
    assert read(job) == b"again\n"
    kept = read(job, previous=True)
    assert 2 * MIB <= len(kept) <= 3 * MIB
    assert [int(line) for line in kept.splitlines()] == list(
        range(FIRST + 1_000_000 - len(kept) // 9, FIRST + 1_000_000)
    )
    assert not (job.folder / "logs" / "main.first").exists()
    assert used(job) <= 3 * MIB + 64 * 1024
