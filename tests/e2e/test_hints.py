"""Hints from the prolog and the epilog of the real slurmctld."""

import os

import pytest

from cluster import hints
from cluster.polling import eventually
from cluster.world import LABEL

pytestmark = [pytest.mark.real, pytest.mark.main_version]

RARE_POLLS = {"slurm": {"pollIdle": 60}}
"""While no job is pending, only a hint makes podbridge poll in time."""


def start(cluster):
    cluster.start_podbridge(config_overrides={**RARE_POLLS, "hints": {"directory": str(hints.directory(cluster))}})


@pytest.fixture(scope="module")
def hinted(world):
    """The world with a slurmctld that sends hints, and a podbridge that receives them."""
    cluster = world.cluster
    world.clear()
    cluster.stop_podbridge()
    with hints.script(cluster, jobcomp=True):
        start(cluster)
        yield world
        world.clear()
        cluster.stop_podbridge()
    cluster.start_podbridge()


def calls_of(cluster, job):
    return [call for call in hints.calls(cluster) if call.job_id == int(job)]


def accepted(world):
    return world.metric("podbridge_slurm_hints_total", result="accepted")


def test_slurmctld_sends_a_hint_at_the_begin_and_at_the_end_of_a_job(hinted):
    cluster = hinted.cluster
    listening = eventually(lambda: list(hints.directory(cluster).glob("*.pipe")))[0]
    assert listening.stat().st_mode & 0o777 == 0o620
    assert listening.stat().st_gid == hints.directory(cluster).stat().st_gid
    hints_before, reads_before = accepted(hinted), hinted.metric("podbridge_slurm_hinted_reads_total")
    pod = hinted.running(hinted.create())
    job = pod["metadata"]["labels"][LABEL]
    eventually(lambda: accepted(hinted) > hints_before, "an accepted hint", 5)
    cluster.run_slurm("scancel", job)
    hinted.seen(pod, "ends", lambda now: now["status"]["phase"] == "Failed", 10)
    # a poll that was due anyway may have served the first hint
    assert hinted.metric("podbridge_slurm_hinted_reads_total") > reads_before, "the job was read alone"
    calls = eventually(lambda: len(found := calls_of(cluster, job)) == 3 and found, "the epilog and jobcomp/script")
    assert calls[0].context == "prolog_slurmctld"
    assert {call.context for call in calls[1:]} == {"epilog_slurmctld", "jobcomp"}
    eventually(lambda: accepted(hinted) >= hints_before + 3, "each of them sent a hint")


def test_jobs_begin_and_end_without_a_podbridge_too(hinted):
    cluster = hinted.cluster
    cluster.stop_podbridge()
    os.mkfifo(hints.directory(cluster) / "podbridge-killed.pipe")  # what a killed podbridge leaves
    job = cluster.run_slurm("sbatch", "--parsable", "-n1", "--mem=10", "--wrap=sleep 0.1").strip()
    eventually(lambda: len(calls_of(cluster, job)) == 3, "the epilog and jobcomp/script")
    shown = cluster.run_slurm("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in shown
    assert "Restarts=0" in shown
    start(cluster)
