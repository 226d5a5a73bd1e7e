"""Owners of pods are as large, and as many, as users make them."""

import threading
from typing import Any

import pytest

from admission import group_reader, owner_annotations, owner_reads
from admission.group_reader import GroupReader
from admission.owner_annotations import OwnerAnnotations
from bridge import names
from bridge.kube.resources import JOBS
from tests.fakes.clock import FakeClock

ENV = [{"name": "a"} for _ in range(1000)]


def job(**metadata: Any) -> dict[str, Any]:
    template = {"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [{"env": ENV}], "volumes": ENV}}
    annotations = {names.GANG: "true", **metadata.pop("annotations", {})}
    return {
        "metadata": {"uid": "1", "name": "j", "annotations": annotations, "managedFields": ENV, **metadata},
        "spec": {"parallelism": 2, "completions": 2, "template": template},
    }


class Client:
    """An API server with one Job; counts the reads at once while :attr:`go_on` is not set."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found, self.reads, self.running, self.most = found, 0, 0, 0
        self.go_on, self.lock = threading.Event(), threading.Lock()
        self.go_on.set()

    def get(self, path: str, metadata_only: bool = False) -> dict[str, Any]:
        with self.lock:
            self.reads += 1
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.go_on.wait(30)
        with self.lock:
            self.running -= 1
        return self.found


OWNER = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "1", "controller": True}
POD = {
    "metadata": {"annotations": {names.GANG: "true"}, "labels": {"batch.kubernetes.io/job-name": "j"},
                 "ownerReferences": [OWNER]},
    "spec": {},
}  # fmt: skip


def values_in(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(values_in, value.values()))
    return 1 + sum(map(values_in, value)) if isinstance(value, list) else 1


@pytest.mark.parametrize("of_group", [False, True])
def test_large_parts_of_an_owner_are_not_kept(of_group: bool) -> None:
    client = Client(job())
    if of_group:
        groups = GroupReader(group_reader.read_from(client), FakeClock())  # type: ignore[arg-type]
        assert groups.find(POD, "ns", {}, {}).value is not None
        cache: Any = groups._cache
    else:
        owners = OwnerAnnotations(owner_annotations.read_from(client), FakeClock())  # type: ignore[arg-type]
        assert owners.find(POD, "ns").annotations == {names.GANG: "true"}
        cache = owners._cache
    (entry,) = cache._entries.values()
    assert values_in(entry.value) < 30


@pytest.mark.parametrize(
    "large",
    [
        {"annotations": {"note": "x" * 2**20}},
        {"annotations": {f"a{number}": "" for number in range(owner_reads.MOST_CACHED)}},
        {"labels": {"x" * 2**20: ""}},
        {"finalizers": ["a"] * owner_reads.MOST_CACHED},
    ],
)
def test_a_large_owner_is_read_for_each_pod(large: dict[str, Any]) -> None:
    client = Client(job(**large))
    groups = GroupReader(group_reader.read_from(client), FakeClock())  # type: ignore[arg-type]
    owners = OwnerAnnotations(owner_annotations.read_from(client), FakeClock())  # type: ignore[arg-type]
    assert groups.find(POD, "ns", {}, {}).value == groups.find(POD, "ns", {}, {}).value is not None
    assert owners.annotations(POD, "ns") == {names.GANG: "true"}
    assert groups._cache._entries == owners._cache._entries == {}


def test_few_owners_are_read_at_once() -> None:
    client = Client(job())
    client.go_on.clear()
    threads = [
        threading.Thread(target=owner_reads.read, args=(client, JOBS, "ns", f"j{number}"), daemon=True)
        for number in range(16)
    ]
    for thread in threads:
        thread.start()
    while client.running < owner_reads.READS:
        threading.Event().wait(0.01)
    assert client.most == owner_reads.READS
    client.go_on.set()
    for thread in threads:
        thread.join(30)
    assert (client.reads, client.most) == (16, owner_reads.READS)
