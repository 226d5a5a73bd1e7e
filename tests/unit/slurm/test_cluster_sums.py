"""The sums of Slurm: what podbridge's jobs have, what all others have, and nothing else about others."""

import base64
import contextlib
import gzip
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm import cluster_sums
from bridge.slurm.allotments import Allotment
from bridge.slurm.cluster_sums import Amounts, ClusterSums, NodeSums, PartitionSums
from bridge.slurm.models import JobPart, Node, Partition
from bridge.slurm.states import Phase
from tests.builders import link, observed, snapshot

NOW = 1_767_225_600.0
NODE = Node(
    "n1",
    frozenset({"MIXED"}),
    "left over",
    cpus=16,
    memory_mib=65536,
    gres="gpu:a100:4",
    partitions=("main",),
    held_cpus=12,
    held_mib=8192,
    held_gres="gpu:a100:3(IDX:0-2)",
)
PLACEHOLDER = observed(
    7,
    "RUNNING",
    nodes=["n1"],
    partition="main",
    name="secret-name",
    user_name="alice",
    allotment=Allotment(4, 2048, (("gpu", 1),)),
    end_time=NOW + 3600,
)


def of(*jobs, nodes=(NODE,), others=None, period=15.0):
    partitions = {"main": Partition("main", ("n1", "n2"))}
    found = snapshot(*jobs, nodes={node.name: node for node in nodes}, partitions=partitions)
    return cluster_sums.of(found, others or {}, NOW, period)


def stored(sums):
    """Return the ConfigMap as the API server stores the patch."""
    patch = cluster_sums.to_config_map(sums)
    return {part: {key: text for key, text in keys.items() if text is not None} for part, keys in patch.items()}


def test_a_node_has_podbridges_share_and_that_of_all_others():
    (node,) = of(PLACEHOLDER).nodes
    assert node.podbridge == Amounts(4, 2048, {"gpu": 1})
    assert node.others == Amounts(8, 6144, {"gpu:a100": 2})
    assert node.total == Amounts(16, 65536, {"gpu:a100": 4})
    assert (node.until, node.closed, node.reason) == (int(NOW) + 3600, False, "")


def test_only_a_node_that_slurm_uses_for_nothing_shows_a_reason_and_it_has_a_limit():
    drained = replace(NODE, states=frozenset({"IDLE", "DRAIN"}), reason="fan " * 200)
    (node,) = of(nodes=(drained,)).nodes
    assert node.closed
    assert node.reason == ("fan " * 200)[: cluster_sums.REASON]


def test_a_job_on_several_nodes_counts_on_each_with_what_it_has_there():
    uneven = Allotment(5, 0, None, (("n1", Allotment(4, 0)), ("n2", Allotment(1, 0))))
    job = observed(7, "RUNNING", nodes=["n1", "n2"], allotment=uneven)
    two = (NODE, replace(NODE, name="n2"))
    assert [node.podbridge.cpus for node in of(job, nodes=two).nodes] == [4, 1]
    even = observed(7, "RUNNING", nodes=["n1", "n2"], allotment=Allotment(8, 100, (("gpu", 2),)))
    assert [node.podbridge for node in of(even, nodes=two).nodes] == [Amounts(4, 50, {"gpu": 1})] * 2


def test_each_component_of_a_job_counts_on_its_own_nodes():
    parts = tuple(
        JobPart(7 + index, frozenset({"RUNNING"}), (f"n{index + 1}",), allotment=Allotment(index + 1, 0))
        for index in range(2)
    )
    job = observed(7, "RUNNING", nodes=["n1", "n2"], parts=parts)
    assert [node.podbridge.cpus for node in of(job, nodes=(NODE, replace(NODE, name="n2"))).nodes] == [1, 2]


def test_a_job_that_has_ended_or_waits_holds_nothing():
    ended, waits = observed(7, "COMPLETED", nodes=["n1"]), observed(8, "PENDING")
    (node,) = of(ended, waits).nodes
    assert (node.podbridge, node.others.cpus) == (Amounts(), 12)


