"""Every way to give a pod more than the maxima of its namespace's policy: at the maximum, and one above it.

The ways are those of the Kubernetes API to request a resource, and of podbridge to request more than a container does.
"""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from admission import validate
from admission.field_policy import defaults
from admission.mutate import mutate
from admission.validate import Scope
from bridge import names
from bridge.config.policies import NamespacePolicy
from bridge.workload.resources import DEVICE_CLASS_PREFIX
from tests.builders import config
from tests.unit.admission.test_mutate import patched

GPU, CLASS, CORES = "nvidia.com/gpu", DEVICE_CLASS_PREFIX + "gpus", DEVICE_CLASS_PREFIX + "cores"
RULES = config(gres={GPU: "gpu:a100"}, device_classes={"gpus": "gpu:a100", "cores": "cpu"})
MOST = {"cpu": 8, "memory": 16, GPU: 4}
POLICY = NamespacePolicy.model_validate(
    {
        "namespaces": ["*"],
        "max": {"cpuPerTask": MOST["cpu"], "memPerNode": f"{MOST['memory']}Mi", "gres": {"gpu": MOST[GPU]}},
    }
)
SCOPE = Scope(policy=POLICY)
KEYS = {"cpu": "cpu-per-task", "memory": "mem-per-node", GPU: "gres"}
Json = dict[str, Any]


def amount(resource: str, count: int) -> dict[str, str]:
    return {resource: f"{count}Mi" if resource == "memory" else str(count)}


def container(asked: Mapping[str, str], **more: Any) -> Json:
    limits = {key: value for key, value in asked.items() if "/" in key}
    return {"name": "c", "resources": {"requests": dict(asked), "limits": limits}, **more}


def pod(*containers: Json, annotations: Mapping[str, str] | None = None, **spec: Any) -> Json:
    base = container(amount("memory", 1))
    metadata = {"annotations": dict(annotations or {}), "namespace": "team", "name": "p", "uid": "u"}
    return {"metadata": metadata, "spec": {"schedulerName": "ours", "containers": list(containers or [base]), **spec}}


def together(resource: str, count: int) -> Json:
    """Return a pod with two containers, a sidecar and another one, all of which run at the same time."""
    each = [container(amount(resource, part)) for part in (1, count - 3)]
    sidecars = [container(amount(resource, 1), restartPolicy="Always") for _ in range(2)]
    return pod(*each, initContainers=sidecars)


def init(resource: str, count: int) -> Json:
    sidecar = container(amount(resource, 1), restartPolicy="Always")
    return pod(container(amount(resource, 1)), initContainers=[sidecar, container(amount(resource, count - 1))])


def limit(resource: str, count: int) -> Json:
    return pod({"name": "c", "resources": {"limits": amount(resource, count)}})


def whole_pod(resource: str, count: int) -> Json:
    return pod(container(amount(resource, 1)), resources={"requests": amount(resource, count)})


def overhead(resource: str, count: int) -> Json:
    return pod(container(amount(resource, 1)), overhead=amount(resource, count - 1))


def annotated(resource: str, count: int) -> Json:
    name, value = ANNOTATIONS[resource]
    return pod(annotations={name: value.format(count)})


def shared_node(resource: str, count: int) -> Json:
    """Return one of two members on a node."""
    group = '{"kind": "kueue", "name": "g", "size": 4, "minimum": 4, "slot": null}'
    asked = amount(resource, (count + 1) // 2)
    return pod(container(asked), annotations={names.GROUP: group, names.MEMBERS_PER_NODE: "2"})


def device_class(resource: str, count: int) -> Json:
    name = {GPU: CLASS, "cpu": CORES}[resource]
    sidecar = container({name: "1"}, restartPolicy="Always")
    return pod(container({name: str(count - 1), "memory": "1Mi"}), initContainers=[sidecar])


def half_device_class(resource: str, count: int) -> Json:
    """Return a pod that requests a part of the GPUs by resource, and a part by class."""
    return pod(container({GPU: "2", CLASS: str(count - 2), "memory": "1Mi"}))


ANNOTATIONS = {
    "cpu": (names.CPU_PER_TASK, "{}"),
    "memory": (names.MEM_PER_NODE, "{}Mi"),
    GPU: (names.GRES, "gpu:a100:1,gpu:h100:{}"),
}
EVERY = tuple(MOST)
WAYS: dict[Callable[[str, int], Json], tuple[str, ...]] = {
    together: EVERY,
    init: EVERY,
    limit: EVERY,
    whole_pod: ("cpu", "memory"),
    overhead: ("cpu", "memory"),
    annotated: ("cpu", "memory"),
    shared_node: ("memory", GPU),
    device_class: ("cpu", GPU),
    half_device_class: (GPU,),
}
CASES = [(way, resource) for way, resources in WAYS.items() for resource in resources]
IDS = [f"{way.__name__}-{resource}" for way, resource in CASES]


def denials(made: Json, owner: Mapping[str, str] | None = None) -> set[str]:
    inherited = owner or {}
    patch = mutate(
        made,
        scheduler="ours",
        managed=True,
        inherited=inherited,
        defaults=defaults(POLICY, made, inherited),
        group=made["metadata"]["annotations"].get(names.GROUP),
    )
    return {denial.key for denial in validate.create(patched(made, patch), "alice", RULES, scope=SCOPE).denials}


def with_memory(made: Json) -> Json:
    """Give a pod a request for memory if it has none: without one, it is refused."""
    requests = made["spec"]["containers"][0]["resources"].setdefault("requests", {})
    if "memory" not in {**requests, **made["spec"]["containers"][0]["resources"].get("limits", {})}:
        requests["memory"] = "1Mi"
    return made


@pytest.mark.parametrize(("way", "resource"), CASES, ids=IDS)
def test_no_way_leads_above_a_maximum(way: Callable[[str, int], Json], resource: str) -> None:
    assert denials(with_memory(way(resource, MOST[resource]))) == set()
    assert KEYS[resource] in denials(with_memory(way(resource, MOST[resource] + 1)))


@pytest.mark.parametrize("resource", EVERY)
def test_an_owner_gives_no_more_than_a_pod(resource: str) -> None:
    name, value = ANNOTATIONS[resource]
    assert KEYS[resource] in denials(pod(), {name: value.format(MOST[resource] + 1)})


@pytest.mark.parametrize(("way", "resource"), CASES, ids=IDS)
def test_no_later_change_leads_above_a_maximum(way: Callable[[str, int], Json], resource: str) -> None:
    """By ``pods/resize``, or by annotations; the other fields cannot change."""
    before, after = (with_memory(way(resource, MOST[resource] + more)) for more in (0, 1))
    if before["metadata"] == after["metadata"]:
        verdict = validate.resize(before, after, RULES, SCOPE)
    else:
        verdict = validate.update(before, after, "alice", RULES, SCOPE)
    assert KEYS[resource] in {denial.key for denial in verdict.denials}
    assert validate.resize(after, after, RULES, SCOPE).denials == []


@pytest.mark.parametrize("deadline", [names.JOB_DEADLINE, names.TIME_LIMIT])
def test_a_time_limit_that_is_taken_away_is_not_replaced_by_that_of_the_partition(deadline: str) -> None:
    scope = Scope(policy=NamespacePolicy.model_validate({"namespaces": ["*"], "max": {"timelimit": 60}}))
    before, after = pod(annotations={deadline: "50"}), pod()
    assert {denial.key for denial in validate.update(before, after, "alice", RULES, scope).denials} == {"timelimit"}
