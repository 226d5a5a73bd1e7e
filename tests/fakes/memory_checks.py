"""What must hold at each write of the hub in memory; see :mod:`tests.fakes.memory_hub`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from bridge.kube.object_store import Object
from bridge.slurm import states
from bridge.slurm.models import JobLink, JobRequest
from bridge.workload import links, pods
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.memory_slurm import MemoryJob


class WriteChecks:
    """Assertions that the API server and slurmctld in memory make when the hub writes.

    ``fresh``: the hub decides from the present state of both, so that its decision has no excuse. ``minimum`` returns
    the number of members that start together, by the link of their job. ``submissions`` counts the requests for a job
    of each pod or gang, by key.
    """

    def __init__(self, hub: MemoryHub, minimum: Callable[[JobLink], int]) -> None:
        self.fresh = False
        self.submissions: Counter[str] = Counter()
        self._hub, self._minimum = hub, minimum
        hub.kube.on_bind, hub.kube.on_delete = self._bind, self._delete
        hub.slurm.on_submit, hub.slurm.on_cancel = self._submit, self._cancel
        hub.slurm.on_shrink = self._shrink

    def members(self, link: JobLink) -> list[Object]:
        """Return the pods of a job."""
        return [pod for pod in self._hub.kube.pods() if links.key(pod) in link.keys]

    def started(self, job: MemoryJob) -> list[Object]:
        """Return the pods that were bound to the job, those that have succeeded before, and those that run alone."""
        return [
            pod
            for pod in self.members(job.request.link)
            if (pods.is_bound(pod) and pods.job_id(pod) == job.job_id) or pod["status"]["phase"] == "Succeeded"
        ] + self._alone(job.request.link)

    def _alone(self, link: JobLink) -> list[Object]:
        """Return the members of the group of a job that run, or have succeeded, in a job of their own."""
        return [
            pod
            for pod in self._hub.kube.pods()
            if (member := links.group_of(pod)) is not None
            and (member.alone and member.key.key in link.keys)
            and pods.is_bound(pod)
            and pod["status"]["phase"] != "Failed"
        ]

    def half_bound(self, job: MemoryJob) -> bool:
        """Whether members of the job are bound, but not enough of them."""
        bound = [pod for pod in self.started(job) if pods.job_id(pod) == job.job_id]
        return bool(bound) and len(self.started(job)) < self._minimum(job.request.link)

    def _bind(self, pod: Object, node: str) -> None:
        name, job_id = pod["metadata"]["name"], pods.job_id(pod)
        assert pods.is_held(pod), f"{name} has no finalizer and is bound"
        job = self._hub.slurm.jobs.get(job_id or 0)
        assert job_id not in self._hub.slurm.cancelled, f"{name} is bound to job {job_id}, which the hub has cancelled"
        seen = self._hub.poller.snapshot.jobs.get(job_id or 0)
        allocated = seen is not None and not seen.missing and states.is_allocated(seen.job.states)
        assert allocated, f"{name} is bound to job {job_id}, which the newest snapshot does not show as allocated"
        if job is None or not job.lives or job_id in self._hub.slurm.moved:
            is_over = job is None or not job.lives
            assert not (self.fresh and is_over), f"{name} is bound to job {job_id}, which is over"
            return  # the job has ended, or was requeued, since the last poll
        keys = job.request.link.keys
        assert job.ours, f"{name} is bound to job {job_id} of another cluster"
        assert links.key(pod) in keys, f"{name} is bound to job {job_id} of {keys}"
        part = next((part for part in job.all if node in part.nodes), None)
        assert part is not None, f"{name} is bound to {node}, job {job_id} has {[part.nodes for part in job.all]}"
        if self.fresh:
            assert states.is_allocated(job.shown().states), f"{name} is bound, and its job is {job.shown().states}"
            assert links.shape(pod) == part.request.link.shape, f"{name} requests something else than its job {job_id}"
            spec = self._hub.kube.get(f"/api/v1/nodes/{node}")["spec"]
            assert not spec.get("unschedulable"), f"{name} is bound to {node}, which is cordoned"
            bound = [other for other in self._hub.kube.pods() if other["spec"].get("nodeName") == node]
            full = node in self._hub.blockers or not all(map(pods.is_finished, bound))
            assert not full, f"{name} is bound to {node}, which has room for one pod"

    def _delete(self, pod: Object) -> None:
        job_id = pods.job_id(pod) or 0
        job = self._hub.slurm.jobs.get(job_id)
        ended = job is None or not job.lives or not job.ours or job_id in self._hub.slurm.moved
        assert ended, f"{pod['metadata']['name']} is terminated, and its job {job_id} has not ended"

    def _submit(self, request: JobRequest) -> None:
        self.submissions.update(request.link.keys)
        if not self.fresh or request.link.group is None:
            return
        members = [pod for pod in self.members(request.link) if not pods.is_deleted(pod)]
        present = [pod for pod in members if pods.is_open(pod) or pod["status"]["phase"] == "Succeeded"]
        present += self._alone(request.link)
        assert len(present) >= self._minimum(request.link), f"{len(present)} members of {request.link.keys} exist"

    def _cancel(self, job: MemoryJob) -> None:
        assert job.ours, f"job {job.job_id} of another cluster is cancelled"
        if job.job_id in self._hub.slurm.moved or self.half_bound(job):
            return
        running = [
            pod["metadata"]["name"]
            for pod in self.started(job)
            if pods.job_id(pod) == job.job_id and not pods.is_finished(pod)
        ]
        assert not running, f"job {job.job_id} is cancelled, and {running} run"

    def _shrink(self, job: MemoryJob, kept: tuple[str, ...]) -> None:
        assert job.ours, f"job {job.job_id} of another cluster is shrunk"
        released = {*job.nodes} - {*kept}
        running = {
            pod["metadata"]["name"]: pod["spec"]["nodeName"]
            for pod in self._hub.kube.pods()
            if links.key(pod) in job.request.link.keys and pods.is_bound(pod) and not pods.is_finished(pod)
        }
        assert released.isdisjoint(running.values()), f"job {job.job_id} gives back {released}, and {running} run"
        if self.fresh:
            specs = {node: self._hub.kube.get(f"/api/v1/nodes/{node}")["spec"] for node in released}
            usable = [node for node, spec in specs.items() if not spec.get("unschedulable") and self._is_up(node)]
            assert not usable, f"job {job.job_id} gives back {usable}, which take pods"
            assert running, f"job {job.job_id} is shrunk, and no member of it runs"

    def _is_up(self, node: str) -> bool:
        ready = self._hub.kube.get(f"/api/v1/nodes/{node}")["status"]["conditions"][0]["status"] == "True"
        return ready and node not in self._hub.slurm.drained
