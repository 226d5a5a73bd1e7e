"""One job of one pod: never two at once, none lost, whatever requests, answers and restarts do."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bridge.core import job_lifecycle
from bridge.core.job_lifecycle import NEVER, NEW, TRANSITIONS, Event, Lifecycle, State
from bridge.errors import BatchUnknownOutcomeError, SiteDownError, SiteUnknownOutcomeError, SlurmUnknownOutcomeError

SHOWN = {Event.QUEUED: State.KNOWN, Event.STARTED: State.STARTED, Event.ENDED: State.ENDED}
MAY_SEND = {State.WANTED, State.ABSENT, State.LOST, State.ENDED}
TIMES = st.integers(0, 50).map(float)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_each_event_has_a_next_state_or_is_refused(state: State, event: Event) -> None:
    """An answer shows a job at any time; a request is sent only if none may still be carried out."""
    is_possible = {Event.SEND: state in MAY_SEND, Event.NO_ANSWER: state is State.SENT}.get(
        event, event in SHOWN or state is not State.SENT
    )
    assert Lifecycle(state).may_submit == (state in MAY_SEND)
    if not is_possible:
        with pytest.raises(ValueError, match=state.name):
            Lifecycle(state).after(event)
        return
    after = Lifecycle(state, 1.0, 2.0, 3.0).after(event)
    assert (after.until, after.answered_at, after.absent_since) == (1.0, 2.0, 3.0)
    assert after.state is SHOWN.get(event, after.state)
    assert after.is_lost == (event is Event.DENIED and state in (State.ABSENT, State.LOST))


def test_every_state_is_reached_and_none_is_the_last() -> None:
    reached, todo = set(), [State.WANTED]
    while todo:
        state = todo.pop()
        if state not in reached:
            reached.add(state)
            todo += TRANSITIONS[state].values()
    assert reached == set(State) == set(TRANSITIONS)
    assert all(row.keys() >= SHOWN.keys() for row in TRANSITIONS.values())


def test_the_diagram_in_the_documentation_shows_transitions_of_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs/developers/architecture.md").read_text()
    diagram = page.split("## Remote pools")[1].split("```")[1]
    edges = {(State[a.upper()], State[b.upper()]) for a, b in re.findall(r"^  (\w+) --> (\w+)", diagram, re.MULTILINE)}
    assert edges <= {(state, after) for state, row in TRANSITIONS.items() for after in row.values()}
    assert {state for edge in edges for state in edge} == set(State)


@given(until=TIMES, requested_at=TIMES)
def test_an_answer_that_was_requested_too_early_proves_nothing(until: float, requested_at: float) -> None:
    unknown = NEW.after(Event.SEND).unanswered(until)
    assert unknown.look_at(5.0) == NEVER, "the job is looked for at once"
    answered = unknown.denied(requested_at)
    assert (
        answered.is_absent
        == answered.may_submit
        == (requested_at > until)
        == (not unknown.may_take_effect(requested_at))
    )
    assert answered.look_at(5.0) == (requested_at + 5.0 if answered.is_absent else until)
    assert NEW.after(Event.SEND).denied(requested_at).state is State.SENT


@given(shown_at=TIMES, answers=st.lists(TIMES, max_size=5), lost_after=TIMES)
def test_a_job_is_lost_after_two_answers_that_were_requested_far_enough_apart(
    shown_at: float, answers: list[float], lost_after: float
) -> None:
    lifecycle, counted = NEW.shown(Event.STARTED, shown_at), [at for at in sorted(answers) if at > shown_at]
    for at in sorted(answers):
        lifecycle = lifecycle.denied(at, lost_after)
    assert lifecycle.is_absent == bool(counted)
    assert lifecycle.is_lost == (len(counted) > 1 and counted[-1] - counted[0] >= lost_after)
    assert lifecycle.shown(Event.QUEUED, 60.0) == Lifecycle(State.KNOWN, NEVER, 60.0, lifecycle.absent_since)


@pytest.mark.parametrize(
    ("error", "is_unknown"),
    [
        (SiteUnknownOutcomeError("HTTP 504"), True),
        (SlurmUnknownOutcomeError("no answer"), True),
        (BatchUnknownOutcomeError("killed"), True),
        (KeyError("a defect after the request"), True),
        (SiteDownError("no subscriber"), False),
    ],
)
def test_a_request_that_failed_may_have_been_carried_out_or_not(error: Exception, is_unknown: bool) -> None:
    holder = SimpleNamespace(lifecycle=Lifecycle(State.ABSENT, absent_since=3.0))
    before = holder.lifecycle
    with pytest.raises(type(error)), job_lifecycle.sending(holder, lambda: 9.0):
        assert holder.lifecycle.state is State.SENT
        with pytest.raises(ValueError, match="SENT"), job_lifecycle.sending(holder, lambda: 9.0):
            pass
        raise error
    assert holder.lifecycle == (Lifecycle(State.UNKNOWN, 9.0, NEVER, 3.0) if is_unknown else before)


# --- a site that creates a job for each request that arrives ----------------------------------------------------------
LIMIT, AGAIN = 30.0, 5.0
"""Seconds for which a request may be carried out, and between the two answers that make a job lost."""


class Site(RuleBasedStateMachine):
    """A process that requests the job of one pod. ``intent`` and ``recorded`` are on the pod and survive its end."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.jobs, self.lost, self.lifecycle = 1000.0, [], 0, NEW
        self.intent = self.recorded = False
        self.in_flight: list[float] = []
        """The times until which the site may carry out the requests that it has not carried out yet."""
        self.question: tuple[float, Event | None] | None = None
        """When the process has asked for its job, and what the site has answered."""
        self.denials: list[float] = []
        self.shown_at = NEVER

    @property
    def shown(self) -> Event | None:
        return self.jobs[-1] if self.jobs else None

    @rule(network=st.sampled_from(["works", "refused", "late", "answer lost", "killed"]))
    def process_acts(self, network: str) -> None:
        """Submit if that is allowed, else look for the job if that is due."""
        if self.question is not None or (self.lifecycle.is_lost and self.recorded):
            return
        if self.lifecycle.may_submit and not self.recorded:
            self.intent = True
            self.submit(network)
        elif self.now >= self.lifecycle.look_at(AGAIN):
            self.question = self.now, self.shown

    def submit(self, network: str) -> None:
        assert not self.in_flight, "a request may still take effect"
        if network == "killed":
            self.in_flight.append(self.now + LIMIT)
            self.restart()
            return
        try:
            with job_lifecycle.sending(self, lambda: self.now + LIMIT):
                if network == "refused":
                    raise SiteDownError("no subscriber")
                if network == "late":
                    self.in_flight.append(self.now + LIMIT)
                else:
                    self.jobs.append(Event.QUEUED)
                if network != "works":
                    raise SiteUnknownOutcomeError("no answer")
            self.see(Event.QUEUED)
        except SiteDownError:
            return  # nothing was sent: the earlier answers count
        except SiteUnknownOutcomeError:
            self.denials.clear()

    def see(self, event: Event) -> None:
        self.lifecycle, self.recorded = self.lifecycle.shown(event, self.now), True
        self.denials.clear()
        self.shown_at = self.now

    @rule()
    def restart(self) -> None:
        """Start the process again, as after kill -9."""
        self.lifecycle, self.question, self.shown_at = NEW, None, NEVER
        self.denials.clear()
        if self.intent and not self.recorded:
            self.lifecycle = NEW.after(Event.SEND).unanswered(self.now + LIMIT)

    @precondition(lambda self: self.question is not None)
    @rule(is_lost=st.booleans(), reads_now=st.booleans())
    def an_answer_arrives(self, is_lost: bool, reads_now: bool) -> None:
        """The site has read its jobs when it was asked, or reads them now."""
        assert self.question is not None
        (requested_at, shown), self.question = self.question, None
        shown = self.shown if reads_now else shown
        if is_lost:
            return
        if shown is not None:
            self.see(shown)
        else:
            if requested_at > self.shown_at:
                self.denials.append(requested_at)
            self.lifecycle = self.lifecycle.denied(requested_at, AGAIN)

    @precondition(lambda self: self.jobs)
    @rule()
    def an_event_shows_the_job(self) -> None:
        self.see(self.jobs[-1])

    @precondition(lambda self: self.in_flight)
    @rule(arrives=st.booleans())
    def a_late_request_arrives(self, arrives: bool) -> None:
        if self.in_flight.pop() >= self.now and arrives:
            self.jobs.append(Event.QUEUED)

    @precondition(lambda self: self.jobs)
    @rule(event=st.sampled_from(list(SHOWN)))
    def the_job_goes_on(self, event: Event) -> None:
        if self.jobs[-1] is not Event.ENDED:
            self.jobs[-1] = event

    @precondition(lambda self: self.jobs)
    @rule(now=st.integers(0, 4))
    def the_site_loses_its_job(self, now: int) -> None:
        if now == 4:
            self.lost += len(self.jobs)
            self.jobs.clear()

    @rule(seconds=st.sampled_from([0.5, AGAIN, 20.0, LIMIT, LIMIT + 1]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.in_flight = [until for until in self.in_flight if until >= self.now]

    @invariant()
    def the_pod_has_one_job_at_most(self) -> None:
        assert len(self.jobs) + len(self.in_flight) <= 1

    @invariant()
    def no_job_is_given_up(self) -> None:
        """Absence is proven: neither a job nor a request for one exists. A loss is proven twice."""
        if self.lifecycle.is_absent:
            assert not self.jobs and not self.in_flight
        if self.lifecycle.is_lost:
            assert len(self.denials) > 1 and self.denials[-1] - self.denials[0] >= AGAIN
            assert not self.recorded or self.lost

    def teardown(self) -> None:
        """At last the network works: the pod has its job, or the process knows that the site has lost it."""
        for _ in range(8):
            if self.question is not None:
                self.an_answer_arrives(False, True)
            self.process_acts("works")
            self.time_passes(20.0)
        if self.question is not None:
            self.an_answer_arrives(False, True)
        has_its_job = bool(self.jobs) and self.lifecycle.state in SHOWN.values()
        assert has_its_job or (self.lifecycle.is_lost and self.lost), self.lifecycle


TestSite = Site.TestCase
TestSite.settings = settings(stateful_step_count=40)
