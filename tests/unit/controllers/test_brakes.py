"""The brake as the workload controller uses it: what counts as missing, what is held, told and answered."""

from dataclasses import replace

import pytest

from bridge import names
from bridge.config.hub import BrakeSection as Settings
from bridge.control.brake import Brake, GuardLimits, step
from bridge.errors import KubeNotFoundError
from bridge.slurm.models import Snapshot
from bridge.workload import links
from controllers.brakes import Brakes, mark_patch
from controllers.workload import workload_actions, workload_decide
from tests import builders
from tests.fakes.clock import FakeClock
from tests.fakes.recorders import ImmediateWorkers, RecordedEvents

GRACE = 300
"""Seconds: the longest grace period of a pod whose job is over."""


def pod(number, *, marked=False, node="n1", phase="Running"):
    conditions = [{"type": names.JOB_MISSING, "status": "True"}] if marked else []
    return builders.pod(
        f"u{number}", job=number, node=node, phase=phase, conditions=conditions, metadata={"name": f"p{number}"}
    )


def known(number, *, confirmations=0, gone=False, uid=None, state="RUNNING"):
    more = {"nodes": ("n1",), "confirmations": confirmations, "missing": gone}
    return builders.observed(number, state, uid or f"u{number}", **more)


def snapshot(entries, absent=()):
    jobs = {entry.job.job_id: entry for entry in entries}
    by_uid = {f"u{number}": (number,) for number in jobs}
    return Snapshot(sequence=7, jobs=jobs, by_uid=by_uid, absent=frozenset(absent))


def test_a_job_is_missing_when_slurm_says_so_and_then_all_that_a_list_lacks_count():
    everyone = [pod(number) for number in range(1, 7)]
    entries = [
        known(1, gone=True, confirmations=2),
        known(2, gone=True, confirmations=1),
        known(3),
        known(4),
        known(5, uid="other"),
    ]
    assert links.missing_jobs(everyone, snapshot(entries, absent=[1, 2, 3]), GRACE) == (
        6,
        {f"u{number}": everyone[number - 1] for number in (1, 2, 3, 5, 6)},
    )


def test_a_job_that_is_listed_but_not_read_yet_is_not_missing():
    everyone = [pod(number) for number in range(1, 4)]
    found = replace(snapshot([known(1, gone=True, confirmations=2)], absent=[1]), unread={2})
    assert links.missing_jobs(everyone, found, GRACE) == (3, {"u1": everyone[0], "u3": everyone[2]})


def test_nothing_is_missing_before_slurm_has_said_so_twice():
    everyone = [pod(1), pod(2), pod(3)]
    entries = [known(1, gone=True, confirmations=1), known(2)]
    assert links.missing_jobs(everyone, snapshot(entries, absent=[1, 2]), GRACE) == (3, {})


def test_pods_that_wait_or_have_ended_and_jobs_that_ended_do_not_count():
    everyone = [pod(1, node=None), pod(2, phase="Succeeded"), pod(3), pod(4)]
    entries = [
        known(number, gone=number != 3, confirmations=2, state="TIMEOUT" if number == 3 else "RUNNING")
        for number in (1, 2, 3, 4)
    ]
    assert links.missing_jobs(everyone, snapshot(entries, absent=[1, 2, 3, 4]), GRACE) == (2, {"u4": everyone[3]})


