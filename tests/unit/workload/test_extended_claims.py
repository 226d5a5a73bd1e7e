from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.workload import resources
from bridge.workload.devices import extended_claims
from tests.counted import Count, Text

GPU = extended_claims.PREFIX + "gpu.example.com"


def container(name: str, **more: Any) -> dict[str, Any]:
    limits = more.pop("limits", {})
    return {"name": name, "resources": {"limits": limits, "requests": limits}, **more}


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [*containers], **spec}}


def test_requests_are_numbered_as_kube_scheduler_numbers_them() -> None:
    sidecar = container("s", limits={GPU: "1"}, restartPolicy="Always")
    body = pod(container("a", limits={"cpu": "1", GPU: "2"}), container("b"), initContainers=[sidecar])
    found = extended_claims.claim(body)
    assert found is not None
    counts = {one["name"]: one["exactly"]["count"] for one in found["spec"]["devices"]["requests"]}
    assert list(counts.items()) == [("container-0-request-0", 1), ("container-1-request-1", 2)]
    status = extended_claims.status(body)
    assert status["resourceClaimName"] == found["metadata"]["name"]
    mapped = [(one["containerName"], one["requestName"]) for one in status["requestMappings"]]
    assert mapped == [("s", "container-0-request-0"), ("a", "container-1-request-1")]


def test_a_pod_without_device_classes_has_no_claim() -> None:
    assert extended_claims.claim(pod(container("a", limits={"nvidia.com/gpu": "1", GPU: "0"}))) is None


def test_a_node_needs_no_allocatable_of_a_device_class() -> None:
    requests = resources.pod_requests(pod(container("a", limits={"cpu": "1", GPU: "2"}))["spec"])
    assert list(requests) == ["cpu"]


def test_parts_of_a_device_are_refused() -> None:
    with pytest.raises(ValueError, match="whole number"):
        extended_claims.claim(pod(container("a", limits={GPU: "500m"})))


@given(st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", fullmatch=True), st.uuids(), st.uuids())
def test_the_name_is_valid_and_its_own(name: str, one: object, other: object) -> None:
    first = extended_claims.name({"metadata": {"name": name, "uid": str(one)}})
    assert len(first) <= 253
    assert not first.startswith(("-", "."))
    again = extended_claims.name({"metadata": {"name": name, "uid": str(other)}})
    assert (first == again) is (one == other)


def device_class(name: str, resource: str, created: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"metadata": {"name": name, "creationTimestamp": created}, "spec": {"extendedResourceName": resource}}


def test_the_newest_class_provides_an_extended_resource() -> None:
    table = {"a.x": "gpu", "b.x": "gpu", "c.x": "gpu"}
    listed = [device_class("b.x", "x/gpu"), device_class("a.x", "x/gpu"), device_class("c.x", "x/gpu", "2025")]
    assert extended_claims.names(listed, {"x/gpu": "gpu"}, table) == {"x/gpu": "a.x"}
    listed.append(device_class("c.x", "x/gpu", "2026-02-01T00:00:00Z"))
    assert extended_claims.names(listed, {"x/gpu": "gpu"}, table) == {"x/gpu": "c.x"}


@pytest.mark.parametrize(
    ("gres", "kind", "provides"),
    [
        ("gpu", "gpu", True),
        ("gpu:a100", "gpu:a100", True),
        ("gpu:a100", "gpu", True),
        ("gpu", "gpu:a100", False),
        ("gpu:a100", "gpu:h100", False),
        ("gpu", "cpu", False),
        ("gpu", "", False),
    ],
)
def test_a_class_provides_a_resource_only_if_slurm_allocates_its_devices(gres: str, kind: str, provides: bool) -> None:
    found = extended_claims.names([device_class("a.x", "x/gpu")], {"x/gpu": gres}, {"a.x": kind} if kind else {})
    assert bool(found) is provides
    assert not extended_claims.names([device_class("a.x", "x/gpu")], {}, {"a.x": "gpu"})


def test_the_claim_names_the_class_of_the_resource() -> None:
    body = pod(container("a", limits={"cpu": "1", "x/gpu": "2"}))
    assert extended_claims.claim(body) is None
    found = extended_claims.claim(body, {"x/gpu": "a.x"})
    assert found is not None
    assert found["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] == "a.x"
    assert extended_claims.status(body, {"x/gpu": "a.x"})["requestMappings"] == [
        {"containerName": "a", "resourceName": "x/gpu", "requestName": "container-0-request-1"}
    ]
    body["spec"]["initContainers"] = [container("i", limits={"x/gpu": "1"})]
    with pytest.raises(ValueError, match="init container i"):
        extended_claims.claim(body, {"x/gpu": "a.x"})


def test_many_classes_are_numbered_in_one_pass() -> None:
    count, number = Count(), 300
    classes = [Text(f"{extended_claims.PREFIX}c{index:03}", count) for index in range(number)]
    body = pod(container("a", limits=dict.fromkeys(classes, "1")))
    count.value = 0
    found = extended_claims.claim(body)
    assert found is not None
    assert len(found["spec"]["devices"]["requests"]) == number
    assert count.value < 50 * number
