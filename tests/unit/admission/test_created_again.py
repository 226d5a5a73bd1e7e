"""Owners of groups that are deleted and created again under the same name: the new pods get the new object.

Reported for PodGroups in kubernetes/kubernetes#139914.
"""

from collections.abc import Callable

import pytest

from admission import group_reader
from admission.group_reader import FoundGroup, GroupReader
from bridge import names
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds import job_kinds, pod_group_kinds
from tests.fakes.clock import FakeClock
from tests.unit.admission.test_group_reader import GANG_OF_FOUR, Json, Objects, pod, value

LWS_LABELS = {job_kinds.LWS_NAME: "o", job_kinds.GROUP_INDEX: "0", job_kinds.WORKER_INDEX: "1"}
JOBSET_LABELS = {job_kinds.JOBSET_NAME: "o", job_kinds.REPLICATED_JOB: "w", job_kinds.JOB_INDEX: "0"}
REPLICAS = {"replicas": 3}


def replicated(size: int) -> Json:
    return {"replicatedJobs": [{"name": "w", "template": {"spec": {"parallelism": size}}}]}


def workers(size: int) -> Json:
    return {"leaderWorkerTemplate": {"size": size}}


def owner_of(kind: str, uid: str, api: str = "batch/v1") -> Json:
    return {"apiVersion": api, "kind": kind, "name": "o", "uid": uid, "controller": True}


KINDS: dict[str, tuple[str, Json, Callable[[int], Json]]] = {
    "job": ("jobs.batch", {}, lambda size: {"parallelism": size}),
    "jobset": ("jobsets.jobset.x-k8s.io", JOBSET_LABELS, replicated),
    "lws": ("leaderworkersets.leaderworkerset.x-k8s.io", LWS_LABELS, workers),
    "podgroup": (
        "podgroups.scheduling.x-k8s.io",
        {pod_group_kinds.POD_GROUP_NAME: "o"},
        lambda size: {"minMember": size},
    ),
    "workload": ("podgroups.scheduling.k8s.io", {}, lambda size: {"schedulingPolicy": {"gang": {"minCount": size}}}),
}
"""Where the owner of a group is, the labels of its pods, and its ``spec`` for a size."""
REPLICA = [("StatefulSet", "apps/v1"), ("Pod", "v1"), ("StatefulSet", "apps/v1")]


@pytest.mark.parametrize(
    ("kind", "chain"),
    [
        ("job", [("Job", "batch/v1")]),
        ("jobset", [("Job", "batch/v1"), ("JobSet", "jobset.x-k8s.io/v1alpha2")]),
        ("jobset", []),
        ("lws", [*REPLICA, ("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1")]),
        ("lws", []),
        ("podgroup", []),
        ("podgroup", [("ReplicaSet", "apps/v1")]),
        ("workload", []),
    ],
)
@pytest.mark.parametrize("later", [0.0, 0.5, 4.0])
def test_the_pods_of_an_owner_that_was_created_again_get_the_new_object(
    kind: str, chain: list[tuple[str, str]], later: float
) -> None:
    where, labels, spec = KINDS[kind]
    objects, clock = Objects(), FakeClock()
    reader = GroupReader(objects, clock)

    def of(size: int, uid: str, limit: str) -> FoundGroup:
        for name, owner_spec in (
            (where, spec(size)),
            ("statefulsets.apps", REPLICAS),
            ("replicasets.apps", {"replicas": 2}),
        ):
            made = {"metadata": {"name": "o", "uid": uid, "annotations": {names.TIME_LIMIT: limit}}, "spec": owner_spec}
            objects.found[f"{name}/o"] = made
        owners = [owner_of(name, uid, api) for name, api in chain]
        claim = {"schedulingGroup": {"podGroupName": "o"}} if kind == "workload" else {}
        body = pod(labels, {names.GANG: "true"}, owner=owners[0] if owners else None, **claim)
        return reader.find(body, "ns", {}, {}, owners)

    before = of(2, "first", "1")
    clock.advance(later)
    after = of(3, "second", "60")
    assert (value(before)["size"], value(before)["uid"]) == (2, "first")
    assert (value(after)["size"], value(after)["minimum"], value(after)["uid"]) == (3, 3, "second")
    assert after.inherited == {names.TIME_LIMIT: "60"}
    assert (value(before)["kind"], value(after)["kind"]) == (kind, kind)


def test_a_pod_of_a_deleted_owner_does_not_join_the_group_of_its_successor() -> None:
    objects, clock = Objects(), FakeClock()
    objects.add("jobs.batch/j", GANG_OF_FOUR)
    reader = GroupReader(objects, clock)
    reader.find(pod(), "ns", {names.GANG: "true"}, {})
    objects.found["jobs.batch/j"]["metadata"]["uid"] = "second"
    clock.advance(group_reader.REMEMBER)
    with pytest.raises(InvalidGroupError, match="Job 'j' with UID 'J'"):
        reader.find(pod(), "ns", {names.GANG: "true"}, {})
