"""Hints from the prolog and the epilog of the real slurmctld."""

import os

import pytest

from cluster import hints
from cluster.polling import eventually
from cluster.ports import free_block, listening
from cluster.systems import install
from cluster.systems.slurm import SLURM_UID
from tests.fakes.server_certificate import certificates

pytestmark = pytest.mark.real

RARE_POLLS = {"slurm": {"pollIdle": 60}}
"""While no job is pending, only a hint makes podbridge poll in time."""


class Hinted:
    """A world with a slurmctld that sends hints: into pipes, or over HTTPS to ``port``."""

    def __init__(self, world, port):
        self.world, self.cluster, self.port = world, world.cluster, port

    def prepare(self):
        """Return the section ``hints`` of podbridge's configuration, after its files have been written."""
        folder = hints.directory(self.cluster)
        if self.port is None:
            return {"directory": str(folder)}
        _, cert, key = certificates(folder)
        token = folder / "token"
        token.write_text("a secret\n")
        os.chown(token, SLURM_UID, SLURM_UID)
        for file in (token, key):
            file.chmod(0o600)
        files = {"tokenFile": str(token), "certFile": str(cert), "keyFile": str(key)}
        return {"host": "127.0.0.1", "port": self.port, **files}

    def start(self):
        """Start a podbridge that receives the hints."""
        self.cluster.start_podbridge(config_overrides={**RARE_POLLS, "hints": self.prepare()})
        eventually(lambda: self.pipes() if self.port is None else listening(self.port), "a receiver of hints")

    def pipes(self):
        return list(hints.directory(self.cluster).glob("*.pipe"))


@pytest.fixture(scope="module", params=["pipe", "https"])
def hinted(request, world):
    """The world with a slurmctld that sends hints, and a podbridge that receives them."""
    found = Hinted(world, free_block(1) if request.param == "https" else None)
    world.clear()
    world.cluster.stop_podbridge()
    if found.port is not None:
        install.ensure(added=["python3"])  # the root folder of slurmctld may have none
    text = "" if found.port is None else hints.command(found.port)
    with hints.script(world.cluster, text, jobcomp=True):
        found.start()
        yield found
        world.clear()
        world.cluster.stop_podbridge()
    world.cluster.start_podbridge()


def calls_of(cluster, job):
    return [call for call in hints.calls(cluster) if call.job_id == int(job)]


def accepted(world):
    return world.metric("podbridge_slurm_hints_total", result="accepted")


def test_slurmctld_sends_a_hint_at_the_begin_and_at_the_end_of_a_job(hinted):
    world, cluster = hinted.world, hinted.cluster
    for pipe in hinted.pipes():
        assert pipe.stat().st_mode & 0o777 == 0o620
        assert pipe.stat().st_gid == hints.directory(cluster).stat().st_gid
    assert len(hinted.pipes()) == (hinted.port is None)
    hints_before, reads_before = accepted(world), world.metric("podbridge_slurm_hinted_reads_total")
    pod = world.running(world.create())
    job = str(world.job_of(pod))
    eventually(lambda: accepted(world) > hints_before, "an accepted hint", 5)
    cluster.run_slurm("scancel", job)
    world.seen(pod, "ends", lambda now: now["status"]["phase"] == "Failed", 10)
    # a poll that was due anyway may have served the first hint
    assert world.metric("podbridge_slurm_hinted_reads_total") > reads_before, "the job was read alone"
    calls = eventually(lambda: len(found := calls_of(cluster, job)) == 3 and found, "the epilog and jobcomp/script")
    assert calls[0].context == "prolog_slurmctld"
    assert {call.context for call in calls[1:]} == {"epilog_slurmctld", "jobcomp"}
    eventually(lambda: accepted(world) >= hints_before + 3, "each of them sent a hint")


def test_jobs_begin_and_end_without_a_podbridge_too(hinted):
    cluster = hinted.cluster
    cluster.stop_podbridge()
    os.mkfifo(hints.directory(cluster) / "podbridge-killed.pipe")  # what a killed podbridge leaves
    job = cluster.run_slurm("sbatch", "--parsable", "-n1", "--mem=10", "--wrap=sleep 0.1").strip()
    eventually(lambda: len(calls_of(cluster, job)) == 3, "the epilog and jobcomp/script")
    shown = cluster.run_slurm("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in shown
    assert "Restarts=0" in shown
    hinted.start()
