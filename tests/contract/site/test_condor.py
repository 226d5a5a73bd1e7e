"""A real HTCondor of two machines: groups of pods as one job of its parallel universe, and arrays as one cluster."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.config.pools import NatsSection
from cluster import Cluster
from cluster.polling import eventually
from cluster.systems.condor import MACHINES
from cluster.views import SEEN_AS
from tests import processes
from tests.contract.site import arrays, gangs
from tests.contract.site.conftest import Site
from tests.contract.site.session_suite import check_sessions

pytestmark = [pytest.mark.real, pytest.mark.long_only]

NAME = "condor-site"
SETTINGS = {
    "batch": {"kind": "htcondor", "period": 1, "lost_after": 3, "settle": 4, "lag": 2},
    "announce": {"period": 1, "capacity_period": 1},
    "limits": {"allow_ports": True, "allow_reach": True},
    "htcondor": {
        "environment": {
            "PATH": "/usr/bin:/bin",
            "PODBRIDGE_START_WAIT_SECONDS": "5",
            "PODBRIDGE_PLACE_WAIT_SECONDS": "5",
        }
    },
}


class CondorSite(Site):
    """The site of a cluster, as its hub sees it. HTCondor claims all machines of a job before it starts there."""

    patience = 60.0

    def __init__(self, cluster: Cluster) -> None:
        self.pool, self.folder = NAME, cluster.sites[NAME].work
        nats = cluster.nats
        self.listen(NatsSection(servers=nats.urls, seed_file=nats.seed("hub"), ca_file=nats.ca_file))


@pytest.fixture(scope="module")
def cluster(state_folder: Any) -> Iterator[Cluster]:
    with Cluster(state_folder / "condor-gangs", slurm=None, kube=False, pools=[NAME]) as running:
        running.start_submitter(NAME, SETTINGS)
        yield running


@pytest.fixture
def site(cluster: Cluster) -> Iterator[Any]:
    made = CondorSite(cluster)
    yield made
    made.end()


def startd(machine: str) -> str:
    return f"{NAME}-startd-{machine}"


def tool(cluster: Cluster, *words: str) -> str:
    return cluster.sites[NAME].run(*words)


# --- arrays -----------------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def slow_submission(cluster: Cluster) -> Iterator[None]:
    """Let condor_submit print its answer some time after the schedd has the jobs."""
    tools = cluster.sites[NAME].folder / "bin"
    aside = tools / "real" / "condor_submit"
    aside.parent.mkdir()
    aside.symlink_to("../../tool")
    slow = tools / "condor_submit"
    slow.unlink()
    slow.write_text(f'#!/bin/sh\nsaid=$({SEEN_AS}/bin/real/condor_submit "$@")\nsleep 5\necho "$said"\n')
    slow.chmod(0o755)
    try:
        yield
    finally:
        slow.unlink()
        slow.symlink_to("../tool")


def restart(cluster: Cluster) -> None:
    cluster.kill(f"{NAME}-submitter")
    cluster.start_submitter(NAME, SETTINGS)


def test_each_pod_of_an_array_has_its_own_end(site: Any, cluster: Cluster) -> None:
    arrays.check_each_has_its_own_end(
        site, "ARRAY.INDEX", lambda: restart(cluster), lambda job: tool(cluster, "condor_rm", job)
    )


def test_killed_between_condor_submit_of_an_array_and_its_answer(site: Any, cluster: Cluster) -> None:
    def kill() -> None:
        """Kill the submitter once the schedd has the jobs, of whose ids no directory tells."""
        jobs = ("condor_q", "-constraint", f'JobBatchName == "pb-{arrays.newest(site)}"', "-af", "ProcId")
        eventually(lambda: tool(cluster, *jobs), "the jobs")
        restart(cluster)

    with slow_submission(cluster):
        arrays.check_killed_before_the_answer(site, "ARRAY.INDEX", kill)


def test_a_limit_of_jobs_makes_smaller_arrays(site: Any, cluster: Cluster) -> None:
    config = cluster.sites[NAME].folder / "etc" / "condor_config"
    text = config.read_text()
    try:
        restart_schedd(cluster, f"{text}MAX_JOBS_PER_SUBMISSION = 3\n")
        pods = arrays.submit_pods(site, 5, "echo $INDEX")
        assert {site.wait(pod, "ended", site.patience).outcome for pod in pods} == {"Succeeded"}
        ids = eventually(lambda: all(found := [site.status(pod).job_id for pod in pods]) and found, "all have an id")
        assert sorted(job.partition(".")[2] for job in ids) == ["0", "0", "1", "1", "2"]
        arrays.forget(site, pods)
    finally:
        restart_schedd(cluster, text)


def restart_schedd(cluster: Cluster, config: str) -> None:
    (cluster.sites[NAME].folder / "etc" / "condor_config").write_text(config)
    cluster.stop_daemon(f"{NAME}-schedd")
    cluster.start_daemon(f"{NAME}-schedd")


# --- groups -----------------------------------------------------------------------------------------------------------
def test_four_pods_run_as_one_job_on_two_machines(site: Any, cluster: Cluster) -> None:
    ends = gangs.check_one_job_for_all(site, machines_used=2, addresses=2)
    asked = ("MinHosts", "RequestCpus", "RequestMemory", "JobUniverse", "ExitCode")
    shown = tool(cluster, "condor_q", ends[0].job_id, "-af", *asked) or tool(
        cluster, "condor_history", ends[0].job_id, "-af", *asked
    )
    assert shown.split() == ["2", "2", "256", "11", "0"]
    assert any(announce.gangs for announce in site.announced)


def test_if_one_pod_does_not_start_none_does(site: Any) -> None:
    gangs.check_all_or_none(site)


def test_a_pod_takes_the_place_of_one_that_is_over(site: Any) -> None:
    gangs.check_successor(site)


def test_one_pod_is_killed_and_the_others_run_on(site: Any) -> None:
    gangs.check_one_is_killed(site)


def test_pods_are_cancelled_while_their_job_is_queued(site: Any) -> None:
    gangs.check_cancelled_while_queued(site, cpus=1000)


def test_a_removed_job_ends_all_pods_as_cancelled(site: Any, cluster: Cluster) -> None:
    group = gangs.Group(site, 2, per_node=1)
    group.submit_all("sleep 600")
    job = group.wait("running")[0].job_id
    tool(cluster, "condor_rm", job)
    assert {end.reason for end in group.wait("ended")} == {"Cancelled"}
    group.check_nothing_left()


def test_a_job_over_its_time_limit_ends_all_pods_with_the_reason(site: Any) -> None:
    group = gangs.Group(site, 2, {"time_limit": 5}, per_node=1)
    group.submit_all("sleep 600")
    assert {end.reason for end in group.wait("ended", 120)} == {"DeadlineExceeded"}
    group.check_nothing_left()


@pytest.mark.parametrize("kill", ["starter", "startd", "machine"])
def test_a_lost_machine_ends_all_pods_and_no_script_runs_again(site: Any, cluster: Cluster, kill: str) -> None:
    mark = f"84{os.getpid()}.{len(kill)}"
    group = gangs.Group(site, 2, per_node=1)
    group.submit_all(f"echo ran; hostname; sleep {mark}")
    group.wait("running")
    ran = eventually(lambda: all(map(len, found := [group.log(rank)[1:] for rank in range(2)])) and found, "both run")
    machine = ran[1][0]
    if kill == "starter":
        kill_starter_of(site, group, 1)
    else:
        cluster.kill(startd(machine))
    if kill == "machine":
        cluster.sites[NAME].hosts.kill(machine)
    try:
        assert {end.reason for end in group.wait("ended", 120)} == {"NodeFail"}
        assert [group.log(rank) for rank in range(2)] == [["ran", *names] for names in ran]
        eventually(lambda: not processes.with_word(mark), "no pod runs on", 60)
        group.check_nothing_left()
    finally:
        start_again(cluster, machine)


def test_a_group_waits_while_the_schedd_assigns_a_lost_machine_to_it(site: Any, cluster: Cluster) -> None:
    """The schedd still has the claims of the first group."""
    group = gangs.Group(site, 2, per_node=1)
    group.submit_all("true")
    assert {end.outcome for end in group.wait("ended")} == {"Succeeded"}
    group.check_nothing_left()
    cluster.kill(startd(MACHINES[0]))
    try:
        group = gangs.Group(site, 2, per_node=1)
        group.submit_all("hostname")
        assert [(end.outcome, end.reason) for end in group.wait("ended", 120)] == [("Succeeded", "")] * 2
        assert [group.log(rank) for rank in range(2)] == [[MACHINES[1]]] * 2
        group.check_nothing_left()
    finally:
        start_again(cluster, MACHINES[0])


def start_again(cluster: Cluster, machine: str) -> None:
    """Start a startd, and a schedd that has forgotten its claims: their slots have the names of the new ones."""
    if cluster.pid(startd(machine)):
        return
    cluster.start_daemon(startd(machine))
    cluster.stop_daemon(f"{NAME}-schedd")
    cluster.start_daemon(f"{NAME}-schedd")


def kill_starter_of(site: Any, group: gangs.Group, rank: int) -> None:
    """End the daemon of HTCondor that watches the script of a pod, as the loss of its machine does."""
    script = f"{group.pods[rank]}/job.sh"
    running = {int(path.name): path for path in Path("/proc").iterdir() if path.name.isdecimal()}

    def parent(pid: int) -> int:
        return int((running[pid] / "stat").read_text().rpartition(")")[2].split()[1])

    pid = next(pid for pid, path in running.items() if script in read(path / "cmdline"))
    while "condor_starter" not in read(running[pid] / "cmdline"):
        pid = parent(pid)
    os.kill(pid, signal.SIGKILL)


def read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


@contextlib.contextmanager
def dedicated_to_another_schedd(cluster: Cluster) -> Iterator[None]:
    """Let the machines accept groups of another schedd."""
    config = cluster.sites[NAME].folder / "etc" / "condor_config"
    before = config.read_text()

    def start_with(text: str) -> None:
        config.write_text(text)
        for machine in MACHINES:
            cluster.stop_daemon(startd(machine))
            cluster.start_daemon(startd(machine))

    start_with(before.replace("DedicatedScheduler@podbridge-site@", "DedicatedScheduler@other@"))
    try:
        yield
    finally:
        start_with(before)


def test_without_a_dedicated_scheduler_no_group_is_announced_or_waits(site: Any, cluster: Cluster) -> None:
    with dedicated_to_another_schedd(cluster):
        eventually(lambda: site.announced and not site.announced[-1].gangs, "no groups are announced", 30)
        group = gangs.Group(site, 2, per_node=1)
        group.submit_all("true")
        ends = group.wait("ended")
        assert {end.reason for end in ends} == {"BatchSystemRefused"}
        assert 'set DedicatedScheduler = "DedicatedScheduler@podbridge-site@localhost"' in ends[0].message
        group.check_nothing_left()
        # a group on one machine is an ordinary job
        group = gangs.Group(site, 2, per_node=2)
        group.submit_all("true")
        assert {end.outcome for end in group.wait("ended")} == {"Succeeded"}
        group.check_nothing_left()
    eventually(lambda: site.announced[-1].gangs, "groups are announced again", 60)


def test_the_script_of_a_pod_runs_commands_and_connects_to_ports_and_services(site: Any) -> None:
    """Over WebSocket with TLS, as everything at this site."""
    check_sessions(site)
    gangs.check_commands(site, {})
