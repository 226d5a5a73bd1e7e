"""When the controllers write the sums of Slurm: after a change, at a limited rate, and only with an answer of Slurm."""

from collections import Counter
from types import SimpleNamespace

import pytest

from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError
from bridge.slurm import cluster_sums, day_history
from bridge.slurm.day_history import Sample
from bridge.slurm.models import Node, Snapshot
from controllers.slurm_publisher import AGAIN, SlurmPublisher
from tests.builders import observed
from tests.fakes.clock import FakeClock

PERIOD = 15.0


class Kube:
    def __init__(self):
        self.patches, self.error, self.stored = [], None, {}

    def fenced(self, check):
        return self

    def patch(self, path, patch, kind):
        if self.error is not None:
            raise self.error
        assert (path, kind) == ("/api/v1/namespaces/podbridge/configmaps/podbridge-slurm", "merge")
        self.patches.append(cluster_sums.from_config_map(patch))
        self.stored = patch

    def get(self, path):
        if self.error is not None:
            raise self.error
        return self.stored

    @property
    def day(self):
        """The samples in the ConfigMap."""
        return day_history.from_config_map(self.stored)


class Scene:
    def __init__(self):
        self.clock, self.kube = FakeClock(), Kube()
        self.poller = SimpleNamespace(snapshot=Snapshot(), other_jobs=Counter, age=lambda: 2.0)
        dependencies = SimpleNamespace(config=Config(), poller=self.poller, kube=self.kube, clock=self.clock)
        self.loop = SlurmPublisher(dependencies, None)
        self.loop.workers = SimpleNamespace(submit=lambda key, call: call())

    def answer(self, cpus, **fields):
        node = Node("n1", frozenset({"MIXED"}), cpus=8, held_cpus=cpus)
        self.poller.snapshot = Snapshot(sequence=1, nodes={"n1": node}, **fields)

    def after(self, seconds):
        """Advance the clock in seconds, reconcile in each, and return the CPUs of others in each write meanwhile."""
        before = len(self.kube.patches)
        for _ in range(int(seconds)):
            self.clock.advance(1)
            self.loop.reconcile()
        return [sums.nodes[0].others.cpus for sums in self.kube.patches[before:]]


@pytest.fixture
def scene():
    return Scene()


def test_nothing_is_written_before_slurm_has_answered(scene):
    assert scene.after(100) == []


def test_the_first_answer_is_written_at_once_with_the_time_of_the_answer(scene):
    scene.answer(3)
    assert scene.after(1) == [3]
    assert scene.kube.patches[0].at == scene.clock.time() - 2


def test_changes_are_written_at_most_once_in_a_period(scene):
    scene.answer(1)
    scene.after(1)
    written = []
    for second in range(60):
        scene.answer(second % 8)
        written += scene.after(1)
    assert len(written) == 60 / PERIOD


def test_a_state_without_changes_is_confirmed_once_a_minute(scene):
    scene.answer(1)
    assert scene.after(1 + 5 * cluster_sums.CONFIRM) == [1] * 6
    times = [sums.at for sums in scene.kube.patches]
    assert all(sums.expires > later for sums, later in zip(scene.kube.patches[:-1], times[1:], strict=True))


def test_while_slurm_does_not_answer_the_state_grows_old(scene):
    scene.answer(1)
    scene.after(1)
    scene.answer(2, error="slurmctld is silent")
    assert scene.after(300) == []
    assert scene.kube.patches[-1].expires < scene.clock.time()


def test_a_refusal_is_logged_once_and_tried_again_later(scene, caplog):
    scene.answer(1)
    scene.kube.error = KubeForbiddenError("configmaps podbridge-slurm")
    assert scene.after(3 * AGAIN) == []
    assert [record.message for record in caplog.records].count(
        "the sums of Slurm are not published: apply config/rbac.yaml"
    ) == 1
    scene.kube.error = None
    assert scene.after(AGAIN) == [1]


def test_a_new_leader_writes_at_once(scene):
    scene.answer(1)
    scene.after(1)
    scene.loop.on_started_leading()
    assert scene.after(1) == [1]


def test_each_five_minutes_have_a_sample_with_what_started_and_ended(scene):
    scene.answer(3, jobs={})
    scene.after(1)
    running = observed(1, "RUNNING", start_time=5.0)
    scene.answer(3, jobs={1: running, 2: observed(2, "COMPLETED", "u2", start_time=5.0)})
    scene.after(day_history.PERIOD)
    scene.after(day_history.PERIOD)
    first, second = scene.kube.day
    assert first[1:] == (0, 3, 8, 1, 0, 2, 1)
    assert second[1:] == (0, 3, 8, 1, 0, 0, 0)
    assert second.at - first.at == pytest.approx(day_history.PERIOD, abs=PERIOD)


def test_a_new_leader_continues_the_day_of_the_former_one(scene):
    scene.answer(3)
    scene.after(1 + 2 * day_history.PERIOD)
    before = scene.kube.day
    scene.loop.on_started_leading()
    scene.after(1)
    assert scene.kube.day == before and before
    scene.after(day_history.PERIOD)
    assert scene.kube.day[:-1] == before


def test_a_day_that_cannot_be_read_begins_anew(scene):
    scene.kube.stored = {"data": {day_history.KEY: "{"}}
    scene.answer(3)
    assert scene.after(1 + day_history.PERIOD + PERIOD)
    assert [type(each) for each in scene.kube.day] == [Sample]
