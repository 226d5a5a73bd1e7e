"""A pod's life at a site: never twice, never forgotten, and silence ends nothing."""

from dataclasses import replace

import pytest

from bridge import names
from bridge.clock import rfc3339
from bridge.core.job_lifecycle import NEVER, Lifecycle, State
from bridge.protocol.model.jobs import ContainerState, Termination
from controllers.virtual import virtual_pod_decide
from controllers.virtual.pod_state import Cancellation, Entry, PodView, PoolView, SentFiles
from controllers.virtual.virtual_pod_decide import (
    Cancel,
    Fail,
    Forget,
    Look,
    Mark,
    Orphan,
    Refresh,
    Remove,
    Submit,
    Wait,
    Write,
)
from tests import builders

NOW, TIME = 1000.0, 1_800_000_000.0


def pod(*, taken=True, phase="Pending", deleted=None, grace=30, status=None):
    metadata = {"name": "p"} if deleted is None else {"name": "p", "deletionGracePeriodSeconds": grace}
    found = builders.pod(
        node="site",
        deleted=False if deleted is None else rfc3339(TIME + deleted),
        annotations={names.REMOTE_JOB: "site/7"} if taken else {},
        metadata=metadata,
        restartPolicy="Never",
        containers=[{"name": "main", "image": "i"}],
        terminationGracePeriodSeconds=20,
    )
    return {**found, "status": status or {"phase": phase}}


def job(phase="running", **values):
    if phase == "running":
        values.setdefault("containers", [ContainerState(name="main", state="running", started=True, started_at=TIME)])
    if phase == "ended":
        over = ContainerState(name="main", state="terminated", ended=Termination(exit_code=0))
        values = {"containers": [over], "outcome": "Succeeded", **values}
    return builders.job_status(phase=phase, job_id="7", **values)


def pool(*, complete=900.0, synced=True, ready=True, leading_since=500.0, lists=True):
    return PoolView("site", synced, complete, ready, leading_since, "10.0.0.1", lists)


def look(the_pod, the_job=None, entry=None, the_pool=None, now=NOW):
    return virtual_pod_decide.decide(
        PodView(the_pod, the_job, entry or Entry(), the_pool or pool(), now, TIME + now - NOW)
    )


def unknown(until, looked_at=NEVER):
    return Lifecycle(State.UNKNOWN, until=until, answered_at=looked_at)


def absent(at, state=State.ABSENT, until=NEVER):
    return Lifecycle(state, until=until, answered_at=at, absent_since=at)


def written(the_pod, the_job):
    """The pod after what was decided for it was written."""
    action = look(the_pod, the_job)
    annotations = dict(the_pod["metadata"]["annotations"])
    if action.job_id:
        annotations[names.REMOTE_JOB] = action.job_id
    return {**the_pod, "metadata": {**the_pod["metadata"], "annotations": annotations}, "status": action.status}


# --- submit -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "the_pool",
    [pool(complete=None), pool(ready=False), pool(synced=False)],
    ids=["no snapshot", "no config", "no list"],
)
def test_nothing_is_submitted_before_both_sides_are_known(the_pool):
    assert look(pod(taken=False), the_pool=the_pool) is None


def test_a_job_that_is_there_is_not_asked_for_again():
    action = look(pod(taken=False), job("queued"))
    assert (type(action), action.job_id) == (Write, "site/7")
    assert action.status["phase"] == "Pending"


@pytest.mark.parametrize("the_pod", [pod(taken=False, deleted=30), pod(taken=False, phase="Failed")])
def test_what_is_over_is_not_submitted(the_pod):
    assert not isinstance(look(the_pod), Submit)


def test_an_unknown_outcome_is_looked_up_before_anything_else():
    the_pod, entry = pod(taken=False), Entry(lifecycle=unknown(NOW + 20))
    assert look(the_pod, entry=entry) == Look(the_pod)
    entry.answered(0.0, None)  # but the request may still be on its way
    assert look(the_pod, entry=entry) == Wait(20)
    assert look(the_pod, entry=entry, now=NOW + 21) == Look(the_pod), "the answer is older than that"
    entry.answered(NOW + 21, None)
    assert look(the_pod, entry=entry, now=NOW + 22) == Submit(the_pod)


def test_a_failure_is_followed_by_a_pause():
    the_pod = pod(taken=False)
    assert look(the_pod, entry=Entry(not_before=NOW + 3)) == Wait(3)
    assert look(the_pod, entry=Entry(not_before=NOW)) == Submit(the_pod)


