"""The devices that are taken, from a cache of claims: no bind lists all claims, and none waits for another node."""

import threading

import pytest

from bridge.config.hub import Config
from bridge.slurm.job_resources import GresIndices, NodeResources
from scheduler.devices.claims import Claims
from scheduler.devices.taken_devices import STALE, TakenDevices, prune
from scheduler.group_actions import Bind
from tests.fakes.clock import FakeClock

KEYS = [("driver", "pool", name) for name in ("a", "b", "c")]


def claim(uid, *names, version=1):
    results = [{"driver": "driver", "pool": "pool", "device": name, "request": "r"} for name in names]
    metadata = {"name": uid, "namespace": "team", "uid": uid, "resourceVersion": str(version)}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": []} if names else {}
    return {"metadata": metadata, "spec": {"devices": {}}, "status": status}


class FakeCache:
    synced, seconds = True, 0.0

    def subscribe(self, fn):
        self.fn = fn

    def age(self):
        return self.seconds


@pytest.fixture
def taken():
    return TakenDevices(FakeCache())


def test_claims_that_come_change_and_go(taken):
    taken.changed("add", None, prune(claim("u1", "a", "b")))
    assert taken.of(KEYS) == {KEYS[0]: "u1", KEYS[1]: "u1"}
    taken.changed("update", claim("u1", "a", "b"), claim("u1", "b", version=2))
    assert taken.of(KEYS) == {KEYS[1]: "u1"}
    taken.changed("update", claim("u1", "b", version=2), claim("u1", version=3))
    assert taken.of(KEYS) == {}
    taken.changed("add", None, claim("u2", "c", version=4))
    taken.changed("delete", claim("u2", "c", version=4), None)
    assert taken.of(KEYS) == {} and "u2" not in taken._versions


def test_a_write_counts_before_the_cache_shows_it_and_older_events_do_not(taken):
    taken.changed("add", None, claim("u1", version=1))
    taken.written(claim("u1", "a", version=5))
    taken.changed("update", claim("u1", version=1), claim("u1", version=4))
    assert taken.of(KEYS) == {KEYS[0]: "u1"}
    taken.changed("update", claim("u1", version=4), claim("u1", version=6))
    assert taken.of(KEYS) == {}
    taken.written(claim("u1", "a", version=9))
    taken.changed("update", claim("u1", version=8), claim("u1", "b", version=2))  # etcd was restored
    assert taken.of(KEYS) == {KEYS[1]: "u1"}


def test_a_device_that_passes_from_one_claim_to_another(taken):
    taken.written(claim("u1", "a", version=1))
    taken.written(claim("u2", "a", version=3))
    taken.changed("update", claim("u1", "a"), claim("u1", version=2))
    assert taken.of(KEYS) == {KEYS[0]: "u2"}


def test_without_a_current_cache_all_claims_are_listed(taken):
    assert taken.is_current
    taken._cache.seconds = STALE
    assert not taken.is_current
    taken._cache.seconds, taken._cache.synced = 0.0, False
    assert not taken.is_current
    assert not TakenDevices().is_current


CLASS = "gpu.example.com"
TABLE = {CLASS: "gpu"}
DRIVER = 'device.driver == "d"'


class Kube:
    """One GPU on each node, with a claim for each pod; a list of the slices of node ``slow`` waits."""

    def __init__(self):
        self.lists, self.waits, self.goes_on = [], threading.Event(), threading.Event()

    def get(self, path, params=None, *, metadata_only=False):
        if path.endswith("/resourceslices"):
            node = params["fieldSelector"].partition("=")[2]
            if node == "slow":
                self.waits.set()
                assert self.goes_on.wait(20)
            spec = {"driver": "d", "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}
            device = {"name": "gpu-0", "attributes": {"index": {"int": 0}}}
            return {"items": [{"metadata": {"name": node}, "spec": {**spec, "devices": [device]}}]}
        if path.endswith("/resourceclaims"):
            self.lists.append(path)
            return {"items": []}
        if "/deviceclasses/" in path:
            return {"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": DRIVER}}]}}
        name = path.rpartition("/")[2]
        made = claim(name)
        made["spec"] = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": CLASS, "count": 1}}]}}
        return made

    def replace(self, path, body):
        number = int(body["metadata"]["resourceVersion"]) + 1
        return {**body, "metadata": {**body["metadata"], "resourceVersion": str(number)}}


class Slurm:
    def resources(self, job_id):
        given = NodeResources(1, 8, (), (GresIndices("gpu", "", (0,)),))
        return dict.fromkeys(("slow", "quick"), given)


def bind(node):
    metadata = {"namespace": "team", "name": node, "uid": f"u-{node}", "resourceVersion": "1"}
    spec = {"containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": f"of-{node}"}]}
    return Bind({"metadata": metadata, "spec": spec, "status": {}}, 1, node, 0.0, node)


def test_a_bind_waits_for_no_bind_on_another_node_and_lists_no_claims(taken):
    kube = Kube()
    claims = Claims(kube, Slurm(), Config(device_classes=TABLE), FakeClock(), taken=taken)
    slow = threading.Thread(target=lambda: claims.allocate([bind("slow")]))
    slow.start()
    try:
        assert kube.waits.wait(20)
        quick = threading.Thread(target=lambda: claims.allocate([bind("quick")]))
        quick.start()
        quick.join(20)
        assert not quick.is_alive()
        assert taken.of([("d", "quick", "gpu-0")]) == {("d", "quick", "gpu-0"): "of-quick"}
    finally:
        kube.goes_on.set()
        slow.join(20)
    assert taken.of([("d", "slow", "gpu-0")])
    assert kube.lists == []
