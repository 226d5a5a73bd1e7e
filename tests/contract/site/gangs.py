"""Groups of pods at a site: their submission, and what is the same for each batch system."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.model.requests import PlaceInJob
from bridge.protocol.nats.messages import CancelMessage, Grant
from bridge.protocol.nats.request_table import CANCEL, GRANT, SUBMIT
from cluster.polling import eventually
from tests.contract.site import jobs
from tests.contract.site.sessions import enter, outcome


@dataclass
class Group:
    """The pods of one group at a site, by rank. ``more``: parameters of all pods, ``by_rank``: of some."""

    site: Any
    size: int
    more: dict[str, Any] = field(default_factory=dict)
    by_rank: dict[int, dict[str, Any]] = field(default_factory=dict)
    per_node: int = 2
    mpi: str = "none"
    gang: str = field(default_factory=jobs.uid)
    pods: dict[int, str] = field(default_factory=dict)

    def submit(self, rank: int, command: str, *, deaf: bool = False, again: bool = False, is_real: bool = False) -> Any:
        """Submit the pod of a rank, and return its status. ``deaf``: its script ignores its cancellation.

        ``again``: the same pod as before. ``is_real``: its script is the one that podbridge builds.
        """
        pod = self.pods[rank] = self.pods[rank] if again else jobs.uid()
        names = [f"w-{rank}.sub", f"w-{rank}"]
        place = PlaceInJob(gang=self.gang, rank=rank, size=self.size, per_node=self.per_node, mpi=self.mpi, names=names)
        body = jobs.submit(command, **{"name": f"w-{rank}", "place": place, **self.more, **self.by_rank.get(rank, {})})
        if deaf:
            script = body.script.replace("control/stop", "control/none")
            body = body.model_copy(update={"script": script})
        if is_real:
            body = body.model_copy(update={"script": jobs.built(self.site, pod, command)})
        return self.site.client.call(SUBMIT, pod, body).status

    def submit_all(self, command: str) -> None:
        for rank in range(self.size):
            self.submit(rank, command)

    def wait(self, phase: str, timeout: float = 0) -> list[Any]:
        patience = timeout or self.site.patience
        return [self.site.wait(pod, phase, patience) for _, pod in sorted(self.pods.items())]

    def log(self, rank: int) -> list[str]:
        """Return the lines of a pod's log; none before its container has begun."""
        try:
            return str(self.site.log(self.pods[rank]).decode()).splitlines()
        except SiteRefusedError as error:
            assert error.reason == "ContainerWaiting"
            return []

    def cancel(self, rank: int, grace: float = 0, *, forget: bool = True) -> None:
        self.site.client.call(CANCEL, self.pods[rank], CancelMessage(grace=grace, forget=forget))

    def check_nothing_left(self, timeout: float = 60.0) -> None:
        """Forget all pods; the directory of the group's job goes with them."""
        for rank in self.pods:
            self.cancel(rank)
        folders = [self.site.folder / "jobs" / uid for uid in (self.gang, *self.pods.values())]
        eventually(lambda: not any(folder.exists() for folder in folders), "no directory is left", timeout)


def check_one_job_for_all(site: Any, machines_used: int, addresses: int = 1) -> list[Any]:
    """Four pods become one job; each has its own status, log and exit code. Return the ends.

    ``addresses``: number of the addresses that the machines have.
    """
    group = Group(site, 4)
    command = (
        'echo "$PODBRIDGE_GROUP_RANK of $PODBRIDGE_GROUP_SIZE"; cat "$PODBRIDGE_GROUP_FILE"; '
        'echo "$PODBRIDGE_GROUP_HOSTS"; sleep 2; exit $PODBRIDGE_GROUP_RANK'
    )
    for rank in range(3):
        assert group.submit(rank, command).reason == "GangIncomplete"
    assert not (site.folder / "jobs" / group.gang / "started").exists()
    group.submit(3, command)
    ends = group.wait("ended")
    assert [(end.outcome, end.containers[0].ended.exit_code) for end in ends] == [
        ("Succeeded", 0), ("Failed", 1), ("Failed", 2), ("Failed", 3)
    ]  # fmt: skip
    assert len({end.job_id for end in ends}) == 1
    for rank in range(4):
        first, *hosts, machines = group.log(rank)
        assert first == f"{rank} of 4"
        assert [line.split()[1:] for line in hosts] == [[f"w-{other}.sub", f"w-{other}"] for other in range(4)]
        assert (len(machines.split(",")), len({*machines.split(",")})) == (4, machines_used)
        assert len({line.split()[0] for line in hosts}) == addresses
    group.check_nothing_left()
    return ends


def check_grant(site: Any) -> None:
    """No pod starts before all are granted."""
    group = Group(site, 2, {"grant_wait": 60.0})
    group.submit_all("echo ran")
    ticket = eventually(lambda: site.status(group.pods[0]).asks, "the group asks")
    assert site.status(group.pods[1]).asks == ticket
    site.client.call(GRANT, group.pods[1], Grant(ticket=ticket))
    assert (site.status(group.pods[0]).asks, site.status(group.pods[1]).asks) == (ticket, "")
    site.client.call(GRANT, group.pods[0], Grant(ticket=ticket))
    assert [(end.outcome, end.unused) for end in group.wait("ended")] == [("Succeeded", False)] * 2
    assert [group.log(rank) for rank in range(2)] == [["ran"]] * 2
    group.check_nothing_left()