def test_a_refused_status_is_not_written_again_until_its_pause_is_over():
    the_pod, entry = pod(taken=False), Entry(refused=job(), refused_until=NOW + 60)
    assert look(the_pod, job(), entry) == Wait(60)
    assert isinstance(look(the_pod, job("ended"), entry), Write), "another status may be valid"
    assert isinstance(look(the_pod, job(), entry, now=NOW + 60), Write)


# --- while it runs ----------------------------------------------------------------------------------------------------
def test_a_pod_that_shows_its_jobs_state_is_left_alone():
    the_pod = written(pod(taken=False), job())
    assert look(the_pod, job()) is None
    assert look(the_pod, job("unknown")) is None


def test_a_change_is_written():
    the_pod = written(pod(taken=False), job("queued"))
    action = look(the_pod, job())
    assert isinstance(action, Write)
    assert action.job_id is None
    assert action.status["phase"] == "Running"


def test_why_a_job_waits_is_not_written_all_the_time():
    the_pod = written(pod(taken=False), job("queued", reason="Priority"))
    news = job("queued", reason="Resources")
    assert look(the_pod, news, Entry(written_at=NOW - 5)) == Wait(10)
    assert isinstance(look(the_pod, news, Entry(written_at=NOW - 16)), Write)


@pytest.mark.parametrize("phase", ["queued", "running"])
def test_tokens_are_renewed_while_it_waits_and_while_it_runs(phase):
    the_pod = written(pod(taken=False), job(phase))
    assert look(the_pod, job(phase), Entry(refresh_at=NOW - 1)) == Refresh(the_pod)
    key = ("configmaps", "ns", "c")
    assert look(the_pod, job(phase), Entry(stale=frozenset({key}))) == Refresh(the_pod)
    assert look(the_pod, job(phase), Entry(stale=frozenset({key}), refresh_after=NOW + 1)) == Wait(1)
    assert look(the_pod, job(phase), Entry(refresh_at=NOW + 60)) == Wait(60)
    assert look(written(the_pod, job("ended")), job("ended"), Entry(refresh_at=NOW - 1)) is None


# --- lost -------------------------------------------------------------------------------------------------------------
def test_a_job_is_lost_only_when_the_site_has_said_so_twice():
    the_pod, entry = pod(), Entry()
    assert look(the_pod, entry=entry, the_pool=pool(complete=None)) is None
    assert look(the_pod, entry=entry) == Look(the_pod)
    entry.lifecycle = absent(NOW - 1)
    assert isinstance(look(the_pod, entry=entry), Wait)
    entry.lifecycle = absent(NOW - 6)
    assert look(the_pod, entry=entry) == Look(the_pod)
    entry.answered(NOW - 2, None)
    assert look(the_pod, entry=entry) == Wait(3), "both answers may be of one moment"
    entry.answered(NOW - 1, None)
    action = look(the_pod, entry=entry)
    assert isinstance(action, Fail)
    assert (action.reason, action.unknown) == ("JobLost", True)


def braked(the_pod, the_job=None, entry=None, **brake):
    return virtual_pod_decide.decide(PodView(the_pod, the_job, entry or Entry(), pool(), NOW, TIME, **brake))


def test_a_pod_whose_lost_job_the_brake_holds_says_so_and_does_not_fail():
    the_pod, lost = pod(), Entry(lifecycle=absent(NOW - 6, State.LOST))
    assert braked(the_pod, entry=lost, may_fail=False) == Wait(1.0)  # not judged yet
    assert braked(the_pod, entry=lost, may_fail=False, held=True) == Mark(the_pod, missing=True)
    marked = pod(status={"phase": "Running", "conditions": [{"type": names.JOB_MISSING, "status": "True"}]})
    assert braked(marked, entry=lost, may_fail=False, held=True) == Wait(1.0)
    assert look(marked, job()) == Mark(marked, missing=False)
    assert look(pod(deleted=30), entry=Entry(lifecycle=absent(0.0, State.LOST))).__class__ is Remove


def test_a_job_that_the_batch_system_lost_fails_its_pod_when_the_brake_lets_it():
    lost = job(missing=True)
    the_pod = written(pod(), job())
    assert braked(the_pod, lost, may_fail=False) == Wait(1.0)  # not judged yet
    assert braked(the_pod, lost, may_fail=False, held=True) == Mark(the_pod, missing=True)
    condition = {"type": names.JOB_MISSING, "status": "True"}
    status = {**the_pod["status"], "conditions": [*the_pod["status"]["conditions"], condition]}
    marked = {**the_pod, "status": status}
    assert braked(marked, lost, may_fail=False, held=True) == Wait(1.0)
    assert braked(marked, lost, may_fail=False) == Wait(1.0)  # a new leader has not judged yet
    assert braked(marked, job(), may_fail=False) == Mark(marked, missing=False)
    ready = job(missing=True, containers=[ContainerState(name="main", state="running", ready=True, started_at=TIME)])
    assert isinstance(braked(marked, ready, may_fail=False, held=True), Write)  # its script still runs
    action = braked(marked, lost)
    assert isinstance(action, Fail)
    assert (action.reason, "job 7" in action.message) == ("JobLost", True)
    assert isinstance(look(pod(phase="Failed"), lost), Cancel)
    assert isinstance(look(pod(deleted=30), lost), Cancel)


