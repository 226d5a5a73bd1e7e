"""A site with a real Slurm, in each version."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.nats.messages import CancelMessage
from bridge.protocol.nats.request_table import CANCEL, SUBMIT
from cluster.polling import eventually
from tests.contract.site import reaching
from tests.contract.site.jobs import check_replaced_after_unused, submit, uid

pytestmark = pytest.mark.real


@pytest.fixture
def site(slurm_cluster: Any, make_site: Any) -> Any:
    """A site in front of the cluster: jobs see its folder where the submitter does."""
    made = make_site(
        "slurm",
        "[limits]\nallow_user_flags = true\nallow_race = true\nallow_reach = true\n"
        f'[slurm]\nbin_dir = "{slurm_cluster.state}/bin"\n'
        '[batch]\nkind = "slurm"\nperiod = 1\nlost_after = 3\nsettle = 4\nlag = 2\n'
        '[[flavors]]\nname = "main"\npartition = "main"\ngeneric_resources = ["gpu:1"]\n',
    )
    made.cluster = slurm_cluster
    made.start()
    return made


def squeue(site: Any, job: str) -> list[str]:
    return str(site.cluster.run_slurm("squeue", "-h", "-t", "all", f"--name=pb-{job}", "-o", "%T")).split()


def test_a_job_runs_and_says_how_it_ended(site: Any) -> None:
    job = site.submit("echo hello; echo $HOME; exit 3")
    done = site.wait(job, "ended", 30)
    assert (done.outcome, done.containers[0].ended.exit_code) == ("Failed", 3)
    assert done.job_id.isdigit()
    assert site.log(job).startswith(b"hello\n/")
    phases = [event.status.phase for _, event in site.events if event.status.job == job]
    assert phases[0] == "queued"
    assert site.heard_end(job)[1].status.outcome == "Failed"


@pytest.mark.each_version
@pytest.mark.not_on("26.05", reason="its root directory has no pivot_root, which mounts /etc/hosts")
def test_a_pod_reaches_a_service_through_a_step_of_its_job(site: Any) -> None:
    reaching.check_reach(site)


def test_what_was_asked_for_arrives(site: Any) -> None:
    job = uid()
    asked = submit(
        "sleep 60",
        cpus=3,
        memory=300 * 2**20,
        gpus=2,
        gpu_resource="nvidia.com/gpu",
        time_limit=119,
        flavor="main",
        flags=["-n", "1", "--comment=it's me"],
    )
    told = site.client.call(SUBMIT, job, asked).status
    shown = site.cluster.run_slurm("scontrol", "show", "job", told.job_id)
    for words in (
        f"JobName=pb-{job}", "CPUs/Task=3", "MinMemoryNode=300M", "TimeLimit=00:02:00", "Requeue=0", "Partition=main",
        "Comment=it's me", "StdOut=/dev/null", "gpu:2",
    ):  # fmt: skip
        assert words in shown
    site.client.call(CANCEL, job, CancelMessage(grace=0))
    site.wait(job, "ended", 30)
    assert "secret" not in shown


def test_a_refusal_gives_slurms_own_words_and_leaves_nothing(site: Any) -> None:
    job = uid()
    with pytest.raises(SiteRefusedError) as refused:
        site.client.call(SUBMIT, job, submit("true", flags=["-p", "nowhere"]))
    assert (refused.value.reason, refused.value.retryable) == ("BatchSystemRefused", False)
    assert "Invalid partition name specified" in str(refused.value)
    assert site.status(job) is None
    assert list((site.folder / "jobs").iterdir()) == []


def test_slurm_hears_the_sites_word_last(site: Any) -> None:
    job = uid()
    with pytest.raises(SiteRefusedError, match="--partition=other"):
        site.client.call(SUBMIT, job, submit("true", flavor="main", flags=["--partition=other"]))
    told = site.client.call(
        SUBMIT, job, submit("sleep 60", flavor="main", time_limit=119, flags=["-t", "1", "-p", "main"])
    )
    shown = site.cluster.run_slurm("scontrol", "show", "job", told.status.job_id)
    assert "TimeLimit=00:01:00" in shown and "Partition=main" in shown and f"JobName=pb-{job}" in shown
    site.client.call(CANCEL, job, CancelMessage(grace=0))
    site.wait(job, "ended", 30)


def test_a_waiting_job_says_why_and_is_cancelled(site: Any) -> None:
    job = site.submit("sleep 60", flags=["--begin=now+1hour"])
    eventually(lambda: site.status(job).reason == "BeginTime")
    site.client.call(CANCEL, job, CancelMessage(grace=30, forget=True))
    eventually(lambda: site.status(job) is None)
    assert squeue(site, job) == ["CANCELLED"]


def test_a_running_job_is_cancelled_and_forgotten(site: Any) -> None:
    job = site.submit("sleep 60")
    site.wait(job, "running", 30)
    site.client.call(CANCEL, job, CancelMessage(grace=5, forget=True))
    eventually(lambda: site.status(job) is None, timeout=30)
    assert squeue(site, job)[0] in ("CANCELLED", "COMPLETED", "FAILED")
    ended = site.heard_end(job)[1].status
    assert (ended.outcome, ended.reason) == ("Failed", "Deleted")


def test_a_job_cancelled_by_its_owner_at_the_site(site: Any) -> None:
    job = uid()
    told = site.client.call(SUBMIT, job, submit("sleep 60")).status
    site.wait(job, "running", 30)
    site.cluster.run_slurm("scancel", "--signal=KILL", "--full", told.job_id)
    done = site.wait(job, "ended", 40)
    assert done.outcome == "Failed"
    assert done.reason in ("Cancelled", "JobLost")
    assert done.containers[0].ended.exit_code in (137, 143)


def test_a_node_that_fails(site: Any) -> None:
    job = site.submit("sleep 60", flags=["-w", "node-1"])
    site.wait(job, "running", 30)
    site.cluster.run_slurm("scontrol", "update", "nodename=node-1", "state=down", "reason=test")
    try:
        done = site.wait(job, "ended", 60)
        assert (done.outcome, done.reason) == ("Failed", "NodeFail")
    finally:
        site.cluster.run_slurm("scontrol", "update", "nodename=node-1", "state=resume", check=False)


def test_slurmctld_stopped_loses_nothing(site: Any) -> None:
    job = site.submit("sleep 4")
    site.wait(job, "running", 30)
    site.cluster.stop_daemon("slurmctld")
    try:
        with pytest.raises(SiteRefusedError) as refused:
            site.client.call(SUBMIT, uid(), submit("true"), timeout=40)
        assert refused.value.retryable
        assert site.wait(job, "ended", 30).outcome == "Succeeded"
        eventually(lambda: site.announced and site.announced[-1].problem, timeout=60)
    finally:
        site.cluster.start_daemon("slurmctld")
    eventually(lambda: not site.announced[-1].problem, timeout=30)
    done = site.wait(site.submit("true"), "ended", 30)
    assert done.outcome == "Succeeded", done


def test_a_job_that_slurm_lost_before_it_began_is_submitted_again(site: Any) -> None:
    """As when slurmctld crashes before it has saved its state: here the job is made unknown by another name."""
    job = uid()
    told = site.client.call(SUBMIT, job, submit("echo ran", flags=["--begin=now+5"])).status
    site.wait(job, "queued")
    site.cluster.run_slurm("scontrol", "hold", told.job_id)
    site.cluster.run_slurm("scontrol", "update", f"jobid={told.job_id}", "jobname=other")
    eventually(lambda: site.status(job).job_id not in ("", told.job_id), timeout=20)
    assert (site.wait(job, "ended", 40).outcome, site.log(job)) == ("Succeeded", b"ran\n")


def slow_sbatch(site: Any, seconds: float) -> None:
    """Put an sbatch that takes its time before it asks Slurm in front of the real one."""
    slow = site.path / "slow"
    slow.mkdir()
    for tool in Path(site.cluster.state, "bin").iterdir():
        if tool.name != "sbatch":
            (slow / tool.name).symlink_to(tool)
    (slow / "sbatch").write_text(f'#!/bin/sh\nsleep {seconds}\nexec {site.cluster.state}/bin/sbatch "$@"\n')
    (slow / "sbatch").chmod(0o755)
    site.config.write_text(site.config.read_text().replace(f"{site.cluster.state}/bin", str(slow)))


def test_killed_between_asking_slurm_and_its_answer(site: Any) -> None:
    slow_sbatch(site, 1.5)
    site.kill(site.processes[0], signal.SIGTERM)
    site.start()
    job = uid()
    with pytest.raises(SiteUnknownOutcomeError):
        site.client.call(SUBMIT, job, submit("echo $SLURM_JOB_ID; sleep 1"), timeout=0.5)
    site.kill(site.processes[-1])
    site.start()
    assert site.client.call(SUBMIT, job, submit("echo other")).existed
    assert site.wait(job, "ended", 40).outcome == "Succeeded"
    assert len(squeue(site, job)) == 1
    assert site.log(job).strip().decode() == site.status(job).job_id


def test_resources_are_measured(site: Any) -> None:
    site.wait(site.submit("sleep 60", cpus=28, gpus=3, memory=2**30), "running", 30)
    eventually(lambda: [a for a in site.announced if a.free.get("nvidia.com/gpu") == "13"], "13 GPUs announced", 30)
    told = site.announced[-1]
    assert (told.free["cpu"], told.capacity["cpu"], told.capacity["memory"]) == ("228", "256", "1024000Mi")
    assert (told.capacity["nvidia.com/gpu"], told.free["nvidia.com/gpu"]) == ("16", "13")
    assert told.free["memory"] == "1022976Mi"
    assert told.batch.startswith("slurm 2")


def test_one_query_a_period_whatever_the_number_of_jobs(site: Any) -> None:
    """Ten jobs, and no more squeue than looks."""
    slow_sbatch(site, 0)
    count = site.path / "count"
    squeue_file = site.path / "slow" / "squeue"
    squeue_file.unlink()
    squeue_file.write_text(f'#!/bin/sh\necho x >>{count}\nexec {site.cluster.state}/bin/squeue "$@"\n')
    squeue_file.chmod(0o755)
    site.kill(site.processes[0], signal.SIGTERM)
    site.start()
    for _ in range(10):
        site.client.call(SUBMIT, uid(), submit("sleep 60"))
    before, at = len(count.read_text().split()), time.monotonic()
    time.sleep(5)
    asked, took = len(count.read_text().split()) - before, time.monotonic() - at
    assert 2 <= asked <= took + 1


@pytest.mark.parametrize("later", [0, 3])
def test_a_job_that_ended_unused_is_replaced_while_its_batch_job_still_ends_too(site: Any, later: float) -> None:
    check_replaced_after_unused(site, later)
