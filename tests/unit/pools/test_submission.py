"""The job of a pod for a site."""

import pytest

from bridge.errors import MissingReferenceError, ScriptError
from bridge.pools import submission
from bridge.script import build

POD = {"metadata": {"namespace": "lab", "name": "p"}}


def raises(error):
    def broken(*_):
        raise error

    return broken


@pytest.mark.parametrize("bug", [TypeError("None is not iterable"), KeyError("x"), RecursionError()])
def test_a_bug_for_one_pod_is_an_error_of_this_pod(monkeypatch, bug):
    monkeypatch.setattr(build, "build", raises(bug))
    with pytest.raises(ScriptError, match=type(bug).__name__):
        submission.make(POD, None, None, "site")


def test_other_errors_stay_what_they_are(monkeypatch):
    missing = MissingReferenceError("Secret lab/a: not found")
    monkeypatch.setattr(build, "build", raises(missing))
    with pytest.raises(MissingReferenceError):
        submission.make(POD, None, None, "site")
