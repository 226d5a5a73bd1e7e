"""Logs that are longer than they may be: cut while the container writes and somebody reads, on real file systems."""

import contextlib
import hashlib
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest

from bridge.clock import SystemClock
from bridge.site.job_record import JobRecord, Meta
from bridge.site.logs import read_log
from bridge.wire.messages import Logs
from tests.contract.site.images import made, mounted

pytestmark = pytest.mark.real

MIB = 2**20
FIRST = 10_000_000
RECORD = JobRecord(uid="u", meta=Meta("ns", "n", 1, 1, 0, "", None, (), "", 1, 1, 1), started=True)
SMALL = {"PODBRIDGE_LOG_MAX_SIZE": str(MIB), "PODBRIDGE_LOG_MAX_FILES": "3"}
"""3 MiB at most, 2 MiB at least; without holes 1.5 MiB at least."""


def counting(turns, lines, pause=0.1):
    """A program that counts from FIRST, one number a line of nine bytes, so many in each turn."""
    return (
        f"n={FIRST}; for i in $$(seq {turns}); do"
        f" seq $$n $$((n + {lines - 1})); n=$$((n + {lines})); sleep {pause}; done"
    )


def read(job, **ask):
    def over():
        return job.process.poll() is not None

    def wait(seconds):
        time.sleep(seconds)
        return False

    options = Logs(container="main", stream="x" * 8, **ask)
    with contextlib.closing(read_log(job.folder, options, RECORD, over, wait, SystemClock())) as pieces:
        return b"".join(pieces)


class Follower(threading.Thread):
    """Follows the log of a job until it ends."""

    def __init__(self, job):
        super().__init__(daemon=True)
        self.job, self.text = job, b""
        job.eventually(lambda: (job.folder / "logs" / "main.log").exists())
        self.start()

    def run(self):
        self.text = read(self.job, follow=True)


def used(job):
    """Bytes that the logs of a job take on disk."""
    size = 0
    for path in (job.folder / "logs").iterdir():
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_blocks * 512
    return size


def peak_until_the_end(job):
    most = 0
    while job.process.poll() is None:
        most = max(most, used(job))
        time.sleep(0.01)
    return most


@pytest.fixture(params=["here", "xfs", "btrfs", "ramfs"])
def file_system(request, tmp_path, monkeypatch):
    """Jobs are on a file system that has holes, or on one (ramfs) that has none."""
    if request.param == "here":
        yield request.param
        return
    with contextlib.ExitStack() as stack:
        place = tmp_path / "disk"
        if request.param == "ramfs":
            place.mkdir()
            if subprocess.run(["mount", "-t", "ramfs", "none", place], check=False).returncode:
                pytest.skip("only root can mount a ramfs")
            stack.callback(subprocess.run, ["umount", place], check=True)
        else:
            stack.enter_context(mounted(made(request.param, tmp_path), place))
        shared = Path(tempfile.gettempdir())
        for path in (place, *place.parents):
            if shared in path.parents:  # an ordinary user may not enter the folders of pytest
                path.chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        site = request.getfixturevalue("ordinary")
        yield request.param
        site.close()


def test_a_log_is_bounded_while_it_is_written_and_followed(file_system, ordinary):
    lines = 20 * 50_000
    job = ordinary.job(
        {
            "containers": [
                ordinary.shell(counting(20, 50_000) + "; exit 3", terminationMessagePolicy="FallbackToLogsOnError")
            ]
        },
        environment=SMALL,
    ).start()
    follower = Follower(job)
    peak = peak_until_the_end(job)
    follower.join(10)
    assert peak < 7 * MIB, "of 8.6 MiB"
    # XFS keeps room behind the end of a file for some minutes
    assert used(job) <= (6 if file_system == "xfs" else 3) * MIB + 64 * 1024
    by_hole = file_system != "ramfs"
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
    job = ordinary.job({"containers": [ordinary.shell(counting(14, 1_000_000, 0.15))]}).start()
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
