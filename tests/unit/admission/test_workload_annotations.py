"""The job annotations of a Workload object, from which a PodGroup was made.

As slurm-bridge 1.2.0 does (SlinkyProject/slurm-bridge, docs/workload.md): Workload, Job and PodGroup are merged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from admission.group_reader import GroupReader
from bridge import names
from bridge.errors import KubeForbiddenError
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
