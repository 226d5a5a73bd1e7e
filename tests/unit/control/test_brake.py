"""The mass-termination guard: the pod of one missing job is terminated at once, many are held."""

from hypothesis import given
from hypothesis import strategies as st

from bridge.control.brake import Brake, BrakeAnswer, GuardLimits, step

LIMITS = GuardLimits(share=0.2, least=10, hold=60)


def keys(count, first=0):
    return {f"pod{number}" for number in range(first, first + count)}


def test_a_few_that_vanish_may_end_at_once():
    after = step(Brake(), 100, keys(9), 0, LIMITS)
    assert (after.engaged, after.allowed) == (False, keys(9))
    after = step(Brake(), 1000, keys(200), 0, LIMITS)  # a fifth is not more than a fifth
    assert (after.engaged, after.allowed) == (False, keys(200))


def test_jobs_that_are_reported_one_by_one_are_counted_together_before_any_may_end():
    limits = GuardLimits(share=0.2, least=10, hold=60, settle=5)
    state = Brake()
    for number in range(1, 10):
        state = step(state, 12, keys(number), number / 2, limits)
        assert (state.engaged, state.allowed, state.held) == (False, set(), set())
    state = step(state, 12, keys(10), 5, limits)
    assert (state.engaged, state.held) == (True, keys(10))
    state = step(Brake(), 12, keys(1), 0, limits)
    assert step(state, 12, keys(1), 4.9, limits).allowed == set()
    assert step(state, 12, keys(1), 5, limits).allowed == keys(1)


def test_many_that_vanish_are_held_for_a_minute_each_and_only_if_told():
    state = step(Brake(), 12, keys(10), 0, LIMITS)
    assert (state.engaged, state.held) == (True, keys(10))
    state = step(state, 12, keys(12), 30, LIMITS, reported=keys(12))
    assert state.held == keys(12)
    assert step(state, 12, keys(12), 60, LIMITS).held == keys(12)
    state = step(state, 12, keys(12), 60, LIMITS, reported=keys(12))
    assert state.allowed == keys(10)
    assert state.engaged
    state = step(state, 12, keys(12), 90, LIMITS, reported=keys(12))
    assert (state.engaged, state.allowed) == (False, keys(12))


def test_jobs_that_are_there_again_release_the_brake_and_their_time_begins_anew():
    state = step(Brake(), 12, keys(12), 0, LIMITS)
    state = step(state, 12, keys(0), 59, LIMITS)
    assert (state.engaged, state.missing) == (False, {})
    state = step(state, 12, keys(12), 61, LIMITS, reported=keys(12))
    assert state.held == keys(12)
    assert step(state, 12, keys(12), 120, LIMITS, reported=keys(12)).held == keys(12)


def test_an_administrators_word():
    state = step(Brake(), 12, keys(12), 0, LIMITS)
    held = step(state, 12, keys(12), 10_000, LIMITS, BrakeAnswer.HOLD, reported=keys(12))
    assert held.held == keys(12)
    ended = step(held, 12, keys(12), 10_001, LIMITS, BrakeAnswer.CONFIRM)
    assert (ended.engaged, ended.allowed) == (False, keys(12))
    assert step(ended, 12, keys(12), 10_002, LIMITS).allowed == keys(12)  # while their pods end


def test_jobs_that_vanish_a_few_at_a_time_engage_it_as_well():
    state, gone = Brake(), 0
    for second in range(20):
        state = step(state, 40 - gone, keys(2, gone), second, LIMITS)
        if state.engaged:
            break
        gone += 2  # their pods have ended before the next step
    assert gone == 8


def test_the_brake_stays_engaged_while_fewer_jobs_than_its_limit_are_missing():
    state = step(Brake(), 12, keys(12), 0, LIMITS)
    state = step(state, 12, keys(9), 1, LIMITS, reported=keys(12))
    assert (state.engaged, state.held, state.allowed) == (True, keys(9), set())


def test_one_lost_job_a_day_never_engages_it():
    state = Brake()
    for day in range(3 * LIMITS.least):
        state = step(state, 40, keys(1, day), day * 86400, LIMITS)
        assert (state.engaged, state.allowed) == (False, keys(1, day))


@given(
    st.lists(st.tuples(st.floats(0, 40), st.frozensets(st.integers(0, 39)), st.sampled_from(["", "hold"])), max_size=25)
)
def test_never_more_than_the_share_is_believed_within_the_hold(steps):
    """In any sequence, the keys allowed at once within a minute are fewer than the limit."""
    state, now = Brake(), 0.0
    early: dict[str, float] = {}
    since: dict[str, float] = {}
    for pause, numbers, word in steps:
        now += pause
        missing = {str(number) for number in numbers}
        since = {key: since.get(key, now) for key in missing}
        before = state
        state = step(state, 40, missing, now, LIMITS, BrakeAnswer(word), reported=missing)
        assert state.missing == since
        assert state.allowed <= missing
        assert before.allowed & missing <= state.allowed
        for key in state.allowed - before.allowed:
            if now < since[key] + LIMITS.hold:
                early[key] = now
        assert len([key for key, at in early.items() if now < at + LIMITS.hold]) < LIMITS.least
        assert state.engaged == bool(state.held)
