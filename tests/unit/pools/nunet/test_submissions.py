import pytest

from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError, UnknownJobError
from bridge.pools.nunet.submissions import Submissions


@pytest.fixture
def submissions():
    return Submissions()


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


def test_a_submission_is_known_while_it_is_in_progress(submissions):
    with submissions.sending("u", ""):
        assert submissions.word("u") == ""
    assert submissions.word("u") is None


@pytest.mark.parametrize("error", [SiteUnknownOutcomeError("HTTP 504"), RuntimeError()])
def test_a_submission_with_an_unknown_outcome_stays_known(submissions, error):
    send(submissions, "true", error)
    assert submissions.word("u") == "true"
    submissions.forget("u")
    assert submissions.word("u") is None


@pytest.mark.parametrize("error", [SiteDownError("refused"), SiteError("HTTP 400")])
def test_a_refused_submission_says_nothing_about_an_earlier_one(submissions, error):
    send(submissions, "", error)
    assert submissions.word("u") is None
    send(submissions, "", SiteUnknownOutcomeError("HTTP 504"))
    send(submissions, "true", error)
    assert submissions.word("u") == ""
