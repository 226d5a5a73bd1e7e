import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bridge.pools.submitter import job_view
from bridge.pools.submitter.job_view import GRACE, JobView, Part, size
from bridge.protocol.model.jobs import ContainerState, JobStatus
from bridge.protocol.nats.envelope import parse
from bridge.protocol.nats.messages import Event
from controllers.virtual.pod_state import Entry
from tests.builders import job_status as job
from tests.examples import examples


def event(sequence: int, status: JobStatus, submitter: str = "s") -> Event:
    return Event(pool="alpha", submitter=submitter, sequence=sequence, status=status)


def part(
    sequence: int, *jobs: JobStatus, at: float, submitter: str = "s", unreadable: frozenset[str] = frozenset()
) -> Part:
    return Part(submitter, sequence, list(jobs), set(unreadable), at)


@pytest.fixture
def view() -> JobView:
    return JobView()


def test_events_in_order_are_taken_and_nothing_is_missed(view: JobView) -> None:
    view.announced("s", 0)
    assert view.event(event(1, job("a")), 1) == (True, False)
    assert view.event(event(2, job("a", "running")), 2) == (True, False)
    assert view.jobs["a"].phase == "running"
    assert view.complete_at is None


def test_a_site_fills_no_more_than_a_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    large, small = (lambda uid: job(uid, message="x" * 4000)), (lambda uid: job(uid, "ended"))
    monkeypatch.setattr(job_view, "MOST_BYTES", 2 * size(large("a")))
    view = JobView()
    for number, uid in enumerate("abc", 1):
        view.event(event(number, large(uid)), 1)
    assert set(view.jobs) == {"a", "b"}
    view.event(event(4, small("b")), 1)
    assert view.jobs["b"].phase == "ended"
    view.event(event(5, small("c")), 1)
    assert set(view.jobs) == {"a", "b", "c"}
    assert view.event(event(6, large("c")), 1) == (False, False)
    view.gone("a", 2, 2)
    assert view.event(event(7, large("c")), 1) == (True, False)
    view.snapshot([part(9, large("c"), at=100)], began=100)
    assert view._bytes == size(large("c"))


LONG = "x" * 1000


@pytest.mark.parametrize(
    "more",
    [
        {"gang": LONG},
        {"owner": LONG},
        {"containers": [{"name": "c", "occurrences": [{"reason": "R", "message": LONG}]}]},
        {"init_containers": [{"name": "c", "last": {"exit_code": 1, "message": LONG}}]},
    ],
)
def test_each_text_of_a_job_counts(more: dict[str, Any]) -> None:
    assert size(job("a", **more)) >= size(job("a")) + 900


def test_no_number_of_a_site_is_larger_than_kubernetes_has() -> None:
    run = {"exit_code": 10**4000, "signal": -(10**4000)}
    container = {"name": "c", "restarts": 10**4000, "ended": run, "occurrences": [{"reason": "R", "count": 10**4000}]}
    (state,) = job("a", containers=[container]).containers
    assert state.ended is not None
    assert (state.restarts, state.occurrences[0].count, state.ended.exit_code) == (2**31 - 1,) * 3
    assert state.ended.signal == -(2**31)


