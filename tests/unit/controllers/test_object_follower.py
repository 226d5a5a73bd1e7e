"""ConfigMaps and Secrets in volumes are read again and again: each once, and not too many in a second."""

import pytest

from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError
from controllers.virtual.reference_reader import ObjectFollower, ReferenceReader
from tests.fakes.clock import FakeClock


class Kube:
    def __init__(self, clock):
        self.clock, self.reads, self.version, self.problem = clock, [], "1", None

    def get(self, path, params=None, *, metadata_only=False):
        assert metadata_only
        self.reads.append((self.clock.now, path))
        if self.problem is not None:
            raise self.problem
        return {"metadata": {"uid": "u", "resourceVersion": self.version}}


class Follower:
    def __init__(self, objects, pods=1, period=60.0, rate=20.0):
        self.clock = FakeClock(1000.0)
        self.kube, self.told = Kube(self.clock), []
        config = Config.model_validate({"pools": {"volumePeriod": period, "volumeReads": rate}})
        self.objects = {("configmaps", "ns", f"c{n}"): list(range(pods)) for n in range(objects)}
        self.follower = ObjectFollower(
            ReferenceReader(self.kube, config, self.clock), lambda: self.objects, self.tell, period, self.clock
        )

    def tell(self, pod, key, version):
        self.told.append((pod, key[2], version))

    def run(self, seconds):
        end = self.clock.now + seconds

        def wait(pause):
            self.clock.advance(pause)
            return self.clock.now >= end

        self.follower.run(wait)


def test_each_object_is_read_once_in_a_period_for_all_its_pods():
    world = Follower(objects=3, pods=1000)
    world.run(600)
    assert 3 * 9 <= len(world.kube.reads) <= 3 * 13
    assert len(world.told) == 1000 * len(world.kube.reads)


def test_many_objects_stretch_the_period_instead_of_the_rate():
    world = Follower(objects=10_000)
    world.run(1000)
    reads = world.kube.reads
    assert 15_000 <= len(reads) <= 20_020
    busiest = max(sum(start <= at < start + 10 for at, _ in reads) for start in range(1000, 2000, 10))
    assert busiest <= 20 * 10 + 20
    assert {path for _, path in reads[:11_000]} >= {path for _, path in reads}, "none is left out"


def test_reads_of_one_moment_are_spread():
    world = Follower(objects=500, rate=1000)
    world.run(120)
    times = sorted(at for at, _ in world.kube.reads)
    assert len({int(at // 5) for at in times}) >= 10


def test_what_cannot_be_read_is_told_to_nobody_and_tried_again():
    world = Follower(objects=2)
    world.kube.problem = KubeForbiddenError("no", status=403)
    world.run(120)
    assert world.told == [] and len(world.kube.reads) >= 2
    world.kube.problem = None
    world.run(120)
    assert {name for _, name, _ in world.told} == {"c0", "c1"}


def test_what_no_pod_has_is_not_read():
    world = Follower(objects=2)
    world.run(100)
    world.objects.clear()
    count = len(world.kube.reads)
    world.run(200)
    assert len(world.kube.reads) == count and world.follower._due == {}


@pytest.mark.parametrize("period", [1.0, 3600.0])
def test_the_period_of_the_configuration(period):
    world = Follower(objects=1, period=period)
    world.run(period * 10)
    assert 8 <= len(world.kube.reads) <= 13
