import pytest

from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError, UnknownJobError
from bridge.pools.nunet.submissions import Sent, Submissions
from tests.fakes.clock import FakeClock


@pytest.fixture
def clock():
    return FakeClock(1000.0)


@pytest.fixture
def submissions(clock):
    return Submissions(120.0, clock)


def send(submissions, word, error):
    with pytest.raises(type(error)), submissions.sending("u", word):
        raise error


def test_one_caller_at_once_submits_a_pod(submissions):
    with submissions.only_caller("u"), submissions.only_caller("v"):
        for _ in range(2):  # the refused caller does not end the first
            with pytest.raises(UnknownJobError), submissions.only_caller("u"):
                pass
    with submissions.only_caller("u"):
        pass


def test_a_submission_may_arrive_while_it_is_in_progress(submissions):
    with submissions.sending("u", ""):
        assert submissions.may_arrive("u")
    assert not submissions.may_arrive("u")
    assert submissions.sent("u") is None


@pytest.mark.parametrize("error", [SiteUnknownOutcomeError("HTTP 504"), RuntimeError()])
def test_a_submission_with_an_unknown_outcome_may_arrive_for_a_while(submissions, clock, error):
    send(submissions, "true", error)
    clock.advance(120)
    assert submissions.may_arrive("u")
    clock.advance(1)
    assert not submissions.may_arrive("u")
    assert submissions.sent("u") == Sent(1120.0, "true")
    submissions.forget("u")
    assert submissions.sent("u") is None


@pytest.mark.parametrize("error", [SiteDownError("refused"), SiteError("HTTP 400")])
def test_a_refused_submission_says_nothing_about_an_earlier_one(submissions, error):
    send(submissions, "", error)
    assert submissions.sent("u") is None
    send(submissions, "", SiteUnknownOutcomeError("HTTP 504"))
    send(submissions, "true", error)
    assert submissions.sent("u") == Sent(1120.0, "")
