"""Permissions, owners, sizes: reads from the API server, and their caches."""

from collections.abc import Mapping
from typing import Any

import pytest

from admission import owner_annotations, permissions
from admission.node_sizes import NodeSizes
from admission.owner_annotations import OwnerAnnotations
from admission.permissions import Permissions
from bridge import names
from bridge.errors import KubeForbiddenError, KubeNotFoundError, KubeUnavailableError
from tests import builders
from tests.fakes.clock import FakeClock
from tests.fakes.kube_answers import KubeAnswers

ALICE = {"username": "alice", "uid": "1", "groups": ["students"]}


class Roles:
    def __init__(self) -> None:
        self.given: set[tuple[str, str, str]] = set()
        self.asked = 0
        self.broken = False

    def __call__(self, user: Mapping[str, Any], key: str, namespace: str) -> bool:
        self.asked += 1
        if self.broken:
            raise KubeUnavailableError("no answer")
        return (user["username"], key, namespace) in self.given


def test_a_yes_is_remembered_for_a_while_and_a_no_for_a_moment() -> None:
    roles, clock = Roles(), FakeClock()
    known = Permissions(roles, clock)
    assert known.missing(ALICE, ["user-id"], "ns") == ["user-id"]
    roles.given.add(("alice", "user-id", "ns"))
    assert known.missing(ALICE, ["user-id"], "ns") == ["user-id"]
    clock.advance(permissions.REMEMBER_NO)
    assert known.missing(ALICE, ["user-id"], "ns") == []
    roles.given.clear()
    assert known.missing(ALICE, ["user-id"], "ns") == []
    assert roles.asked == 2
    clock.advance(permissions.REMEMBER_YES)
    assert known.missing(ALICE, ["user-id"], "ns") == ["user-id"]


@pytest.mark.parametrize(
    ("user", "key", "namespace"),
    [
        ({**ALICE, "username": "bob"}, "user-id", "ns"),
        ({**ALICE, "uid": "2"}, "user-id", "ns"),
        ({**ALICE, "groups": []}, "user-id", "ns"),
        ({**ALICE, "extra": {"scopes": ["less"]}}, "user-id", "ns"),
        (ALICE, "group-id", "ns"),
        (ALICE, "user-id", "other"),
    ],
)
def test_an_answer_is_good_for_its_own_question_only(user: dict[str, Any], key: str, namespace: str) -> None:
    roles = Roles()
    roles.given.add(("alice", "user-id", "ns"))
    known = Permissions(roles, FakeClock())
    known.missing(ALICE, ["user-id"], "ns")
    known.missing(user, [key], namespace)
    assert roles.asked == 2


def test_what_can_not_be_asked_is_no_answer() -> None:
    roles = Roles()
    roles.broken = True
    with pytest.raises(KubeUnavailableError):
        Permissions(roles, FakeClock()).missing(ALICE, ["user-id"], "ns")


def reference(uid: str, kind: str = "Job") -> list[dict[str, Any]]:
    return [{"apiVersion": "batch/v1", "kind": kind, "name": uid, "uid": uid, "controller": True}]


class Objects:
    def __init__(self) -> None:
        self.metadata: dict[str, dict[str, Any]] = {}
        self.reads = 0

    def __call__(self, ref: Mapping[str, Any], namespace: str) -> Mapping[str, Any] | None:
        self.reads += 1
        return self.metadata.get(ref["name"])


def pod(*refs: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"ownerReferences": list(refs)}, "spec": {}}


def test_the_nearest_owner_wins() -> None:
    objects = Objects()
    objects.metadata["job"] = {
        "uid": "job",
        "annotations": {names.ACCOUNT: "near", "other": "x"},
        "ownerReferences": reference("set"),
    }
    objects.metadata["set"] = {"uid": "set", "annotations": {names.ACCOUNT: "far", names.QOS: "low"}}
    found = OwnerAnnotations(objects, FakeClock()).annotations(pod(*reference("job")), "ns")
    assert found == {names.ACCOUNT: "near", names.QOS: "low"}


