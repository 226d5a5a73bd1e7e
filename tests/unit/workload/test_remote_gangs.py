import json

import pytest

from bridge import names
from bridge.protocol.model.requests import PlaceInJob
from bridge.workload import remote_gangs
from bridge.workload.remote_gangs import Place

GROUP = json.dumps({"kind": "jobset", "name": "train", "uid": "u", "index": "w", "size": 4, "minimum": 4, "slot": 1})


def pod(place, group=GROUP, **spec):
    annotations = {names.PLACE_IN_JOB: place} if place is not None else {}
    annotations |= {names.GROUP: group} if group else {}
    return {
        "metadata": {"name": "train-w-0-1", "namespace": "ns", "uid": "p", "annotations": annotations},
        "spec": spec,
    }


def test_the_place_is_read_as_it_was_written():
    place = Place("0a1b-2c", 3, 4)
    assert remote_gangs.place_of(pod(place.text)) == place


@pytest.mark.parametrize(
    "text", [None, "", "g", "g/1", "g/4/4", "g/0/1", "g/-1/4", "../x/0/4", "g/0/4/5", "g/0/99999", 7]
)
def test_any_other_text_is_no_place(text):
    assert remote_gangs.place_of(pod(text)) is None


def test_a_pod_without_a_group_has_no_place():
    assert remote_gangs.place_of(pod("g/0/4", group=None)) is None
    alone = json.dumps({**json.loads(GROUP), "alone": True})
    assert remote_gangs.place_of(pod("g/0/4", group=alone)) is None


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
