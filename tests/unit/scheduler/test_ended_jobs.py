"""Binds and gangs whose job has ended meanwhile: no pod is bound to it, whoever has ended the job and whenever.

public reports: kubernetes-sigs/jobset restarts all Jobs of a JobSet within a second of a failure.
"""

import pytest

from bridge import names
from bridge.slurm.models import GroupRef, Job, JobLink, JobPart, ObservedJob, Snapshot
from bridge.workload import pods
from scheduler import group_binding
from scheduler.group_actions import Bind
from tests.fakes.memory_world import MemoryWorld, path_of

ENDS = ["CANCELLED", "PREEMPTED", "TIMEOUT", "NODE_FAIL", "FAILED", "COMPLETED", "PENDING"]
UNITS = {"alone": 1, "train": 3}
REF = GroupRef("jobset", "ns", "train", "o1", "workers")


class World(MemoryWorld):
    def __init__(self, apart=False):
        self.apart, self.finalizers = apart, [names.FINALIZER]
        super().__init__()

    def make(self, unit):
        for slot in range(UNITS[unit]):
            self.create((unit, slot))

    def look(self, times=1, *, controllers=True):
        self.hub.work(times, controllers=controllers)

    def schedule(self):
        """Let the scheduler decide and act on what has changed, without a poll."""
        self.hub.deliver()
        self.hub.scheduler.reconcile()
        self.hub.run_all()

    def carry_out(self, number):
        """Carry out what the scheduler (0) or the controllers (1) have decided."""
        while self.hub.queues[number].calls:
            self.hub.queues[number].run(0)

    def until_submitted(self, unit):
        self.make(unit)
        for _ in range(10):
            self.look()
            if self.hub.slurm.live():
                return self.hub.slurm.live()[0]
        raise AssertionError("no job was submitted")

    def until_running(self, unit):
        job = self.until_submitted(unit)
        self.hub.slurm.start(job)
        self.look(4)
        assert len(self.running()) == UNITS[unit]
        return job

    def until_bound(self):
        for _ in range(40):
            self.look()
            for job in self.jobs("PENDING"):
                self.hub.slurm.start(job)
        return {pods.job_id(pod) for pod in self.running()}


@pytest.fixture(params=[False, True], ids=["one process", "two processes"])
def world(request):
    return World(apart=request.param)


@pytest.mark.parametrize("state", ENDS)
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("polls", [1, 3])
def test_a_bind_that_waits_for_a_worker_is_not_carried_out_after_the_end_of_the_job(world, unit, state, polls):
    job, hub = world.until_submitted(unit), world.hub
    hub.slurm.start(job)
    for _ in range(5):
        hub.decide()
    assert hub.queues[0].calls
    job.set(state)
    for _ in range(polls):
        hub.decide()
    hub.run_all()
    assert not world.running()
    if state == "PENDING":
        hub.slurm.start(job)
    assert world.until_bound() == ({job.job_id} if state == "PENDING" else {hub.slurm.live()[0].job_id})


@pytest.mark.parametrize("unit", UNITS)
def test_the_pods_of_a_restarted_unit_get_a_new_job(world, unit):
    """The controllers release the job of ended pods; the scheduler sees their successors before its next poll."""
    job, hub = world.until_running(unit), world.hub
    for pod in hub.kube.pods():
        hub.kube.request_deletion(path_of(pod))
        world.finish(pod, "Failed")
    hub.clock.advance(0.2)
    hub.own_poller.poll()
    hub.deliver()
    hub.controllers.reconcile()
    world.carry_out(1)
    assert not hub.kube.pods()
    assert not job.lives
    hub.clock.advance(0.3)
    world.make(unit)
    hub.deliver()
    hub.scheduler.reconcile()
    world.carry_out(0)
    assert not world.running()
    (bound,) = world.until_bound()
    assert bound != job.job_id
    assert len(world.running()) == UNITS[unit]


