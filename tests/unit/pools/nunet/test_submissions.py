import math

import pytest

from bridge.core.job_lifecycle import NEW, Event, State
from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError, UnknownJobError
from bridge.pools.nunet.submissions import Submission, Submissions


@pytest.fixture
def submission():
    return Submission()


def send(submission, word, error):
    with pytest.raises(type(error)), submission.sending(word):
        raise error


def test_one_caller_at_once_submits_a_pod():
    submissions = Submissions()
    with submissions.only_caller("u") as first, submissions.only_caller("v"):
        submissions.forget("u")
        for _ in range(2):  # the refused caller does not end the first
            with pytest.raises(UnknownJobError), submissions.only_caller("u"):
                pass
    with submissions.only_caller("u") as second:
        assert second is not first, "nothing was sent: nothing is kept"
        second.identify("job-1", 7.0)
    with submissions.only_caller("u") as third:
        assert third is second
    submissions.forget("u")
    assert submissions.get("u") == Submission()


def test_a_pod_cannot_claim_the_job_of_another_pod():
    submissions = Submissions()
    submissions.claim("u", "job-1", 7.0, {})
    submissions.claim("u", "job-1", 8.0, {"u": "job-1", "w": None})
    for others in ({}, {"w": "job-2"}):
        with pytest.raises(UnknownJobError, match="another pod"):
            submissions.claim("v", others.get("w", "job-1"), 9.0, others)
    assert (submissions.get("u").job, submissions.get("v").job) == ("job-1", "")


def test_a_submission_is_known_while_it_is_in_progress(submission):
    assert submission.open_word is None
    with submission.sending(""):
        assert submission.open_word == ""
    submission.identify("job-1", 7.0)
    assert (submission.open_word, submission.job, submission.lifecycle.state) == (None, "job-1", State.KNOWN)


@pytest.mark.parametrize("error", [SiteUnknownOutcomeError("HTTP 504"), RuntimeError()])
def test_a_submission_with_an_unknown_outcome_stays_known(submission, error):
    send(submission, "true", error)
    assert submission.open_word == "true"
    assert not submission.lifecycle.denied(math.inf).is_absent, "no answer proves it"
    with pytest.raises(ValueError, match="UNKNOWN"), submission.sending("other"):
        pass


@pytest.mark.parametrize("error", [SiteDownError("refused"), SiteError("HTTP 400")])
def test_a_refused_submission_says_nothing_about_an_earlier_one(submission, error):
    send(submission, "", error)
    assert (submission.open_word, submission.lifecycle) == (None, NEW)
    send(submission, "", SiteUnknownOutcomeError("HTTP 504"))
    submission.lifecycle = submission.lifecycle.after(Event.DENIED)  # the user states it
    send(submission, "true", error)
    assert (submission.open_word, submission.lifecycle.may_submit) == (None, True), "the statement still counts"


def test_a_job_that_a_peer_shows_while_its_request_is_in_progress_stays_known(submission):
    with pytest.raises(SiteUnknownOutcomeError), submission.sending(""):
        submission.identify("job-1", 7.0)
        raise SiteUnknownOutcomeError("no answer")
    assert (submission.job, submission.lifecycle.state) == ("job-1", State.KNOWN)
