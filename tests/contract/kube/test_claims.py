"""The writes of :mod:`scheduler.devices.claims` on a real API server, with a crash before each of them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from bridge import names
from bridge.clock import SystemClock
from bridge.config.hub import Config
from bridge.errors import LostLeadershipError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import DEVICE_CLASSES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from bridge.slurm.job_resources import GresIndices, NodeResources
from bridge.workload.devices import cel, claimed_devices, extended_claims
from bridge.workload.devices.claimed_devices import DevicesNotReadyError, WrongDevicesError
from cluster.polling import eventually
from scheduler.devices.claims import Claims
from scheduler.group_actions import Bind

pytestmark = pytest.mark.real

GPU = "gpu.example.com"
NODE = "node-of-claims"


class AllocatedJobs:
    """Slurm's answer about the devices of jobs; tests/e2e/test_dra.py has the real one."""

    def __init__(self, **jobs: tuple[int, ...]) -> None:
        self.jobs = {int(name[1:]): indices for name, indices in jobs.items()}

    def resources(self, job_id: int) -> dict[str, NodeResources]:
        return {NODE: NodeResources(1, 8, (), (GresIndices("gpu", "", self.jobs[job_id]),))}


def request(count: int) -> dict[str, Any]:
    return {"name": "r", "exactly": {"deviceClassName": GPU, "count": count}}


def bind(pod: dict[str, Any], job_id: int) -> Bind:
    sharing = 2 if names.GROUP in (pod["metadata"].get("annotations") or {}) else 1
    return Bind(pod, job_id, NODE, 0.0, NODE, sharing=sharing)


ATTRIBUTES, CAPACITY = 'device.attributes["x.com"]', 'device.capacity["x.com"]'
SELECTORS = (
    f'device.driver in ["x.com", "y.com"] && (has({ATTRIBUTES}.a) || !("b" in {ATTRIBUTES}))',
    f'{ATTRIBUTES}.a == 1 && {ATTRIBUTES}.b != "1" && {ATTRIBUTES}["c"] == true && {ATTRIBUTES}.d in [1, -2]',
    f"{ATTRIBUTES}.a > 1 || {ATTRIBUTES}.a >= 1 || {ATTRIBUTES}.a < 1 || {ATTRIBUTES}.a <= 1",
    f'{ATTRIBUTES}.v.compareTo(semver("1.2.3")) >= 0 && {ATTRIBUTES}.v.isGreaterThan(semver("1.2.3-rc.1"))',
    f'{CAPACITY}.memory.compareTo(quantity("40Gi")) >= 0 && {CAPACITY}.memory.isLessThan(quantity("1500m"))',
    f"{ATTRIBUTES}.model.lowerAscii().matches('^.*a100.*$') && {ATTRIBUTES}.model.upperAscii() == 'A'",
    'device.driver.startsWith("x") && device.driver.endsWith("m") && device.driver.contains(".")',
)
"""Every operator and function that podbridge reads."""


