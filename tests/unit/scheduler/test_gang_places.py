"""Groups of more than one pod at pools: one pool, one job, one rank for each member."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge import names
from bridge.errors import ScriptError
from bridge.script import flavor_limits, sizing
from bridge.script.settings import BuildSettings
from bridge.workload import eligibility, links, pods, remote_gangs, resources
from bridge.workload.remote_gangs import Place
from scheduler import gang_ranks
from scheduler.group_actions import BindToPool, SetCondition, SetPlaces
from scheduler.group_states import NEW
from scheduler.places.place_view import PoolView, pool_view
from tests import builders
from tests.counted import Count
from tests.unit.scheduler import test_pools
from tests.unit.scheduler.decisions import occupied
from tests.unit.scheduler.test_pools import SECRET, lets, look, node

SIZE = 3


def pool(name: str, cpu: str = "8", problem: str = "", gangs: bool = True, heterogeneous: bool = False) -> PoolView:
    return replace(test_pools.pool(name, cpu, problem), gangs=gangs, heterogeneous=heterogeneous)


def member(slot: int | None, place: str = "", at: str = "a", uid: str = "", **more: Any) -> dict[str, Any]:
    """Return a waiting member of a group of three; with a ``place`` (``gang/rank/size``), one that is bound."""
    group = {key: more.pop(key) for key in ("size", "minimum", "completed") if key in more}
    metadata = {"name": f"train-{slot}", "creationTimestamp": f"2026-01-01T00:00:0{slot or 0}Z"}
    metadata |= {key: more.pop(key) for key in ("name", "creationTimestamp", "deletionTimestamp") if key in more}
    made = test_pools.pod(uid or f"u{slot}", more.pop("pools", "a,b"), **({"nodeName": at} if place else {}), **more)
    made["metadata"] |= metadata
    made["metadata"]["annotations"] |= builders.group(**{"size": SIZE, "kind": "jobset", "slot": slot} | group)
    if place:
        made["metadata"]["annotations"][names.PLACE_IN_JOB] = place
    return made


def waiting() -> list[dict[str, Any]]:
    return [member(slot) for slot in range(SIZE)]


def decide(some: list[Any], *pools: PoolView, **more: Any) -> list[Any]:
    return look(some, *pools, **{"new_gang": lambda: "new"} | more)


def placed(actions: list[Any]) -> dict[str, tuple[str, str]]:
    """Return by UID the pool and the place of each member that is bound."""
    binds = [action for action in actions if isinstance(action, BindToPool)]
    return {pods.uid(pod): (bind.pool, place.text if place else "") for bind in binds for pod, place in bind.members}


def recorded(some: list[Any], *pools: PoolView, **more: Any) -> list[Any]:
    """Write the places of a new job to the pods, as the scheduler does first if it could choose others."""
    for action in decide(some, *pools, **more):
        for pod, place in action.members if isinstance(action, SetPlaces) else ():
            if place is not None:
                pod["metadata"]["annotations"] |= place.annotations(pod)
    return some


def said(actions: list[Any]) -> dict[str, tuple[str, str]]:
    """Return by UID the condition of each member that waits."""
    found = [action for action in actions if isinstance(action, SetCondition)]
    return {pods.uid(action.pod): (action.reason, action.message) for action in found}


def limited(name: str, **more: Any) -> PoolView:
    """Return a pool with a flavor of 2 CPUs, and one of 2 CPUs for a pod and 5 for a group."""
    flavors = [
        {"name": "small", "max_resources": {"cpu": "2"}},
        {"name": "group", "max_resources": {"cpu": "2", "amd.com/gpu": "1"}, "max_group_resources": {"cpu": "5"}},
    ]
    limits = flavor_limits.dump(BuildSettings.model_validate({"flavors": flavors}))
    raw = builders.node(name, annotations={names.FLAVOR_LIMITS: limits})
    return replace(pool(name, **more), sizing=pool_view(raw, eligibility.view(raw)).sizing)


def test_the_limits_of_a_sites_flavors_hold_for_the_members_together() -> None:
    assert set(placed(decide(waiting(), limited("a")))) == {"u0", "u1", "u2"}
    large = [member(slot, cpu="2") for slot in range(SIZE)]
    assert {each[0] for each in placed(decide(large, limited("a"), pool("b"))).values()} == {"b"}
    told = (
        "small: at most cpu 2 for the pods of a group together; group: at most cpu 5 for the pods of a group together"
    )
    assert set(said(decide(large, limited("a"))).values()) == {
        (
            "Unschedulable",
            "no pool takes the 3 pods of the group: a (spec.containers: no flavor of this site covers what the pod asks"
            f" for: {told})",
        )
    }
    assert placed(decide([test_pools.pod("u9", "a", cpu="2")], limited("a"))) == {"u9": ("a", "")}


def test_the_members_with_one_flavor_count_together_whatever_each_requests() -> None:
    mixed = [member(slot, cpu=cpu) for slot, cpu in enumerate(("1", "2", "2"))]
    for each in mixed:
        each["metadata"]["annotations"][names.FLAVOR] = "group"
    assert set(placed(decide(mixed, limited("a", heterogeneous=True)))) == {"u0", "u1", "u2"}
    mixed[0]["metadata"]["annotations"][names.FLAVOR] = mixed[1]["metadata"]["annotations"][names.FLAVOR] = "small"
    ((reason, message),) = set(said(decide(mixed, limited("a", heterogeneous=True))).values())
    assert reason == "Unschedulable"
    assert message.endswith(
        "a (flavor small: cpu 3 is not allowed at this site; allowed: at most 2 for the pods of a group together)"
    )


@pytest.mark.parametrize(
    ("name", "cpu", "pool_of_all"), [(names.ACCOUNT, "1", None), (names.FLAVOR, "2", None), ("x", "1", "a")]
)
def test_the_scheduler_counts_the_members_of_a_flavor_as_the_hub_does_for_their_scripts(
    name: str, cpu: str, pool_of_all: str | None
) -> None:
    # the hub counts those of a shape: annotations for Slurm are a part of it, the name of a flavor is not
    some, site = [member(slot, cpu=cpu) for slot in range(SIZE)], limited("a", heterogeneous=True)
    for each in some[:2]:
        each["metadata"]["annotations"][name] = "group"
    found = placed(decide(some, site))
    assert found.get("u2", (None,))[0] == pool_of_all
    assert site.sizing is not None
    shapes = tuple(map(links.shape, some))
    for slot, each in enumerate(some):
        each["metadata"]["annotations"] |= Place("g", slot, SIZE, shapes if len({*shapes}) > 1 else ()).annotations(
            each
        )
    try:
        sizes = [sizing.measure(pod, site.sizing, remote_gangs.alike(pod)) for pod in some]
        refusal = flavor_limits.group_refusal(sizes, site.sizing)
    except ScriptError as error:
        refusal = str(error)
    assert bool(refusal) == (pool_of_all is None)


@pytest.mark.parametrize(
    ("change", "is_for_all"),
    [
        (lambda pod: pod["metadata"]["annotations"].update({names.FLAVOR: "f"}), False),
        (lambda pod: pod["metadata"]["annotations"].update({names.FLAGS: "--comment=x"}), False),
        (lambda pod: pod["metadata"]["annotations"].update({names.MEMBERS_PER_NODE: "2"}), False),
        (lambda pod: pod["metadata"]["annotations"].update({names.MPI: "pmix"}), True),
        (lambda pod: pod["spec"].update(activeDeadlineSeconds=9), False),
        (lambda pod: pod["spec"]["containers"][0]["resources"].update(limits={"memory": "1Gi"}), False),
    ],
)
def test_a_group_is_bound_to_no_site_that_would_refuse_some_of_its_pods(change: Any, is_for_all: bool) -> None:
    """The site compares the parameters of the jobs (bridge/site/gangs/gang_request.py)."""
    some = waiting()
    for each in some:
        each["spec"]["containers"][0]["resources"]["requests"]["memory"] = "1Mi"
    sites = [replace(pool("a", heterogeneous=one), node=replace(pool("a").node, offered=None)) for one in (False, True)]
    assert len(placed(decide(some, sites[0]))) == SIZE
    change(some[1])
    ((reason, message),) = set(said(decide(some, sites[0])).values())
    assert reason == "Unschedulable" and ("differ in" in message or "different" in message)
    assert len(placed(decide(some, sites[1]))) == (0 if is_for_all else SIZE)


def test_all_members_get_one_pool_with_room_for_the_sum() -> None:
    actions = decide(waiting(), pool("a", cpu="2"), pool("b"))
    assert placed(actions) == {f"u{slot}": ("b", f"new/{slot}/3") for slot in range(SIZE)}
    assert len(actions) == 1
    assert actions[0].why == "first with room; not a (too little cpu)"
    occupancy = occupied(a=resources.node_requests(member(0, cpu="6")["spec"]))
    assert set(placed(decide(waiting(), pool("a"), occupancy=occupancy))) == set()
    assert set(placed(decide(waiting(), pool("a"), pool("b"), occupancy=occupancy)).values()) == {
        ("b", f"new/{slot}/3") for slot in range(SIZE)
    }


def test_the_policy_chooses_among_the_pools_with_room() -> None:
    pools = replace(pool("a"), wait=600.0), replace(pool("b"), wait=30.0)
    assert {at for at, _ in placed(decide(waiting(), *pools, policy="soonest")).values()} == {"b"}


def test_the_oldest_member_is_bound_first() -> None:
    members = [member(0, creationTimestamp="2026-01-01T00:00:09Z"), member(1), member(2)]
    (bind,) = decide(members, pool("a"))
    assert [pods.uid(pod) for pod, _ in bind.members] == ["u1", "u2", "u0"]


def test_ranks_follow_the_names_without_slots() -> None:
    members = [member(None, name=name, uid=name) for name in ("c", "a", "b")]
    assert placed(decide(members, pool("a"))) == {
        uid: ("a", f"new/{rank}/3") for rank, uid in enumerate(("a", "b", "c"))
    }


@pytest.mark.parametrize("completed", [0, 1])
def test_no_member_is_bound_without_the_minimum(completed: int) -> None:
    members = [member(slot, completed=completed) for slot in range(2 - completed)]
    text = ("GangIncomplete", "2 of 3 pods of jobset train are present")
    assert said(decide(members, pool("a"))) == {pods.uid(pod): text for pod in members}
    members = [member(slot, completed=completed) for slot in range(3 - completed)]
    size = len(members)
    assert placed(decide(members, pool("a"))) == {f"u{slot}": ("a", f"new/{slot}/{size}") for slot in range(size)}


def test_the_minimum_is_enough() -> None:
    members = [member(slot, size=4, minimum=2) for slot in (1, 3)]
    assert placed(decide(recorded(members, pool("a")), pool("a"))) == {"u1": ("a", "new/1/2"), "u3": ("a", "new/0/2")}


def test_if_others_could_be_chosen_no_pod_is_bound_before_each_has_a_record() -> None:
    """The write makes the Bindings fail that a former leader has on the way."""
    alike = [member(slot, size=4, minimum=2, cpu="2") for slot in (1, 3)]
    stranger = member(0, size=4, minimum=2)
    (record,) = [action for action in decide([*alike, stranger], pool("a")) if isinstance(action, SetPlaces)]
    assert (record.places, record.members[0]) == ((), (stranger, remote_gangs.NOWHERE)), "first, who gets no place"
    members = recorded([*alike, stranger], pool("a"))
    assert set(placed(decide(members, pool("a")))) == {"u1", "u3"}
    del members[0]["metadata"]["annotations"][names.PLACE_IN_JOB]
    (record,) = [action for action in decide(members, pool("a")) if isinstance(action, SetPlaces)]
    assert [(pods.uid(pod), place.text) for pod, place in record.members if place] == [("u1", "new/1/2")]


def test_the_first_binding_is_that_of_rank_0_if_places_are_recorded() -> None:
    members = [member(slot, size=4, minimum=2) for slot in (1, 3)]
    (bind,) = decide(recorded(members, pool("a")), pool("a"))
    assert [place.rank for _, place in bind.members] == [0, 1]
    again = [members[0], member(3, uid="again", size=4, minimum=2)]
    (record,) = decide(again, pool("a"), new_gang=lambda: "next")
    assert {place.gang for _, place in record.members} == {"next"}, "another pod never gets rank 0"


def test_a_member_that_succeeded_at_a_pool_counts_as_present() -> None:
    ended = member(0, "old/0/3")
    ended["status"]["phase"] = "Succeeded"
    assert placed(decide([ended, member(1), member(2)], pool("a"))) == {"u1": ("a", "new/1/2"), "u2": ("a", "new/0/2")}


def test_the_last_member_needs_no_pool_that_runs_groups() -> None:
    last = member(2, completed=2)
    assert placed(decide([last], pool("a", gangs=False), pool("b"))) == {"u2": ("a", "")}


def test_a_pool_that_cannot_run_the_group_says_why() -> None:
    members = waiting()
    why = "a (does not run groups of pods), b (no room for cpu now)"
    occupancy = occupied(b=resources.node_requests(member(0, cpu="6")["spec"]))
    text = f"no pool takes the 3 pods of the group now: {why}"
    assert set(said(decide(members, pool("a", gangs=False), pool("b"), occupancy=occupancy)).values()) == {
        ("NoRoomNow", text)
    }
    members[1] = member(1, cpu="2")
    why = "does not run groups whose pods request different resources"
    text = f"no pool takes the 3 pods of the group: a ({why})"
    assert set(said(decide(members, pool("a"))).values()) == {("Unschedulable", text)}
    members[1] = member(1, pools="b")
    text = "no pool takes the 3 pods of the group: a (not every pod of the group selects it)"
    assert set(said(decide(members, pool("a"))).values()) == {("Unschedulable", text)}
    members[1] = member(1, volumes=SECRET)
    (message,) = {message for _, message in said(decide(members, pool("a"), **lets(None))).values()}
    assert "does not let Secret s go there" in message


def test_each_member_must_be_eligible() -> None:
    labelled = pool("b")
    labelled = replace(labelled, node=replace(labelled.node, labels={"gpu": "a100"}))
    members = waiting()
    members[2] = member(2, nodeSelector={"gpu": "a100"})
    assert {at for at, _ in placed(decide(members, pool("a"), labelled)).values()} == {"b"}


def test_a_pod_that_requests_something_else_does_not_stop_the_minimum() -> None:
    members = [*[member(slot, size=4, minimum=3) for slot in range(3)], member(3, size=4, minimum=3, cpu="2")]
    actions = decide(recorded(members, pool("a")), pool("a"))
    assert set(placed(actions)) == {"u0", "u1", "u2"}
    assert said(actions)["u3"][0] == "GangDiffers"


def test_groups_of_one_decision_share_the_room() -> None:
    others = [member(slot, uid=f"o{slot}") for slot in range(SIZE)]
    for other in others:
        other["metadata"]["annotations"] |= builders.group(SIZE, name="other", uid="o2")
    actions = decide([*waiting(), *others], pool("a", cpu="5"))
    assert (len(placed(actions)), len(said(actions))) == (SIZE, SIZE)


def test_while_the_cache_does_not_show_a_binding_nothing_is_decided() -> None:
    assert decide(waiting(), pool("a"), states={"u1": NEW.bound(99.0)}) == []


# --- members of a job that is there -----------------------------------------------------------------------------------
def test_a_member_gets_a_free_rank_of_the_job_although_the_pool_is_full() -> None:
    there, later = [member(0, "old/2/3"), member(1, "old/1/3")], member(2)
    occupancy = occupied(a=resources.node_requests(member(0, cpu="8")["spec"]))
    assert placed(decide([*there, later], pool("a"), pool("b"), occupancy=occupancy)) == {"u2": ("a", "old/0/3")}
    there[1]["status"]["phase"] = "Failed"
    again = member(1, uid="again", name="train-1-again")
    assert placed(decide([*there, later, again], pool("a"))) == {"again": ("a", "old/1/3"), "u2": ("a", "old/0/3")}


def test_a_member_without_a_free_rank_waits() -> None:
    there, more = [member(slot, f"old/{slot}/3") for slot in range(SIZE)], member(None, name="more", uid="more")
    there[2]["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    text = "every place of the group's job at pool a (3 pods) is taken by another pod"
    assert said(decide([*there, more], pool("a"))) == {"more": ("GangFull", text)}


def test_pods_that_are_created_for_a_whole_group_wait_for_its_end() -> None:
    there = [member(slot, f"old/{slot}/3", deletionTimestamp="2026-01-01T00:01:00Z") for slot in range(2)]
    again = [member(slot, uid=f"again{slot}", name=f"again-{slot}") for slot in range(SIZE)]
    text = "2 pods of the group's last job at pool a have not ended yet"
    assert said(decide([*there, *again], pool("a"))) == {pods.uid(pod): ("GangEnding", text) for pod in again}
    assert placed(decide(again, pool("a"))) == {f"again{slot}": ("a", f"new/{slot}/3") for slot in range(SIZE)}


@pytest.mark.parametrize(
    ("later", "pools", "expected"),
    [
        ({"cpu": "2"}, [pool("a")], ("GangDiffers", "requests other resources than the pods of the group's job")),
        ({}, [pool("a", problem="not ready: SiteSilent")], ("NoRoomNow", "not ready: SiteSilent")),
        ({}, [pool("b")], ("NoRoomNow", "is at pool a, which has no node")),
        ({"volumes": SECRET}, [pool("a")], ("Unschedulable", "does not let Secret s go there")),
        ({"nodeSelector": {"gpu": "a100"}}, [pool("a")], ("Unschedulable", "nodeSelector gpu=a100 does not match")),
    ],
)
def test_a_member_that_cannot_join_waits_with_the_reason_and_others_join(
    later: dict[str, Any], pools: list[PoolView], expected: tuple[str, str]
) -> None:
    actions = decide([member(0, "old/0/3"), member(1, **later)], *pools, **lets(None))
    reason, message = said(actions)["u1"]
    assert reason == expected[0]
    assert expected[1] in message
    actions = decide([member(0, "old/0/2"), member(1, **later), member(2)], *pools, **lets(None))
    assert set(placed(actions)) <= {"u2"}, "the one that cannot join takes no rank"
    assert bool(placed(actions)) == bool(later)


# --- members that request different resources -------------------------------------------------------------------------
MIXED = {0: "1", 1: "2", 2: "2"}
"""CPUs by slot: a driver and two workers."""


def mixed(slot: int | None, cpus: str, place: Place | None = None, **more: Any) -> dict[str, Any]:
    """Return a member of such a group; with a place, one that is bound."""
    made = member(slot, place.text if place else "", cpu=cpus, **more)
    if place is not None:
        made["metadata"]["annotations"] |= place.annotations(made)
    return made


def in_job(shapes: tuple[str, ...], *slots: int) -> list[dict[str, Any]]:
    return [mixed(slot, MIXED[slot], Place("old", slot, SIZE, shapes)) for slot in slots]


def mixed_shapes() -> tuple[str, ...]:
    return tuple(links.shape(mixed(slot, cpus)) for slot, cpus in MIXED.items())


def test_members_of_different_requests_get_a_pool_that_runs_them_and_their_shapes_are_recorded() -> None:
    members = [mixed(slot, cpus) for slot, cpus in MIXED.items()]
    pools = pool("a"), pool("b", cpu="5", heterogeneous=True)
    (bind,) = decide(members, *pools)
    assert bind.pool == "b"
    assert [(pods.uid(pod), place) for pod, place in bind.members] == [
        (f"u{slot}", Place("new", slot, SIZE, mixed_shapes())) for slot in range(SIZE)
    ]
    occupancy = occupied(b=resources.node_requests(member(0, cpu="1")["spec"]))
    (message,) = {text for _, text in said(decide(members, *pools, occupancy=occupancy)).values()}
    assert "b (no room for cpu now)" in message, "the sum counts"


def test_each_pod_counts_with_its_own_requests() -> None:
    groups = [mixed(slot, cpus) for slot, cpus in MIXED.items()]
    alone = test_pools.pod("alone", "b", cpu="4")
    alone["metadata"]["creationTimestamp"] = "2027-01-01T00:00:00Z"
    bound = placed(decide([*groups, alone], pool("b", cpu="8", heterogeneous=True)))
    assert "alone" not in bound and len(bound) == SIZE


def test_a_successor_gets_a_rank_of_its_shape() -> None:
    there, b = in_job(mixed_shapes(), 1), pool("a", heterogeneous=True)
    again = [mixed(None, "2", uid="worker", name="a-worker"), mixed(None, "1", uid="driver", name="b-driver")]
    assert placed(decide([*there, *again], b)) == {"worker": ("a", "old/2/3"), "driver": ("a", "old/0/3")}
    full = in_job(mixed_shapes(), 1, 2)
    assert said(decide([*full, again[0]], b))["worker"][0] == "GangFull", "the rank of the driver is not for a worker"
    assert said(decide([*full, mixed(0, "3")], b))["u0"][0] == "GangDiffers"


def test_the_slot_of_another_shape_is_not_free_for_a_pod() -> None:
    there = in_job(mixed_shapes(), 1)
    changed = mixed(0, "2", uid="changed")
    assert placed(decide([*there, changed], pool("a", heterogeneous=True))) == {"changed": ("a", "old/2/3")}


def test_of_two_jobs_that_of_the_oldest_member_counts() -> None:
    there = [member(1, "first/0/3"), member(2, "second/1/3"), member(0, "second/0/3", uid="o", creationTimestamp="x")]
    assert placed(decide([*there, member(0)], pool("a"))) == {"u0": ("a", "first/1/3")}


def test_members_that_run_on_their_own_get_no_job_together() -> None:
    alone = member(0, "x", uid="alone")
    assert remote_gangs.place_of(alone) is None
    assert placed(decide([alone, member(1), member(2)], pool("a"))) == {"u1": ("a", ""), "u2": ("a", "")}
    alone["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    assert placed(decide([alone, *waiting()], pool("a"))) == {
        f"u{slot}": ("a", f"new/{slot}/3") for slot in range(SIZE)
    }


# --- the colocated Slurm ----------------------------------------------------------------------------------------------
def test_a_group_that_may_go_to_slurm_stays_there_unless_none_is_configured() -> None:
    members = [member(slot, pools="local,a") for slot in range(SIZE)]
    assert placed(decide(members, pool("a"), nodes=(node("n1"),))) == {}
    assert len(decide(members, pool("a"), nodes=(node("n1"),))) == SIZE
    assert set(placed(decide(members, pool("a"), colocated=False))) == {"u0", "u1", "u2"}


def test_the_ranks_of_a_job_are_given_in_one_pass() -> None:
    count, number = Count(), 100
    members = [member(None, uid=f"u{index}", name=f"m{index:03}", size=number) for index in range(number)]
    members += [member(None, uid=f"x{index}", name=f"x{index:03}", size=number, cpu="2") for index in range(number)]
    shapes = [links.shape(members[0])] * number + [links.shape(members[-1])] * number

    class Shapes(tuple[str, ...]):
        def __getitem__(self, index: Any) -> Any:
            count.value += 1
            return super().__getitem__(index)

    gang = gang_ranks.Gang("", "job", 2 * number, {}, shapes=Shapes(shapes))
    # those of the second shape come first, and none of the first ranks is for them
    placed = gang_ranks.assign([*reversed(members)], {pods.uid(pod): None for pod in members}, gang)
    assert sorted(place.rank for _, place in placed) == [*range(2 * number)]
    assert all(links.shape(pod) == shapes[place.rank] for pod, place in placed)
    assert count.value <= 4 * len(shapes)
