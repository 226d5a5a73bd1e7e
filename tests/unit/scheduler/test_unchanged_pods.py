"""Pending pods about which nothing has changed are left out of the decisions, until something changes.

The hub in memory checks, for each pod that is left out, that the decision about it has no result.
"""

import copy

import pytest

from scheduler import excluded_nodes, unchanged_pods
from scheduler.conditions import MIN_INTERVAL, TELL_UNKNOWN_AFTER
from tests.builders import pod
from tests.fakes.memory_hub import MemoryHub
from tests.unit.scheduler.test_volumes import claim, volume

PODS = "/api/v1/namespaces/ns/pods"


def create(hub, name, **spec):
    hub.create(pod(name, held=True, metadata={"name": name}, **({"requests": {"cpu": "5"}} | spec)))


def look(hub):
    """Decide for all pods, carry out the actions, and return the number of pods that were left out."""
    hub.decide(0)
    left_out = hub.unchanged.left_out
    hub.run_all()
    return left_out


@pytest.fixture
def hub():
    """Two pods have been pending for so long that nothing is to be told about them."""
    hub = MemoryHub(("n1", "n2"))
    create(hub, "p")
    create(hub, "q")
    rest(hub)
    assert look(hub) == 2
    return hub


def rest(hub):
    for seconds in (0, 0, TELL_UNKNOWN_AFTER, 0, MIN_INTERVAL, 0):
        hub.clock.advance(seconds)
        look(hub)


def job(hub, name):
    return next(job for job in hub.slurm.jobs.values() if job.request.link.pods[0].name == name)


def relabel(hub):
    pod = copy.deepcopy(hub.kube.get(f"{PODS}/p"))
    pod["metadata"]["labels"]["team"] = "blue"
    hub.kube.put(f"{PODS}/p", pod)


def start(hub):
    job(hub, "p").state, job(hub, "p").nodes = "RUNNING", ("n1",)


def cancel(hub):
    job(hub, "p").set("CANCELLED")


def forget_states(hub):
    hub.scheduler.states.by_uid.pop("p")


@pytest.mark.parametrize("change", [relabel, start, cancel, forget_states])
def test_a_pod_is_decided_again_after_a_change_of_it_or_of_its_job_or_state(hub, change):
    change(hub)
    assert look(hub) == 1


def test_a_pod_whose_job_has_started_is_bound(hub):
    start(hub)
    look(hub)
    hub.deliver()
    assert hub.kube.get(f"{PODS}/p")["spec"]["nodeName"] == "n1"
    assert look(hub) == 1


def test_a_deleted_pod_is_released(hub):
    hub.kube.request_deletion(f"{PODS}/p")
    look(hub)
    look(hub)
    assert job(hub, "p").state == "CANCELLED"
    assert look(hub) == 1


def test_a_change_of_a_node_updates_the_jobs_of_all_pods(hub):
    hub.cordon("n2")
    assert look(hub) == 0
    assert {job(hub, name).excluded for name in ("p", "q")} == {("n2",)}
    rest(hub)
    assert look(hub) == 2


def test_a_job_that_slurm_starts_later_is_updated_as_soon_as_it_is_one_of_the_next(hub, monkeypatch):
    monkeypatch.setattr(excluded_nodes, "HEAD", 1)
    hub.cordon("n2")
    rest(hub)
    assert look(hub) == 2
    assert [job(hub, name).excluded for name in ("p", "q")] == [("n2",), ()]
    start(hub)
    hub.clock.advance(excluded_nodes.PERIOD)
    look(hub)
    assert [job(hub, name).excluded for name in ("p", "q")] == [("n2",), ("n2",)]


def test_a_change_of_a_node_is_no_reason_to_decide_about_a_job_that_slurm_starts_later(hub, monkeypatch):
    monkeypatch.setattr(excluded_nodes, "HEAD", 1)
    hub.cordon("n2")
    rest(hub)
    assert look(hub) == 2
    hub.cordon("n2", False)
    assert look(hub) == 1


def test_a_job_whose_excluded_nodes_are_not_known_is_decided_as_soon_as_it_is_one_of_the_next(hub, monkeypatch):
    monkeypatch.setattr(excluded_nodes, "HEAD", 1)
    hub.restart(inherited=False)
    rest(hub)
    assert look(hub) == 2
    assert hub.scheduler.states.by_uid["q"].excluded is None
    start(hub)
    hub.clock.advance(excluded_nodes.PERIOD)
    assert look(hub) == 0
    assert hub.scheduler.states.by_uid["q"].excluded == ()


def test_the_excluded_nodes_of_a_job_that_slurm_starts_later_are_not_compared_after_a_restart(hub, monkeypatch):
    monkeypatch.setattr(excluded_nodes, "HEAD", 1)
    hub.restart(inherited=False)
    compared = []
    monkeypatch.setattr(
        unchanged_pods, "with_excluded", lambda view, state, found, wanted: compared.append(found) or state
    )
    rest(hub)
    assert {found.job_id for found in compared} == {job(hub, "p").job_id}


def messages(hub, name):
    return [entry["message"] for entry in hub.kube.get(f"{PODS}/{name}")["status"]["conditions"]]


def test_a_message_that_is_due_later_is_written(hub):
    create(hub, "r")
    for _ in range(3):
        look(hub)
    hub.clock.advance(TELL_UNKNOWN_AFTER)
    look(hub)
    look(hub)
    assert any("is pending" in message for message in messages(hub, "r"))


def test_a_message_that_changes_soon_after_the_last_one_is_written_later(hub):
    create(hub, "r")
    for seconds in (0, 0, TELL_UNKNOWN_AFTER, 0):
        hub.clock.advance(seconds)
        look(hub)
    job(hub, "r").set("PENDING", "SUSPENDED")
    look(hub)
    look(hub)
    assert any("is pending" in message for message in messages(hub, "r"))
    hub.clock.advance(MIN_INTERVAL)
    look(hub)
    assert any("is suspended" in message for message in messages(hub, "r"))


def test_nothing_is_kept_of_pods_that_no_longer_wait(hub):
    hub.kube.request_deletion(f"{PODS}/p")
    look(hub)
    look(hub)
    look(hub)
    assert hub.unchanged._decided.keys() == {"q"}


def add_pod_with_claim(hub):
    """Add a pod with a bound claim, and wait until it is left out; return the storage of the scheduler."""
    storage = hub.scheduler.slurm._storage
    owner = {"name": "data", "namespace": "ns", "uid": "data"}
    storage.changed("add", None, volume("v", phase="Bound", claimRef=owner))
    storage.changed("add", None, claim(volume="v"))
    create(hub, "r", volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    rest(hub)
    assert look(hub) == 3
    return storage


def test_a_pod_with_a_claim_is_decided_again_after_a_change_of_the_volumes(hub):
    storage = add_pod_with_claim(hub)
    storage.changed("add", None, volume("another"))
    assert look(hub) == 2
    assert look(hub) == 3


def test_a_change_of_the_volumes_while_a_decision_is_kept_is_not_lost(hub, monkeypatch):
    storage = add_pod_with_claim(hub)
    compare = unchanged_pods.with_excluded

    def changed_meanwhile(view, state, job, wanted):
        storage.changed("add", None, volume("another"))
        return compare(view, state, job, wanted)

    storage.changed("add", None, volume("other"))
    monkeypatch.setattr(unchanged_pods, "with_excluded", changed_meanwhile)
    assert look(hub) == 2
    monkeypatch.undo()
    assert look(hub) == 2
    assert look(hub) == 3
