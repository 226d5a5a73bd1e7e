import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge import names
from bridge.protocol.model.requests import PlaceInJob
from bridge.workload import remote_gangs
from bridge.workload.remote_gangs import Place
from tests import builders


def pod(place, **spec):
    annotations = {names.PLACE_IN_JOB: place} if place is not None else {}
    return builders.pod("p", annotations=annotations, metadata={"name": "train-w-0-1"}, **spec)


def test_the_place_is_read_as_it_was_written():
    place = Place("0a1b-2c", 3, 4)
    assert remote_gangs.place_of(pod(place.text)) == place


def with_shapes(text):
    found = pod("g/1/4")
    found["metadata"]["annotations"][names.SHAPES_IN_JOB] = text
    return found


@given(st.lists(st.sampled_from(["0123456789abcdef", "f" * 16]), min_size=4, max_size=4))
def test_shapes_are_read_as_they_were_written(shapes):
    place = Place("g", 1, 4, tuple(shapes))
    written = place.annotations(pod(None))
    found = pod(None)
    found["metadata"]["annotations"] = written
    assert remote_gangs.place_of(found) == place


def test_a_place_without_shapes_removes_those_of_an_earlier_race():
    place = Place("g", 1, 4)
    assert place.annotations(pod("g/1/4")) == {names.PLACE_IN_JOB: "g/1/4"}
    assert place.annotations(with_shapes("4x" + "f" * 16))[names.SHAPES_IN_JOB] == ""


@pytest.mark.parametrize(
    "text", ["", "x", "3xffffffffffffffff", "9999xffffffffffffffff", "4xF", 7, "4xffffffffffffffff,"]
)
def test_any_other_text_is_no_shapes(text):
    assert remote_gangs.place_of(with_shapes(text)) == Place("g", 1, 4)


@pytest.mark.parametrize(
    "text", [None, "", "g", "g/1", "g/4/4", "g/0/1", "g/-1/4", "../x/0/4", "g/0/4/5", "g/0/99999", 7]
)
def test_any_other_text_is_no_place(text):
    assert remote_gangs.place_of(pod(text)) is None


@pytest.mark.parametrize(("text", "number"), [("4", 4), ("0", 1), ("x", 1), ("-2", 1), ("٣", 1)])
def test_members_that_share_a_machine(text, number):
    several = pod("g/0/4")
    several["metadata"]["annotations"][names.MEMBERS_PER_NODE] = text
    assert (remote_gangs.per_node(several), remote_gangs.per_node(pod("g/0/4"))) == (number, 1)


def test_the_names_are_those_that_kubernetes_gives():
    of_jobset = pod(None, hostname="train-w-0-1", subdomain="train")
    assert remote_gangs.host_names(of_jobset) == [
        "train-w-0-1.train.ns.svc.cluster.local",
        "train-w-0-1.train.ns.svc",
        "train-w-0-1.train.ns",
        "train-w-0-1.train",
        "train-w-0-1",
    ]
    assert remote_gangs.host_names(pod(None, hostname="h")) == ["h", "train-w-0-1"]
    dotted = pod(None)
    dotted["metadata"]["name"] = "a.b"
    assert remote_gangs.host_names(dotted) == []
    for each in (of_jobset, dotted):
        PlaceInJob(gang="g", rank=0, size=2, names=remote_gangs.host_names(each))


@pytest.mark.parametrize(("text", "size"), [('{"size":3}', 3), ("{}", 1), ('{"size":"3"}', 1), ("[]", 1), ("x", 1)])
def test_the_size_of_the_group_is_read(text, size):
    member = pod(None)
    assert remote_gangs.group_size(member) == 1
    member["metadata"]["annotations"][names.GROUP] = text
    assert remote_gangs.group_size(member) == size
