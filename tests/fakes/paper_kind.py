"""An invented kind of pool: a desk where clerks run pods on paper. All that a kind needs, but its line in the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bridge.config.base import ObjectName
from bridge.config.pool_kind import PoolKindSection
from bridge.pools.polled.polled_pool import PolledPool, PolledPools
from bridge.pools.pool_interface import Pod
from bridge.pools.registry import PoolContext
from bridge.protocol.model.announcement import READY, Announcement, Readiness
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination
from bridge.script.references import Objects

DESKS: dict[str, dict[str, JobStatus]] = {}
"""The jobs on each desk, by UID."""


class PaperSection(PoolKindSection):
    title, page = "paper", "admins/paper.md"

    name: ObjectName
    desk: str

    @property
    def pool_names(self) -> list[str]:
        return [self.name]

    @property
    def urls(self) -> list[str]:
        return [self.desk]


class PaperPool(PolledPool):
    """A clerk finishes a job before the third look at it."""

    logs = None

    def __init__(self, section: PaperSection, context: PoolContext) -> None:
        super().__init__(section.name, context.clock, poll_period=0.1, ping_period=0.1, batch=10)
        self.desk = DESKS.setdefault(section.desk, {})

    def ready(self) -> Readiness:
        return READY

    def prepare(self, pod: Pod) -> Pod:
        return pod

    def submit(self, pod: Pod, objects: Objects) -> JobStatus:
        metadata = pod["metadata"]
        job = JobStatus(job=metadata["uid"], namespace=metadata["namespace"], name=metadata["name"], phase="queued")
        return self.desk.setdefault(job.job, replace(job, job_id=f"sheet {len(self.desk) + 1}"))

    def cancel(self, pod: Pod, grace: float, *, forget: bool = False) -> JobStatus | None:
        self.desk.pop(pod["metadata"]["uid"], None)
        return self.status(pod)

    def _fetch(self, pods: Sequence[Pod]) -> Mapping[str, JobStatus | None]:
        return {pod["metadata"]["uid"]: self._work(pod["metadata"]["uid"]) for pod in pods}

    def _work(self, uid: str) -> JobStatus | None:
        job, now = self.desk.get(uid), self._clock.time()
        if job is not None and job.phase == "queued":
            running = ContainerState(name="main", state="running", started=True, ready=True, started_at=now)
            self.desk[uid] = replace(job, phase="running", started_at=now, containers=[running])
        elif job is not None:
            ended = Termination(exit_code=0, started_at=job.started_at, finished_at=now)
            done = ContainerState(name="main", state="terminated", ended=ended)
            self.desk[uid] = replace(job, phase="ended", outcome="Succeeded", ended_at=now, containers=[done])
        return job

    def _ping(self) -> None:
        """The clerk always answers."""

    def _announcement(self, problem: str) -> Announcement:
        capacity = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        fields = {"submitter": "clerk", "time": self._clock.time(), "period": 1, "version": "", "problem": problem}
        return Announcement(pool=self.name, capacity=capacity, **fields)


def make(sections: Iterable[PaperSection], context: PoolContext) -> PolledPools:
    return PolledPools(PaperPool(section, context) for section in sections)