def check_unused(site: Any) -> None:
    """Without the grant of all pods none starts, and the next submissions make another job."""
    group = Group(site, 2, {"grant_wait": 2.0})
    group.submit_all("echo ran")
    ticket = eventually(lambda: site.status(group.pods[1]).asks, "the group asks")
    site.client.call(GRANT, group.pods[1], Grant(ticket=ticket))
    assert [(end.unused, end.reason) for end in group.wait("ended")] == [(True, "NoGrant")] * 2
    for pod in group.pods.values():
        assert not (site.folder / "jobs" / pod / "started").exists()
    group.more = {}
    for rank in (1, 0):
        group.submit(rank, "echo ran", again=True)
    ends = group.wait("ended")
    assert [(end.outcome, end.reason, end.message) for end in ends] == [("Succeeded", "", "")] * 2
    assert [group.log(rank) for rank in range(2)] == [["ran"]] * 2
    group.check_nothing_left()


def check_commands(site: Any, driver: dict[str, Any]) -> None:
    """``kubectl exec`` enters the container of each pod on its machine. ``driver``: what the first one requests."""
    group = Group(site, 3, by_rank={0: driver})
    for rank in range(3):
        group.submit(rank, "sleep 600", is_real=True)
    group.wait("running")
    for rank, pod in group.pods.items():
        jobs.await_container(site, pod)
        # srun 22.05 may print a warning
        assert outcome(enter(site, pod, "printenv", "PODBRIDGE_GROUP_RANK"))[:2] == (0, f"{rank}\n".encode())
        assert outcome(enter(site, pod, "sh", "-c", "test -t 0 && exit 7", tty=True, stdin=True))[0] == 7
    group.check_nothing_left()


def check_all_or_none(site: Any) -> None:
    """If one pod can't start, none does."""
    group = Group(site, 3)
    for rank in range(2):
        group.submit(rank, "echo ran")
    # the wrapper can't report that it is ready
    job = site.folder / "jobs" / group.gang
    (job / "ready" / "1").mkdir(parents=True)
    for folder in (job / "ready", job / "ready" / "1"):
        os.chown(folder, job.stat().st_uid, -1)
    group.submit(2, "echo ran")
    ends = group.wait("ended")
    assert {(end.outcome, end.reason) for end in ends} == {("Failed", "MemberNotStarted")}
    assert "pod default/w-1 (rank 1 of the group) did not start on machine " in ends[0].message
    for pod in group.pods.values():
        assert not (site.folder / "jobs" / pod / "started").exists()
    group.check_nothing_left()


def check_successor(site: Any, driver: dict[str, Any] | None = None) -> None:
    """A pod takes the place of one that is over, in the same job. ``driver``: what the first one requests."""
    group = Group(site, 3, by_rank={0: driver or {}})
    for rank, command in enumerate(("sleep 60", "exit 3", "sleep 60")):
        group.submit(rank, command)
    assert site.wait(group.pods[1], "ended", site.patience).outcome == "Failed"
    job = site.status(group.pods[0]).job_id
    old = group.pods[1]
    if driver:
        group.by_rank[1] = driver
        with pytest.raises(SiteRefusedError, match="the pods of a group must be equal at this site"):
            group.submit(1, "echo ran")
        group.by_rank.pop(1)
    group.submit(1, 'echo "$PODBRIDGE_GROUP_RANK"; cut -d " " -f 2- "$PODBRIDGE_GROUP_FILE"; sleep 1')
    assert site.wait(group.pods[1], "ended", site.patience).outcome == "Succeeded"
    names = [f"w-{rank}.sub w-{rank}" for rank in range(3)]
    assert (site.status(group.pods[1]).job_id, group.log(1)) == (job, ["1", *names])
    assert [site.status(group.pods[rank]).phase for rank in (0, 2)] == ["running"] * 2
    site.client.call(CANCEL, old, CancelMessage(grace=0, forget=True))
    group.check_nothing_left()


def check_one_is_killed(site: Any) -> None:
    """A pod is killed, and the others run on; once all are cancelled, the job ends."""
    group = Group(site, 3)
    for rank in range(3):
        group.submit(rank, "sleep 20" if rank == 1 else "sleep 600", deaf=rank == 1)
    group.wait("running")
    group.cancel(1)
    eventually(lambda: site.status(group.pods[1]) is None, "the pod is gone", 40)
    del group.pods[1]
    assert [site.status(pod).phase for pod in group.pods.values()] == ["running"] * 2
    group.check_nothing_left()


def check_cancelled_while_queued(site: Any, **more: Any) -> None:
    """Pods of a job that is pending are over at once, and the last one ends the job. ``more``: the job never starts."""
    group = Group(site, 2, more)
    group.submit_all("echo ran")
    eventually(lambda: all(site.status(pod).job_id for pod in group.pods.values()), "the job is submitted")
    group.cancel(0, forget=False)
    assert site.wait(group.pods[0], "ended").reason == "Deleted"
    assert site.status(group.pods[1]).phase == "queued"
    group.check_nothing_left()