@pytest.mark.parametrize("expression", SELECTORS)
def test_an_expression_that_podbridge_reads_is_one_of_the_api_server(client: KubeClient, expression: str) -> None:
    cel.parse(expression)
    body = {"metadata": {"name": "cel.example.com"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    client.create(f"{DEVICE_CLASSES.path()}?dryRun=All", body)


@pytest.fixture
def drivers(client: KubeClient) -> Iterator[None]:
    selector = {"cel": {"expression": f'device.driver == "{GPU}"'}}
    client.create(DEVICE_CLASSES.path(), {"metadata": {"name": GPU}, "spec": {"selectors": [selector]}})
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": GPU, "nodeName": NODE, "pool": pool, "devices": [{"name": f"gpu-{n}"} for n in range(8)]}
    client.create(RESOURCE_SLICES.path(), {"metadata": {"name": NODE}, "spec": spec})
    yield
    client.delete(DEVICE_CLASSES.path(name=GPU))
    client.delete(RESOURCE_SLICES.path(name=NODE))


@pytest.fixture
def make_pod(client: KubeClient, namespace: str, drivers: None) -> Iterator[Any]:
    def make(name: str, claim: int, extended: int, *, slot: int | None = None, shared: str = "") -> dict[str, Any]:
        """Create a pod with a claim of its own and with an extended resource, each of a number of GPUs.

        With a ``slot``, it is one of two members of a gang that share a node.
        """
        claims = [{"name": "s", "resourceClaimName": shared}] if shared else []
        if claim:
            spec = {"devices": {"requests": [request(claim)]}}
            client.create(RESOURCE_CLAIMS.path(namespace), {"metadata": {"name": name}, "spec": spec})
            claims.append({"name": "d", "resourceClaimName": name})
        container: dict[str, Any] = {"name": "c", "image": "none"}
        if extended:
            container["resources"] = {"limits": {extended_claims.PREFIX + GPU: str(extended)}}
        group = {"kind": "kueue", "name": "g", "size": 2, "minimum": 2, "slot": slot}
        annotations = {names.GROUP: json.dumps(group), names.MEMBERS_PER_NODE: "2"} if slot is not None else {}
        body = {"schedulerName": "nobody", "containers": [container], "resourceClaims": claims}
        metadata = {"name": name, "annotations": annotations}
        return client.create(PODS.path(namespace), {"metadata": metadata, "spec": body})

    yield make
    for pod in client.get(PODS.path(namespace))["items"]:
        client.delete(PODS.path(namespace, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    eventually(lambda: not allocated(client, namespace), "kube-controller-manager releases the claims")


class CrashBefore:
    """A check of leadership that fails before the write with this number, from 0."""

    def __init__(self, number: int) -> None:
        self.number, self.writes = number, 0

    def __call__(self) -> None:
        if self.writes == self.number:
            raise LostLeadershipError("crash")
        self.writes += 1


def test_a_crash_before_each_write_is_repaired_by_the_next_call(
    client: KubeClient, namespace: str, make_pod: Any
) -> None:
    crashed, sends = 0, 99
    while crashed < sends:
        pod = make_pod(f"crash-{crashed}", 2, 1)
        check = CrashBefore(crashed)
        slurm: Any = AllocatedJobs(j1=(1, 4, 6))
        first = Claims(client.fenced(check), slurm, Config(), SystemClock())
        try:
            first.allocate([bind(pod, 1)])
            sends = check.writes
        except LostLeadershipError:
            pod = client.get(PODS.path(namespace, pod["metadata"]["name"]))
            Claims(client, slurm, Config(), SystemClock()).allocate([bind(pod, 1)])
        own = [
            client.get(RESOURCE_CLAIMS.path(namespace, name))
            for name in (f"crash-{crashed}", extended_claims.name(pod))
        ]
        found = [key for claim in own for key in claimed_devices.results(claim)]
        assert sorted(name for _, _, name in found) == ["gpu-1", "gpu-4", "gpu-6"]
        for claim in own:
            assert [one["uid"] for one in claim["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
            assert extended_claims.FINALIZER in claim["metadata"]["finalizers"]
        stored = client.get(PODS.path(namespace, pod["metadata"]["name"]))
        assert stored["status"]["extendedResourceClaimStatus"] == extended_claims.status(pod)
        client.delete(PODS.path(namespace, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
        eventually(lambda: not allocated(client, namespace), "kube-controller-manager releases the claims")
        crashed += 1
    # finalizer and status of two claims, the creation of one, the status of the pod
    assert sends == 6


def test_a_crash_before_each_write_for_a_gang_ends_in_the_same_devices(
    client: KubeClient, namespace: str, make_pod: Any
) -> None:
    """Two members with a claim each and one that they share; another process continues after each crash."""
    slurm: Any = AllocatedJobs(j1=(1, 2, 3, 4, 6))
    crashed, sends, places = 0, 99, set()
    while crashed < sends:
        shared = {"metadata": {"name": f"shared-{crashed}"}, "spec": {"devices": {"requests": [request(1)]}}}
        client.create(RESOURCE_CLAIMS.path(namespace), shared)
        gang = [make_pod(f"gang-{crashed}-{slot}", 0, 2, slot=slot, shared=f"shared-{crashed}") for slot in range(2)]
        check = CrashBefore(crashed)
        binds = [bind(pod, 1) for pod in gang]
        try:
            Claims(client.fenced(check), slurm, Config(), SystemClock()).allocate(binds)
            sends = check.writes
        except LostLeadershipError:
            current_pods = [client.get(PODS.path_of(pod)) for pod in gang]
            Claims(client, slurm, Config(), SystemClock()).allocate([bind(pod, 1) for pod in current_pods])
        listed = [f"shared-{crashed}", *(extended_claims.name(pod) for pod in gang)]
        found = [client.get(RESOURCE_CLAIMS.path(namespace, name)) for name in listed]
        places.add(tuple(tuple(name for _, _, name in claimed_devices.results(claim)) for claim in found))
        users = [{one["uid"] for one in claim["status"]["reservedFor"]} for claim in found]
        first, second = (pod["metadata"]["uid"] for pod in gang)
        assert users == [{first, second}, {first}, {second}]
        for pod in gang:
            client.delete(PODS.path(namespace, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
        eventually(lambda: not allocated(client, namespace), "kube-controller-manager releases the claims")
        crashed += 1
    assert places == {(("gpu-1",), ("gpu-2", "gpu-3"), ("gpu-4", "gpu-6"))}


def test_a_member_never_takes_the_devices_of_another_one(client: KubeClient, namespace: str, make_pod: Any) -> None:
    slurm: Any = AllocatedJobs(j1=(0, 1, 2, 3))
    claims = Claims(client, slurm, Config(), SystemClock())
    with pytest.raises(WrongDevicesError, match=r"request 3 devices .*its place in the job has 2"):
        claims.allocate([bind(make_pod("greedy", 0, 3, slot=0), 1)])
    assert not allocated(client, namespace)


def test_a_member_gets_the_devices_of_the_component_that_has_its_node(
    client: KubeClient, namespace: str, make_pod: Any
) -> None:
    slurm: Any = AllocatedJobs(j1=(0, 1), j2=(5, 6))
    pod = make_pod("component", 0, 2)
    Claims(client, slurm, Config(), SystemClock()).allocate([replace(bind(pod, 1), component=2)])
    claim = client.get(RESOURCE_CLAIMS.path(namespace, extended_claims.name(pod)))
    assert [name for _, _, name in claimed_devices.results(claim)] == ["gpu-5", "gpu-6"]


def test_pods_of_one_job_at_the_same_time_get_different_devices(
    client: KubeClient, namespace: str, make_pod: Any
) -> None:
    slurm: Any = AllocatedJobs(j1=tuple(range(8)))
    claims = Claims(client, slurm, Config(), SystemClock())
    pods = [make_pod(f"member-{number}", 2, 0) for number in range(4)]
    threads = [threading.Thread(target=claims.allocate, args=([bind(pod, 1)],)) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(allocated(client, namespace)) == len(set(allocated(client, namespace))) == 8
    late = make_pod("late", 1, 0)
    with pytest.raises(DevicesNotReadyError):
        claims.allocate([bind(late, 1)])


def test_an_allocation_from_an_earlier_job_is_made_again(client: KubeClient, namespace: str, make_pod: Any) -> None:
    slurm: Any = AllocatedJobs(j1=(0, 1), j2=(1, 2))
    claims = Claims(client, slurm, Config(), SystemClock())
    pod = make_pod("moved", 2, 0)
    claims.allocate([bind(pod, 1)])
    before = client.get(RESOURCE_CLAIMS.path(namespace, "moved"))
    claims.allocate([bind(pod, 1)])
    assert client.get(RESOURCE_CLAIMS.path(namespace, "moved")) == before
    claims.allocate([bind(pod, 2)])
    assert sorted(name for _, _, name in allocated(client, namespace)) == ["gpu-1", "gpu-2"]


def test_a_list_of_many_claims_costs_little(client: KubeClient, namespace: str, make_pod: Any, report: Any) -> None:
    for number in range(200):
        exactly = {"deviceClassName": GPU, "count": 1}
        spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
        client.create(RESOURCE_CLAIMS.path(namespace), {"metadata": {"name": f"c{number}"}, "spec": spec})
    slurm: Any = AllocatedJobs(j1=(0,))
    claims, pod = Claims(client, slurm, Config(), SystemClock()), make_pod("timed", 1, 0)
    began = time.monotonic()
    claims.allocate([bind(pod, 1)])
    took = time.monotonic() - began
    report(f"allocation beside 200 claims: {1000 * took:.0f} ms")
    assert took < 2


def allocated(client: KubeClient, namespace: str) -> list[tuple[str, str, str]]:
    items = client.get(RESOURCE_CLAIMS.path(namespace))["items"]
    return [key for claim in items for key in claimed_devices.results(claim)]
