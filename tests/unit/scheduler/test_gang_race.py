"""Groups of more than one pod that race: one job at each place, one grant for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge import names
from bridge.workload import links, places, pods
from bridge.workload.remote_gangs import Place
from scheduler.group_actions import BindToPool, SetPlaces
from scheduler.places import candidates
from scheduler.places.place_view import PoolView
from tests.unit.scheduler import test_gang_places
from tests.unit.scheduler.test_gang_places import SIZE, decide, placed, said


def pool(name: str, cpu: str = "8", problem: str = "", races: bool = True) -> PoolView:
    return replace(test_gang_places.pool(name, cpu, problem), races=races)


def member(
    slot: int, recorded: str = "", place: str = "", grant: str = "", at: str = "", **more: Any
) -> dict[str, Any]:
    """Return a member with these places and this place in the job of the group; ``at``: it is bound there."""
    made = test_gang_places.member(slot, **({"place": place, "at": at} if at else {}), **more)
    values = {names.PLACEMENT: "race", names.PLACES: recorded, names.PLACE_IN_JOB: place, names.GRANT: grant}
    made["metadata"]["annotations"] |= {key: value for key, value in values.items() if value}
    return made


def offered(recorded: str = "a,b", gang: str = "g") -> list[dict[str, Any]]:
    return [member(slot, recorded, f"{gang}/{slot}/{SIZE}") for slot in range(SIZE)]


def race(some: list[Any], *pools: PoolView, **more: Any) -> list[Any]:
    return decide(some, *(pools or (pool("a"), pool("b"))), most_places=3, **more)


def given(actions: list[Any]) -> dict[str, tuple[str, str]]:
    """Return by UID the places, and the place in the job of the group, that are recorded."""
    found = [action for action in actions if isinstance(action, SetPlaces)]
    assert len(found) <= 1, "one action for all members of a group"
    return {pods.uid(pod): (",".join(a.places), place.text) for a in found for pod, place in a.members if place}


def test_all_members_get_the_same_places_and_one_job() -> None:
    assert given(race([member(slot) for slot in range(SIZE)])) == {
        f"u{slot}": ("a,b", f"new/{slot}/{SIZE}") for slot in range(SIZE)
    }


def test_a_group_whose_places_are_recorded_waits() -> None:
    assert said(race(offered())) == {f"u{slot}": ("Racing", "queued at a, b") for slot in range(SIZE)}


def test_after_a_crash_between_two_members_the_others_get_the_same_job() -> None:
    """The one without a place may be the successor of a deleted pod."""
    some = offered()
    some[1] = member(1)
    assert given(race(some)) == {"u1": ("a,b", f"g/1/{SIZE}")}


def test_a_changed_place_is_recorded_for_all_members_in_the_same_job() -> None:
    found = race(offered(), pool("a"), pool("b", problem="not ready: x"), pool("c"), pool("d"))
    assert given(found) == {}, "the pods select only a and b, and keep a silent place"
    found = race(offered(), pool("a"), pool("b", races=False))
    assert given(found) == {f"u{slot}": ("a", f"g/{slot}/{SIZE}") for slot in range(SIZE)}


def test_the_successor_of_the_first_pod_makes_another_job() -> None:
    """Its Binding is the grant: two pods with rank 0 of one job could be bound at two places."""
    some = [member(0, uid="heir"), *offered()[1:]]
    assert given(race(some)) == {
        "heir": ("a,b", f"new/0/{SIZE}"), "u1": ("a,b", f"new/1/{SIZE}"), "u2": ("a,b", f"new/2/{SIZE}")
    }  # fmt: skip


@pytest.mark.parametrize("place", ["other/2", "g/1"], ids=["two leaders have given places in two jobs", "a rank twice"])
def test_a_member_with_a_place_of_another_job_or_rank_gets_its_own(place: str) -> None:
    some = offered()
    some[2] = member(2, "a,b", f"{place}/{SIZE}")
    assert given(race(some)) == {"u2": ("a,b", f"g/2/{SIZE}")}


def test_fewer_pods_than_places_but_the_minimum_get_another_job() -> None:
    some = [member(slot, "a,b", f"g/{slot}/3", minimum=2) for slot in (0, 1)]
    assert given(race(some)) == {"u0": ("a,b", "new/0/2"), "u1": ("a,b", "new/1/2")}


def test_a_pod_that_is_left_out_loses_its_places_before_the_others_get_a_new_job() -> None:
    """It has rank 0 of the earlier job, so its Binding would be a grant."""
    some = [member(0, "a,b", "g/0/3", minimum=2), *[member(slot, "a,b", minimum=2, cpu="2") for slot in (1, 2)]]
    (action,) = [action for action in race(some) if isinstance(action, SetPlaces)]
    assert ([pods.uid(pod) for pod, _ in action.members], action.places) == (["u0"], ())
    some[0]["metadata"]["annotations"] |= {names.PLACE_IN_JOB: "", names.PLACES: ""}
    assert given(race(some)) == {"u1": ("a,b", "new/1/2"), "u2": ("a,b", "new/0/2")}


@pytest.mark.parametrize("was_uniform", [False, True])
def test_a_successor_that_requests_something_else_makes_another_job(was_uniform: bool) -> None:
    shapes = tuple(links.shape(member(slot, cpu=cpus)) for slot, cpus in enumerate("122"))
    some = [member(slot, "a,b", f"g/{slot}/3", cpu="1" if slot == 0 else "2") for slot in range(SIZE)]
    for slot, pod in enumerate(some):
        pod["metadata"]["annotations"] |= Place("g", slot, SIZE, shapes).annotations(pod)
    pools = [replace(pool(name, "99"), heterogeneous=True) for name in "ab"]
    assert set(said(race(some, *pools)).values()) == {("Racing", "queued at a, b")}
    for pod in some if was_uniform else ():
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
        pod["metadata"]["annotations"].pop(names.SHAPES_IN_JOB)
    some[2] = member(2, cpu="3", uid="heir")
    assert given(race(some, *pools)) == {uid: ("a,b", f"new/{n}/3") for n, uid in enumerate(("u0", "u1", "heir"))}


def test_more_pods_than_places_wait() -> None:
    some = [member(slot, "a,b", f"g/{slot}/2", minimum=2) for slot in (0, 1)] + [member(2, minimum=2)]
    found = said(race(some))
    assert (found["u0"][0], found["u2"][0]) == ("Racing", "GangFull")


def test_the_others_follow_the_first_pod_with_its_grant() -> None:
    """A new leader goes on the same way, whatever the places of the others are."""
    some = offered()
    some[0] = member(0, "a,b", f"g/0/{SIZE}", grant="b/t", at="b")
    (bind,) = race(some)
    assert placed([bind]) == {f"u{slot}": ("b", f"g/{slot}/{SIZE}") for slot in (1, 2)}
    assert isinstance(bind, BindToPool)
    assert bind.grant == "b/t"


def test_a_group_does_not_race_unless_all_members_request_it() -> None:
    some = [member(slot) for slot in range(SIZE)]
    del some[1]["metadata"]["annotations"][names.PLACEMENT]
    assert {pool for pool, _ in placed(race(some)).values()} == {"a"}


def test_one_possible_place_is_no_race() -> None:
    found = race([member(slot) for slot in range(SIZE)], pool("a"), pool("b", races=False))
    assert placed(found) == {f"u{slot}": ("a", f"new/{slot}/{SIZE}") for slot in range(SIZE)}


def test_a_site_that_allows_no_race_gets_no_place() -> None:
    some = [member(slot, pools="a,b,c") for slot in range(SIZE)]
    (action,) = race(some, pool("a"), pool("b", races=False), pool("c"))
    assert (action.places, action.why) == (("a", "c"), f"queued at a, c; not b ({candidates.NO_RACE})")


def test_a_member_of_a_group_has_a_place_only_with_its_place_in_the_job() -> None:
    assert places.open_pools(member(0, "a,b")) == ()
    assert places.open_pools(member(0, "a,b", "g/0/3")) == ("a", "b")
