"""An unexpected error about one object costs this object alone: a defect in each function that gets a pod or a node.

The tests look up what exists, so that a new function, subscriber or prune function is tried too.
"""

import ast
import copy
import importlib
import inspect
import logging
import pkgutil
import re
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bridge.kube.prune
import bridge.workload
import controllers
import scheduler
from bridge import names
from bridge.config.hub import Config
from bridge.core import isolation
from bridge.kube.cache import Cache
from bridge.kube.resources import PODS
from bridge.slurm import external_nodes
from bridge.slurm.models import Node, Snapshot
from bridge.slurm.versions import ApiVersion
from bridge.telemetry.metrics import ISOLATED_ERRORS
from bridge.workload import pods
from controllers.node import node_decide as node_decide
from controllers.node.node_actions import NodeSyncView
from controllers.virtual.node_manifest import PoolStatus
from scheduler.pod_group import Group
from tests.fakes.memory_hub import MemoryHub
from tests.unit.controllers import test_queues_decide, test_virtual_nodes
from tests.unit.scheduler import test_pools

ROOT = Path(__file__).parents[3]
BAD = "bad"
Reported = list[tuple[str, str]]


class DefectError(Exception):
    """An error that no part of podbridge expects."""


def is_bad(value: object) -> bool:
    """Whether a value is the bad object, its metadata or its spec, or its group."""
    if isinstance(value, Group):
        return value.key == BAD
    if not isinstance(value, dict):
        return isinstance(value, PoolStatus) and value.name == BAD
    metadata = value.get("metadata")
    return BAD in (value.get("uid"), value.get("mark")) or (isinstance(metadata, dict) and metadata.get("uid") == BAD)


def with_defect(function: Callable[..., Any], name: str, hits: list[str], fails: bool = True) -> Callable[..., Any]:
    """Return the function; a call that is about the bad object is noted in ``hits``, and fails."""

    def call(*args: Any, **more: Any) -> Any:
        if any(map(is_bad, (*args, *more.values()))):
            hits.append(name)
            if fails:
                raise DefectError
        return function(*args, **more)

    return call


# --- caches -----------------------------------------------------------------------------------------------------------
def prune_functions() -> Iterator[Callable[..., Any]]:
    """Yield the functions that are called ``prune``, alone or with a kind, or that are an argument of this name."""
    for path in (file for part in ("bridge", "scheduler", "controllers") for file in (ROOT / part).rglob("*.py")):
        text = path.read_text()
        if "prune" not in text:
            continue
        module = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and re.fullmatch("prune(_[a-z_]+)?", node.name):
                yield getattr(module, node.name)
            if isinstance(node, ast.keyword) and node.arg == "prune" and isinstance(node.value, ast.Name):
                passed = vars(module).get(node.value.id)  # None: a parameter
                yield from [passed] if passed is not None else []


PRUNE = {f"{function.__module__}.{function.__name__}": function for function in prune_functions()}


