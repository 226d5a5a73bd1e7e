"""The places in ``podbridge explain``: those of a pod that waits, races, or was bound, and of a group."""

import json
from types import SimpleNamespace

import pytest

from bridge import names
from bridge.apps.cli import explain, explain_objects, explain_places
from bridge.apps.cli.dashboard_command import PageSession
from bridge.apps.view import pod_view
from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError
from bridge.slurm.models import Job, JobLink, Node, PodRef
from scheduler.places import candidates
from tests import builders
from tests.unit.apps.cli.test_explain import Session, waiting

TOLERATIONS = [{"key": key, "operator": "Exists"} for key in (names.VIRTUAL_TAINT, names.POOL_TAINT)]
NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
GROUP = '{"kind":"job","name":"mpi","uid":"o1","size":4,"minimum":4}'


@pytest.fixture(autouse=True)
def _now(monkeypatch):
    monkeypatch.setattr("time.time", lambda: NOW)


def pool(name, cpu="8", ready="True", **annotations):
    node = builders.node(
        name, labels={names.POOL_LABEL: name}, annotations=annotations, allocatable={"cpu": cpu, "pods": "9"}
    )
    condition = {"type": "Ready", "status": ready, "reason": "SiteSilent", "message": "last heard at noon"}
    node["metadata"] |= {"uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    node["spec"]["taints"] = [{"key": names.POOL_TAINT, "value": name, "effect": "NoSchedule"}]
    node["status"]["conditions"] = [condition]
    return node


RACE, WAIT = {names.RACE_ALLOWED: "true"}, {names.EXPECTED_WAIT: "300"}
POOLS = [
    pool("free", **RACE),
    pool("full", **RACE, **WAIT),
    pool("old"),
    pool("silent", ready="False"),
    pool("tiny", "1"),
    pool("gangs", "32", **{names.GANGS_ALLOWED: "true"}),
    pool("races", "32", **{names.GANGS_ALLOWED: "true"}, **RACE),
    pool("mixed", "32", **{names.GANGS_ALLOWED: "true", names.HETEROGENEOUS_GANGS_ALLOWED: "true"}),
]
LOCAL = builders.node("n1", allocatable={"cpu": "8", "memory": "8Gi", "pods": "9"}, ready="True")


def pod(pools="*,local", recorded="", reason="Racing", group="", node=""):
    given = {names.POOLS: pools, names.PLACES: recorded, names.GROUP: group}
    found = waiting(reason, "why", {key: value for key, value in given.items() if value})
    found["metadata"]["annotations"] |= {names.PLACEMENT: names.RACE} if recorded else {}
    found["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    found["spec"] |= {"tolerations": TOLERATIONS, **({"nodeName": node} if node else {})}
    return found


def event(reason, note):
    return {"reason": reason, "message": note, "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}


EVENTS = [
    event("BridgePlace", "pool full has a job of the pod: 16"),
    event("BridgePlace", "pool full has a job of the pod: 17"),
    event("BridgePlaceRefused", "pool free: RaceNotAllowed: the site allows no race"),
]


def session(jobs=(), forbidden=()):
    other = {"metadata": {"name": "o"}, "spec": {"containers": [{"resources": {"requests": {"cpu": "7"}}}]}}
    ended = {**other, "status": {"phase": "Succeeded"}}

    def get(path, params=None):
        selector = (params or {}).get("fieldSelector", "")
        if selector.partition("=")[0] in forbidden:
            raise KubeForbiddenError("no", status=403)
        if selector.startswith("spec.nodeName="):
            return {"items": [ended, *([other] if selector.endswith("=full") else [])]}
        if selector.startswith("involvedObject.uid="):
            return {"items": EVENTS}
        return {"items": [*POOLS, LOCAL] if path == "/api/v1/nodes" else []}

    found = Session([], jobs)
    found.kube = SimpleNamespace(get=get)
    found.slurm.nodes = lambda: [Node("n1", frozenset({"IDLE"}), cpus=8, memory_mib=8192, held_cpus=8)]
    return found


def job(**fields):
    link = JobLink("c", (PodRef("hpc", "x", "u-x"),))
    return Job(**{"job_id": 9, "link": link, "states": frozenset({"PENDING"}), "reason": "Resources", **fields})


def shown(session_, the_pod):
    """Return each place as (eligible, room, job, state, start, reason)."""
    records = explain.describe(session_, the_pod)["places"]
    return {record["place"]: tuple(value for key, value in record.items() if key != "place") for record in records}


def test_a_pod_that_races_shows_its_jobs_and_why_other_places_have_none():
    found = shown(session([job(start_time=NOW + 3600)]), pod(recorded="full,free,local"))
    assert found == {
        "free": (True, True, "", "refused", "", "RaceNotAllowed: the site allows no race"),
        "full": (True, False, "17", "queued", "2026-01-01T00:05:00Z", "no room for cpu now"),
        "gangs": (False, None, "", "", "", "the site allows no race"),
        "mixed": (False, None, "", "", "", "the site allows no race"),
        "old": (False, None, "", "", "", "the site allows no race"),
        "races": (True, True, "", "", "", ""),
        "silent": (False, None, "", "", "", "the site allows no race"),
        "tiny": (False, None, "", "", "", "too little cpu"),
        "local": (True, False, "9", "queued", "2026-01-01T01:00:00Z", "Resources"),
    }


def test_the_summary_of_a_race_names_all_places_and_a_queued_job_is_in_the_queue_of_the_site():
    report = explain.describe(session([job()]), pod(pools="old,full,local", recorded="full,local"))
    assert report["summary"] == "queued at full, local; its Slurm job is pending: Resources"
    report = explain.describe(session(), pod(pools="old,full,local", recorded="full,local", reason="SlurmPending"))
    assert report["summary"] == "queued at full, local; why"
    found = shown(session(forbidden={"spec.nodeName"}), pod(recorded="full"))
    assert found["full"][1:] == (None, "17", "queued", "2026-01-01T00:05:00Z", "it waits in the queue of the site")


def test_a_pod_that_waits_for_a_pool_shows_which_have_room_and_which_are_silent():
    found = shown(session(), pod(pools="silent,old,full", reason="NoRoomNow"))
    assert found == {
        "silent": (True, None, "", "", "", "not ready: SiteSilent: last heard at noon"),
        "old": (True, True, "", "", "", ""),
        "full": (True, False, "", "", "2026-01-01T00:05:00Z", "no room for cpu now"),
    }


def test_a_pool_that_is_removed_while_it_is_explained_is_the_one_that_was_read(monkeypatch):
    found, lists = session(), iter(([*POOLS, LOCAL], [LOCAL]))
    monkeypatch.setattr(found, "nodes", lambda selector="": next(lists))
    monkeypatch.setattr(found, "pods", lambda namespace: [pod(pools="full")])
    assert explain_objects.pool(found, "full")["waiting_pods"] == ["hpc/x: no room for cpu now"]


def test_a_group_shows_which_pools_run_groups_and_how_many_nodes_it_needs():
    found = shown(session(), pod(pools="old,gangs,local", reason="GangIncomplete", group=GROUP))
    assert found == {
        "old": (False, None, "", "", "", "does not run groups of pods"),
        "gangs": (False, None, "", "", "", candidates.STAYS),
        "local": (False, None, "", "", "", "1 node could run a pod of the group, which needs 4"),
    }
    found = shown(session(), pod(pools="old,gangs", reason="GangIncomplete", group=GROUP))
    assert [record[:2] for record in found.values()] == [(False, None), (True, True)]


def test_a_group_shows_where_it_is_larger_than_the_flavors_of_the_site_allow(monkeypatch):
    limits = {names.FLAVOR_LIMITS: '{"flavors":[{"name":"f","max_resources":{"cpu":"7"}}],"default_flavor":"f"}'}
    limits_of_gpus = {names.FLAVOR_LIMITS: '{"flavors":[{"name":"f","max_group_resources":{"cpu":"7"}}]}'}
    gangs = {names.GANGS_ALLOWED: "true"}
    monkeypatch.setitem(
        globals(), "POOLS", [pool("a", "32", **gangs, **limits), pool("b", "32", **gangs, **limits_of_gpus)]
    )
    found = shown(session(), pod(pools="a,b", reason="Unschedulable", group=GROUP))
    assert found["a"] == (True, True, "", "", "", ""), "the default flavor accepts the CPUs that no flavor covers"
    assert found["b"][:2] == (False, None)
    assert found["b"][5].endswith("f: at most cpu 7 for the pods of a group together")


def test_a_group_that_may_go_to_slurm_says_whether_it_races():
    def reasons(**more):
        member = pod(pools="gangs,races,local", group=GROUP, **more)
        member["metadata"]["annotations"][names.PLACEMENT] = names.RACE
        return {name: record[5] for name, record in shown(session(), member).items() if name != "local"}

    assert reasons(reason="GangIncomplete") == {"gangs": "the site allows no race", "races": ""}
    left = candidates.STAYS_WITHOUT_RACE
    assert reasons(reason="SlurmPending") == {"gangs": "the site allows no race", "races": left}
    assert reasons(recorded="races,local")["races"] == ""


@pytest.mark.parametrize("is_page", [False, True])
def test_a_group_whose_pods_request_different_resources_is_eligible_where_such_groups_run(is_page, monkeypatch):
    member, other = (pod(pools="gangs,mixed", reason="Unschedulable", group=GROUP) for _ in range(2))
    other["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}
    found = session()
    if is_page:
        viewer = SimpleNamespace(client=found.kube, identity="ann")
        found = PageSession(Config(), viewer, POOLS, [pod_view.of(each) for each in (member, other)], None)
        monkeypatch.setattr(found, "shared", lambda what, read: read())
    else:
        monkeypatch.setattr(found, "pods", lambda namespace: [member, other])
    why = "does not run groups whose pods request different resources"
    assert shown(found, member) == {"gangs": (False, None, "", "", "", why), "mixed": (True, True, "", "", "", "")}


def test_a_pod_whose_job_has_started_shows_what_else_it_waits_for():
    started = job(states=frozenset({"RUNNING"}), nodes=("n1",), reason="None")
    found = shown(session([started]), pod("local", reason="NodeBusy"))
    assert found["local"] == (True, None, "9", "started", "", "NodeBusy")


@pytest.mark.parametrize("reason", ["", "SlurmPending", "Racing"])
def test_a_pod_whose_job_has_started_waits_for_its_binding_only(reason):
    started = job(states=frozenset({"RUNNING"}), nodes=("n1",), reason="None")
    assert shown(session([started]), pod("local", reason=reason))["local"] == (
        True,
        None,
        "9",
        "started",
        "",
        "Binding",
    )


def test_a_held_job_has_no_expected_start_and_another_one_counts_for_a_pod_without_a_job():
    held = job(reason="JobHeldUser", submit_time=NOW - 900)
    assert shown(session([held]), pod(pools="local"))["local"] == (True, False, "9", "queued", "", "JobHeldUser")
    other = JobLink("c", (PodRef("hpc", "y", "u-y"),))
    queued = job(link=other, submit_time=NOW - 600)
    start = shown(session([queued, job(job_id=10, link=other, reason="Dependency", submit_time=1.0)]), pod("local"))
    assert start["local"][4] == "2026-01-01T00:10:00Z"
    assert shown(session([queued]), pod("local", reason="SlurmFederation"))["local"][4:] == ("", "SlurmFederation")


def test_a_bound_pod_shows_which_place_won_and_which_are_withdrawn():
    found = shown(session(), pod(recorded="full,free,local", node="full"))
    assert {name: record[2:4] for name, record in found.items()} == {
        "full": ("17", "won"),
        "free": ("", "refused"),
        "local": ("", "withdrawn"),
    }
    found = shown(session(), pod(recorded="full,local", node="n1"))
    assert {name: record[3] for name, record in found.items()} == {"full": "withdrawn", "local": "won"}
    assert shown(session(), pod(node="n1")) == {}
    assert shown(session(), pod(node="full"))["full"] == (True, None, "17", "starting", "2026-01-01T00:05:00Z", "")


def test_without_a_right_the_room_is_not_known():
    found = shown(session(forbidden={"spec.nodeName"}), pod(pools="old,full"))
    assert [record[:2] for record in found.values()] == [(True, None), (True, None)]


def page(nodes, row_pods=()):
    viewer = SimpleNamespace(client=session().kube, identity="ann")
    found = PageSession(Config(), viewer, nodes, [pod_view.of(each) for each in row_pods], None)
    found.shared = lambda _, read: read()
    return found


def test_the_web_page_shows_the_same_from_its_own_rows():
    there = pod(node="old")
    there["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "7"
    waits = pod(pools="old,tiny", reason="NoRoomNow")
    assert shown(page([*POOLS], [there]), waits) == {
        "old": (True, False, "", "", "", "no room for cpu now"),
        "tiny": (False, None, "", "", "", "too little cpu"),
    }
    assert shown(page(None), waits) == {}
    recorded = shown(page(None), pod(pools="free,full", recorded="full,free"))
    assert {name: record[:4] for name, record in recorded.items()} == {
        "full": (None, None, "", "queued"),
        "free": (None, None, "", "queued"),
    }


def test_the_records_are_json_and_a_pod_of_another_scheduler_has_none():
    found = pod()
    assert json.loads(json.dumps(explain_places.of(session(), found)))[0]["place"] == "free"
    found["spec"]["schedulerName"] = "default-scheduler"
    assert explain_places.of(session(), found) == []
