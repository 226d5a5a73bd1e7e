"""The nodes that fit pods: the same as if each pod were compared with each node, in bounded time and memory."""

import threading
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.models import Node, Partition
from bridge.workload import eligibility, resources
from scheduler.nodes import node_fit
from scheduler.nodes.node_fit import BoundedCache, NodeFit
from scheduler.nodes.placement import Placements
from tests import builders
from tests.counted import Count, Items

LABELS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"))
AMOUNTS = st.sampled_from(["1", "2", "4"])
RESOURCES = st.dictionaries(st.sampled_from(["cpu", "memory", "pods", "vendor.com/thing"]), AMOUNTS)
TAINTS = st.lists(
    st.fixed_dictionaries({"key": st.sampled_from("tu"), "effect": st.sampled_from(["NoSchedule", "PreferNoSchedule"])})
)
NODE = st.fixed_dictionaries(
    {"labels": LABELS, "taints": TAINTS, "unschedulable": st.booleans(), "allocatable": RESOURCES, "taken": RESOURCES}
)
TERM = st.fixed_dictionaries({"key": st.sampled_from("ab"), "operator": st.just("In"), "values": st.just(["1"])})
POD = st.fixed_dictionaries(
    {"containers": st.lists(st.fixed_dictionaries({"resources": st.fixed_dictionaries({"requests": RESOURCES})}))},
    optional={
        "nodeSelector": LABELS,
        "tolerations": st.lists(st.fixed_dictionaries({"key": st.sampled_from("tu"), "operator": st.just("Exists")})),
        "affinity": st.fixed_dictionaries(
            {
                "nodeAffinity": st.fixed_dictionaries(
                    {
                        "requiredDuringSchedulingIgnoredDuringExecution": st.fixed_dictionaries(
                            {"nodeSelectorTerms": st.lists(st.fixed_dictionaries({"matchExpressions": st.lists(TERM)}))}
                        )
                    }
                )
            }
        ),
    },
)


def view(name, given):
    spec = {"taints": given.get("taints") or [], "unschedulable": given.get("unschedulable", False)}
    raw = builders.node(name, labels=given.get("labels"), allocatable=given["allocatable"], **spec)
    return eligibility.view(raw, eligibility.allocatable({"status": {"allocatable": given.get("taken") or {}}}))


@given(st.lists(NODE, max_size=5), st.lists(POD, min_size=1, max_size=4))
def test_the_nodes_are_those_of_a_comparison_of_each_pod_with_each_node(nodes, specs):
    views = [view(f"n{number}", given) for number, given in enumerate(nodes)]
    fit, names = NodeFit(views), [*(one.name for one in views), "bare"]
    for spec in specs:
        pod = {"metadata": {"name": "p"}, "spec": spec}
        refused, eligible = fit.placed(pod, fit.key(pod, ""), lambda: names)
        requests = resources.kubelet_requests(spec)
        reasons = {one.name: eligibility.refusal(spec, requests, one) for one in views}
        assert refused == {**{name: why for name, why in reasons.items() if why}, "bare": "not a Kubernetes node"}
        assert eligible == [name for name, why in reasons.items() if not why]


def placements(count):
    offered = {"cpu": "128", "memory": "512Gi", "pods": "110"}
    nodes = [view(f"n{number}", {"labels": {"a": str(number)}, "allocatable": offered}) for number in range(count)]
    slurm = {node.name: Node(node.name, frozenset({"IDLE"})) for node in nodes}
    return Placements(nodes, slurm, {"p": Partition("p", tuple(slurm), default=True)})


def pod(number, kind):
    requests = {"memory": f"{1000 + number}Mi" if kind == "requests" else "1Gi"}
    container = builders.container(requests=requests)
    if kind == "ports":
        container["ports"] = [{"containerPort": 1, "hostPort": 1 + number}]
    selector = {"nodeSelector": {"a": str(number)}} if kind == "selectors" else {}
    return builders.pod(f"u{number}", containers=[container], **selector)


@pytest.mark.parametrize("kind", ["requests", "selectors", "ports"])
def test_the_memory_does_not_grow_with_distinct_pods(kind, monkeypatch):
    monkeypatch.setattr(node_fit, "MOST_NODES", 20 * 200)
    monkeypatch.setattr(node_fit, "MOST_SHAPES", 64)
    found = placements(200)

    def ask(first):
        for number in range(first, first + 200):
            found.of(pod(number, kind), "p")
            found.forget_all_but(set())  # the pod has ended and is gone

    ask(0)
    tracemalloc.start()
    try:
        ask(200)
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    # what the second 200 pods keep has taken the place of what the first ones kept: 20 results of 200 nodes
    assert grown < 20 * 200 * 250
    assert len(found._by_key) <= 20


def test_distinct_requests_with_one_outcome_share_a_placement():
    found = placements(3)
    assert len({id(found.of(pod(number, "requests"), "p")) for number in range(50)}) == 1
    big = {"metadata": {"uid": "b"}, "spec": {"containers": [{"resources": {"requests": {"cpu": "129"}}}]}}
    assert found.of(big, "p").excluded == ("n0", "n1", "n2")


def test_a_placement_that_was_forgotten_is_computed_again(monkeypatch):
    monkeypatch.setattr(node_fit, "MOST_NODES", 1)
    monkeypatch.setattr(node_fit, "LEAST_RESULTS", 2)
    found = placements(5)
    before = [found.of(pod(number, "selectors"), "p") for number in range(5)]
    again = [found.of(pod(number, "selectors"), "p") for number in range(5)]
    assert again == before
    assert all(found.same_for_slurm(a.excluded, b.excluded) for a, b in zip(before, again, strict=True))
    assert not found.same_for_slurm(before[0].excluded, before[1].excluded)


def test_a_cache_keeps_what_was_used_last_and_is_safe_for_threads():
    cache = BoundedCache[int, str](2)
    made = []
    for key in (1, 2, 1, 3, 1, 2):
        cache.get(key, lambda key=key: made.append(key) or str(key))
    assert made == [1, 2, 3, 2]

    def work():
        for key in range(2000):
            assert cache.get(key % 5, lambda key=key: str(key % 5)) == str(key % 5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == 2


def test_the_tolerations_of_a_pod_are_compared_once_with_equal_taints() -> None:
    """A pod may have thousands, and each new placement compares it with all nodes."""
    count, tainted = Count(), {"taints": [{"key": "t", "effect": "NoSchedule"}], "allocatable": {"cpu": "1"}}
    fit = NodeFit([view(f"n{index}", tainted) for index in range(100)])
    other = [{"key": f"o{index}", "operator": "Exists"} for index in range(100)]
    spec = {"containers": [], "tolerations": Items([*other, {"key": "t", "operator": "Exists"}], count)}
    pod = {"spec": spec}
    key = fit.key(pod, "")
    count.value = 0
    assert len(fit.placed(pod, key, lambda: [f"n{index}" for index in range(100)])[1]) == 100
    assert count.value <= 2 * len(other)
