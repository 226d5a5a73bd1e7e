from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import SlurmRefusedError
from bridge.slurm import parsers, slurm_values
from bridge.slurm.link import encode
from bridge.slurm.models import JobLink, JobRequest, Partition, PodRef
from bridge.slurm.versions import VERSIONS
from tests.examples import json_values

LINK = JobLink("here", (PodRef("ns", "pod", "uid"),))
NEW, OLD = VERSIONS["v0.0.45"], VERSIONS["v0.0.38"]


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def request(**fields: Any) -> JobRequest:
    return JobRequest(**{"name": "n", "link": LINK, "external": False, **fields})


COMMON = {
    "partition": "p",
    "account": "a",
    "qos": "q",
    "constraints": "c",
    "licenses": "l:1",
    "reservation": "r",
    "wckey": "w",
    "mcs_label": "m",
    "tasks": 4,
}
FULL = COMMON | {
    "priority": 5,
    "cpus": 2,
    "memory_mib": 100,
    "gres": ("gpu:2", "gres/nic:1"),
    "max_nodes": 3,
    "time_limit": 60,
    "exclusive": True,
}
WORDS = COMMON | {"name": "n", "cpus_per_task": 2, "current_working_directory": "/"}


def test_a_full_request_in_the_newest_version() -> None:
    asked = request(external=True, user_id="1", group_id="2", excluded_nodes=("n2", "n1"), **FULL)
    assert parsers.job_body(asked, NEW) == {
        "job": {
            **WORDS,
            "admin_comment": encode(LINK),
            "comment": "ns/pod",
            "environment": [f"PATH={parsers.SEARCH_PATH}"],
            "requeue": False,
            "minimum_nodes": 1,
            "maximum_nodes": 3,
            "priority": number(5),
            "memory_per_node": number(100),
            "time_limit": number(60),
            "tres_per_node": "gres/gpu:2,gres/nic:1",
            "shared": ["none"],
            "excluded_nodes": ["n[1-2]"],
            "user_id": "1",
            "group_id": "2",
            "flags": ["EXTERNAL_JOB"],
        }
    }


def test_a_full_request_in_the_oldest_version() -> None:
    assert parsers.job_body(request(**FULL), OLD) == {
        "script": parsers.PLACEHOLDER_SCRIPT,
        "job": {
            **WORDS,
            "comment": encode(LINK),
            "environment": {"PATH": parsers.SEARCH_PATH},
            "no_requeue": True,
            "nodes": "1-3",
            "priority": "5",
            "memory_per_node": 100,
            "time_limit": 60,
            "gres": "gpu:2,nic:1",
            "exclusive": "exclusive",
            "standard_output": "/dev/null",
        },
    }


@pytest.mark.parametrize(("tasks", "together", "sent"), [(0, 1, False), (0, 2, True), (3, 1, True)])
def test_the_oldest_version_gets_no_single_task_of_a_node_for_a_range_of_nodes(
    tasks: int, together: int, sent: bool
) -> None:
    asked = request(min_nodes=2, max_nodes=4, tasks=tasks, tasks_per_node=together)
    assert parsers.job_body(asked, OLD)["job"].get("tasks_per_node") == (together if sent else None)
    assert parsers.job_body(asked, NEW)["job"]["tasks_per_node"] == together


def test_what_is_not_asked_for_is_left_to_slurm() -> None:
    body = parsers.job_body(request(), VERSIONS["v0.0.42"])["job"]
    sent = "name current_working_directory tasks admin_comment comment environment requeue minimum_nodes"
    assert body.keys() == {*sent.split(), "standard_output", "script"}
    assert "script" in parsers.job_body(request(), VERSIONS["v0.0.40"])


@pytest.mark.parametrize(
    ("version", "fields", "words"),
    [
        ("v0.0.38", {"external": True}, "external jobs"),
        ("v0.0.42", {"external": True}, "external jobs"),
        ("v0.0.38", {"excluded_nodes": ("n",)}, "exclude nodes"),
        ("v0.0.38", {"user_id": "1"}, "other users"),
        ("v0.0.42", {"user_id": "alice", "group_id": "staff"}, "name of group staff"),
    ],
)
def test_what_a_version_can_not_say_is_refused(version: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SlurmRefusedError, match=f"{version} .*{words}"):
        parsers.job_body(request(**fields), VERSIONS[version])


