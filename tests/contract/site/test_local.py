"""A site with the batch system ``local``: real submitters, a real nats-server, real processes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import BatchError, SiteError, SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage, Empty, Snapshot
from bridge.protocol.nats.request_table import CANCEL, SNAPSHOT, STATUS, SUBMIT
from bridge.site.batch import processes
from bridge.site.batch.batch_interface import BatchJobRequest, Site
from bridge.site.batch.local import LocalBatch
from bridge.site.batch.local_resources import Local
from cluster.polling import eventually
from tests.contract.site.jobs import check_replaced_after_unused, submit, uid
from tests.fakes.clock import FakeClock

pytestmark = pytest.mark.real


def test_a_job_runs_and_says_how_it_ended(site: Any) -> None:
    job = uid()
    assert not site.client.call(SUBMIT, job, submit("echo hello; exit 3")).existed
    done = site.wait(job, "ended")
    assert (done.outcome, done.containers[0].ended.exit_code) == ("Failed", 3)
    assert done.containers[0].ended.message == "said at the end"
    assert site.log(job) == b"hello\n"
    site.heard_end(job)
    phases = [event.status.phase for _, event in site.events if event.status.job == job]
    assert phases[0] == "queued"
    assert "running" in phases
    assert phases[-1] == "ended"
    assert [event.sequence for _, event in site.events] == list(range(1, len(site.events) + 1))


def test_a_job_may_use_all_processors_though_its_submitter_keeps_to_one(site: Any) -> None:
    job = site.submit("grep Cpus_allowed_list /proc/self/status")
    site.wait(job, "ended")
    allowed = [line for line in Path("/proc/self/status").read_text().splitlines() if "Cpus_allowed_list" in line]
    assert site.log(job).decode().splitlines() == allowed
    if len(os.sched_getaffinity(0)) > 1:
        assert len(os.sched_getaffinity(site.processes[0].pid)) == 1


def test_an_event_comes_soon_after_the_change(site: Any) -> None:
    job = site.submit("sleep 1; date +%s.%N >&2")
    site.wait(job, "ended")
    ended = float(site.log(job))
    # the script looks ten times a second, and so does the submitter
    assert site.heard_end(job)[0] - ended < 1.0


def test_a_job_outlives_its_submitter_and_is_found_again(site: Any, tmp_path: Path) -> None:
    job, seen = uid(), tmp_path / "seen"
    site.client.call(SUBMIT, job, submit(f"until [ -e {seen} ]; do sleep 0.1; done; echo survived"))
    site.wait(job, "running")
    site.kill(site.processes[0])
    time.sleep(0.3)
    with pytest.raises(SiteError):
        site.client.call(STATUS, job, Empty(), timeout=1)
    site.start()
    assert site.status(job).phase == "running"
    seen.touch()
    assert (site.wait(job, "ended").outcome, site.log(job)) == ("Succeeded", b"survived\n")


def test_another_submitter_takes_over(site: Any) -> None:
    site.start()
    job = site.submit("sleep 2")
    site.wait(job, "running")
    before = site.client.call(SNAPSHOT, "", Snapshot()).submitter
    first = next(process for process in site.processes if f"-{process.pid}-" in before)
    site.kill(first)
    at = time.monotonic()
    while site.client.call(SNAPSHOT, "", Snapshot()).submitter == before:
        assert time.monotonic() - at < 5
        time.sleep(0.05)
    site.wait(job, "ended")
    assert site.heard_end(job)[1].submitter != before


def test_cancel_ends_a_job_and_forget_drops_it(site: Any) -> None:
    job = site.submit("sleep 60")
    site.wait(job, "running")
    site.client.call(CANCEL, job, CancelMessage(grace=2))
    done = site.wait(job, "ended")
    assert (done.outcome, done.reason) == ("Failed", "Deleted")
    site.client.call(CANCEL, job, CancelMessage(grace=2, forget=True))
    eventually(lambda: site.status(job) is None, "the job forgotten", 10)
    assert not (site.folder / "jobs" / job).exists()
    with pytest.raises(SiteRefusedError) as refused:
        site.client.call(SUBMIT, job, submit("echo again"))
    assert refused.value.reason == "Forgotten"


def test_jobs_wait_in_line_for_cpus(site: Any) -> None:
    jobs = [uid() for _ in range(3)]
    for number, job in enumerate(jobs):
        site.client.call(SUBMIT, job, submit("sleep 1", name=f"n{number}", cpus=3))
    site.wait(jobs[0], "running")
    assert site.status(jobs[1]).phase == "queued"
    eventually(lambda: site.status(jobs[1]).reason == "WaitingForResources", timeout=5)
    ends = [site.wait(job, "ended", 30) for job in jobs]
    starts = [end.started_at for end in ends]
    assert starts == sorted(starts)


def test_a_job_that_never_fits_is_refused(site: Any) -> None:
    with pytest.raises(SiteRefusedError) as refused:
        site.client.call(SUBMIT, uid(), submit("true", cpus=64))
    assert refused.value.reason == "BatchSystemRefused"
    assert "64 CPUs" in str(refused.value)
    assert not list((site.folder / "jobs").iterdir())


def test_a_job_over_its_memory_is_killed(site: Any) -> None:
    job = uid()
    grow = "x=$(head -c 300000000 /dev/zero | tr '\\0' x); sleep 60"
    site.client.call(SUBMIT, job, submit(grow, memory=32 * 2**20))
    done = site.wait(job, "ended", 30)
    assert (done.outcome, done.reason) == ("Failed", "OOMKilled")


def test_resources_are_announced_as_measured(site: Any) -> None:
    site.wait(site.submit("sleep 3", cpus=3), "running")
    eventually(lambda: site.announced and site.announced[-1].free.get("cpu") == "1", "1 free CPU announced", 10)
    told = site.announced[-1]
    assert (told.capacity["cpu"], told.capacity["memory"], told.jobs) == ("4", "4096Mi", {"running": 1})


def test_the_last_submitter_says_goodbye(site: Any) -> None:
    site.kill(site.processes[0], signal.SIGTERM)
    assert site.processes[0].returncode == 0
    time.sleep(0.5)
    assert site.announced[-1].leaving


def test_a_log_is_followed_to_its_end(site: Any) -> None:
    job = site.submit("for i in 1 2 3; do echo $i; sleep 0.5; done")
    site.wait(job, "running")
    time.sleep(0.5)
    assert (site.log(job, follow=True), site.log(job, tail=1)) == (b"1\n2\n3\n", b"3\n")
    stamped = site.log(job, timestamps=True).decode().splitlines()
    assert [line.split(" ")[1] for line in stamped] == ["1", "2", "3"]


def test_a_folder_open_to_others_is_refused(make_site: Any) -> None:
    made = make_site()
    made.folder.mkdir()
    made.folder.chmod(0o755)
    process = made.start(wait=False)
    assert process.wait(20) == 1
    assert "chmod 700" in made.said()


def test_the_submitter_keeps_the_cache_of_images_within_its_limits(make_site: Any) -> None:
    made = make_site(text='[local]\ncpus = 1\n[images]\ncache_days = 2\n[batch]\nkind = "local"\n')
    files = [made.folder / "image-cache" / (digit * 64) / "image" for digit in "ab"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("image")
    for path in (made.folder, made.folder / "image-cache"):
        path.chmod(0o700)
    os.utime(files[0], (time.time() - 3 * 86400,) * 2)
    made.start()
    eventually(lambda: not files[0].parent.exists(), what="the removal of an image")
    assert files[1].exists() and (made.folder / "image-cache" / "on").exists()
    eventually(lambda: "image removed from the cache" in made.said(), what="its message")


def test_what_runs_is_private(site: Any) -> None:
    site.wait(site.submit("umask; touch x; sleep 1"), "running")
    for folder, _, files in os.walk(site.folder):
        assert os.stat(folder).st_mode & 0o077 == 0, folder
        for file in files:
            assert os.lstat(os.path.join(folder, file)).st_mode & 0o077 == 0, file


@pytest.mark.parametrize("later", [0, 3])
def test_a_job_that_ended_unused_is_replaced_while_its_batch_job_still_ends_too(make_site: Any, later: float) -> None:
    site = make_site(text="[local]\ncpus = 1\n[limits]\nallow_race = true\n")
    site.start()
    check_replaced_after_unused(site, later)


@pytest.mark.parametrize("why", ["cancel", "time limit"])
def test_a_full_disk_does_not_keep_a_job_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    batch = LocalBatch(Local(watch_memory=False), Site(tmp_path, (), FakeClock()))
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "job.sh").write_text("[[ ${1-} != leftovers ]] || exit 0\nexec sleep 600\n")
    limit = 60.0 if why == "time limit" else None
    job = batch.submit(BatchJobRequest(uid="u", folder=folder, memory=2**20, time_limit=limit))
    eventually(lambda: batch.jobs()[job].phase == "running" and batch._records.claim(job) is not None)
    if limit is None:
        batch.cancel([job])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(batch._records, "write", full)
        patched.setattr(processes, "age", lambda _started: 61.0)
        with pytest.raises(BatchError, match="No space left on device"):
            batch.jobs()
        assert batch._children[job].wait(10) < 0
        with contextlib.suppress(BatchError):
            batch.jobs()
    eventually(lambda: batch.jobs()[job].phase == "ended")
    ended = batch.jobs()[job]
    assert (ended.phase, ended.reason) == ("ended", "Cancelled" if limit is None else "DeadlineExceeded")


def test_a_cancellation_that_a_full_disk_did_not_store_outlives_the_submitter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    site = Site(tmp_path, (), FakeClock())
    batch = LocalBatch(Local(watch_memory=False), site)
    folder = tmp_path / "job"
    folder.mkdir()
    lines = (
        "[[ ${1-} != leftovers ]] || exit 0",
        "trap '' TERM",
        f"touch {folder}/ready",
        "while :; do sleep 0.1; done",
    )
    (folder / "job.sh").write_text("\n".join(lines))
    job = batch.submit(BatchJobRequest(uid="u", folder=folder, memory=2**20))
    eventually(lambda: batch.jobs()[job].phase == "running" and (folder / "ready").exists())
    batch.cancel([job])
    with monkeypatch.context() as patched:
        patched.setattr(batch._records, "write", full)
        for _ in range(3):
            with pytest.raises(BatchError, match="No space left on device"):
                batch.jobs()
    successor = LocalBatch(Local(watch_memory=False), site)
    successor.jobs()
    assert successor._records.jobs[job].reason == "Cancelled"
    os.kill(batch._children[job].pid, signal.SIGKILL)
    batch._children[job].wait(10)
    eventually(lambda: successor.jobs()[job].phase == "ended")
