from dataclasses import replace
from decimal import Decimal

import pytest

from bridge import names
from bridge.workload import eligibility
from bridge.workload.resources import pod_requests
from tests.builders import node_view


def node(cordoned=False, cpu="8", **more):
    return node_view(allocatable={"cpu": cpu, "memory": "16Gi"}, unschedulable=cordoned, **more)


def refusal(spec, **kwargs):
    return eligibility.refusal(spec, pod_requests(spec), node(**kwargs))


def requesting(requests=None, limits=None):
    return {"containers": [{"resources": {"requests": requests or {}, "limits": limits or {}}}]}


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("spec", "node", "why"),
    [
        ({}, {}, ""),
        ({}, {"cordoned": True}, "cordoned"),
        ({"tolerations": [{"operator": "Exists"}]}, {"cordoned": True}, ""),
        ({"nodeSelector": {"gpu": "a100"}}, {}, "nodeSelector gpu=a100 does not match"),
        ({"nodeSelector": {"gpu": "a100"}}, {"labels": {"gpu": "a100"}}, ""),
        (affinity(expression("x", "Exists"), expression("zone", "Exists")), {"labels": {"zone": "a"}}, ""),
        ({}, {"taints": [TAINT]}, "taint k:NoSchedule is not tolerated"),
        ({"tolerations": [{"key": "k", "operator": "Equal", "value": "v"}]}, {"taints": [TAINT]}, ""),
        (
            {"tolerations": [{**TAINT, "effect": "NoExecute"}]},
            {"taints": [TAINT]},
            "taint k:NoSchedule is not tolerated",
        ),
        ({}, {"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, ""),
        ({}, {"taints": [{"key": names.MANAGED_TAINT, "value": "s", "effect": "NoExecute"}]}, ""),
        (requesting({"cpu": "9"}), {}, "too little cpu"),
        (requesting({"cpu": "8"}), {}, ""),
        (requesting(limits={"nvidia.com/gpu": "1"}), {}, "too little nvidia.com/gpu"),
    ],
)
def test_why_a_node_is_refused(spec, node, why):
    assert refusal(spec, **node) == why


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        (expression("zone", "In", "a", "b"), True),
        (expression("zone", "In", "b"), False),
        (expression("zone", "NotIn", "b"), True),
        (expression("other", "NotIn", "b"), True),
        (expression("zone", "Exists"), True),
        (expression("zone", "DoesNotExist"), False),
        (expression("mem", "Gt", "10"), True),
        (expression("mem", "Lt", "10"), False),
        (expression("zone", "Gt", "10"), False),
        (expression("mem", "Gt", "1_0"), False),
        (expression("mem", "Gt", " 10"), False),
        (expression("mem", "Gt", "9" * 5000), False),
        (expression("mem", "Gt", "+010"), True),
        (expression("mem", "Near", "16"), False),
        (expression("other", "Gt", "10"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}, False),
        ({}, False),
    ],
)
def test_required_affinity(term, fits):
    why = refusal(affinity(term), labels={"zone": "a", "mem": "16"})
    assert (why == "") is fits


@pytest.mark.parametrize("name", ["host port 80/TCP", "pods"])
def test_a_free_port_and_an_unknown_number_of_pods_hide_no_shortage(name):
    assert eligibility.shortage({name: Decimal(1), "x/gpu": Decimal(1)}, node()) == "too little x/gpu"


def test_a_node_that_starts_loses_the_taints_of_its_start_alone():
    other = {"key": "k", "effect": "NoSchedule"}
    starting = node(ready="False", taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}, other])
    assert eligibility.once_up(starting) == node(ready="True", taints=[other])


def test_the_name_in_slurm():
    assert eligibility.slurm_name({"metadata": {"name": "k1"}}) == "k1"
    assert eligibility.slurm_name({"metadata": {"name": "k1", "labels": {names.SLURM_NODENAME_LABEL: "s1"}}}) == "s1"


def test_an_extended_resource_of_a_class_fits_where_allocatable_does_not_have_it():
    spec = {"containers": [{"resources": {"limits": {"x/gpu": "2"}}}]}
    plain = node()
    assert eligibility.refusal(spec, pod_requests(spec), plain) == "too little x/gpu"
    offering = eligibility.with_devices(plain, ["x/gpu"])
    assert eligibility.refusal(spec, pod_requests(spec), offering) == ""
    assert offering.by_devices() == ["x/gpu"]
    advertised = eligibility.with_devices(replace(plain, offered={**plain.offered, "x/gpu": Decimal(1)}), ["x/gpu"])
    assert eligibility.refusal(spec, pod_requests(spec), advertised) == "too little x/gpu"
    assert advertised.by_devices() == []
    unseen = eligibility.unseen("n1")
    assert eligibility.with_devices(unseen, ["x/gpu"]) == unseen
