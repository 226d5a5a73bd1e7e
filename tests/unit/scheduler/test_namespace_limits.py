"""Limits of a namespace's policy that only the scheduler can check: devices of claims, and the size of a group."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bridge import names
from bridge.config.hub import Config
from bridge.config.policies import MaxValues
from bridge.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS
from bridge.slurm.models import JobRequest
from bridge.workload import job_limits
from tests.fakes.memory_hub import MemoryHub
from tests.unit.scheduler.test_shrunk_jobs import pod

CLASSES = {"gpus": "gpu:a100", "cores": "cpu"}


def limited(most: dict[str, Any], *, claims: bool = False, group: bool = False) -> dict[str, str]:
    limits = job_limits.of_policy(MaxValues.model_validate(most), claims=claims, group=group)
    return {names.JOB_LIMITS: job_limits.encode(limits)}


class Hub(MemoryHub):
    def __init__(self) -> None:
        super().__init__(tuple(f"n{number}" for number in range(6)))
        self.config = Config(device_classes=CLASSES)
        self.slurm.version = replace(self.slurm.version, allocations=True)
        self.restart(inherited=False)
        for name in CLASSES:
            selector = {"cel": {"expression": f'device.driver == "{name}"'}}
            body = {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": [selector]}}
            self.kube.put(DEVICE_CLASSES.path(name=name), body)

    def claim(self, name: str, **counts: int) -> None:
        asked = [{"name": key, "exactly": {"deviceClassName": key, "count": count}} for key, count in counts.items()]
        metadata = {"namespace": "team", "name": name, "uid": f"uid-{name}"}
        body = {"kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": {"requests": asked}}}
        self.kube.put(RESOURCE_CLAIMS.path("team", name), body)

    def told(self, name: str) -> list[tuple[str, str]]:
        conditions = self.kube.objects[PODS.path("team", name)]["status"].get("conditions") or ()
        return [(one["reason"], one["message"]) for one in conditions if one["type"] == "PodScheduled"]


def claiming(*claims: str, limits: dict[str, str] | None = None, **settings: str) -> dict[str, Any]:
    made = pod(requests={"cpu": "1"}, **(limits or {}), **settings)
    made["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in claims]
    return made


MOST = {"gres": {"gpu": 4}, "cpuPerTask": 8}


@pytest.mark.parametrize(
    ("claims", "key"),
    [
        ({"one": {"gpus": 5}}, "gres"),
        ({"one": {"gpus": 3}, "two": {"gpus": 2}}, "gres"),
        ({"one": {"cores": 9}}, "cpuPerTask"),
        ({"one": {"cores": 5}, "two": {"cores": 4}}, "cpuPerTask"),
    ],
)
def test_claims_above_the_maximum_get_no_job(claims: dict[str, dict[str, int]], key: str) -> None:
    hub = Hub()
    for name, counts in claims.items():
        hub.claim(name, **counts)
    hub.create(claiming(*claims, limits=limited(MOST, claims=True)))
    hub.work(8)
    assert not hub.slurm.jobs
    ((reason, message),) = hub.told("u1")
    assert reason == "NamespaceLimitExceeded" and f"max.{key} of the namespace's policy" in message
    # a user with the permission, or a namespace without the maximum
    hub.create(claiming(*claims))
    hub.work(700)
    assert len(hub.slurm.jobs) == 1


def test_claims_within_the_maximum_are_submitted() -> None:
    hub = Hub()
    hub.claim("one", gpus=4, cores=8)
    hub.create(claiming("one", limits=limited(MOST, claims=True)))
    hub.work(8)
    (job,) = hub.slurm.jobs.values()
    assert (job.request.cpus, job.request.gres) == (8, ("gpu:a100:4",))


def test_a_claim_that_grows_before_the_submission_counts_as_it_is_then() -> None:
    hub = Hub()
    hub.create(claiming("late", limits=limited(MOST, claims=True)))
    hub.work(8)
    assert hub.told("u1")[0][0] == "ResourceClaimMissing"
    hub.claim("late", gpus=64)
    hub.work(700)
    assert not hub.slurm.jobs
    assert hub.told("u1")[0][0] == "NamespaceLimitExceeded"


def members(count: int, size: int, most: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods of a group whose object says ``size``; no controller says how many pods there are."""
    group = {"kind": "podgroup", "name": "g", "uid": "o1", "index": "", "size": size, "minimum": size, "slot": None}
    marks = {names.GROUP: json.dumps(group), **limited(most, group=True)}
    return [pod(f"u{number}", {"cpu": "1"}, **marks) for number in range(count)]


def test_more_pods_than_the_group_has_lead_to_no_job_above_the_maximum() -> None:
    """The pods are created with scheduling gates, which are removed together, or are created at once."""
    hub = Hub()
    for member in members(4, 2, {"maxNodes": 2}):
        hub.create(member)
    hub.work(8)
    assert not hub.slurm.jobs
    ((reason, message),) = hub.told("u0")
    assert reason == "NamespaceLimitExceeded"
    assert message.startswith("4 nodes for the pods of the group are not allowed; allowed: at most 2 (max.maxNodes")
    for name in ("u2", "u3"):
        path = PODS.path("team", name)
        obj = hub.kube.objects[path]
        obj["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": []}
        hub.kube.put(path, obj)
    hub.work(700)
    (job,) = hub.slurm.jobs.values()
    assert (job.request.min_nodes, job.request.max_nodes) == (2, 2)


@pytest.mark.parametrize(
    ("most", "request_", "told"),
    [
        ({"maxNodes": 4}, {"max_nodes": 5}, "5 nodes"),
        ({"maxNodes": 4}, {"max_nodes": 3, "components": 2}, "9 nodes"),
        ({"maxNodes": 4}, {"min_nodes": 5, "max_nodes": None}, "a minimum of 5 nodes"),
        ({"minNodes": 2, "maxNodes": 9}, {"min_nodes": 3, "max_nodes": 4}, "at most 2 (max.minNodes"),
        ({"maxNodes": 4}, {"min_nodes": 4, "max_nodes": 4}, ""),
    ],
)
def test_the_nodes_of_all_components_count(most: dict[str, Any], request_: dict[str, Any], told: str) -> None:
    more = request_.pop("components", 0)
    link: Any = None
    whole = JobRequest("j", link, external=True, **request_)
    whole = replace(whole, components=(whole,) * more)
    member = {"metadata": {"annotations": limited(most, group=True)}}
    if not told:
        job_limits.check(whole, [member, {"metadata": {}}])
        return
    with pytest.raises(job_limits.LimitExceededError) as raised:
        job_limits.check(whole, [{"metadata": {}}, member])
    assert told in str(raised.value)


@pytest.mark.parametrize("text", ["x", "[]", '{"gres": 4}', '{"maxNodes": "many"}', '{"gres": {"gpu": "a"}}'])
def test_limits_that_cannot_be_read_allow_nothing(text: str) -> None:
    link: Any = None
    request = JobRequest("j", link, external=True, gres=("gpu:1",))
    with pytest.raises(job_limits.LimitExceededError, match="cannot be read"):
        job_limits.check(request, [{"metadata": {"annotations": {names.JOB_LIMITS: text}}}])