def test_an_object_of_the_same_name_is_not_the_owner() -> None:
    objects = Objects()
    objects.metadata["job"] = {"uid": "another", "annotations": {names.ACCOUNT: "a"}}
    assert OwnerAnnotations(objects, FakeClock()).annotations(pod(*reference("job")), "ns") == {}


def test_owners_in_a_circle_end() -> None:
    objects = Objects()
    objects.metadata["job"] = {"uid": "job", "ownerReferences": reference("job")}
    assert OwnerAnnotations(objects, FakeClock()).annotations(pod(*reference("job")), "ns") == {}


def test_owners_are_remembered_for_a_moment() -> None:
    objects, clock = Objects(), FakeClock()
    objects.metadata["job"] = {"uid": "job", "annotations": {names.QOS: "low"}}
    known = OwnerAnnotations(objects, clock)
    for _ in range(100):
        known.annotations(pod(*reference("job")), "ns")
    assert objects.reads == 1
    objects.metadata["job"]["annotations"] = {names.QOS: "high"}
    clock.advance(owner_annotations.REMEMBER)
    assert known.annotations(pod(*reference("job")), "ns") == {names.QOS: "high"}


def test_an_owner_that_does_not_control_is_not_asked() -> None:
    objects = Objects()
    ref = {**reference("job")[0], "controller": False}
    assert OwnerAnnotations(objects, FakeClock()).annotations(pod(ref), "ns") == {}
    assert objects.reads == 0


@pytest.mark.parametrize("error", [KubeNotFoundError("x", status=404), KubeForbiddenError("x", status=403)])
def test_an_owner_that_can_not_be_read_says_nothing(error: Exception) -> None:
    kube = KubeAnswers(default=error)
    read = owner_annotations.read_from(kube)  # type: ignore[arg-type]
    assert OwnerAnnotations(read, FakeClock()).annotations(pod(*reference("job")), "ns") == {}
    assert kube.reads == ["/apis/batch/v1/namespaces/ns/jobs/job"]


def node(cpu: str, taint: str | None) -> dict[str, Any]:
    taints = [{"key": names.MANAGED_TAINT, "value": taint}] if taint else []
    return builders.node(taints=taints, allocatable={"cpu": cpu})


def test_sizes_are_those_of_managed_nodes_each_once() -> None:
    nodes = [node("4", "ours"), node("4", "ours"), node("8", "ours"), node("16", "theirs"), node("32", None)]
    clock = FakeClock()
    sizes = NodeSizes(lambda: nodes, scheduler="ours", clock=clock)
    assert sorted(int(size["cpu"]) for size in sizes()) == [4, 8]
    nodes.append(node("64", "ours"))
    assert len(sizes()) == 2
    clock.advance(60)
    assert len(sizes()) == 3
    assert len(NodeSizes(lambda: nodes, scheduler="ours", tainted=False, clock=clock)()) == 5


@pytest.mark.parametrize(
    ("namespace", "changed"),
    [
        ("other", {}),
        ("ns", {"name": "none"}),
        ("ns", {"kind": "JobSet"}),
        ("ns", {"apiVersion": "batch/v2"}),
        ("ns", {"uid": "2"}),
    ],
)
def test_a_false_claim_says_nothing_about_the_true_owner(namespace: str, changed: dict[str, str]) -> None:
    """A pod with a forged reference comes before and after the owner's own pods."""
    (true,) = reference("job")

    def read(ref: Mapping[str, Any], where: str) -> Mapping[str, Any] | None:
        found = (where, ref["apiVersion"], ref["kind"], ref["name"]) == ("ns", "batch/v1", "Job", "job")
        return {"uid": "job", "annotations": {names.ACCOUNT: "physics"}} if found else None

    known = OwnerAnnotations(read, FakeClock())
    assert known.annotations(pod({**true, **changed}), namespace) == {}
    assert known.annotations(pod(true), "ns") == {names.ACCOUNT: "physics"}
    assert known.annotations(pod({**true, **changed}), namespace) == {}
