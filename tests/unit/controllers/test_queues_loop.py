"""The writes of MasterQueues: what is sent, and what is not."""

from types import SimpleNamespace

import pytest

from bridge.config.hub import parse
from bridge.control.control_loop import KubeDependencies
from bridge.errors import (
    KubeConflictError,
    KubeForbiddenError,
    KubeInvalidError,
    KubeNotFoundError,
    KubeUnavailableError,
    LostLeadershipError,
)
from controllers.queues import manifests, queue_loop
from controllers.queues.queue_loop import PATIENCE, PLURALS, Kueue, Queues
from controllers.queues.queue_status import Apply, Delete, Evict, SetStatus
from tests.fakes.clock import FakeClock
from tests.fakes.kube_answers import KubeAnswers

OWNER = {"apiVersion": "vk.io/v1", "kind": "MasterQueue", "metadata": {"name": "q", "uid": "u", "resourceVersion": "7"}}
BODY = manifests.cluster_queue("v1beta2", "q", OWNER, {}, "None", [])


def loop(kube):
    applied, events = [], []
    cache = SimpleNamespace(apply=applied.append, subscribe=lambda _: None, synced=True, items=list)
    recorder = SimpleNamespace(event=lambda *args, **more: events.append((args[1:], more)))
    kueue = Kueue("v1beta2", cache, dict.fromkeys(PLURALS, cache))
    made = Queues(KubeDependencies(parse(""), kube, cache, recorder, FakeClock()), kueue, None)
    return made, applied, events


def test_a_new_object_is_applied_without_force_and_an_own_one_with_its_uid():
    kube = KubeAnswers()
    made, _, _ = loop(kube)
    for observed in ("", "uid-1"):
        made._call(Apply(OWNER, BODY, observed))[1]()
    (_, path, first), (_, _, second) = kube.writes
    options, forced = kube.options
    assert path == "/apis/kueue.x-k8s.io/v1beta2/clusterqueues/q"
    assert (options["kind"], options["params"]) == ("apply", {"fieldManager": "podbridge-queues", "force": False})
    assert "uid" not in first["metadata"]
    assert second["metadata"]["uid"] == "uid-1"
    assert forced["params"]["force"] is True


def test_an_object_that_somebody_has_just_created_is_read_and_not_written():
    foreign = {"metadata": {"name": "q", "uid": "theirs"}}
    kube = KubeAnswers({"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/q": foreign})
    made, applied, _ = loop(kube)
    made._call(Apply(OWNER, BODY, ""))[1]()
    assert kube.writes == []
    assert applied == [foreign]


def test_a_local_queue_is_written_and_deleted_in_its_namespace():
    kube = KubeAnswers()
    made, _, _ = loop(kube)
    body = manifests.local_queue("v1beta2", "team", "q", OWNER, "q")
    made._call(Apply(OWNER, body, "uid-1"))[1]()
    made._call(Delete(OWNER, "LocalQueue", "team", "q", "uid-1"))[1]()
    path = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/localqueues/q"
    assert [call[:2] for call in kube.writes] == [("patch", path), ("delete", path)]
    assert kube.writes[1][2] == {"preconditions": {"uid": "uid-1"}}


@pytest.mark.parametrize("error", [KubeUnavailableError("500"), KubeConflictError("409")])
def test_an_error_that_may_pass_is_reported_after_some_seconds(error):
    kube = KubeAnswers(error=error)
    made, _, _ = loop(kube)
    call = made._call(Apply(OWNER, BODY, "uid-1"))[1]
    for _ in range(2):
        with pytest.raises(type(error)):
            call()
        assert made._problems() == {}
        made.clock.advance(PATIENCE / 2)
    assert made._problems() == {"u": f"ClusterQueue q: {error}"}, "counted from the first error"
    kube.error = None
    call()
    assert made._problems() == {}


def test_a_lost_lease_is_not_a_failure_of_the_object():
    made, _, _ = loop(KubeAnswers(error=LostLeadershipError("lost")))
    with pytest.raises(LostLeadershipError):
        made._call(Apply(OWNER, BODY, "uid-1"))[1]()
    made.clock.advance(PATIENCE)
    assert made._problems() == {}


def test_an_object_that_is_gone_already_is_deleted():
    made, _, _ = loop(KubeAnswers(error=KubeNotFoundError("gone")))
    made._call(Delete(OWNER, "ClusterQueue", "", "q", "uid-1"))[1]()
    assert made._problems() == {}