def an_object(name: str, version: str) -> dict[str, Any]:
    spec = {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": version, "managedFields": []}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}


class Client:
    """A list with two objects, and a watch with a change of each; then the cache is stopped."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop

    def get(self, _: str, params: dict[str, Any], *, metadata_only: bool = False) -> dict[str, Any]:
        assert params
        items = [an_object(BAD, "1"), an_object("good", "2")]
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "5"}, "items": items}

    def watch(self, *_: Any, **__: Any) -> Iterator[dict[str, Any]]:
        yield {"type": "MODIFIED", "object": an_object(BAD, "6")}
        yield {"type": "MODIFIED", "object": an_object("good", "7")}
        self.stop.set()


def run(prune: Callable[..., Any], **more: Any) -> tuple[Cache, list[tuple[str, str]]]:
    """Run a cache until it has its second change; return it, and the changes that a subscriber got."""
    stop, changes = threading.Event(), list[tuple[str, str]]()
    client: Any = Client(stop)
    cache = Cache(client, PODS, name="pods", prune=prune, **more)

    def picky(kind: str, _: object, new: Any) -> None:
        if new["metadata"]["name"] == BAD:
            raise DefectError

    cache.subscribe(picky)
    cache.subscribe(lambda kind, _, new: changes.append((kind, new["metadata"]["name"])))  # type: ignore[index]
    cache.run(stop)
    return cache, changes


def test_the_prune_functions_are_found() -> None:
    assert {"prune_pod", "prune_claim", "prune", "keep", "keep_node"} <= {name.rpartition(".")[2] for name in PRUNE}
    assert {"controllers", "scheduler", "bridge"} == {name.partition(".")[0] for name in PRUNE}


@pytest.mark.parametrize("name", PRUNE)
def test_a_cache_keeps_running_when_one_object_can_not_be_pruned(name: str, isolates: Reported) -> None:
    hits: list[str] = []
    cache, changes = run(with_defect(PRUNE[name], name, hits))
    assert len(hits) == 2
    assert changes == [("add", BAD), ("add", "good"), ("update", BAD), ("update", "good")]
    kept = cache.get("ns", BAD)
    assert kept is not None
    assert kept["spec"] == an_object(BAD, "6")["spec"], "whole, so that what depends on it is not lost"
    assert cache.synced
    assert isolates.count(("prune", f"pods ns/{BAD}")) == 2
    assert isolates.count(("subscriber", f"pods ns/{BAD}")) == 2


def test_an_object_that_can_not_be_picked_is_in_the_cache(isolates: Reported) -> None:
    cache, _ = run(lambda obj: obj, pick=with_defect(lambda _: True, "pick", []))
    assert list(cache.picked()) == ["good"]
    assert len(cache) == 2
    assert ("pick", f"pods ns/{BAD}") in isolates


def test_an_error_is_logged_once_and_counted_each_time(caplog: pytest.LogCaptureFixture, isolates: Reported) -> None:
    before = ISOLATED_ERRORS.labels("part")._value.get()
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            try:
                raise DefectError("a secret")
            except DefectError as error:
                found = isolation.report("part", "ns/one", error)
    assert ISOLATED_ERRORS.labels("part")._value.get() == before + 5
    assert len([record for record in caplog.records if record.name == "bridge.core.isolation"]) == 1
    assert "secret" not in str(found)
    assert "DefectError at" in str(found)


# --- decisions --------------------------------------------------------------------------------------------------------
_ACTIONS = (
    "scheduler.group_act.",
    "scheduler.job_act.",
    "controllers.workload.workload_act.",
    "controllers.node.node_act.",
    "scheduler.pod_writer.",
)
"""Calls of workers; tests/unit/core/test_workers.py tries an error in them."""


_FIELDS = {
    f"bridge.workload.pods.{name}"
    for name in ("uid", "key", "is_open", "is_bound", "is_finished", "is_deleted", "is_gated", "is_held", "condition")
} | {"bridge.workload.eligibility.slurm_name"}
"""They read one field that the API server checks; all loops use them to find their objects."""


def functions() -> dict[str, list[tuple[Any, str]]]:
    """Return each function of the decisions, with the places (a module or class, and a name) that refer to it."""
    packages = (scheduler, controllers, bridge.workload)
    modules = [
        importlib.import_module(found.name)
        for package in packages
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not found.ispkg
    ]
    known = {module.__name__ for module in modules}
    places: dict[str, list[tuple[Any, str]]] = {}
    for module in modules:
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ in known:
                places.setdefault(f"{value.__module__}.{value.__qualname__}", []).append((module, name))
            if inspect.isclass(value) and value.__module__ == module.__name__:
                for inner, method in vars(value).items():
                    if inspect.isfunction(method) and not inner.startswith("__") and not inspect.isabstract(value):
                        places.setdefault(f"{module.__name__}.{method.__qualname__}", []).append((value, inner))
    return {
        name: found
        for name, found in places.items()
        if not (name.startswith(_ACTIONS) or name in _FIELDS or isolates_itself(*found[0]))
    }


def isolates_itself(owner: Any, name: str) -> bool:
    return "isolation.report(" in inspect.getsource(vars(owner)[name])


FUNCTIONS = functions()


def a_pod(name: str, scheduler_name: str) -> dict[str, Any]:
    spec = {"schedulerName": scheduler_name, "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}
    metadata = {"namespace": "team", "name": name, "uid": name, "creationTimestamp": "2026-01-01T00:00:00Z"}
    metadata |= {"finalizers": [names.FINALIZER], "annotations": {}, "labels": {}}
    return {"kind": "Pod", "metadata": metadata, "spec": spec | {"mark": name}, "status": {"phase": "Pending"}}


def path(name: str) -> str:
    return f"/api/v1/namespaces/team/pods/{name}"


def live(hub: MemoryHub, done: Callable[[], bool], rounds: int = 40) -> bool:
    """Run the hub until something is the case; jobs start at once."""
    for _ in range(rounds):
        hub.clock.advance(1)
        hub.poll()
        hub.deliver()
        for loop in hub.loops:
            loop.reconcile()
        hub.run_all()
        for job in list(hub.slurm.live()):
            if not job.nodes:
                hub.slurm.start(job)
        if done():
            return True
    return False


def a_hub() -> MemoryHub:
    """Return a hub that has bound the bad pod, before its defect."""
    hub = MemoryHub(("n1", "n2"))
    hub.kube.put(path(BAD), a_pod(BAD, hub.config.scheduler_name))
    assert live(hub, lambda: bool(hub.kube.objects[path(BAD)]["spec"].get("nodeName")))
    return hub


@contextmanager
def replaced(chosen: Iterable[str], fails: Callable[[str], bool]) -> Iterator[list[str]]:
    """Replace functions, of which some fail for the bad object; yield the names of the functions called with it."""
    hits: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for name in chosen:
            for owner, attribute in FUNCTIONS[name]:
                patch.setattr(owner, attribute, with_defect(vars(owner)[attribute], name, hits, fails(name)))
        yield hits


def a_life(bound: bool, chosen: Iterable[str], fails: Callable[[str], bool]) -> list[str]:
    """Let the good pod live beside the bad one; return the functions that were called with the bad one."""
    before = a_hub() if bound else None
    with replaced(chosen, fails) as hits:
        hub = before or MemoryHub(("n1", "n2"))
        if not bound:
            hub.kube.put(path(BAD), a_pod(BAD, hub.config.scheduler_name))
        hub.kube.put(path("good"), a_pod("good", hub.config.scheduler_name))
        outlive(hub)
    return hits


@pytest.mark.parametrize("bound", [False, True], ids=["it waits", "it runs"])
def test_a_defect_in_any_function_about_one_pod_stops_no_other_pod(bound: bool, isolates: Reported) -> None:
    """Each function that is called with the bad pod fails in turn; the good pod is bound and released."""
    called, failures = dict.fromkeys(a_life(bound, FUNCTIONS, lambda _: False)), []
    for name in called:
        isolates.clear()
        try:
            a_life(bound, [name], lambda _: True)
            assert isolates, "nobody is told"
        except (DefectError, AssertionError):
            failures.append(f"{name}: {traceback.format_exc(limit=-4)}")
    assert not failures, "\n".join(failures)
    assert len(called) > 12, "the functions are found"


def pools() -> list[Any]:
    pair = [test_pools.pod(BAD), test_pools.pod("good")]
    return [action for action in test_pools.look(pair, test_pools.pool("a")) if action.pod is pair[1]]


def nodes() -> list[Any]:
    pair = [{"metadata": {"name": name, "uid": name}, "spec": {}} for name in (BAD, "good")]
    snapshot = Snapshot(sequence=1, nodes={name: Node(name, frozenset({"IDLE"})) for name in (BAD, "good")})
    decision = node_decide.decide(NodeSyncView(pair, snapshot, ApiVersion("v0.0.45"), Config()))
    return [action for action in decision.actions if action.node is pair[1]]


def virtual_nodes() -> list[Any]:
    announce = test_virtual_nodes.announce()
    states = [PoolStatus(name, announce, test_virtual_nodes.NOW, "", 0) for name in (BAD, "good")]
    return [action for action in test_virtual_nodes.decide(test_virtual_nodes.view(*states)) if action.name == "good"]


def queues() -> list[Any]:
    pair = [test_queues_decide.master(name) for name in (BAD, "good")]
    pair[0]["metadata"]["uid"] = BAD
    actions = test_queues_decide.Kube(pair, [test_queues_decide.node("site")]).decide()
    return [action for action in actions if getattr(action, "owner", getattr(action, "queue", None)) is pair[1]]


@pytest.mark.parametrize("decided", [pools, nodes, virtual_nodes, queues])
def test_a_defect_in_a_decision_about_one_object_changes_none_about_another(
    decided: Callable[[], list[Any]], isolates: Reported
) -> None:
    with replaced(FUNCTIONS, lambda _: False) as hits:
        expected = decided()
    assert expected
    called = [name for name in dict.fromkeys(hits) if not name.startswith("controllers.virtual.node_manifest")]
    for name in called:
        isolates.clear()
        with replaced([name], lambda _: True):
            found = decided()
        assert [type(action) for action in found] == [type(action) for action in expected], name
        assert isolates, f"{name}: nobody is told"
    assert called


def test_an_external_node_is_no_orphan_because_the_decision_about_it_fails(isolates: Reported) -> None:
    """It would be drained and deleted in Slurm."""
    labels = {names.EXTERNAL_NODE_LABEL: "true"}
    raw = {"metadata": {"name": BAD, "uid": BAD, "labels": labels}, "spec": {}}
    features = (f"{external_nodes.owner_mark('c')}-x",)
    snapshot = Snapshot(sequence=1, nodes={BAD: Node(BAD, frozenset({"IDLE", "EXTERNAL"}), features=features)})
    view = NodeSyncView([raw], snapshot, ApiVersion("v0.0.45"), Config(), "c")
    orphans = node_decide.decide(replace(view, nodes=[])).actions
    assert orphans, "without the node, it is one"
    with replaced(["bridge.workload.node_ownership.is_possible"], lambda _: True):
        assert node_decide.decide(view).actions == []
    assert isolates == [("node", BAD)]


def test_the_condition_of_a_pod_shows_an_error_and_its_end(isolates: Reported) -> None:
    hub = a_hub()
    condition = lambda: pods.condition(hub.kube.objects[path(BAD)], names.INTERNAL_ERROR)  # noqa: E731
    with replaced(["controllers.workload.workload_decide._has_ended"], lambda _: True):
        assert live(hub, lambda: condition().get("status") == "True")
        assert "DefectError at" in condition()["message"]
        assert condition()["reason"] == "InternalError"
    assert live(hub, lambda: condition().get("status") == "False")
    assert ("workload", f"team/{BAD}") in isolates


def test_a_waiting_pod_is_told_of_the_error(isolates: Reported) -> None:
    hub = MemoryHub(("n1", "n2"))
    hub.kube.put(path(BAD), a_pod(BAD, hub.config.scheduler_name))
    condition = lambda: pods.condition(hub.kube.objects[path(BAD)], names.POD_SCHEDULED)  # noqa: E731
    with replaced(["scheduler.group_decide._decide_group"], lambda _: True):
        assert live(hub, lambda: condition().get("reason") == "InternalError")
    assert isolates
    assert live(hub, lambda: bool(hub.kube.objects[path(BAD)]["spec"].get("nodeName")))


def outlive(hub: MemoryHub) -> None:
    """The good pod is bound, and released after its end."""
    assert live(hub, lambda: bool(hub.kube.objects[path("good")]["spec"].get("nodeName"))), "not bound"
    ended = copy.deepcopy(hub.kube.objects[path("good")])
    ended["status"]["phase"] = "Succeeded"
    hub.kube.put(path("good"), ended)
    assert live(hub, lambda: not hub.kube.objects[path("good")]["metadata"]["finalizers"]), "not released"
