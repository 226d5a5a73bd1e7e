"""What machines with groups at pools share: pods and their ends, Bindings on the way, and leaders that are stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from bridge import names
from bridge.workload import places, pods
from tests import builders
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.memory_kube import Killed
from tests.fakes.memory_world import path_of

NUMBER = st.integers(0, 7)
FAULTS = st.lists(st.sampled_from(["", "refused", "unanswered"]), min_size=1, max_size=6)
"""What happens to the next writes of the hub (:class:`~tests.fakes.memory_kube.Writes`)."""


def pod_for_pools(
    name: str, uid: str, created: str, cpus: str, annotations: Mapping[str, str], *taints: str
) -> dict[str, Any]:
    """Return a pod that tolerates all pools, and these taints."""
    return builders.pod(
        uid,
        requests={"cpu": cpus},
        annotations=annotations,
        metadata={"name": name, "creationTimestamp": created},
        tolerations=[{"key": key, "operator": "Exists"} for key in (names.VIRTUAL_TAINT, names.POOL_TAINT, *taints)],
    )


class HubMachine(RuleBasedStateMachine):
    """A hub whose leader may be killed while a Binding is on the way; a subclass begins with :meth:`use`."""

    hub: MemoryHub

    def use(self, hub: MemoryHub) -> None:
        self.hub, self.made = hub, 0
        self.in_flight: list[tuple[str, Any]] = []
        self.next_is_late = False
        self.send, hub.kube.create = hub.kube.create, self.bind  # type: ignore[method-assign]

    def bind(self, path: str, body: Any) -> Any:
        """Create a Binding, or kill the leader while its request is on the way."""
        if not self.next_is_late:
            return self.send(path, body)
        self.next_is_late = False
        self.in_flight.append((path, body))
        raise Killed

    def arrive(self, path: str, body: Any) -> Any:
        """Create a Binding that a former process has sent: the present one is not killed after this write."""
        writes, kill_after = self.hub.writes, self.hub.writes.kill_after
        writes.kill_after = None
        try:
            return self.send(path, body)
        finally:
            writes.kill_after = kill_after

    def decide_all(self) -> None:
        """Let the loops decide with what the API server and Slurm have now."""
        raise NotImplementedError

    @rule()
    def depose(self) -> None:
        """The leader is stopped after its decisions; when it continues, it writes nothing."""
        self.decide_all()
        former, before = self.hub.depose(), self.hub.writes.count
        for queue in former:
            while queue.calls:
                queue.run(0)
        assert self.hub.writes.count == before, "a process without the lease has written"

    @precondition(lambda self: hasattr(self, "hub") and not self.hub.writes.faults)
    @rule(faults=FAULTS)
    def no_answer(self, faults: list[str]) -> None:
        """The API server or slurmctld does not answer some of the next writes, which it may have carried out."""
        self.hub.writes.faults = faults

    def running(self) -> list[Any]:
        return [pod for pod in self.hub.kube.pods() if pods.is_bound(pod) and not pods.is_finished(pod)]

    @precondition(lambda self: self.running())
    @rule(number=NUMBER, phase=st.sampled_from(["Succeeded", "Failed"]))
    def pod_ends(self, number: int, phase: str) -> None:
        self.finish(self.running()[number % len(self.running())], phase)

    def finish(self, pod: Any, phase: str) -> str:
        """Let a pod end; return its phase."""
        pod = self.hub.kube.get(path_of(pod))
        pod["status"]["phase"] = "Failed" if pods.is_deleted(pod) else phase
        self.hub.kube.put(path_of(pod), pod)
        return str(pod["status"]["phase"])

    def delete_failed(self) -> None:
        for pod in self.hub.kube.pods():
            if pod["status"]["phase"] == "Failed" and not pods.is_deleted(pod):
                self.hub.kube.request_deletion(path_of(pod))

    def set_ready(self, name: str, ready: bool, **annotations: str) -> None:
        node = self.hub.kube.get(f"/api/v1/nodes/{name}")
        node["status"]["conditions"] = [{"type": "Ready", "status": "True" if ready else "False"}]
        node["metadata"]["annotations"].update(annotations)
        self.hub.kube.put(f"/api/v1/nodes/{name}", node)

    def story(self) -> str:
        lines = []
        for pod in self.hub.kube.pods():
            said = pods.condition(pod, names.POD_SCHEDULED)
            lines.append(
                f"{pod['metadata']['name']} {pods.uid(pod)} {pod['metadata']['creationTimestamp']} "
                f"node {pod['spec'].get('nodeName')} {pod['status']['phase']} job {pods.job_id(pod)} "
                f"deleted {pods.is_deleted(pod)} places {places.recorded(pod)} "
                f"in job {pod['metadata']['annotations'].get(names.PLACE_IN_JOB)} "
                f"{said.get('reason', '')} {said.get('message', '')}"
            )
        return "\n".join([*lines, *map(str, self.in_flight)])
