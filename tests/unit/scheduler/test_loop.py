"""The numbers that the loop of the scheduler exports: what pods wait for, and the results of its actions."""

import copy
from dataclasses import replace

import pytest
from prometheus_client import REGISTRY

from bridge import names
from bridge.errors import SlurmRefusedError, SlurmUnavailableError
from scheduler import rules
from scheduler.nodes.occupancy import Occupant
from scheduler.places.slurm_place import COUNT_PERIOD
from tests.builders import pod
from tests.fakes.memory_hub import MemoryHub


@pytest.fixture
def hub():
    return MemoryHub(("n1",))


def waiting(hub):
    """Decide, and return the number of waiting pods by what they wait for."""
    hub.scheduler.slurm._count_from = 0.0
    hub.decide(0)
    series = next(iter(REGISTRY._names_to_collectors["podbridge_scheduler_pods"].collect())).samples
    return {sample.labels["waiting_for"]: sample.value for sample in series if sample.value}


def submissions(result):
    labels = {"action": "submit", "result": result}
    return REGISTRY.get_sample_value("podbridge_scheduler_actions_total", labels) or 0


def create(hub, name, **spec):
    hub.create(pod(name, requests={"cpu": "5"}, metadata={"name": name}, **spec))


def raises(error):
    def submit(_):
        raise error

    return submit


@pytest.mark.parametrize(
    ("error", "result"), [(SlurmRefusedError("no such account"), "refused"), (SlurmUnavailableError("down"), "error")]
)
def test_a_failed_submission_is_no_success_and_its_pod_waits_for_the_next_one(hub, error, result):
    hub.slurm.on_submit = raises(error)
    create(hub, "p")
    before, ok = submissions(result), submissions("ok")
    assert waiting(hub) == {"submit": 1}
    hub.run_all()
    assert waiting(hub) == {"retry": 1}
    assert (submissions(result), submissions("ok")) == (before + 1, ok)


def test_a_pod_waits_for_slurm_only_with_a_job(hub):
    create(hub, "p")
    waiting(hub)
    hub.run_all()
    assert waiting(hub) == {"slurm": 1}
    hub.run_all()
    (job,) = hub.slurm.jobs.values()
    job.state, job.nodes = "RUNNING", ("n1",)
    assert waiting(hub) == {"bind": 1}
    hub.run_all()
    assert waiting(hub) == {}


def test_a_gated_pod_waits_for_its_gate_and_a_pod_for_pools_is_not_counted(hub):
    create(hub, "gated", schedulingGates=[{"name": "kueue.x-k8s.io/admission"}])
    create(hub, "far", tolerations=[{"key": names.POOL_TAINT, "value": "site", "effect": "NoSchedule"}])
    assert waiting(hub) == {"gate": 1}


def placed(hub, **changes):
    """Decide after a write of the node n1; return the placements that the decision uses."""
    node = copy.deepcopy(hub.nodes.get("", "n1"))
    for part, fields in changes.items():
        node[part].update(fields)
    node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
    hub.nodes.deliver(node, gone=False)
    hub.scheduler.reconcile()
    return hub.scheduler.slurm._placements.current


def test_only_a_change_that_placements_depend_on_makes_new_ones(hub):
    create(hub, "p")
    waiting(hub)
    first = placed(hub)
    assert placed(hub) is first
    again = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"}]
    assert placed(hub, status={"conditions": again}) is first
    assert placed(hub, status={"images": [{"names": ["busybox"]}]}) is first
    hub.nodes.listing = True
    listed = placed(hub)
    assert listed is not first, "a list may skip a state"
    hub.nodes.listing = False
    cordoned = placed(hub, spec={"unschedulable": True})
    assert cordoned is not listed
    assert cordoned.by_slurm_name["n1"].cordoned
    down = placed(hub, status={"conditions": [{"type": "Ready", "status": "Unknown"}]})
    assert down is not cordoned
    smaller = placed(hub, status={"allocatable": {"cpu": "1", "pods": "10"}})
    assert smaller is not down
    assert placed(hub, metadata={"labels": {"gpu": "yes"}}) is not smaller