def test_a_gang_whose_job_the_scheduler_itself_has_cancelled_gets_a_new_one(world):
    """All members are deleted before the bind; their successors arrive before the next poll."""
    job, hub = world.until_submitted("train"), world.hub
    hub.slurm.start(job)
    hub.clock.advance(1)
    hub.poll()
    for pod in hub.kube.pods():
        hub.kube.request_deletion(path_of(pod))
    for _ in range(2):
        world.schedule()
    assert not job.lives
    world.make("train")
    world.schedule()
    assert not world.running()
    (bound,) = world.until_bound()
    assert bound != job.job_id


def test_the_job_of_a_gang_is_kept_for_a_member_that_is_created_before_its_release(world):
    """The controllers have decided to release the job; a new member arrives while the action waits for a worker."""
    job, hub = world.until_running("train"), world.hub
    for pod in hub.kube.pods():
        world.finish(pod, "Failed")
    hub.deliver()
    hub.clock.advance(1)
    hub.poll()
    hub.controllers.reconcile()
    assert hub.queues[1].calls
    hub.kube.request_deletion("/api/v1/namespaces/ns/pods/train-0")
    pod = hub.kube.get("/api/v1/namespaces/ns/pods/train-0")
    pod["metadata"]["finalizers"] = []
    hub.kube.put("/api/v1/namespaces/ns/pods/train-0", pod)
    world.create(("train", 0))
    hub.deliver()
    world.carry_out(1)
    assert job.lives
    world.look(3)
    assert [pods.job_id(pod) for pod in world.running()] == [job.job_id]


@pytest.mark.parametrize("unit", UNITS)
def test_no_new_poll_is_needed_while_a_member_of_the_job_exists(unit):
    """Only a snapshot that is older than all members may show a job that is over."""
    world = World()
    job, hub = world.until_submitted(unit), world.hub
    hub.slurm.start(job)
    hub.clock.advance(1)
    hub.poll()
    if unit == "train":  # a member that arrives after the poll
        hub.kube.request_deletion("/api/v1/namespaces/ns/pods/train-2")
        world.schedule()
        hub.clock.advance(0.1)
        world.create(("train", 2))
    world.schedule()
    assert len(world.running()) == UNITS[unit]


def _bind(**fields):
    pod = {"metadata": {"namespace": "ns", "name": "p", "uid": "u1", "annotations": {}}, "spec": {}}
    return Bind(pod, 5, "k1", 0.0, fields.get("node", "n1"), fields.get("component", 0))


def _snapshot(state="RUNNING", nodes=("n1",), key=REF, *, missing=False, parts=()):
    job = Job(5, frozenset(state.split("+")), JobLink("c", (), key, 2), nodes, parts=parts)
    return Snapshot(1, 1.0, jobs={5: ObservedJob(job, missing=missing)}, by_uid={key.key: (5,)})


def test_a_bind_is_carried_out_only_on_a_node_of_the_allocated_job():
    def lost(snapshot, cancelled=frozenset(), **fields):
        return group_binding.lost_allocation(_bind(**fields), REF.key, snapshot, cancelled)

    parts = (JobPart(5, frozenset({"RUNNING"}), ("n1",)), JobPart(6, frozenset({"RUNNING"}), ("n2",)))
    assert lost(_snapshot()) == ""
    assert lost(_snapshot(nodes=("n1", "n2"), parts=parts), node="n2", component=6) == ""
    assert lost(_snapshot("RUNNING+CONFIGURING")) == ""
    assert lost(_snapshot(), frozenset({5})) == "podbridge has cancelled the job"
    assert lost(Snapshot(1, 1.0)) == lost(_snapshot(missing=True)) == "Slurm does not list the job"
    assert lost(_snapshot(key=GroupRef("job", "ns", "other", "o2"))) == "the job is that of another pod"
    assert lost(_snapshot("RUNNING+COMPLETING")) == "the job is COMPLETING+RUNNING"
    assert lost(_snapshot(nodes=("n2",))) == "the job no longer has node n1"
    for state in ENDS:
        assert lost(_snapshot(state)) == f"the job is {state}"
