"""A pool restored from a store: its node waits for an announcement, and stays while jobs are known there."""

from bridge.clock import rfc3339
from controllers.virtual import node_manifest, virtual_node_decide
from controllers.virtual.node_manifest import PoolStatus
from controllers.virtual.virtual_node_decide import Forget, ReportStatus, Vanish
from tests.unit.controllers.test_virtual_nodes import (
    NOW,
    SETTINGS,
    TIME,
    announce,
    condition,
    decide,
    made,
    state,
    view,
)

HOUR = 3600.0


def remembered(heard=NOW - HOUR, jobs=0, bound=0, **values):
    return PoolStatus("site", announce(**values), heard, rfc3339(TIME + heard - NOW), bound, jobs)


def test_until_the_site_could_have_spoken_the_node_stays_as_it_is():
    assert decide(view(remembered(), node=made(), since=NOW - 10)) == []


def test_then_it_is_not_ready_with_the_last_words_and_keeps_its_capacity():
    (report,) = decide(view(remembered(jobs=3), node=made(), since=NOW - 31))
    assert isinstance(report, ReportStatus)
    ready = report.status["conditions"][0]
    assert (ready["status"], ready["reason"]) == ("False", "SiteSilent")
    assert f"last heard {rfc3339(TIME - HOUR)}" in ready["message"]
    assert "jobs remembered there: 3" in ready["message"]
    assert "last announcement: Slurm 26.05, apptainer 1.4" in ready["message"]
    assert report.status["capacity"] == {"pods": "10000", "ephemeral-storage": "1Pi", "cpu": "8", "memory": "16Gi"}


def test_a_slow_site_has_its_own_patience():
    slow = remembered(period=60)
    assert decide(view(slow, node=made(period=60), since=NOW - 149)) == []
    assert decide(view(slow, node=made(period=60), since=NOW - 151)) != []


def test_what_the_site_says_itself_counts_at_once():
    (report,) = decide(view(state(problem="batch system down"), node=made(), since=NOW - 10))
    assert condition(report.status, "Ready") == ("False", "SiteProblem")


def silent(jobs):
    """A node whose site has been silent for a long time."""
    node = made()
    gone = remembered(jobs=jobs)
    (report,) = decide(view(gone, node=node, since=NOW - HOUR))
    told = {**node, "status": {**node["status"], "conditions": report.patch["status"]["conditions"]}}
    return view(gone, node=told, written={"site": (report.status, NOW)}, since=NOW - HOUR)


def test_a_silent_pool_s_node_stays_while_jobs_are_remembered_there():
    assert decide(silent(jobs=1)) == []
    (action,) = decide(silent(jobs=0))
    assert isinstance(action, Vanish)


def test_a_pool_without_node_that_is_silent_for_long_is_forgotten_jobs_or_not():
    long = NOW - SETTINGS.remove_after - 1
    for jobs in (0, 5):
        assert decide(view(remembered(long - 5, jobs), since=long)) == [Forget("site")]
    assert decide(view(remembered(long - 5), since=long + 2)) == []  # this process has not listened for so long
    assert decide(view(remembered(NOW - 40), since=0)) == []
    assert decide(view(remembered(long - 5, bound=1), since=long)) == []
    assert decide(view(remembered(long - 5, bound=None), since=long)) == []


def test_is_heard():
    seen = view(since=NOW - 100)
    assert virtual_node_decide.is_heard(seen, state(heard=NOW - 5))
    assert not virtual_node_decide.is_heard(seen, state(heard=NOW - 50))
    assert not virtual_node_decide.is_heard(seen, remembered(NOW - 101))
    assert not virtual_node_decide.is_heard(seen, PoolStatus("site"))
    assert node_manifest.PoolStatus("site").remembered == 0
