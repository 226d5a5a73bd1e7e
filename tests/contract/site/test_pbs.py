"""A site with PBS: real submitters and a real nats-server; qsub and the other commands are fakes.

Debian has no package of OpenPBS, so nothing in this file shows how a real PBS server behaves.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage, Empty
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, SUBMIT
from cluster.polling import eventually
from tests.contract.site import arrays, gangs
from tests.contract.site.conftest import Site
from tests.contract.site.jobs import submit, uid
from tests.contract.site.session_suite import check_sessions
from tests.fakes import pbs_commands

pytestmark = pytest.mark.real


WAITS = 'PODBRIDGE_START_WAIT_SECONDS = "5", PODBRIDGE_PLACE_WAIT_SECONDS = "5"'
FLAGS = ("slots", "nodes", "no-history", "down", "slow", "max-queued")


@pytest.fixture(scope="module")
def shared(nats_url: str) -> Iterator[Any]:
    """One site for all tests: each leaves nothing behind but ended jobs."""
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        commands = pbs_commands.install(Path(folder) / "pbs")
        text = (
            f'[pbs]\nbin_dir = "{commands}"\naccount = "project"\nenvironment = {{ A = "a, \\"b\\"", {WAITS} }}\n'
            '[batch]\nkind = "pbs"\nperiod = 0.5\nlost_after = 2\nsettle = 3\nlag = 1\n'
            "[limits]\nallow_ports = true\nallow_reach = true\n"
        )
        with Site(Path(folder), nats_url, "pbs", text) as made:
            made.records = commands.parent / "records"
            yield made


@pytest.fixture
def site(shared: Any) -> Iterator[Any]:
    yield shared
    for flag in FLAGS:
        (shared.records / flag).unlink(missing_ok=True)


def record(site: Any, job_id: str) -> Any:
    return json.loads((site.records / f"{job_id.partition('.')[0]}.json").read_text())


def test_a_job_runs_and_says_how_it_ended(site: Any) -> None:
    job = site.submit('echo "hello $A"; exit 3', time_limit=90, memory=300 * 2**20, cpus=2)
    done = site.wait(job, "ended")
    assert (done.outcome, done.containers[0].ended.exit_code) == ("Failed", 3)
    assert done.job_id.endswith(".fakepbs")
    assert (site.log(job), site.heard_end(job)[1].status.outcome) == (b'hello a, "b"\n', "Failed")
    asked = record(site, done.job_id)
    assert (asked["Job_Name"], asked["Account_Name"]) == (f"pb-{job}", "project")
    assert asked["Resource_List"] == {"ncpus": "2", "mem": "300mb", "select": "1:ncpus=2:mem=300mb", "walltime": "90"}
    said = site.client.call(DESCRIBE, "", Empty()).announce
    assert (said.batch, said.capacity["cpu"], said.capacity["nvidia.com/gpu"]) == ("pbs 23.06.06", "4", "2")


def test_a_running_job_is_cancelled_and_forgotten(site: Any) -> None:
    job = site.submit("sleep 60")
    job_id = site.wait(job, "running").job_id
    site.client.call(CANCEL, job, CancelMessage(grace=0, forget=True))
    eventually(lambda: site.status(job) is None)
    eventually(lambda: record(site, job_id)["job_state"] == "F")


def test_a_waiting_job_says_why_and_is_cancelled(site: Any) -> None:
    (site.records / "slots").write_text("0")
    job = site.submit("true")
    told = eventually(lambda: (s := site.status(job)).reason == "WaitingForResources" and s)
    assert told.message == f"PBS job {told.job_id} is queued: Not Running: Insufficient amount of resource: ncpus"
    site.client.call(CANCEL, job, CancelMessage(grace=30))
    assert site.wait(job, "ended").reason == "Deleted"
    assert record(site, told.job_id)["substate"] == pbs_commands.TERMINATED


@pytest.mark.parametrize("history", [True, False], ids=["history", "no-history"])
def test_a_job_deleted_by_a_person_ends_with_the_reason(site: Any, history: bool) -> None:
    if not history:
        (site.records / "no-history").touch()
    job = uid()
    script = 'trap "" TERM\ncd "${0%/*}"\nmkdir started || exit 0\nsleep 1000 & wait\nwait\n'
    site.client.call(SUBMIT, job, submit("true").model_copy(update={"script": script}))
    job_id = site.wait(job, "running").job_id
    subprocess.run([site.records.parent / "bin" / "qdel", job_id], check=True)
    if history:
        done = site.wait(job, "ended")
        assert (done.outcome, done.reason, done.message) == ("Failed", "Cancelled", f"PBS job {job_id} was deleted")
    else:  # no record says how: the hub decides
        eventually(lambda: site.status(job).missing)
        site.client.call(CANCEL, job, CancelMessage(grace=0, forget=True))


def test_a_job_over_its_walltime_ends_with_the_reason(site: Any) -> None:
    done = site.wait(site.submit("sleep 60", time_limit=1), "ended", 40)
    assert (done.outcome, done.reason) == ("Failed", "DeadlineExceeded")


def test_a_refusal_gives_the_words_of_pbs_and_leaves_nothing(site: Any) -> None:
    job = uid()
    with pytest.raises(SiteRefusedError, match="Job exceeds queue and/or server resource limits") as refused:
        site.client.call(SUBMIT, job, submit("true", cpus=64))
    assert (refused.value.reason, refused.value.retryable) == ("BatchSystemRefused", False)
    assert not (site.folder / "jobs" / job).exists()


def test_a_server_that_is_down_ends_no_job(site: Any) -> None:
    job = site.submit("sleep 3; echo done")
    site.wait(job, "running")
    (site.records / "down").touch()
    time.sleep(3)  # longer than lost_after
    assert not site.status(job).missing
    with pytest.raises(SiteRefusedError, match="cannot connect to server") as refused:
        site.client.call(SUBMIT, uid(), submit("true"))
    assert refused.value.retryable
    (site.records / "down").unlink()
    assert site.wait(job, "ended").outcome == "Succeeded"


def test_a_job_outlives_its_submitter_and_is_found_again(site: Any) -> None:
    job = site.submit("sleep 2; echo survived")
    site.wait(job, "running")
    site.kill(site.processes[0])
    site.start()
    assert site.client.call(SUBMIT, job, submit("echo twice")).existed
    assert (site.wait(job, "ended").outcome, site.log(job)) == ("Succeeded", b"survived\n")
    assert sum(f"pb-{job}" in file.read_text() for file in site.records.glob("*.json")) == 1


# --- arrays -----------------------------------------------------------------------------------------------------------
JOB_ID = "ARRAY[INDEX].fakepbs"


@pytest.mark.parametrize("history", [pytest.param(True, marks=pytest.mark.long_only), False])
def test_each_pod_of_an_array_has_its_own_end(site: Any, history: bool) -> None:
    if not history:
        (site.records / "no-history").touch()
    qdel = site.records.parent / "bin" / "qdel"
    arrays.check_each_has_its_own_end(
        site, JOB_ID, lambda: restart(site), lambda job: subprocess.run([qdel, job], check=True)
    )


def restart(site: Any) -> None:
    site.kill(site.processes[-1])
    site.start()


def test_killed_between_qsub_of_an_array_and_its_answer(site: Any) -> None:
    (site.records / "slow").write_text("1.5")

    def kill() -> None:
        eventually(lambda: any("[]" in file.name for file in site.records.glob("*.json")), "the array")
        restart(site)

    arrays.check_killed_before_the_answer(site, JOB_ID, kill)


def test_a_limit_of_jobs_makes_smaller_arrays(site: Any) -> None:
    """The submitter is started again while the limit holds pods back: each runs once."""
    (site.records / "max-queued").write_text("3")
    pods = arrays.submit_pods(site, 5, "sleep 2; echo $INDEX")
    text = "qsub: would exceed complex's per-user limit of jobs"
    eventually(lambda: [site.status(pod).message for pod in pods].count(text) == 2, "two pods are held back", 20)
    assert sum(bool(site.status(pod).job_id) for pod in pods) == 3
    restart(site)
    assert {site.wait(pod, "ended", 60).outcome for pod in pods} == {"Succeeded"}
    assert [site.log(pod) for pod in pods] == [f"{index}\n".encode() for index in range(5)]
    arrays.forget(site, pods)


# --- groups -----------------------------------------------------------------------------------------------------------
@pytest.fixture
def machines(site: Any) -> Any:
    """The site with two machines."""
    (site.records / "nodes").write_text("2")
    return site


def test_four_pods_run_as_one_job_on_two_machines(machines: Any) -> None:
    ends = gangs.check_one_job_for_all(machines, machines_used=2)
    asked = record(machines, ends[0].job_id)["Resource_List"]
    assert (asked["select"], asked["place"]) == ("2:ncpus=2:mem=256mb", "scatter")
    assert any(announce.gangs for announce in machines.announced)


def test_if_one_pod_does_not_start_none_does(machines: Any) -> None:
    gangs.check_all_or_none(machines)


@pytest.mark.long_only
def test_a_pod_takes_the_place_of_one_that_is_over(machines: Any) -> None:
    gangs.check_successor(machines, {"cpus": 2})


@pytest.mark.long_only
def test_one_pod_is_killed_and_the_others_run_on(machines: Any) -> None:
    gangs.check_one_is_killed(machines)


def test_pods_are_cancelled_while_their_job_is_queued(site: Any) -> None:
    (site.records / "slots").write_text("0")
    gangs.check_cancelled_while_queued(site)


def test_a_deleted_job_ends_all_pods_as_cancelled(machines: Any) -> None:
    group = gangs.Group(machines, 2, per_node=1)
    group.submit_all("sleep 600")
    job = group.wait("running")[0].job_id
    subprocess.run([machines.records.parent / "bin" / "qdel", job], check=True)
    assert {end.reason for end in group.wait("ended")} == {"Cancelled"}
    group.check_nothing_left()


def test_the_script_of_a_pod_runs_commands_and_connects_to_ports_and_services(site: Any) -> None:
    check_sessions(site)
