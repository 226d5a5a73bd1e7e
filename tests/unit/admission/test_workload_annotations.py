"""The job annotations of a Workload object, from which a PodGroup was made.

As slurm-bridge 1.2.0 does (SlinkyProject/slurm-bridge, docs/workload.md): Workload, Job and PodGroup are merged.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest

from admission.group_reader import GroupReader
from admission.owner_annotations import OwnerAnnotations
from admission.permissions import Permissions
from admission.review import Review
from admission.reviewer import Reviewer
from bridge import names
from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError
from bridge.kube.namespaces import Namespace, Namespaces
from bridge.kube.resources import Resource
from tests.fakes.clock import FakeClock
from tests.unit.admission.test_group_reader import Json, Objects, pod, value

GANG: Json = {"schedulingPolicy": {"gang": {"minCount": 2}}}
REFERENCES: dict[str, Json] = {
    "1.36": {"podGroupTemplateRef": {"workload": {"workloadName": "t", "podGroupTemplateName": "workers"}}},
    "1.37": {"workloadRef": {"workloadName": "t", "templateName": "workers"}},
}
SETTINGS = {names.JOB_NAME: "nightly-train", names.TIME_LIMIT: "5", "other": "x"}


def reader(read: Any) -> GroupReader:
    return GroupReader(read, FakeClock())


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
@pytest.mark.parametrize("policy", [GANG, {"schedulingPolicy": {"basic": {}}}], ids=["gang", "basic"])
def test_settings_of_the_workload_apply_unless_the_pod_group_has_its_own(reference: Json, policy: Json) -> None:
    objects = Objects()
    objects.add("podgroups.scheduling.k8s.io/w", policy | reference, **{names.TIME_LIMIT: "9"})
    objects.add("workloads.scheduling.k8s.io/t", {}, **SETTINGS)
    found = reader(objects).find(pod(owner=None, schedulingGroup={"podGroupName": "w"}), "ns", {}, {})
    assert found.inherited == {names.JOB_NAME: "nightly-train", names.TIME_LIMIT: "9"}


@pytest.mark.parametrize("reference", REFERENCES.values(), ids=REFERENCES)
def test_a_workload_that_is_gone_or_forbidden_keeps_no_pod_from_its_group(reference: Json) -> None:
    objects = Objects()
    objects.add("podgroups.scheduling.k8s.io/w", GANG | reference)
    body = pod(owner=None, schedulingGroup={"podGroupName": "w"})
    assert value(reader(objects).find(body, "ns", {}, {}))["size"] == 2

    def forbidden(resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        if resource.plural == "workloads":
            raise KubeForbiddenError("no", status=403)
        return objects(resource, namespace, name)

    found = reader(forbidden).find(body, "ns", {}, {})
    assert (value(found)["size"], found.inherited) == (2, {})


def test_a_workload_is_read_in_the_version_of_its_pod_group() -> None:
    objects = Objects()
    objects.add("podgroups.scheduling.k8s.io/w", GANG | REFERENCES["1.36"])
    objects.add("workloads.scheduling.k8s.io/t", {}, **SETTINGS)

    def read(resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        found = objects(resource, namespace, name)
        return found if resource.version == "v1alpha2" else None

    known, body = reader(read), pod(owner=None, schedulingGroup={"podGroupName": "w"})
    assert known.find(body, "ns", {}, {}).inherited[names.TIME_LIMIT] == "5"
    objects.read.clear()
    known.find(body, "ns", {}, {})
    assert objects.read == ["v1alpha2 podgroups.scheduling.k8s.io/w", "v1alpha2 workloads.scheduling.k8s.io/t"]


# --- messages about a wrong annotation name the object that has it ----------------------------------------------------
WRONG = {names.TIME_LIMIT: "soon"}
OWNERS = {
    "Job j": [("batch/v1", "Job", "j")],
    "JobSet s": [("batch/v1", "Job", "j"), ("jobset.x-k8s.io/v1alpha2", "JobSet", "s")],
    "LeaderWorkerSet l": [("apps/v1", "StatefulSet", "x"), ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "l")],
    "ReplicaSet r": [("apps/v1", "ReplicaSet", "r")],
}


def reference(api_version: str, kind: str, name: str) -> Json:
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": name.upper(), "controller": True}


def refusal(objects: Objects, body: Json, chain: list[Json], annotations: Mapping[str, str]) -> str:
    """Mutate and validate a new pod whose last owner in the chain has these annotations; return the message."""

    def owner(asked: Mapping[str, Any], namespace: str) -> Json:
        at = next(place for place, each in enumerate(chain) if each["name"] == asked["name"])
        last = at == len(chain) - 1
        return {
            "uid": asked["uid"],
            "annotations": dict(annotations) if last else {},
            "ownerReferences": [] if last else [chain[at + 1]],
        }

    reviewer = Reviewer(
        Config(),
        Permissions(lambda user, key, namespace: False),
        OwnerAnnotations(owner, FakeClock()),
        Namespaces(lambda name: Namespace()),
        reader(objects),
    )
    created = Review("u", "CREATE", "", "slurm-bridge", {"username": "alice"}, body, {})
    mutated = reviewer.mutate(created, True)["response"]
    assert mutated["allowed"], mutated
    for operation in json.loads(base64.b64decode(mutated["patch"])):
        if operation["path"] == "/metadata/annotations":
            body["metadata"]["annotations"] = operation["value"]
        elif operation["path"].startswith("/metadata/annotations/"):
            key = operation["path"].removeprefix("/metadata/annotations/").replace("~1", "/")
            body["metadata"]["annotations"][key] = operation["value"]
    response = reviewer.validate(created, True)["response"]
    assert not response["allowed"]
    return str(response["status"]["message"])


@pytest.mark.parametrize("what", OWNERS)
@pytest.mark.parametrize(
    ("annotations", "problem"),
    [
        (WRONG, f"annotation {names.TIME_LIMIT}: 'soon' is not allowed; allowed: "),
        ({f"{names.JOB_ANNOTATION_PREFIX}colour": "red"}, f"annotation {names.JOB_ANNOTATION_PREFIX}colour is unknown"),
        ({names.USER_ID: "0"}, f"annotation {names.USER_ID}: '0' is not allowed"),
    ],
    ids=["value", "name", "permission"],
)
def test_an_owner_with_a_wrong_annotation_is_named(what: str, annotations: Mapping[str, str], problem: str) -> None:
    chain = [reference(*each) for each in OWNERS[what]]
    message = refusal(Objects(), pod(owner=chain[0]), chain, annotations)
    assert message.startswith(problem)
    assert message.endswith(f"(the annotation is that of {what})")


@pytest.mark.parametrize("what", ["Workload t", "PodGroup w"])
def test_a_workload_or_pod_group_with_a_wrong_annotation_is_named(what: str) -> None:
    objects = Objects()
    has = what.startswith("PodGroup")
    objects.add("podgroups.scheduling.k8s.io/w", GANG | REFERENCES["1.37"], **(WRONG if has else {}))
    objects.add("workloads.scheduling.k8s.io/t", {}, **({} if has else WRONG))
    message = refusal(objects, pod(owner=None, schedulingGroup={"podGroupName": "w"}), [], {})
    assert message.endswith(f"(the annotation is that of {what})")


def test_an_annotation_of_the_pod_itself_is_said_to_be_nobody_elses() -> None:
    chain = [reference("batch/v1", "Job", "j")]
    body = pod(owner=chain[0], annotations={names.TIME_LIMIT: "later"})
    message = refusal(Objects(), body, chain, WRONG)
    assert "'later' is not allowed" in message
    assert "that of" not in message
