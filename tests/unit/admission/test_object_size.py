"""What scheduler and controllers keep of a pod is bounded, whatever its author writes."""

from typing import Any

import pytest

from admission import object_size, validate
from admission.object_size import MOST_OF_POD, is_larger
from bridge.config.hub import Config
from bridge.kube.prune import prune_pod
from tests.unit.admission.test_app import pod

MANY = MOST_OF_POD
SECRET = {"name": "a", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
LARGE: list[tuple[dict[str, Any], str]] = [
    (pod({"labels": {f"l{number}": "" for number in range(MANY)}}), "metadata.labels"),
    (pod({"ownerReferences": [{"uid": "u"}] * MANY}), "metadata.ownerReferences"),
    (pod({"finalizers": ["a/b"] * MANY}), "metadata.finalizers"),
    (pod({"annotations": {"slurmjob.slinky.slurm.net/comment": "x" * 200 * MANY}}), "metadata.annotations"),
    (pod(tolerations=[{"key": "a"}] * MANY), "spec.tolerations"),
    (pod(schedulingGates=[{"name": "a"}] * MANY), "spec.schedulingGates"),
    (pod(nodeSelector={f"l{number}": "" for number in range(MANY)}), "spec.nodeSelector"),
    (pod(imagePullSecrets=[{"name": "a"}] * MANY), "spec.imagePullSecrets"),
    (pod(containers=[{"name": "a", "env": [SECRET] * MANY}]), "spec.containers"),
    (pod(initContainers=[{"name": "a"}] * MANY), "spec.initContainers"),
    (
        pod(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}] * MANY}}),
        "spec.affinity",
    ),
]


@pytest.mark.parametrize(("large", "where"), LARGE, ids=[where for _, where in LARGE])
def test_a_pod_with_a_large_field_is_refused_by_its_name(large: dict[str, Any], where: str) -> None:
    problem = f"{where}: the pod is too large; allowed: at most {MOST_OF_POD} values"
    created = validate.create(large, "alice", Config())
    assert any(text.startswith(problem) for text in created.invalid)
    grown = validate.update(pod(), large, "alice", Config())
    assert any(text.startswith(problem) for text in grown.invalid)
    same = validate.update(large, large, "alice", Config())  # for example the removal of a finalizer of others
    assert not any(text.startswith(problem) for text in same.invalid)


def test_large_parts_that_are_not_kept_are_allowed() -> None:
    large = pod({"managedFields": [{}] * MANY}, containers=[{"name": "a", "args": ["a"] * MANY}])
    large["spec"]["hostAliases"] = [{"ip": "192.0.2.1"}] * MANY
    assert object_size.excess(large) == []


def test_a_large_pod_of_practice_is_allowed() -> None:
    env = [SECRET] * 20
    containers = [
        {"name": f"c{number}", "env": env, "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
        for number in range(30)
    ]
    assert object_size.excess(pod({"annotations": {"note": "x" * 262_144}}, containers=containers)) == []


@pytest.mark.parametrize(
    ("value", "total"), [([1, {"a": [2, "x" * 400]}], 8), ({"k" * 400: 1}, 4), ("x" * 600, 4), ([], 1), (None, 1)]
)
def test_values_are_counted(value: Any, total: int) -> None:
    assert not is_larger(value, total)
    assert is_larger(value, total - 1)


def test_pruned_pods_are_what_is_counted() -> None:
    large = pod(tolerations=[{"key": "a"}] * MANY)
    assert is_larger(prune_pod(large), MOST_OF_POD)