def test_a_job_of_each_age() -> None:
    old = {"job_id": 5, "job_state": "RUNNING", "nodes": "n[1-2]", "time_limit": 7, "start_time": 9, "exit_code": 256}
    new = {"job_id": 5, "job_state": ["RUNNING"], "nodes": "n[1-2]", "time_limit": number(7), "start_time": number(9)}
    new["exit_code"] = {"return_code": number(1)}
    rest = {"state_reason": "None", "admin_comment": encode(LINK), "excluded_nodes": "n3", "restart_cnt": 2}
    for obj in ({**old, **rest}, {**new, **rest}):
        job = parsers.read_job(obj)
        assert (job.job_id, job.states, job.nodes, job.reason) == (5, {"RUNNING"}, ("n1", "n2"), "")
        assert (job.time_limit, job.start_time, job.exit_code, job.restarts) == (7, 9, 1, 2)
        assert (job.link, job.excluded_nodes) == (LINK, ("n3",))


@pytest.mark.parametrize("far", [2**40, 2**62])
def test_a_time_that_python_cannot_format_is_unknown(far: int) -> None:
    job = parsers.read_job({"job_id": 5, "job_state": ["PENDING"], "start_time": number(far)})
    assert job.start_time == 0


def test_a_comment_counts_only_in_jobs_of_our_own_user() -> None:
    job = {"job_id": 1, "comment": encode(LINK), "user_name": "alice"}
    assert parsers.read_job(job).link is None
    assert parsers.read_job(job, "slurm").link is None
    assert parsers.read_job(job, "alice").link == LINK
    assert parsers.read_job({**job, "admin_comment": "by hand"}, "alice").link == LINK


def test_a_node_of_each_age() -> None:
    old = {"name": "n", "state": "idle", "state_flags": ["DRAIN"], "features": "a,b", "real_memory": 5}
    new = {"name": "n", "state": ["IDLE", "DRAIN"], "features": ["a", "b"], "real_memory": 5}
    assert parsers.read_node(old) == parsers.read_node(new)
    assert parsers.read_node(new).states == {"IDLE", "DRAIN"}


def test_a_partition_of_each_age() -> None:
    old = {"name": "p", "nodes": "n[1-2]", "flags": ["default"], "max_time_limit": 60}
    new = {"name": "p", "nodes": {"configured": "n[1-2]"}, "flags": ["DEFAULT"], "maximums": {"time": number(60)}}
    assert parsers.read_partition(old) == parsers.read_partition(new)
    assert parsers.read_partition(new) == Partition("p", ("n1", "n2"), default=True, max_minutes=60)
    assert parsers.read_partition({"name": "p", "max_time_limit": -1}).max_minutes == 0


NO_NUMBERS = (
    *({"set": False, "infinite": False, "number": 5}, {"set": True, "infinite": True, "number": 5}, {"set": True}),
    *(None, -1, True, "x", float("nan"), float("inf"), []),
)


@pytest.mark.parametrize(
    ("value", "expected"), [(5, 5), ("5", 5), (number(5), 5), *((value, 0) for value in NO_NUMBERS)]
)
def test_numbers(value: object, expected: float) -> None:
    assert slurm_values.number(value) == expected


def test_tasks_of_arrays_are_counted_apart_from_the_list_of_states() -> None:
    entries = [
        {"job_id": "1", "state": ["RUNNING"]},
        {"job_id": 2, "state": "PENDING"},
        {"job_id": "3_1", "state": ["PENDING"]},
        {"job_id": "3_2", "state": "PENDING"},
        {"job_id": "5_1048576", "state": ["RUNNING"]},
        {"job_id": "3_", "state": ["PENDING"]},
        {"job_id": "_3", "state": ["PENDING"]},
        {"job_id": "4+0", "state": ["PENDING"]},
        {"job_id": None},
        {},
    ]
    tasks: Counter[frozenset[str]] = Counter()
    assert parsers.read_states(entries, tasks) == {1: {"RUNNING"}, 2: {"PENDING"}, 4: {"PENDING"}}
    assert tasks == {frozenset({"PENDING"}): 2, frozenset({"RUNNING"}): 1}


FIELDS = "job_id job_state nodes time_limit exit_code comment admin_comment name state flags maximums excluded_nodes"


@given(st.dictionaries(st.sampled_from(FIELDS.split()), json_values()))
def test_nothing_but_value_error_comes_out(obj: dict[str, Any]) -> None:
    for read in (parsers.read_job, parsers.read_node, parsers.read_partition):
        try:
            read(obj)
        except ValueError:
            continue