def test_a_kubelet_that_reports_the_same_again_wakes_no_loop(hub):
    wakes = []
    hub.scheduler.wake = lambda *_: wakes.append(1)
    hub.scheduler.subscribe()
    wakes.clear()
    again = [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:01Z"}]
    placed(hub, status={"conditions": again})
    assert not wakes
    placed(hub, spec={"unschedulable": True})
    assert wakes


def test_it_is_found_out_once_in_a_decision_whether_a_pod_runs_on_slurm(hub, monkeypatch):
    create(hub, "p")
    create(hub, "q")
    waiting(hub)
    asked = []
    original = hub.scheduler._is_at_slurm
    monkeypatch.setattr(hub.scheduler, "_is_at_slurm", lambda uid, *rest: asked.append(uid) or original(uid, *rest))
    hub.scheduler.reconcile()
    assert sorted(asked) == ["p", "q"]


def test_waiting_pods_are_counted_again_after_a_while(hub):
    hub.decide(0)
    create(hub, "p")
    hub.deliver()
    hub.scheduler.reconcile()
    labels = {"waiting_for": "submit"}
    assert not REGISTRY.get_sample_value("podbridge_scheduler_pods", labels)
    hub.clock.advance(COUNT_PERIOD)
    hub.scheduler.reconcile()
    assert REGISTRY.get_sample_value("podbridge_scheduler_pods", labels) == 1


def test_requests_of_a_former_leader_are_settled_although_polls_fail_later(hub):
    hub.restart(inherited=True)
    waiting(hub)
    assert hub.scheduler.unsettled
    hub.clock.advance(rules.SETTLE + 1)
    waiting(hub)
    assert not hub.scheduler.unsettled
    needed = hub.scheduler.slurm.former.inherited_until
    hub.poller.snapshot = replace(hub.poller.snapshot, error="down", settled_since=hub.clock.monotonic() + 60)
    hub.scheduler.reconcile()
    assert not hub.scheduler.unsettled
    assert hub.scheduler.slurm.former.inherited_until == needed


def test_placements_forget_the_pods_that_no_longer_wait(hub):
    create(hub, "q")
    waiting(hub)
    placements = hub.scheduler.slurm._placements.current
    for uid in ("p", "q"):
        placements.of({"metadata": {"uid": uid}, "spec": {"containers": [], "volumes": [{"name": "v"}]}}, "main")
    assert {"p", "q"} <= placements._by_uid.keys()
    waiting(hub)
    assert hub.scheduler.slurm._placements.current is placements
    assert placements._by_uid.keys() == placements._stored.needs.keys() == {"q"}


def test_a_member_counts_on_its_node_while_its_gang_is_bound(hub, monkeypatch):
    hub.scheduler.groups.uids["m"] = "gang"
    hub.scheduler.occupancy.assume(Occupant("m", "ns/m", "n1", {}, ours=True, link_key="gang"))
    busy = {"gang"}
    monkeypatch.setattr(hub.scheduler.workers, "busy", lambda key: key in busy)
    for binding in (True, False):
        hub.scheduler.occupancy.correct({"m"}, hub.scheduler.groups.is_binding)
        assert [each.uid for each in hub.scheduler.occupancy.of("n1")] == ["m"] * binding
        busy.clear()


def test_a_defect_in_the_decisions_of_one_place_does_not_stop_the_other(monkeypatch):
    hub, decided = MemoryHub(("n1",)), []

    def fails(*_):
        decided.append("failed")
        raise KeyError

    for place in (hub.scheduler.pools, hub.scheduler.slurm):
        other = hub.scheduler.slurm if place is hub.scheduler.pools else hub.scheduler.pools
        with monkeypatch.context() as patch:
            patch.setattr(place, "reconcile", fails)
            patch.setattr(other, "reconcile", lambda *_: decided.append("other") or set())
            with pytest.raises(KeyError):
                hub.decide()
    assert sorted(decided) == ["failed", "failed", "other", "other"]


def test_pools_are_chosen_while_slurm_does_not_answer(monkeypatch):
    hub, decided = MemoryHub(("n1",)), []
    monkeypatch.setattr(hub.scheduler.pools, "reconcile", lambda *_: decided.append("pools") or set())
    monkeypatch.setattr(hub.scheduler.slurm, "reconcile", lambda *_: decided.append("slurm"))
    hub.scheduler.reconcile()
    assert decided == ["pools"]
    hub.decide()
    assert decided == ["pools", "pools", "slurm"]
