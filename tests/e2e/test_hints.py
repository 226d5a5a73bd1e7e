"""Hints from the prolog and the epilog of the real slurmctld."""

import socket

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
    with hints.script(cluster):
        start(cluster)
        yield world
        world.clear()
        cluster.stop_podbridge()
    cluster.start_podbridge()


def accepted(world):
    return world.metric("podbridge_slurm_hints_total", result="accepted")


def test_slurmctld_sends_a_hint_at_the_begin_and_at_the_end_of_a_job(hinted):
    cluster = hinted.cluster
    listening = eventually(lambda: list(hints.directory(cluster).glob("*.sock")))[0]
    assert listening.stat().st_mode & 0o777 == 0o660
    assert listening.stat().st_gid == hints.directory(cluster).stat().st_gid
    hints_before, reads_before = accepted(hinted), hinted.metric("podbridge_slurm_hinted_reads_total")
    pod = hinted.running(hinted.create())
    job = pod["metadata"]["labels"][LABEL]
    eventually(lambda: accepted(hinted) > hints_before, "an accepted hint", 5)
    cluster.run_slurm("scancel", job)
    hinted.seen(pod, "ends", lambda now: now["status"]["phase"] == "Failed", 10)
    # a poll that was due anyway may have served the first hint
    assert hinted.metric("podbridge_slurm_hinted_reads_total") > reads_before, "the job was read alone"
    eventually(lambda: len([line for line in hints.calls(cluster) if line.split()[1] == job]) == 2)
    assert {tuple(line.split()) for line in hints.calls(cluster) if line.split()[1] == job} == {
        ("prolog_slurmctld", job, "0"),
        ("epilog_slurmctld", job, "0"),
    }


def test_jobs_begin_and_end_without_a_podbridge_too(hinted):
    cluster = hinted.cluster
    cluster.stop_podbridge()
    with socket.socket(socket.AF_UNIX) as ended:  # what a killed podbridge leaves
        ended.bind(str(hints.directory(cluster) / "podbridge-killed.sock"))
    job = cluster.run_slurm("sbatch", "--parsable", "-n1", "--mem=10", "--wrap=sleep 0.1").strip()
    eventually(lambda: f"epilog_slurmctld {job} 0" in hints.calls(cluster))
    shown = cluster.run_slurm("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in shown
    assert "Restarts=0" in shown
    start(cluster)
