"""The records of installations, and what two of them must not share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.config import installations
from bridge.config.hub import parse
from bridge.config.installations import Installation

SLURM = "http://slurm:6820"
ONE = Installation(name="one", scheduler="s1", namespaces=("n1",), slurm=SLURM, partitions=("p1",))
TWO = Installation(name="two", scheduler="s2", namespaces=("n2",), slurm=SLURM, partitions=("p2",))


def configuration(name, annotation, webhook="managed.mutate.bridge.vk.io"):
    annotations = {names.INSTALLATION: annotation} if annotation is not None else {}
    return {"metadata": {"name": name, "annotations": annotations}, "webhooks": [{"name": webhook}]}


def test_the_record_of_a_configuration_comes_back():
    config = parse(
        "installation: b\nslurmRestApi: http://slurm:6820\n"
        "managedNamespaceSelector: {matchLabels: {a: b}}\npartitions: [p]\npartition: p\n"
        "nodes: {selector: {matchLabels: {c: d}}}"
    )
    text = installations.encode(installations.of(config))
    ((name, found),) = installations.others([configuration("b-mutate", text)], "podbridge-mutate")
    assert (name, found) == ("b-mutate", installations.of(config))
    assert found.slurm == SLURM


def test_other_webhooks_and_the_own_one_are_no_installations():
    found = [
        configuration("own", installations.encode(ONE)),
        configuration("cert-manager", None, "webhook.cert-manager.io"),
        {"metadata": {"name": "empty"}},
        configuration("old", None),
        configuration("broken", "{"),
    ]
    assert list(installations.others(found, "own")) == [("old", None), ("broken", None)]


def test_shards_with_their_own_things_do_not_collide():
    assert installations.collisions(ONE, TWO, {"n1": {}, "n2": {}, "n3": {}}) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"name": "one"}, "both have the name one"),
        ({"scheduler": "s1"}, "both schedule the pods of s1"),
        ({"namespaces": ("n1", "n2")}, "both manage namespace n1"),
        ({"partitions": ("p1", "p2")}, "both use partition p1 of http://slurm:6820"),
        ({"partitions": ()}, "two may use all partitions of http://slurm:6820"),
    ],
)
def test_each_shared_thing_is_named(change, problem):
    (found,) = installations.collisions(ONE, TWO.model_copy(update=change), {})
    assert found.startswith(problem)


def test_selectors_are_compared_on_the_namespaces_that_exist():
    other = Installation.model_validate(
        {"name": "two", "scheduler": "s2", "namespaceSelector": {"matchLabels": {"a": "b"}}}
    )
    assert installations.collisions(ONE, other, {"n1": {"a": "c"}}) == []
    (found,) = installations.collisions(ONE, other, {"n1": {"a": "b"}})
    assert found.startswith("both manage namespace n1")


def test_two_slurm_clusters_may_have_the_same_partitions():
    assert installations.collisions(ONE, TWO.model_copy(update={"slurm": "http://other:1", "partitions": ()}), {}) == []


def test_pools_belong_to_one_installation():
    pools = {"pools": True}
    assert installations.collisions(ONE, TWO.model_copy(update=pools), {}) == []
    assert len(installations.collisions(ONE.model_copy(update=pools), TWO.model_copy(update=pools), {})) == 1


@given(st.text())
def test_any_annotation_is_a_record_or_none(text):
    ((_, found),) = installations.others([configuration("x", text)], "own")
    assert found is None or isinstance(found, Installation)
