"""A changed schedulerName: the pods with the former name are found, reported, and released with their jobs."""

from __future__ import annotations

import copy

import pytest

from bridge import names
from bridge.kube.resources import PODS
from controllers.workload import stranded
from tests.fakes.memory_hub import MemoryHub
from tests.fakes.recorders import RecordedEvents
from tests.unit.scheduler.test_binding import PATH, decide_the_bind, hub_with_started_job

FORMER = "former-scheduler"


def renamed(hub: MemoryHub) -> RecordedEvents:
    """Restart the hub: its configuration has another name than the pods."""
    for obj in hub.kube.pods():
        obj["spec"]["schedulerName"] = FORMER
    hub.restart()
    for pod in list(hub.pods.items()):
        hub.pods.deliver(pod, gone=True)
    events = RecordedEvents()
    hub.controllers._stranded._events = events  # type: ignore[assignment]
    return events


def live(hub: MemoryHub, seconds: int) -> None:
    for _ in range(seconds):
        hub.clock.advance(1)
        hub.poll()
        hub.controllers.reconcile()
        hub.run_all()


@pytest.fixture
def hub() -> MemoryHub:
    """Return a hub with one pod that runs."""
    found = hub_with_started_job()
    decide_the_bind(found)
    found.run_all()
    return found


def test_a_running_pod_is_reported_once_and_its_job_is_kept(hub: MemoryHub, monkeypatch: pytest.MonkeyPatch) -> None:
    events, reads = renamed(hub), list[str]()
    get = hub.kube.get
    monkeypatch.setattr(hub.kube, "get", lambda path, *a, **k: (reads.append(path), get(path, *a, **k))[1])
    live(hub, 120)
    assert [reason for reason, _ in events.told] == ["SchedulerNameChanged"]
    assert "is slurm-bridge-scheduler now, and the pod names former-scheduler" in events.told[0][1]
    assert len(hub.slurm.live()) == 1
    assert 1 < reads.count(PATH) <= 1 + 120 / stranded.PERIOD, "not once a second"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_is_released_with_its_job(hub: MemoryHub, phase: str) -> None:
    renamed(hub)
    live(hub, 5)
    ended = copy.deepcopy(hub.kube.objects[PATH])
    ended["status"]["phase"] = phase
    hub.kube.put(PATH, ended)
    live(hub, 40)
    assert names.FINALIZER not in hub.kube.objects[PATH]["metadata"]["finalizers"]
    assert hub.slurm.live() == []


def test_a_deleted_pod_is_released_and_its_job_ends_with_it(hub: MemoryHub) -> None:
    renamed(hub)
    live(hub, 5)
    hub.kube.request_deletion(PATH)
    live(hub, 60)
    assert hub.kube.objects[PATH]["metadata"]["finalizers"] == []
    assert len(hub.slurm.live()) == 1, "its containers may still run"
    del hub.kube.objects[PATH]
    live(hub, 60)
    assert hub.slurm.live() == []


def test_a_waiting_pod_that_is_deleted_goes_with_its_job() -> None:
    hub = hub_with_started_job()
    renamed(hub)
    live(hub, 5)
    hub.kube.request_deletion(PATH)
    live(hub, 80)
    assert PATH not in hub.kube.objects
    assert hub.slurm.live() == []


def test_a_deleted_pod_without_a_job_does_not_stay_for_ever(hub: MemoryHub) -> None:
    """Nobody can say whose it is: another installation has time to release it."""
    hub.kube.objects[PATH]["metadata"]["uid"] = "other"
    renamed(hub)
    hub.kube.request_deletion(PATH)
    live(hub, 60)
    assert hub.kube.objects[PATH]["metadata"]["finalizers"] == [names.FINALIZER]
    live(hub, int(stranded.OVERDUE) + 60)
    assert hub.kube.objects[PATH]["metadata"]["finalizers"] == []


def test_a_pod_that_left_the_cache_later_is_followed_too(hub: MemoryHub, monkeypatch: pytest.MonkeyPatch) -> None:
    live(hub, 5)
    for pod in list(hub.pods.items()):
        hub.pods.deliver(pod, gone=True)
    reads, get = list[str](), hub.kube.get
    monkeypatch.setattr(hub.kube, "get", lambda path, *a, **k: (reads.append(path), get(path, *a, **k))[1])
    live(hub, 60)
    assert 1 < reads.count(PATH) <= 4
    hub.kube.request_deletion(PATH)
    live(hub, 40)
    assert hub.kube.objects[PATH]["metadata"]["finalizers"] == []


def test_the_job_of_a_group_is_not_cancelled_because_its_members_have_a_former_name(hub: MemoryHub) -> None:
    """Nothing is an orphan before the pods of other schedulers are listed."""
    renamed(hub)
    assert hub.controllers._stranded.keeps(("jobset/o1/workers",))
    live(hub, 5)
    assert not hub.controllers._stranded.keeps(("jobset/o1/workers",))
    assert hub.controllers._stranded.keeps(("u1",))


def test_the_pod_of_another_installation_is_left_alone(hub: MemoryHub) -> None:
    """It has a finalizer of the same name, and a job with another owner."""
    hub.kube.objects[PATH]["metadata"]["uid"] = "other"
    events = renamed(hub)
    live(hub, 120)
    assert events.told == []
    assert names.FINALIZER in hub.kube.objects[PATH]["metadata"]["finalizers"]


def test_thousands_of_pods_of_another_installation_are_read_in_turn(
    hub: MemoryHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(400):
        other = copy.deepcopy(hub.kube.objects[PATH])
        other["metadata"] |= {"name": f"o{number}", "uid": f"other-{number}"}
        hub.kube.objects[PODS.path_of(other)] = other
    renamed(hub)
    reads, get = list[str](), hub.kube.get
    monkeypatch.setattr(hub.kube, "get", lambda path, *a, **k: (reads.append(path), get(path, *a, **k))[1])
    live(hub, 65)
    others = [path for path in reads if path.startswith(PATH.removesuffix("p")) and path != PATH]
    assert len(others) == len(set(others)) == 3 * stranded.MOST_OTHERS, "one after the other, and none twice"
    assert reads.count(PATH) == 3, "the own one each time"
