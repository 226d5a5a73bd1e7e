import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.pools.nunet import dialect
from bridge.pools.nunet.dialect import JobAnswer

POD = {
    "metadata": {"namespace": "remote", "name": "p", "uid": "u-1"},
    "spec": {"containers": [{"name": "train", "image": "x"}]},
}


def state(word, before=None, now=1_700_000_000.0, configured=None, **more):
    answer = JobAnswer(job="n-1", status=word, **more)
    return dialect.job_status(POD, answer, "n-1", configured or {}, peer="QmP", last_status=before, now=now)


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("running", "running"),
        ("RUNNING", "running"),
        ("in_progress", "running"),
        ("Finished-without-errors", "succeeded"),
        ("finished with errors", "failed"),
        (" Pending ", "queued"),
        ("canceled", "cancelled"),
        ("hibernating", None),
        ("", None),
    ],
)
def test_words(word, meaning):
    assert dialect.state_of(word, {}) == meaning


def test_the_configuration_adds_and_replaces_words():
    configured = {dialect.normal("Hiber_Nating"): "queued", "running": "failed"}
    assert dialect.state_of("hiber-nating", configured) == "queued"
    assert dialect.state_of("running", configured) == "failed"


def test_an_unknown_word_leaves_the_last_known_state():
    found = state("hibernating")
    assert found.phase == "unknown"
    assert "'hibernating' has no meaning here" in found.message


def test_a_job_runs_and_ends():
    waiting = state("queued")
    assert (waiting.phase, waiting.containers[0].state) == ("queued", "waiting")
    running = state("running", waiting, started_at=1_699_999_990.0, remaining=6300)
    assert (running.phase, running.host, running.containers[0].name) == ("running", "QmP", "train")
    assert running.message == "the DMS ends it at 2023-11-14T23:58:20Z at the latest"
    ended = state("finished without errors", running, now=1_700_000_050.0, duration=40.0)
    assert (ended.phase, ended.outcome, ended.reason) == ("ended", "Succeeded", "")
    assert ended.ended_at == 1_699_999_990.0 + 40
    assert ended.containers[0].ended.exit_code == 0
    assert state("running", ended).phase == "running"  # the pool keeps the end: PolledPool.record


def test_failures_have_codes_and_reasons():
    failed = state("failed", message="no space")
    assert (failed.outcome, failed.reason, failed.containers[0].ended.exit_code) == ("Failed", "Error", 1)
    assert failed.message == "no space"
    assert state("failed", exit_code=42).containers[0].ended.exit_code == 42
    assert state("cancelled").reason == "Cancelled"
    assert state("finished", exit_code=3).outcome == "Failed"


def test_the_latest_end_is_reported_once():
    first = state("running", remaining=600.0)
    assert first.message == "the DMS ends it at 2023-11-14T22:23:20Z at the latest"
    assert state("running", first, now=1_700_000_030.0, remaining=575.0) == first


def test_the_end_is_reported_once():
    first = state("failed")
    assert state("failed", first, now=1_700_009_999.0) == first


@given(st.text(max_size=40), st.none() | st.floats(0, 1e9), st.none() | st.floats(1e8, 9e10))
def test_every_answer_becomes_a_state(word, seconds, start):
    found = state(word, remaining=seconds, duration=seconds, started_at=start)
    assert found.job_id == "n-1"
    assert (found.phase == "ended") == bool(found.outcome)