def test_an_object_that_is_stored_with_other_values_is_a_failure():
    kube = KubeAnswers()
    made, applied, _ = loop(kube)
    changed = {**BODY, "spec": {**BODY["spec"], "stopPolicy": "Hold"}}
    kube.patch = lambda *_, **__: changed
    with pytest.raises(KubeInvalidError, match="stored it with other values"):
        made._call(Apply(OWNER, BODY, "uid-1"))[1]()
    assert applied == [changed]
    assert "ClusterQueue q" in made._problems()["u"]


def test_a_refusal_is_forgotten_when_its_write_is_no_longer_wanted():
    made, _, _ = loop(KubeAnswers(error=KubeForbiddenError("no")))
    local_queues = [manifests.local_queue("v1beta2", "team", name, OWNER, "q") for name in ("a", "b")]
    applies = [Apply(OWNER, body, "uid-1") for body in local_queues]
    for apply in applies:
        with pytest.raises(KubeForbiddenError):
            made._call(apply)[1]()
    assert made._problems() == {"u": "LocalQueue team/a: no; LocalQueue team/b: no"}
    assert made._forget_failures(applies) is False
    assert made._forget_failures(applies[1:]) is True
    assert made._problems() == {"u": "LocalQueue team/b: no"}
    assert made._forget_failures([]) is True
    assert made._problems() == {}


def test_a_status_loses_the_fields_that_do_not_apply():
    kube = KubeAnswers()
    made, _, _ = loop(kube)
    condition = {"type": "Ready", "status": "False", "reason": "Invalid", "message": "spec.flavors: no"}
    queue = {**OWNER, "status": {"offered": "1 of 1", "flavors": [], "conditions": []}}
    made._call(SetStatus(queue, {"conditions": [condition]}))[1]()
    assert kube.writes[0][2]["status"] == {"offered": None, "flavors": None, "conditions": [condition]}


def test_an_event_tells_each_state_once():
    kube = KubeAnswers()
    made, _, events = loop(kube)
    condition = {"type": "Ready", "status": "False", "reason": "Invalid", "message": "spec.flavors: no"}
    for _ in range(2):
        made._call(SetStatus(OWNER, {"conditions": [condition]}))[1]()
    assert events == [(("QueueInvalid", "spec.flavors: no"), {"warning": True, "action": "Queues"})]
    assert kube.writes[0][2]["metadata"] == {"uid": "u", "resourceVersion": "7"}


def workload(name, flavor, *conditions):
    admission = {"podSetAssignments": [{"name": "main", "flavors": {"cpu": flavor}}]} if flavor else None
    found = [{"type": kind, "status": status} for kind, status in conditions]
    metadata = {"name": name, "namespace": "team", "uid": f"u-{name}", "resourceVersion": "5", "generation": 2}
    return {"metadata": metadata, "status": {"admission": admission, "conditions": found}}


def test_only_admitted_workloads_of_the_flavor_are_evicted():
    kube = KubeAnswers(
        default={
            "items": [
                workload("runs", "silent", ("Evicted", "False"), ("Admitted", "True")),
                workload("elsewhere", "other"),
                workload("waits", None),
                workload("done", "silent", ("Finished", "True")),
                workload("evicted", "silent", ("Evicted", "True")),
            ]
        }
    )
    made, _, events = loop(kube)
    made._call(Evict(OWNER, "silent", "pool a has been silent for 601 s"))[1]()
    ((_, path, body),), (options,) = kube.writes, kube.options
    assert path == "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads/runs/status"
    assert body["apiVersion"] == "kueue.x-k8s.io/v1beta2"
    assert body["metadata"] == {"name": "runs", "namespace": "team", "uid": "u-runs", "resourceVersion": "5"}
    (condition,) = body["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Evicted", "True", "NodeFailures")
    assert condition["observedGeneration"] == 2
    assert (options["kind"], options["params"]["force"]) == ("apply", True)
    assert events[0][0][0] == queue_loop.EVICTED
    assert "1 workloads of flavor silent evicted" in events[0][0][1]


def test_a_workload_that_changes_at_the_same_time_is_left_to_the_next_look():
    kube = KubeAnswers(default={"items": [workload("runs", "silent")]}, error=KubeConflictError("changed"))
    made, _, events = loop(kube)
    made._call(Evict(OWNER, "silent", "why"))[1]()
    assert (len(kube.writes), events) == (1, [])
    assert made._evict_from["silent"] > made.clock.monotonic()
