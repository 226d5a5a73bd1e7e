from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm import parsers, states
from bridge.slurm.components import Component, combined, is_over, joined, joined_states
from bridge.slurm.link import encode
from bridge.slurm.models import GroupRef, Job, JobLink
from bridge.slurm.states import Phase, end_of, phase

GROUP = GroupRef("jobset", "ns", "train", "o1")
STATES = st.sampled_from([*states.BASE_STATES]).map(lambda word: frozenset({word}))


def component(job_id: int, offset: int, state: str, *, parts: int = 2, leader: int = 13, **more: object) -> Component:
    link = JobLink("c", (), GROUP, 3, f"s{offset}", offset, parts)
    return Component(leader, offset, Job(job_id, frozenset({state}), link, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["PENDING", "PENDING"], Phase.PENDING),
        (["RUNNING", "RUNNING"], Phase.ALLOCATED),
        (["RUNNING+CONFIGURING", "RUNNING"], Phase.ALLOCATED),
        (["PENDING", "RUNNING"], Phase.BETWEEN),
        (["RUNNING", "SUSPENDED"], Phase.BETWEEN),
        (["RUNNING", "COMPLETING"], Phase.BETWEEN),
        (["RUNNING", "CANCELLED"], Phase.ENDED),
        (["NODE_FAIL", "RUNNING"], Phase.ENDED),
    ],
)
def test_the_phase_of_a_job_is_that_of_all_its_components(parts: list[str], expected: Phase) -> None:
    assert phase(combined([frozenset(part.split("+")) for part in parts])) is expected


@given(st.lists(STATES, min_size=1, max_size=4))
def test_a_job_is_allocated_only_if_every_component_is_and_has_ended_if_any_has(parts: list[frozenset[str]]) -> None:
    found = combined(parts)
    assert states.is_allocated(found) == all(states.is_allocated(part) for part in parts)
    assert (end_of(found) is not None) == any(end_of(part) is not None for part in parts)


def test_the_cause_of_the_end_stays_after_the_rest_is_cancelled() -> None:
    running, failed, cancelled = frozenset({"RUNNING"}), frozenset({"TIMEOUT"}), frozenset({"CANCELLED"})
    assert combined([running, failed]) == {"TIMEOUT", "COMPLETING"}, "other states than afterwards: it is read again"
    assert combined([cancelled, failed]) == failed
    assert combined([frozenset({"COMPLETED"}), cancelled]) == {"COMPLETED"}


def test_components_are_joined_to_one_job() -> None:
    other = Component(0, 0, Job(12, frozenset({"RUNNING"})))
    parts = [
        component(14, 1, "RUNNING", nodes=("n1", "n2"), reason="Priority", excluded="n[7-8]"),
        other,
        component(13, 0, "RUNNING", nodes=("n0",), reason="Resources", name="train"),
    ]
    plain, job = joined(parts)
    assert plain is other.job
    assert (job.job_id, job.name, job.nodes, job.states) == (13, "train", ("n0", "n1", "n2"), {"RUNNING"})
    assert job.reason == "Resources, Priority"
    assert [(part.job_id, part.shape, part.nodes) for part in job.parts] == [
        (13, "s0", ("n0",)),
        (14, "s1", ("n1", "n2")),
    ]
    assert job.parts[1].excluded_nodes == ("n7", "n8")


@pytest.mark.parametrize("only", [component(13, 0, "RUNNING"), component(14, 1, "RUNNING")])
def test_a_job_that_lacks_a_component_has_ended_and_what_is_left_is_to_be_cancelled(only: Component) -> None:
    (job,) = joined([only])
    assert job.job_id == only.job.job_id
    assert end_of(job.states) is not None
    assert not is_over(job)


def test_the_end_of_a_job_that_lacks_a_component_keeps_its_reason() -> None:
    (job,) = joined([component(13, 0, "NODE_FAIL")])
    assert job.states == {"NODE_FAIL"}
    assert is_over(job)


def test_states_are_those_of_the_leader_even_if_ids_have_gaps() -> None:
    entries = [
        {"job_id": "20+2", "state": ["RUNNING"]},
        {"job_id": "13+0", "state": ["RUNNING"]},
        {"job_id": "15", "state": ["PENDING"]},
        {"job_id": "16+1", "state": ["RUNNING"]},
        {"job_id": "22+0", "state": ["PENDING"]},
        {"job_id": "23+1", "state": ["PENDING"]},
        {"job_id": "30+1", "state": ["RUNNING"]},
        {"job_id": "12_[1-3]", "state": ["PENDING"]},
        {"job_id": "0+1", "state": ["PENDING"]},
    ]
    assert parsers.read_states(entries) == {13: {"RUNNING"}, 15: {"PENDING"}, 22: {"PENDING"}, 30: {"RUNNING"}}


@given(st.lists(st.lists(STATES, min_size=1, max_size=4), max_size=5), st.data())
def test_the_list_of_states_and_the_details_agree(jobs: list[list[frozenset[str]]], data: st.DataObject) -> None:
    """Whatever the ids of the components are, as long as those of one job follow each other."""
    found, details, job_id = {}, [], 0
    for parts in jobs:
        leader = 0
        for offset, state in enumerate(parts):
            job_id += data.draw(st.integers(1, 3))
            leader = leader or job_id
            found[job_id] = offset, state
            link = JobLink("c", (), GROUP, 3, "", offset, len(parts))
            details.append(Component(leader, offset, Job(job_id, state, link)))
    shuffled = dict(data.draw(st.permutations(list(found.items()))))
    assert joined_states(shuffled) == {job.job_id: job.states for job in joined(details)}
    assert all(before < after for before, after in pairwise(sorted(found)))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text("0123456789+", max_size=8), st.lists))
def test_any_id_in_a_list_of_states_is_read_or_ignored(value: object) -> None:
    assert all(job_id > 0 for job_id in parsers.read_states([{"job_id": value, "state": ["RUNNING"]}]))


def test_a_component_is_read_from_its_details() -> None:
    link = JobLink("c", (), GROUP, 3, "s1", 1, 2)
    number = {"set": True, "infinite": False, "number": 13}
    raw = {"job_id": 14, "het_job_id": number, "het_job_offset": {**number, "number": 1}, "job_state": ["RUNNING"]}
    found = parsers.read_component({**raw, "admin_comment": encode(link)})
    assert (found.leader, found.offset) == (13, 1)
    assert found.job.link is not None
    assert (found.job.link.part, found.job.link.parts, found.job.link.shape) == (1, 2, "s1")
    assert parsers.read_component({"job_id": 14, "het_job_id": {**number, "number": 0}}).leader == 0