def test_a_negative_grace_period_counts_as_one_second():
    finished = pod(phase="Failed")
    finished["spec"]["terminationGracePeriodSeconds"] = -5
    assert look(finished, job()) == Cancel(finished, 1.0)


def test_a_direct_answer_stands_until_a_snapshot_from_after_it():
    the_pod = written(pod(taken=False), job("queued"))
    entry = Entry()
    entry.answered(950, job("queued"))
    assert look(the_pod, entry=entry, the_pool=pool(complete=940)) is None
    assert look(the_pod, entry=entry, the_pool=pool(complete=960)) == Look(the_pod)


# --- deletion ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("seen_for", "grace", "left"), [(0, 30, 30), (18, 30, 12), (35, 30, 0), (0, 0, 0), (5, 0, 0)])
@pytest.mark.parametrize("skew", [-100, 0, 100])
def test_a_deleted_pods_job_is_ended_within_what_is_left_of_its_grace(seen_for, grace, left, skew):
    """Whatever the API server's clock says: its deletionTimestamp is compared with no other clock."""
    the_pod, entry = pod(deleted=grace + skew, grace=grace), Entry()
    entry.see(the_pod, NOW - seen_for)
    entry.see(the_pod, NOW)
    assert look(the_pod, job(), entry) == Cancel(the_pod, left)


def test_a_deletion_that_was_not_seen_before_has_all_of_its_grace():
    the_pod, entry = pod(deleted=-5, grace=30), Entry()
    assert look(the_pod, job(), entry) == Cancel(the_pod, 30)
    entry.see(pod(deleted=500, grace=500), NOW - 100)
    entry.see(the_pod, NOW - 1)  # shortened: another deletion
    assert look(the_pod, job(), entry) == Cancel(the_pod, 29)


def test_the_site_is_told_again_until_it_confirms():
    the_pod = written(pod(), job())
    the_pod["metadata"] |= pod(deleted=30)["metadata"]
    stamp = the_pod["metadata"]["deletionTimestamp"]
    told = Entry(cancellation=Cancellation(stamp, NOW - 4))
    assert look(the_pod, job(), told) == Wait(6)
    assert isinstance(look(the_pod, job(), told, now=NOW + 7), Cancel)
    # somebody has shortened the grace period
    told.cancellation = Cancellation("2026-01-01T00:00:00Z", NOW - 4)
    assert isinstance(look(the_pod, job(), told), Cancel)


def test_what_ends_meanwhile_is_shown():
    the_pod = written(pod(taken=False), job())
    the_pod["metadata"] |= pod(deleted=30)["metadata"]
    told = Entry(cancellation=Cancellation(the_pod["metadata"]["deletionTimestamp"], NOW))
    stopping = job(containers=[ContainerState(name="main", state="terminated", ended=Termination(exit_code=143))])
    assert isinstance(look(the_pod, stopping, told), Write)


def test_a_deleted_pod_goes_when_its_job_has_ended():
    the_pod = pod(deleted=30)
    action = look(the_pod, job("ended", outcome="Failed", reason="Deleted"))
    assert isinstance(action, Remove)
    assert action.status["phase"] == "Failed"


def test_a_deleted_pod_goes_when_the_site_holds_nothing():
    the_pod = pod(deleted=30)
    assert isinstance(look(the_pod), Cancel)  # the view may be wrong: the site is asked
    action = look(the_pod, entry=Entry(lifecycle=absent(0.0)))
    assert isinstance(action, Remove)
    assert action.status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


def test_9_5_a_deletion_while_the_site_is_down_is_not_lost():
    the_pod = pod(deleted=-3600)
    for the_pool in (pool(complete=None), pool(complete=900)):
        assert isinstance(look(the_pod, the_pool=the_pool), Cancel)
        assert look(the_pod, entry=Entry(not_before=NOW + 30), the_pool=the_pool) == Wait(30)


