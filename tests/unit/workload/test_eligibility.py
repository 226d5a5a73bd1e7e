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


def affinity(*terms):
    required = {"nodeSelectorTerms": list(terms)}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def expression(key, operator, *values):
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


def test_an_empty_pod_fits():
    assert refusal({}) == ""


def test_cordon_unless_tolerated():
    assert refusal({}, cordoned=True) == "cordoned"
    assert refusal({"tolerations": [{"operator": "Exists"}]}, cordoned=True) == ""


def test_node_selector():
    assert refusal({"nodeSelector": {"gpu": "a100"}}) == "nodeSelector gpu=a100 does not match"
    assert refusal({"nodeSelector": {"gpu": "a100"}}, labels={"gpu": "a100"}) == ""


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


def test_one_matching_term_is_enough():
    assert refusal(affinity(expression("x", "Exists"), expression("zone", "Exists")), labels={"zone": "a"}) == ""


def test_taints():
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert "taint k:NoSchedule" in refusal({}, taints=[taint])
    assert refusal({"tolerations": [{"key": "k", "operator": "Equal", "value": "v"}]}, taints=[taint]) == ""
    assert refusal({"tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute"}]}, taints=[taint])
    assert refusal({}, taints=[{**taint, "effect": "PreferNoSchedule"}]) == ""
    assert refusal({}, taints=[{"key": names.MANAGED_TAINT, "value": "s", "effect": "NoExecute"}]) == ""


def test_too_little():
    assert refusal({"containers": [{"resources": {"requests": {"cpu": "9"}}}]}) == "too little cpu"
    assert refusal({"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}) == "too little nvidia.com/gpu"


def test_a_pod_may_request_all_that_a_node_offers():
    assert refusal({"containers": [{"resources": {"requests": {"cpu": "8"}}}]}) == ""


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
