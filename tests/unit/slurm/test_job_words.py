"""What a job asks for and when it starts, in words."""

import pytest

from bridge.slurm import job_words
from bridge.slurm.allotments import Allotment, of_request
from bridge.slurm.models import Job

NOW = 1_767_225_600.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, ""),
        (Allotment(), ""),
        (Allotment(1, 512000), "1 CPU, 500 GiB"),
        (Allotment(2, 1536, (("gpu:a100", 2),)), "2 CPUs, 1.5 GiB, gpu:a100:2"),
        (Allotment(2, 100), "2 CPUs, 100 MiB"),
        (Allotment(0, 20 * 1024**2, (("gpu", 1), ("gpu:a", 3))), "20 TiB, gpu:1, gpu:a:3"),
    ],
)
def test_amounts(given, text):
    assert job_words.amounts(given) == text
    read = job_words.read_asked(f"Slurm job 7 is pending; it asks for {text}")
    assert job_words.amounts(read) == text, "it is written again as it was read"
    assert read.memory_mib <= (given or Allotment()).memory_mib, "a whole node is never too small for it"


def test_a_request_has_the_memory_that_slurm_adds():
    asks = of_request("cpu=4,mem=500G,node=2,billing=1", "gres/gpu:2", "")
    assert job_words.amounts(asks) == "4 CPUs, 500 GiB, gpu:4"
    assert job_words.amounts(of_request("", "", "")) == ""


@pytest.mark.parametrize(
    ("start", "text"),
    [(0, ""), (NOW + 61, "2026-01-01T00:01:00Z"), (NOW + 365 * 86400, "unknown: the jobs ahead have no time limit")],
)
def test_a_start_in_a_year_is_unknown(start, text):
    assert job_words.expected_start(Job(1, frozenset({"PENDING"}), start_time=start), NOW) == text


@pytest.mark.parametrize("partition", ["", "main", "main,gpu"])
@pytest.mark.parametrize("start", [0.0, NOW + 60, NOW + 365 * 86400])
@pytest.mark.parametrize("asks", [None, Allotment(1, 512000)])
@pytest.mark.parametrize("reason", ["", "Resources", "JobHeldUser", "launch_failed_requeued_held"])
def test_a_message_is_read_as_it_was_written(partition, start, asks, reason):
    job = Job(7, frozenset({"PENDING"}), reason=reason, partition=partition, start_time=start, request=asks)
    known = "2026-01-01T00:01:00Z" if start == NOW + 60 else ""
    wanted = job_words.WaitingWords(partition, reason, known) if reason else job_words.WaitingWords()
    assert job_words.read_waiting(job_words.waiting(job, NOW)) == wanted


def test_other_messages_have_no_reason_of_slurm():
    assert job_words.read_waiting("no node fits: 4 too little cpu") == job_words.WaitingWords()


@pytest.mark.parametrize(("minutes", "text"), [(5, "00:05:00"), (90.9, "01:30:00"), (1530, "1-01:30:00")])
def test_minutes_are_written_as_slurm_writes_them(minutes, text):
    assert job_words.minutes(minutes) == text


@pytest.mark.parametrize(
    ("states", "text"),
    [
        (("PENDING",), "Slurm job 7 is pending in partition p: no reason is known yet"),
        (("PENDING", "REQUEUE_HOLD"), "Slurm job 7 is pending in partition p: no reason is known yet"),
        (("SUSPENDED",), "Slurm job 7 is suspended in partition p: no reason is known yet"),
        (("RUNNING", "COMPLETING"), "Slurm job 7 is COMPLETING+RUNNING in partition p: no reason is known yet"),
    ],
)
def test_a_job_has_the_state_that_slurm_shows_and_no_reason_that_it_does_not_show(states, text):
    assert job_words.waiting(Job(7, frozenset(states), partition="p"), NOW) == text