def test_a_pod_that_was_never_submitted_goes_at_once():
    the_pod = pod(taken=False, deleted=30)
    assert isinstance(look(the_pod), Remove)
    # an earlier leader may have sent it
    assert isinstance(look(the_pod, the_pool=pool(complete=400)), Cancel)
    assert isinstance(look(the_pod, the_pool=pool(complete=None)), Cancel)
    # or this one, and nobody knows whether it arrived
    assert isinstance(look(the_pod, entry=Entry(lifecycle=unknown(NOW + 5, looked_at=0.0))), Cancel)
    assert isinstance(look(the_pod, entry=Entry(lifecycle=unknown(NOW - 5, looked_at=0.0))), Cancel)
    assert isinstance(look(the_pod, entry=Entry(lifecycle=absent(NOW, until=NOW - 5))), Remove)


def test_a_pod_that_was_removed_and_is_held_by_a_finalizer_is_left_alone():
    assert look(pod(phase="Failed", deleted=0, grace=0), job("ended")) is None


def test_a_finished_pod_that_was_being_deleted_is_removed():
    assert isinstance(look(pod(phase="Failed", deleted=30), job("ended")), Remove)
    assert look(pod(phase="Failed", deleted=30), the_pool=pool(complete=None)) is None


@pytest.mark.parametrize("phase", ["queued", "running"])
def test_a_pod_that_somebody_else_ended_ends_its_job(phase):
    the_pod = pod(phase="Failed")
    assert look(the_pod, job(phase)) == Cancel(the_pod, 20)
    assert isinstance(look(the_pod, job(phase), Entry(cancellation=Cancellation("", NOW - 1))), Wait)


def test_a_finished_pod_keeps_its_folder_at_the_site_for_its_logs():
    assert look(pod(phase="Succeeded"), job("ended")) is None


# --- jobs without pods ------------------------------------------------------------------------------------------------
def test_a_job_without_a_pod_is_an_orphan():
    for phase in ("queued", "running", "ended", "unknown"):
        assert look(None, job(phase)) == Orphan(job(phase))


def test_no_job_is_an_orphan_before_all_pods_are_known():
    assert look(None, job(), the_pool=pool(synced=False)) is None


def test_an_orphan_is_told_again_until_it_has_ended():
    assert isinstance(look(None, job(), Entry(cancellation=Cancellation("", NOW - 1))), Wait)
    assert isinstance(look(None, job(), Entry(cancellation=Cancellation("", NOW - 11))), Orphan)
    assert isinstance(look(None, job("ended"), Entry(cancellation=Cancellation("", NOW - 1))), Orphan)


def test_a_job_id_that_comes_late_is_written():
    nameless = replace(job("queued"), job_id="")
    the_pod = written(pod(taken=False), nameless)
    assert virtual_pod_decide.remote_job(the_pod) == "site/u1"
    assert look(the_pod, nameless) is None
    assert look(the_pod, job("queued")).job_id == "site/7"
    write = look(written(the_pod, job("queued")), nameless)
    assert isinstance(write, Write) and write.job_id is None  # the annotation keeps the id


# --- a pool that cannot list its jobs ---------------------------------------------------------------------------------
UNLISTED = pool(lists=False)


def intended(**options):
    the_pod = pod(**options)
    the_pod["metadata"]["annotations"][names.JOB_INTENT] = "site"
    the_pod["metadata"]["finalizers"] = [names.POOL_FINALIZER]
    return the_pod


def test_a_deleted_pod_with_an_intent_is_removed_only_after_the_site_has_said_that_it_has_no_job():
    assert isinstance(look(pod(taken=False, deleted=30), the_pool=UNLISTED), Remove), "never sent: without a question"
    the_pod = intended(taken=False, deleted=30)
    assert isinstance(look(the_pod, the_pool=UNLISTED), Cancel)
    assert isinstance(look(the_pod, entry=Entry(lifecycle=absent(NOW)), the_pool=UNLISTED), Remove)
    sent = Entry(lifecycle=unknown(NOW + 5, looked_at=NOW))
    assert isinstance(look(the_pod, entry=sent, the_pool=UNLISTED), Cancel), "the request may still be carried out"


def test_a_new_pod_with_an_intent_of_an_earlier_process_is_asked_for_first():
    the_pod = intended(taken=False)
    sent = Entry(lifecycle=unknown(NOW + 5))
    assert look(the_pod, entry=sent, the_pool=UNLISTED) == Look(the_pod)
    sent.answered(NOW, None)
    assert look(the_pod, entry=sent, the_pool=UNLISTED) == Wait(5)
    assert look(the_pod, entry=sent, the_pool=UNLISTED, now=NOW + 6) == Look(the_pod)
    sent.answered(NOW + 6, None)
    assert look(the_pod, entry=sent, the_pool=UNLISTED, now=NOW + 6) == Submit(the_pod)