def test_partitions_have_reasons_of_podbridges_jobs_and_numbers_of_others():
    waits = [
        observed(number, "PENDING", f"u{number}", partition="main,gpu" if number == 1 else "main", reason=reason)
        for number, reason in enumerate(("Priority", "Priority", "Resources"))
    ]
    others = {("main", Phase.PENDING): 5, ("", Phase.ALLOCATED): 2, ("main", Phase.ENDED): 9}
    assert of(PLACEHOLDER, *waits, others=others).partitions == (
        PartitionSums("", others_running=2),
        PartitionSums("gpu", waiting={"Priority": 1}),
        PartitionSums("main", 2, 1, {"Priority": 2, "Resources": 1}, others_waiting=5),
    )


def test_waiting_jobs_are_in_the_order_of_slurm_and_a_held_one_has_no_place(monkeypatch):
    waits = [
        observed(number, "PENDING", f"u{number}", partition="main", priority=priority)
        for number, priority in ((1, 5), (2, 9), (3, 0), (4, 5), (5, 1))
    ]
    assert of(*waits).partitions[0].order == (2, 1, 4, 5)
    monkeypatch.setattr(cluster_sums, "MOST_ORDERED", 2)
    assert of(*waits).partitions[0].order == (2, 1)


def test_no_name_of_a_job_and_no_user_is_published():
    config_map = str(stored(of(PLACEHOLDER, others={("main", Phase.PENDING): 5})))
    for text in ("secret-name", "alice", *link("u1").names):
        assert text not in config_map


def test_a_large_state_is_compressed_and_10000_nodes_fit_into_a_config_map():
    whole = of(PLACEHOLDER)
    assert stored(whole)["data"].keys() == {cluster_sums.PLAIN}
    many = [replace(NODE, name=f"node-{index:05}", held_cpus=index % 16, held_mib=index * 7) for index in range(10_000)]
    config_map = stored(of(PLACEHOLDER, nodes=many))
    assert not config_map["data"]
    assert len(config_map["binaryData"][cluster_sums.COMPRESSED]) < 2**19
    assert len(cluster_sums.from_config_map(config_map).nodes) == 10_000


COUNTS = st.integers(0, 2**40)
TEXTS = st.text(max_size=20)
AMOUNTS = st.builds(Amounts, COUNTS, COUNTS, st.dictionaries(TEXTS, COUNTS, max_size=3))
NAMES = st.lists(TEXTS, max_size=3).map(tuple)
NODES = st.builds(NodeSums, TEXTS, NAMES, TEXTS, AMOUNTS, AMOUNTS, AMOUNTS, COUNTS, NAMES)
PARTITIONS = st.builds(
    PartitionSums, TEXTS, COUNTS, COUNTS, st.dictionaries(TEXTS, COUNTS), COUNTS, COUNTS, st.lists(COUNTS).map(tuple)
)
SUMS = st.builds(
    ClusterSums,
    st.floats(0, 2**33),
    st.floats(0, 2**33),
    st.lists(NODES, max_size=4).map(tuple),
    st.lists(PARTITIONS, max_size=4).map(tuple),
)


@given(SUMS, st.booleans())
def test_a_config_map_gives_back_what_was_written(sums, compressed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_sums, "MOST_PLAIN", 0 if compressed else 2**30)
        config_map = stored(sums)
    read = cluster_sums.from_config_map(config_map)
    assert read == sums
    assert (read.at, read.expires) == (sums.at, sums.expires)


def test_a_config_map_without_a_state_is_not_an_error():
    assert cluster_sums.from_config_map({"metadata": {}}) is None


@given(st.text() | st.sampled_from(["{", "[]", '{"nodes": [1]}', '{"nodes": [{"name": "a", "total": {"cpus": "x"}}]}']))
def test_a_wrong_text_is_a_value_error_or_a_state(text):
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "replace"))).decode()
    for config_map in (
        {"data": {cluster_sums.PLAIN: text}},
        {"binaryData": {cluster_sums.COMPRESSED: text}},
        {"binaryData": {cluster_sums.COMPRESSED: packed}},
    ):
        with contextlib.suppress(ValueError):
            assert isinstance(cluster_sums.from_config_map(config_map), ClusterSums)


def test_a_state_that_unpacks_to_more_than_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(cluster_sums, "MOST_READ", 1000)
    packed = base64.b64encode(gzip.compress(b" " * 5000)).decode()
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        cluster_sums.from_config_map({"binaryData": {cluster_sums.COMPRESSED: packed}})
