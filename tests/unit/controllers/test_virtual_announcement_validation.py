"""Announcements are validated, and an invalid value does not affect the others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.protocol.model import architecture
from bridge.protocol.nats.messages import Announce
from controllers.virtual import announcement_validation, node_manifest


def announce(**values):
    return Announce(pool="site", submitter="s", sequences={"c1": 1}, time=0, period=5, version="1", **values)


def test_good_values_are_taken():
    found = announcement_validation.check(
        announce(
            labels={"gpu": "a100", "example.com/rack": "", "kubernetes.io/arch": "arm64"},
            taints=["gpu=yes:NoSchedule", "example.com/slow:PreferNoSchedule"],
            capacity={"cpu": "128", "memory": "2Ti", "nvidia.com/gpu": "8", "ephemeral-storage": "1e12"},
        )
    )
    assert found.problems == ()
    assert found.labels == {"gpu": "a100", "example.com/rack": "", "kubernetes.io/arch": "arm64"}
    assert found.taints == (
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"key": "example.com/slow", "value": "", "effect": "PreferNoSchedule"},
    )
    assert found.capacity == {
        "pods": "10000",
        "cpu": "128",
        "memory": "2Ti",
        "nvidia.com/gpu": "8",
        "ephemeral-storage": "1e12",
    }


@pytest.mark.parametrize(
    "key",
    [
        "bridge.vk.io/pool", "virtual-node.interlink/type", "kubernetes.io/hostname", "kubernetes.io/os",
        "node-role.kubernetes.io/control-plane", "node-restriction.kubernetes.io/x", "slinky.slurm.net/slurm-nodename",
        "pool.vk.io", "has space", "a/b/c", "", "-x", "x" * 64, "UPPER.example/x",
    ],
)  # fmt: skip
def test_a_label_that_a_site_must_not_set_is_left_out_and_named(key):
    found = announcement_validation.check(announce(labels={key: "v", "good": "1"}))
    assert found.labels == {"good": "1"}
    assert len(found.problems) == 1
    assert repr(key) in found.problems[0]


@pytest.mark.parametrize(
    "text",
    [
        "gpu=yes", "gpu=yes:Never", ":NoSchedule", "=x:NoSchedule", "a b=c:NoSchedule", "k=v v:NoSchedule", "",
        "pool.vk.io=other:NoSchedule", "virtual-node.interlink/no-schedule=false:NoSchedule",
        "node.kubernetes.io/not-ready:NoExecute", "slinky.slurm.net/managed-node=x:NoExecute",
    ],
)  # fmt: skip
def test_a_taint_that_a_site_must_not_set_is_left_out_and_named(text):
    found = announcement_validation.check(announce(taints=[text, "good=1:NoSchedule"]))
    assert [taint["key"] for taint in found.taints] == ["good"]
    assert len(found.problems) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cpu", "many"), ("cpu", "-1"), ("cpu", "0.0001"), ("memory", "1.5"), ("memory", "9Ei999"), ("pods", "1e99"),
        ("gpu", "1"), ("nvidia.com/gpu", "0.5"), ("kubernetes.io/thing", "1"), ("a b/c", "1"), ("cpu", "1 2"),
    ],
)  # fmt: skip
def test_a_bad_resource_is_left_out_and_named(name, text):
    found = announcement_validation.check(announce(capacity={name: text, "example.com/good": "3"}))
    assert found.capacity == {"pods": "10000", "ephemeral-storage": "1Pi", "example.com/good": "3"}
    assert len(found.problems) == 1
    assert repr(name) in found.problems[0]


def test_too_much_is_cut():
    found = announcement_validation.check(announce(labels={f"l{n}": "" for n in range(500)}))
    assert len(found.labels) == announcement_validation.MOST
    assert found.problems == ("more than 100 labels",)


@given(
    st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=4),
    st.lists(st.text(max_size=30), max_size=4),
    st.dictionaries(st.text(max_size=20), st.text(max_size=12), max_size=4),
)
def test_nothing_raises(labels, taints, capacity):
    found = announcement_validation.check(announce(labels=labels, taints=taints, capacity=capacity))
    assert found.capacity["pods"]
    annotations = {names.SITE_ANNOUNCED: node_manifest.record(found)}
    recorded = announcement_validation.recorded({"metadata": {"annotations": annotations}})
    assert recorded is not None and recorded[0] == set(found.labels)


def test_what_a_site_does_not_say_has_a_default():
    """snakemake/snakemake#3308: its pods request ephemeral storage."""
    found = announcement_validation.check(announce())
    assert found.capacity == {"pods": "10000", "ephemeral-storage": "1Pi"}


@pytest.mark.parametrize(
    ("machine", "name"),
    [("x86_64", "amd64"), ("aarch64", "arm64"), ("armv7l", "arm"), ("ppc64le", "ppc64le"), ("riscv64", "riscv64")],
)
def test_architectures_have_kubernetes_names(machine, name):
    assert architecture.kubernetes_name(machine) == name