def test_the_end_of_a_deleted_pod_is_written_then_its_job_is_forgotten_then_it_is_removed():
    the_pod = intended(deleted=30)
    action = look(the_pod, job("ended"), the_pool=UNLISTED)
    assert isinstance(action, Write)
    assert action.status["phase"] == "Succeeded"
    the_pod = {**the_pod, "status": action.status}
    assert look(the_pod, job("ended"), the_pool=UNLISTED) == Forget(the_pod)
    assert isinstance(look(the_pod, None, Entry(forgotten=True), UNLISTED), Remove)


def test_a_finished_pod_that_was_deleted_by_force_is_released_after_its_job_is_forgotten():
    the_pod = intended(phase="Failed", deleted=0, grace=0)
    assert look(the_pod, the_pool=UNLISTED) == Forget(the_pod)
    assert isinstance(look(the_pod, None, Entry(forgotten=True), UNLISTED), Remove)
    assert look(intended(phase="Failed"), the_pool=UNLISTED) is None, "the logs stay as long as the pod"


def test_the_site_is_asked_at_once_for_a_cancelled_job_that_the_view_has_dropped():
    """A plugin deletes a cancelled job when it has ended: the answer to the next poll no longer shows it."""
    the_pod = intended(deleted=30)
    cancelled = Cancellation(the_pod["metadata"]["deletionTimestamp"], NOW - 1)
    entry = Entry(cancellation=cancelled)
    entry.answered(NOW - 101, job())
    assert isinstance(look(the_pod, job(), entry, UNLISTED), Wait | Write), "it still ends"
    assert look(the_pod, entry=entry, the_pool=UNLISTED) == Look(the_pod)
    entry.answered(NOW, None)
    assert isinstance(look(the_pod, entry=entry, the_pool=UNLISTED), Remove)
    unsure = Entry(cancellation=cancelled, lifecycle=unknown(NOW + 2, looked_at=NOW))
    assert look(the_pod, entry=unsure, the_pool=UNLISTED) == Wait(virtual_pod_decide.CANCEL_AGAIN - 1), (
        "asked once until then"
    )


def test_an_answer_before_the_last_request_can_be_carried_out_does_not_count_after_it():
    """A request that arrives late starts a job that a former answer cannot show."""
    early, late = Entry(lifecycle=unknown(NOW - 1)), Entry(lifecycle=unknown(NOW - 1))
    early.answered(NOW - 5, None)  # requested before, though it came after
    late.answered(NOW - 0.5, None)
    deleted, new = intended(taken=False, deleted=10), intended(taken=False)
    assert isinstance(look(deleted, entry=early, the_pool=UNLISTED), Cancel)
    assert isinstance(look(deleted, entry=late, the_pool=UNLISTED), Remove)
    assert look(new, entry=early, the_pool=UNLISTED) == Look(new)
    assert look(new, entry=late, the_pool=UNLISTED) == Submit(new)


@pytest.mark.parametrize("phase", ["queued", "running"])
def test_volumes_follow_labels_and_annotations(phase):
    item = {"path": "ready", "fieldRef": {"fieldPath": "metadata.annotations['ready']"}}
    the_pod = written(pod(), job(phase))
    the_pod["spec"]["volumes"] = [{"name": "d", "downwardAPI": {"items": [item]}}]
    entry = Entry(files=SentFiles({}, {}, (None,)))
    assert look(the_pod, job(phase), entry) is None
    the_pod["metadata"]["annotations"]["other"] = "x"
    assert look(the_pod, job(phase), entry) is None
    the_pod["metadata"]["annotations"]["ready"] = "READY"
    assert look(the_pod, job(phase), entry) == Refresh(the_pod)
    assert look(the_pod, job(phase), replace(entry, not_before=NOW + 3)) == Wait(3)


def test_only_another_version_of_an_object_is_a_change():
    key = ("configmaps", "ns", "c")
    entry = Entry(settled=("1", job()))
    assert not entry.changed(key, "u/2"), "nothing is known of the site"
    entry.files = SentFiles({}, {key: "u/1"}, ())
    assert not entry.changed(key, "u/1") and not entry.changed(("secrets", "ns", "c"), "u/2")
    assert entry.settled is not None
    assert entry.changed(key, "u/2") and entry.stale == {key} and entry.settled is None
    assert not entry.changed(key, "u/3"), "it is queued already"
