"""The state of a job: a faulty site can state no more than its limits."""

import json
from dataclasses import replace

import pytest
from pydantic import TypeAdapter

from bridge.protocol.model.jobs import (
    LONGEST_MESSAGE,
    LONGEST_TEXT,
    MOST_CONTAINERS,
    ContainerState,
    JobStatus,
    Termination,
)

HUGE = "x" * 10_000


def job(**fields: object) -> JobStatus:
    return JobStatus(job="a", namespace="n", name="p", phase="queued", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["owner", "job_id", "reason", "host", "ip"])
def test_a_long_text_of_a_job_is_cut(field: str) -> None:
    assert len(getattr(job(**{field: HUGE}), field)) == LONGEST_TEXT


def test_long_texts_of_containers_are_cut() -> None:
    ended = Termination(exit_code=1, reason=HUGE, message=HUGE)
    state = ContainerState(name=HUGE, reason=HUGE, message=HUGE, ended=ended, last=ended)
    assert [len(text) for text in (state.name, state.reason, state.message)] == [
        LONGEST_TEXT,
        LONGEST_TEXT,
        LONGEST_MESSAGE,
    ]
    assert (len(ended.reason), len(ended.message)) == (LONGEST_TEXT, LONGEST_MESSAGE)
    assert len(job(message=HUGE).message) == LONGEST_MESSAGE


def test_containers_beyond_the_limit_are_left_out() -> None:
    states = [ContainerState(name=f"c{number}") for number in range(MOST_CONTAINERS + 1)]
    found = job(containers=states, init_containers=states)
    assert len(found.containers) == len(found.init_containers) == MOST_CONTAINERS
    assert found.containers[-1].name == f"c{MOST_CONTAINERS - 1}"


def test_the_limits_hold_for_json_and_for_changed_copies() -> None:
    told = {"job": "a", "namespace": "n", "name": "p", "phase": "queued", "message": HUGE}
    assert len(TypeAdapter(JobStatus).validate_json(json.dumps(told)).message) == LONGEST_MESSAGE
    assert len(replace(job(), message=HUGE).message) == LONGEST_MESSAGE


def test_a_termination_message_of_kubernetes_stays_whole() -> None:
    text = "é" * 4096
    assert Termination(exit_code=0, message=text).message == text