def test_a_deleted_pod_counts_only_if_the_end_of_its_job_shortens_its_grace_period():
    late, soon = pod(1), pod(2)
    for one, grace in ((late, GRACE + 1), (soon, GRACE)):
        one["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}
    gone = snapshot([known(number, gone=True, confirmations=2) for number in (1, 2)], absent=[1, 2])
    assert links.missing_jobs([late, soon], gone, GRACE) == (1, {"u1": late})
    assert decided([late, soon], gone, Brake()) == [workload_actions.Mark(late, missing=True)]
    after = step(Brake(), 1, {"u1"}, 0, GuardLimits(0.2, 10, 60))
    assert [(type(a), a.pod) for a in decided([late, soon], gone, after)] == [(workload_actions.End, late)]


def decided(everyone, snap, brake):
    return workload_decide.decide(workload_actions.WorkloadView(everyone, snap, {"n1": "n1"}, brake=brake)).actions


def test_a_held_pod_says_so_and_is_not_ended_until_it_is_allowed():
    everyone = [pod(number) for number in range(1, 13)]
    gone = snapshot([known(number, gone=True, confirmations=2) for number in range(1, 13)])
    limits = Settings()
    brake = step(Brake(), 12, {f"u{n}" for n in range(1, 13)}, 0, limits)
    assert decided(everyone, gone, brake) == [workload_actions.Mark(each, missing=True) for each in everyone]
    marked = [pod(number, marked=True) for number in range(1, 13)]
    assert decided(marked, gone, brake) == []
    after = step(brake, 12, brake.held, 60, limits, reported=brake.held)
    assert [type(action) for action in decided(marked, gone, after)] == [workload_actions.End] * 12


def test_an_end_that_slurm_tells_is_not_held():
    everyone = [pod(number) for number in range(1, 13)]
    failed = snapshot([known(number, confirmations=2, state="NODE_FAIL") for number in range(1, 13)])
    assert [action.end.reason for action in decided(everyone, failed, Brake())] == ["NodeFail"] * 12


def test_a_pod_whose_job_is_there_again_says_so():
    marked = pod(1, marked=True)
    assert decided([marked], snapshot([known(1)]), Brake()) == [workload_actions.Mark(marked, missing=False)]
    (entry,) = mark_patch(marked, missing=False, now="now")["status"]["conditions"]
    assert (entry["type"], entry["status"]) == (names.JOB_MISSING, "False")


class Kube:
    """The one ConfigMap."""

    def __init__(self, data=None):
        self.data = data if data is not None else {}

    def get(self, path):
        if self.data is False:
            raise KubeNotFoundError(path, status=404)
        return {"data": dict(self.data)}

    def patch(self, path, body, *, kind):
        assert (path, kind) == ("/api/v1/namespaces/podbridge/configmaps/podbridge-brake", "merge")
        for key, value in body["data"].items():
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value


@pytest.fixture
def clock():
    return FakeClock(1_800_000_000.0)


def brakes(kube, clock, events=None):
    return Brakes(
        Settings(),
        "/api/v1/namespaces/podbridge/configmaps/podbridge-brake",
        kube,
        RecordedEvents() if events is None else events,
        clock,
        ImmediateWorkers(),
    )


GONE = {f"u{number}": pod(number, marked=True) for number in range(1, 13)}


def test_an_engaged_brake_is_recorded_and_told_and_lets_go_after_its_time(clock):
    kube, events = Kube({"other": "{}"}), RecordedEvents()
    ours = brakes(kube, clock, events)
    assert ours.judge("slurm", 12, {}).engaged is False
    assert ours.judge("slurm", 12, GONE).held == GONE.keys()
    assert '"missing": 12' in kube.data["slurm"]
    assert [name for name, *_ in events.about] == [f"p{number}" for number in range(1, 13)]
    assert {reason for reason, _ in events.told} == {"JobsMissing"}
    clock.advance(59)
    assert ours.judge("slurm", 12, GONE).held == GONE.keys()
    clock.advance(1)
    assert ours.judge("slurm", 12, GONE).allowed == GONE.keys()
    assert kube.data == {"other": "{}"}


def test_pods_that_could_not_be_told_are_not_ended(clock):
    ours = brakes(Kube(), clock)
    silent = {uid: pod(int(uid[1:])) for uid in GONE}
    ours.judge("slurm", 12, silent)
    clock.advance(600)
    assert ours.judge("slurm", 12, silent).held == silent.keys()


def test_a_confirmation_counts_for_its_incident_and_a_hold_for_every_leader(clock):
    kube = Kube()
    first = brakes(kube, clock)
    first.judge("slurm", 12, GONE)
    since = kube.data["slurm"][11:31]
    kube.data["slurm.word"] = "confirm 2001-01-01T00:00:00Z"  # some other incident
    clock.advance(3)
    first.judge("slurm", 12, GONE)
    assert first.judge("slurm", 12, GONE).held == GONE.keys()
    kube.data["slurm.word"] = f"confirm {since}"
    clock.advance(3)
    first.judge("slurm", 12, GONE)
    assert first.judge("slurm", 12, GONE).allowed == GONE.keys()
    assert kube.data == {}
    second = brakes(kube, clock)
    second.judge("slurm", 12, GONE)
    kube.data["slurm.word"] = "hold"
    third = brakes(kube, clock)  # a new leader, which confirms the missing jobs later
    third.judge("slurm", 12, {})
    clock.advance(59)
    third.judge("slurm", 12, {})
    assert third.judge("slurm", 12, GONE).held == GONE.keys()
    clock.advance(600)
    assert third.judge("slurm", 12, GONE).held == GONE.keys()


def test_a_new_leader_clears_what_a_former_one_left_behind(clock):
    kube = Kube({"slurm": "{}", "slurm.word": "hold"})
    ours = brakes(kube, clock)
    ours.judge("slurm", 0, {}, listed=False)
    clock.advance(600)
    ours.judge("slurm", 0, {})
    clock.advance(59)
    ours.judge("slurm", 0, {})
    assert kube.data == {"slurm": "{}", "slurm.word": "hold"}
    clock.advance(1)
    ours.judge("slurm", 0, {})
    assert kube.data == {}


def test_without_the_config_map_time_alone_decides(clock):
    ours = brakes(Kube(False), clock)
    assert ours.judge("slurm", 12, GONE).held == GONE.keys()
    clock.advance(60)
    assert ours.judge("slurm", 12, GONE).allowed == GONE.keys()