@pytest.mark.parametrize("more", [{"sequence": 2**63}, {"submitter": "s" * 129}])
def test_an_event_that_would_fill_memory_beside_its_job_is_invalid(more: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Event(**{"pool": "alpha", "submitter": "s", "sequence": 1, "status": job("a"), **more})


def test_a_gap_a_new_submitter_and_an_announcement_ahead_are_noticed(view: JobView) -> None:
    assert view.event(event(7, job("a")), 1) == (True, True)  # who knows what 1 to 6 said
    assert view.event(event(8, job("a")), 1) == (False, False)
    assert view.event(event(10, job("b")), 1) == (True, True)
    assert view.announced("s", 10) is False
    assert view.announced("s", 12) is True
    assert view.announced("s", 12) is False
    assert view.announced("other", 0) is True
    assert view.event(event(1, job("a"), "other"), 1)[1] is False


def test_an_event_twice_or_late_changes_nothing(view: JobView) -> None:
    view.event(event(1, job("a", "running")), 1)
    view.event(event(2, job("a", "ended")), 2)
    assert view.event(event(2, job("a", "queued")), 3) == (False, False)
    assert view.event(event(1, job("a", "running")), 3) == (False, False)
    assert view.jobs["a"].phase == "ended"


def test_a_snapshot_brings_what_was_missed_and_takes_what_is_gone(view: JobView) -> None:
    view.event(event(1, job("a")), 0)
    view.event(event(2, job("b")), 0)
    changed = view.snapshot([part(9, job("b", "running"), job("c"), at=100)], began=100)
    assert changed == {"a", "b", "c"}
    assert {uid: status.phase for uid, status in view.jobs.items()} == {"b": "running", "c": "queued"}
    assert view.complete_at == 100
    assert view.event(event(10, job("c")), 101) == (False, False)


def test_an_equal_state_stays_the_same_object(view: JobView) -> None:
    view.event(event(1, job("a", "running")), 1)
    view.event(event(2, job("b")), 1)
    known, other = view.jobs["a"], view.jobs["b"]
    assert view.snapshot([part(3, job("a", "running"), job("b", "running"), at=10)], began=10) == {"b"}
    assert view.jobs["a"] is known
    assert view.jobs["b"] is not other
    assert view.jobs["b"].phase == "running"


def test_events_that_came_during_the_paging_are_newer_than_the_page(view: JobView) -> None:
    view.announced("s", 5)
    # page one is asked for, then b ends (6), a job is made whose UID lies before the cursor (7), page two is asked for
    view.event(event(6, job("b", "ended")), 101)
    view.event(event(7, job("a0")), 101)
    view.snapshot([part(5, job("a"), job("b", "running"), at=100), part(7, job("c"), at=102)], began=100)
    phases = {uid: status.phase for uid, status in view.jobs.items()}
    assert phases == {"a": "queued", "a0": "queued", "b": "ended", "c": "queued"}


def test_events_handled_after_the_snapshot_but_sent_before_its_last_page_count(view: JobView) -> None:
    view.announced("s", 5)
    view.snapshot([part(5, job("a", "running"), at=100), part(7, job("b", "ended"), at=101)], began=100)
    assert view.event(event(6, job("a", "ended")), 102) == (True, False)
    assert view.event(event(7, job("b", "ended")), 102) == (False, False)
    assert view.jobs["a"].phase == "ended"


def test_an_older_event_than_the_page_does_not_undo_it(view: JobView) -> None:
    view.announced("s", 5)
    view.snapshot([part(7, job("b", "ended"), at=100)], began=100)
    assert view.event(event(6, job("b", "running")), 101)[0] is False
    assert view.jobs["b"].phase == "ended"


def test_an_unreadable_job_is_kept_as_it_was_known(view: JobView) -> None:
    view.event(event(1, job("a", "running")), 0)
    view.snapshot([part(2, job("b"), at=100, unreadable=frozenset({"a", "never-seen"}))], began=100)
    assert view.jobs["a"].phase == "running"
    assert set(view.jobs) == {"a", "b"}


def test_an_answer_to_submit_never_undoes_an_event(view: JobView) -> None:
    view.event(event(1, job("a", "running")), 1)
    assert view.submitted(job("a", "queued"), 2) is False
    assert view.jobs["a"].phase == "running"
    assert view.submitted(job("b"), 2) is True
    assert view.event(event(2, job("b", "running")), 3) == (True, False)


def test_a_job_submitted_while_a_snapshot_was_under_way_stays(view: JobView) -> None:
    view.submitted(job("a"), 100.5)
    view.snapshot([part(3, at=100)], began=100)
    assert set(view.jobs) == {"a"}
    view.snapshot([part(3, at=200)], began=200)
    assert view.jobs == {}


def test_a_forgotten_job_does_not_come_back_by_a_page_asked_for_before(view: JobView) -> None:
    view.event(event(1, job("a", "ended")), 1)
    assert view.gone("a", requested_at=101, now=101) is True
    view.snapshot([part(1, job("a", "ended"), at=100)], began=100)
    assert view.jobs == {}
    assert view.gone("a", requested_at=101, now=101) is False


def test_a_word_that_a_job_is_not_there_is_older_than_an_event_since(view: JobView) -> None:
    view.event(event(1, job("a")), 10)
    assert view.gone("a", requested_at=9, now=11) is False
    assert "a" in view.jobs


def test_a_submitter_that_counts_anew_is_believed(view: JobView) -> None:
    view.event(event(50, job("a", "running")), 1)
    assert view.announced("s", 0) is True
    assert view.event(event(1, job("a", "ended")), 2) == (True, False)
    assert view.jobs["a"].phase == "ended"


def test_of_two_submitters_the_later_word_counts_and_an_end_is_final(view: JobView) -> None:
    view.event(event(5, job("a", "running"), "one"), 1)
    assert view.event(event(1, job("a", "ended"), "two"), 2)[0] is True
    assert view.event(event(6, job("a", "running"), "one"), 3)[0] is False
    view.snapshot([part(9, job("a", "running"), at=4, submitter="one")], began=4)
    assert view.jobs["a"].phase == "ended"


def test_a_job_that_another_submitter_has_not_noticed_yet_stays_for_a_while(view: JobView) -> None:
    view.event(event(1, job("a"), "one"), 95)
    view.snapshot([part(1, at=100, submitter="two")], began=100)
    assert "a" in view.jobs
    view.snapshot([part(1, at=96 + GRACE, submitter="two")], began=96 + GRACE)
    assert "a" not in view.jobs


def test_submitters_of_long_ago_are_forgotten(view: JobView) -> None:
    for number in range(1000):
        view.announced(f"s{number}", 1)
    assert len(view._last_sequences) < 100


# --- a site that does what it likes, and a hub that hears some of it -------------------------------------------------
PHASES = ["queued", "running", "ended"]
STEP = st.one_of(
    st.tuples(st.just("advance"), st.integers(0, 9)),
    st.tuples(st.just("forget"), st.integers(0, 9)),
    st.tuples(st.just("deliver"), st.integers(1, 5)),
    st.tuples(st.just("lose"), st.integers(1, 3)),
    st.tuples(st.just("page"), st.integers(1, 4)),
)


@settings(max_examples=examples(80, 400))
@given(st.lists(STEP, max_size=80))
def test_whatever_was_lost_the_view_is_right_after_a_snapshot(steps: list[tuple[str, int]]) -> None:
    """Pages arrive while jobs change and events are in transit; at the end no event is in transit."""
    view, site, sequence, now = JobView(), dict[str, JobStatus](), 0, 0.0
    under_way: list[Event] = []
    pages: list[Part] = []
    cursor, began = "", 0.0
    view.announced("s", 0)

    def page(limit: int) -> None:
        nonlocal cursor, began, pages
        if not pages:
            began, cursor = now, ""
        left = sorted(uid for uid in site if uid > cursor)
        taken = left[:limit]
        pages.append(Part("s", sequence, [site[uid] for uid in taken], set(), now))
        cursor = taken[-1] if taken else cursor
        if len(left) <= limit:
            view.snapshot(pages, began)
            pages = []

    def forward() -> None:
        while under_way:
            view.event(under_way.pop(0), now)

    for kind, number in steps:
        now += GRACE + 1
        uid = f"u{number}"
        if kind == "advance":
            known = site.get(uid)
            phase = PHASES[min(PHASES.index(known.phase) + 1, 2)] if known else "queued"
            sequence += 1
            site[uid] = job(uid, phase, message=str(sequence), missing=phase == "running" and sequence % 2 == 0)
            under_way.append(event(sequence, site[uid]))
        elif kind == "forget":
            if uid in site and site[uid].phase == "ended":
                forward()  # the hub forgets what it has seen the end of
                del site[uid]
                view.gone(uid, now, now)
        elif kind == "deliver":
            for _ in range(min(number, len(under_way))):
                view.event(under_way.pop(0), now)
        elif kind == "lose":
            del under_way[:number]
        else:
            page(number)
        assert view.missing == {uid for uid, status in view.jobs.items() if status.missing}
    forward()
    now += GRACE + 1
    pages = []
    page(1000)
    assert view.jobs == site
    assert view.missing == {uid for uid, status in site.items() if status.missing}
    missed = view.announced("s", sequence)
    assert missed is False


def test_an_unused_end_is_not_final() -> None:
    """The hub submits the job again, perhaps to another submitter whose message was sent first."""
    unused = replace(job("a", "ended"), unused=True)
    view = JobView()
    view.event(event(5, unused, "first"), 1)
    assert view.submitted(unused, 2) is False
    assert view.event(event(1, job("a"), "second"), 3)[0]
    assert view.jobs["a"].phase == "queued"
    view.event(event(6, unused, "second"), 4)
    assert view.submitted(job("a"), 5)
    assert view.jobs["a"].phase == "queued"
    view.event(event(7, job("a", "ended"), "second"), 6)
    assert not view.event(event(1, job("a"), "third"), 7)[0]
    assert view.submitted(job("a"), 8) is False


def bytes_per_job(gang: str) -> float:
    """Return the memory that a hub keeps for a running job: what its site has reported, and its own state."""
    count, entries, view = 1000, dict[str, Entry](), JobView()
    container = ContainerState(name="main", state="running", started_at=1.0, started=True, ready=True)
    statuses = (job(f"a0000000-0000-4000-8000-{number:012}", "running") for number in range(count))
    more = {"gang": gang, "job_id": "14", "host": "n1", "ip": "10.0.0.1", "containers": [container]}
    events = [event(number, replace(status, **more)) for number, status in enumerate(statuses, 1)]
    messages = [each.model_dump_json().encode() for each in events]
    tracemalloc.start()
    try:
        for message in messages:
            received = parse(Event, message)
            view.event(received, 1)
            entry = entries[received.status.job] = Entry()
            entry.answered(1, received.status)
        return tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()


def test_a_pod_of_a_group_takes_as_much_memory_as_a_single_pod() -> None:
    bytes_per_job("")  # fills the caches of the parser
    single, member = bytes_per_job(""), bytes_per_job("9f000000-0000-4000-8000-000000000001")
    print(f"{single:.0f} and {member:.0f} bytes")
    assert member <= 1.02 * single
