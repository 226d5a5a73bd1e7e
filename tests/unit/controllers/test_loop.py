"""The loop of the controllers: what its thread and the workers share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.kube import paging
from bridge.slurm.models import GroupRef, JobLink
from cluster.polling import eventually
from controllers.workload import workload_act
from controllers.workload.workload_actions import Orphan
from tests import builders
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.memory_slurm import CLUSTER


class Shared(dict[str, float]):
    """A dict during whose iteration another thread calls ``meanwhile``."""

    def __init__(self, meanwhile: Any) -> None:
        super().__init__({"a": 1e18, "b": 1e18})
        self.meanwhile = meanwhile

    def items(self) -> Iterator[tuple[str, float]]:  # type: ignore[override]
        for item in super().items():
            thread = threading.Thread(target=self.meanwhile, daemon=True)
            thread.start()
            thread.join(0.2)  # with the lock, the thread waits for the end of the iteration
            yield item


def test_a_worker_that_ends_while_the_loop_decides() -> None:
    hub = MemoryHub(("n1",))
    controllers = hub.controllers
    queue = hub.queues[1]
    controllers._dispatch("workload", "key", object(), lambda: None)
    (call,) = queue.calls.values()
    controllers._resting = Shared(call)
    controllers.reconcile()
    eventually(lambda: "key" in controllers._resting)
    assert set(controllers._resting) == {"a", "b", "key"}


@pytest.mark.parametrize(("phase", "finds"), [("Pending", True), ("Failed", False)])
def test_a_member_of_a_group_is_searched_in_pages_of_metadata(
    phase: str, finds: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paging, "PAGE", 2)
    hub = MemoryHub(("n1",))
    for number in range(6):
        place = builders.group(2, kind="job") if number == 3 else {}
        scheduler = "another" if number == 0 else hub.config.scheduler_name
        status = phase if number == 3 else "Running"
        metadata = {"name": f"p{number}"}
        pod = builders.pod(f"u{number}", phase=status, annotations=place, metadata=metadata, schedulerName=scheduler)
        hub.create(pod)
    pages: list[list[Any]] = []
    original = hub.kube.get

    def get(path: str, params: Any = None, *, metadata_only: bool = False) -> Any:
        assert metadata_only
        answer = original(path, params, metadata_only=metadata_only)
        pages.append([pod["metadata"]["name"] for pod in answer["items"]])
        return answer

    monkeypatch.setattr(hub.kube, "get", get)
    cancelled: list[int] = []
    actor = workload_act.WorkloadActor(hub.scheduler.slurm.dependencies, lambda: None)
    monkeypatch.setattr(actor, "cancel", lambda job, _: cancelled.append(job))
    actor.act(Orphan(7, JobLink(CLUSTER, (), GroupRef("job", "ns", "train", "o1"), 2)))
    assert cancelled == ([] if finds else [7])
    assert pages == ([["p1", "p2"], ["p3", "p4"]] if finds else [["p1", "p2"], ["p4", "p5"]])
