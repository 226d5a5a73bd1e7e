"""A pod that no node takes now, and one that no node ever takes, have different reasons."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.models import Node
from bridge.workload import eligibility, resources
from scheduler.nodes.placement import Placements
from tests import builders

AWAY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
DEDICATED = {"key": "team", "value": "a", "effect": "NoSchedule"}
NODES = st.fixed_dictionaries(
    {
        "cpu": st.sampled_from(["1", "8"]),
        "disk": st.sampled_from(["ssd", "none"]),
        "unschedulable": st.booleans(),
        "taints": st.lists(st.sampled_from([AWAY, DEDICATED]), max_size=2, unique_by=str),
        "taken": st.integers(0, 8),
    }
)


def views(drawn):
    for number, each in enumerate(drawn):
        manifest = builders.node(
            f"n{number}",
            labels={"disk": each["disk"]},
            allocatable={"cpu": each["cpu"], "pods": "10"},
            taints=each["taints"],
            unschedulable=each["unschedulable"],
        )
        yield eligibility.view(manifest, {"cpu": each["taken"]} if each["taken"] else None)


def emptied(node):
    return replace(eligibility.once_up(node), cordoned=False, taken={})


def may_open(nodes, **pod):
    body = builders.pod(**pod)
    placements = Placements(nodes, {node.name: Node(node.name, frozenset({"IDLE"})) for node in nodes}, {})
    placement = placements.of(body, "")
    return placement, placement.may_open(), body


@given(drawn=st.lists(NODES, min_size=1, max_size=3), cpu=st.sampled_from(["1", "4", "9"]), disk=st.booleans())
def test_a_refusal_may_pass_only_if_a_node_fits_once_it_is_open_and_empty(drawn, cpu, disk):
    nodes = list(views(drawn))
    selector = {"nodeSelector": {"disk": "ssd"}} if disk else {}
    placement, opens, body = may_open(nodes, requests={"cpu": cpu}, **selector)
    requests = resources.kubelet_requests(body["spec"])
    fits = {node.name for node in nodes if not eligibility.refusal(body["spec"], requests, emptied(node))}
    assert opens == bool(fits & placement.refused.keys())


@pytest.mark.parametrize(
    ("node", "opens"),
    [
        ({"unschedulable": True}, True),
        ({"taints": [AWAY]}, True),
        ({"taken": 7}, True),
        ({"unschedulable": True, "disk": "none"}, False),
        ({"unschedulable": True, "cpu": "1"}, False),
        ({"taints": [DEDICATED]}, False),
    ],
)
def test_each_cause(node, opens):
    usual = {"cpu": "8", "disk": "ssd", "unschedulable": False, "taints": [], "taken": 0}
    placement, found, _ = may_open(list(views([usual | node])), requests={"cpu": "4"}, nodeSelector={"disk": "ssd"})
    assert (placement.eligible, found) == ((), opens)
