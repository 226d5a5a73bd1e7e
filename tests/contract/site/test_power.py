"""The machine loses its power: what a submitter said it has, it has.

A copy of a mounted file system's image holds what was forced to disk and nothing that only the memory knew: what a
machine finds when it starts again. While it is copied all threads stand still, wherever they were.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.site.jobs.job_record import Cancellation
from bridge.site.jobs.site_folder import Folder
from tests.contract.site.images import FILE_SYSTEMS, META, made, mounted

pytestmark = pytest.mark.real

THREADS = 8
SCRIPT = "#!/bin/bash\n" + "echo a line of a script\n" * 1000


def cut_off(image: Path, copy: Path) -> None:
    """Copy what the disk holds at one moment, again if the kernel wrote to it meanwhile, and check it as at boot."""
    for _ in range(100):
        stamp = image.stat().st_mtime_ns
        time.sleep(0.02)  # the clock of files ticks slower than disks are written
        subprocess.run(["cp", image, copy], check=True)
        if image.stat().st_mtime_ns == stamp:
            if image.suffix == ".ext4-plain":  # as at boot: without a journal, an inode can be written half changed
                checked = subprocess.run(["e2fsck", "-fy", copy], capture_output=True, text=True)
                assert checked.returncode in (0, 1), checked.stdout  # 1: errors were corrected
            return
    raise AssertionError(f"{image} is written to all the time")


@pytest.fixture(params=FILE_SYSTEMS)
def image(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return made(request.param, tmp_path)


@pytest.fixture
def going(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Gives what, when cleared, has every thread stop before its next step to the disk."""
    event = threading.Event()
    event.set()

    def gated(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            event.wait()
            return real(*args, **more)

        return call

    for name in ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink"):
        monkeypatch.setattr(os, name, gated(getattr(os, name)))
    return event


def crash_while_jobs_come_in(
    image: Path, tmp_path: Path, going: threading.Event, *, sync: bool
) -> tuple[list[str], list[str], Path]:
    """Give the jobs that were there for sure, those that were cancelled for sure, and the image after the crash."""
    there: list[str] = []
    cancelled: list[str] = []
    enough = threading.Event()
    with mounted(image, tmp_path / "before") as place:
        folder = Folder(place / "site", sync=sync)
        folder.prepare()
        subprocess.run(["sync", "-f", place], check=True)

        def work(number: int) -> None:
            count = 0
            while not enough.is_set():
                job = folder.job(f"job-{number}-{count}")
                job.create(SCRIPT + job.uid, META)
                there.append(job.uid)
                if count % 3 == 0:
                    job.write_cancel(Cancellation(1.0, 30.0))
                    cancelled.append(job.uid)
                count += 1

        threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        while len(there) < 100:
            enough.wait(0.01)
        going.clear()
        known = list(there), list(cancelled)
        cut_off(image, tmp_path / f"crashed{image.suffix}")
        enough.set()
        going.set()
        for thread in threads:
            thread.join(30)
    return *known, tmp_path / f"crashed{image.suffix}"


def script_of(folder: Folder, uid: str) -> str:
    """Return a script without the line that holds the request; nothing for a script that is lost."""
    file = folder.job(uid).path / "job.sh"
    lines = file.read_text().split("\n", 2) if file.exists() else []
    return "\n".join(lines[::2])


def test_a_job_that_was_taken_survives_a_power_cut(image: Path, tmp_path: Path, going: threading.Event) -> None:
    there, cancelled, crashed = crash_while_jobs_come_in(image, tmp_path, going, sync=True)
    with mounted(crashed, tmp_path / "after") as place:
        folder = Folder(place / "site")
        found = folder.uids()
        assert not set(there) - set(found)
        for uid in there:
            job = folder.job(uid)
            assert script_of(folder, uid) == SCRIPT + uid
            assert job.meta() == META
        for uid in cancelled:
            record = folder.job(uid).read()
            assert record is not None
            assert record.cancel == Cancellation(1.0, 30.0)


def test_the_very_last_step_survives_too(image: Path, tmp_path: Path) -> None:
    """With nobody else whose forced writes would take ours along."""
    steps = ("job", "cancellation", "second attempt")
    with mounted(image, tmp_path / "before") as place:
        folder = Folder(place / "site")
        folder.prepare()
        subprocess.run(["sync", "-f", place], check=True)
        job = folder.job("job")
        for step in steps:
            if step == "job":
                job.create(SCRIPT, META)
            elif step == "cancellation":
                job.write_cancel(Cancellation(1.0, 30.0))
            else:
                job.write_meta(replace(META, attempts=2))
            cut_off(image, tmp_path / f"{step}{image.suffix}")
    for step in steps:
        with mounted(tmp_path / f"{step}{image.suffix}", tmp_path / "after") as place:
            record = Folder(place / "site").job("job").read()
            assert record is not None
            assert (record.cancel is not None) == (step != "job")
            assert record.meta.attempts == (2 if step == "second attempt" else 1)


def test_no_job_is_half_there_after_a_power_cut(image: Path, tmp_path: Path, going: threading.Event) -> None:
    there, _, crashed = crash_while_jobs_come_in(image, tmp_path, going, sync=True)
    with mounted(crashed, tmp_path / "after") as place:
        folder = Folder(place / "site")
        for uid in folder.uids():
            if folder.job(uid).unfinished():  # it is no job, and will be removed
                assert uid not in there
                assert folder.job(uid).read() is None
                continue
            assert script_of(folder, uid) == SCRIPT + uid
            assert folder.job(uid).meta() == META


def test_a_job_that_is_told_of_survives_even_if_its_maker_did_not(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before its forced write was done; then another submitter tells of the job."""
    with mounted(image, tmp_path / "before") as place:
        folder = Folder(place / "site")
        folder.prepare()
        subprocess.run(["sync", "-f", place], check=True)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)
            folder.job("job").create(SCRIPT, META)
        cut_off(image, tmp_path / f"untold{image.suffix}")
        assert Folder(place / "site").job("job").read() is not None
        cut_off(image, tmp_path / f"told{image.suffix}")
    for name in ("untold", "told"):
        with mounted(tmp_path / f"{name}{image.suffix}", tmp_path / "after") as place:
            assert (Folder(place / "site").job("job").read() is not None) == (name == "told")


def test_without_forcing_to_disk_jobs_are_lost(image: Path, tmp_path: Path, going: threading.Event) -> None:
    """What ``sync = false`` gives away; it also shows that these tests can fail."""
    there, _, crashed = crash_while_jobs_come_in(image, tmp_path, going, sync=False)
    with mounted(crashed, tmp_path / "after") as place:
        folder = Folder(place / "site")
        whole = [uid for uid in folder.uids() if script_of(folder, uid) == SCRIPT + uid]
        assert set(there) - set(whole)
