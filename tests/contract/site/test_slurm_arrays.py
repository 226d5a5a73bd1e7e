"""Equal pods of one owner as one array of a real Slurm, in each version."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from bridge.protocol.model.requests import EqualPods
from bridge.protocol.nats.messages import CancelMessage
from bridge.protocol.nats.request_table import CANCEL, SUBMIT
from cluster.polling import eventually
from tests.contract.site.jobs import submit, uid
from tests.contract.site.test_slurm import site, slow_sbatch

__all__ = ["site"]
pytestmark = pytest.mark.real
OWNER = "70b00000-0000-4000-8000-000000000000"


def submit_pods(site: Any, count: int, command: str = "echo $INDEX; exit $INDEX", **more: Any) -> list[str]:
    """Submit pods that differ in their names and in what they run."""
    pods = [uid() for _ in range(count)]
    for index, pod in enumerate(pods):
        wanted = submit(
            command.replace("$INDEX", str(index)), array=EqualPods(owner=OWNER, wanted=True), name=f"w-{index}", **more
        )
        site.client.call(SUBMIT, pod, wanted)
    return pods


def arrays(site: Any, pods: list[str]) -> set[str]:
    """The ids of the arrays of pods."""
    statuses = [site.status(pod) for pod in pods]
    return {status.job_id.partition("_")[0] for status in statuses if status is not None}


def squeue(site: Any, array: str) -> list[str]:
    return sorted(site.cluster.run_slurm("squeue", "-h", "-t", "all", "-j", array, "-o", "%i %T").splitlines())


def test_equal_pods_are_one_array_and_each_has_its_own_end(site: Any) -> None:
    pods = submit_pods(site, 5, flags=["--begin=now+6"])
    eventually(lambda: {site.status(pod).reason for pod in pods} == {"BeginTime"}, "all are queued")
    (array,) = arrays(site, pods)
    assert squeue(site, array) == [f"{array}_[0-4] PENDING"]
    site.client.call(CANCEL, pods[3], CancelMessage(grace=30, forget=True))
    eventually(lambda: site.status(pods[3]) is None)
    assert squeue(site, array) == [f"{array}_[0-2,4] PENDING"]
    site.kill(site.processes[0])
    site.start()
    for index in (0, 1, 2, 4):
        end = site.wait(pods[index], "ended", 30)
        assert (end.job_id, end.containers[0].ended.exit_code) == (f"{array}_{index}", index)
        assert site.log(pods[index]) == f"{index}\n".encode()
        started = site.folder / "jobs" / pods[index] / "started/job"
        assert started.read_text() == f"{array}_{index}\n"
    assert not (site.folder / "jobs" / pods[3]).exists()


def test_one_running_pod_is_cancelled_by_its_hub_and_one_at_the_site(site: Any) -> None:
    pods = submit_pods(site, 3, "sleep 60")
    ids = [site.wait(pod, "running", 30).job_id for pod in pods]
    assert len(arrays(site, pods)) == 1
    site.client.call(CANCEL, pods[0], CancelMessage(grace=1, forget=True))
    site.cluster.run_slurm("scancel", "--signal=KILL", "--full", ids[1])
    assert site.wait(pods[1], "ended", 40).reason in ("Cancelled", "JobLost")
    eventually(lambda: site.status(pods[0]) is None, timeout=30)
    assert site.status(pods[2]).phase == "running"


def test_killed_between_asking_slurm_and_its_answer(site: Any) -> None:
    slow_sbatch(site, 1.5)
    site.kill(site.processes[0], signal.SIGTERM)
    site.start()
    pods = submit_pods(site, 4, "echo $INDEX; sleep 1")
    eventually(lambda: list((site.folder / "arrays").iterdir()), "the file of the array")
    time.sleep(0.3)
    site.kill(site.processes[-1])
    site.start()
    ends = [site.wait(pod, "ended", 40) for pod in pods]
    assert {end.outcome for end in ends} == {"Succeeded"}
    (array,) = arrays(site, pods)
    assert squeue(site, array) == [f"{array}_{index} COMPLETED" for index in range(4)]
    names = site.cluster.run_slurm("squeue", "-h", "-t", "all", "-o", "%F %j").splitlines()
    (file,) = (site.folder / "arrays").iterdir()
    assert {line for line in names if file.name in line} == {f"{array} pb-{file.name}"}
    assert [site.log(pod) for pod in pods] == [f"{index}\n".encode() for index in range(4)]
