"""Equal pods of one owner as one array of a real Slurm, in each version."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from bridge.protocol.nats.messages import CancelMessage
from bridge.protocol.nats.request_table import CANCEL
from cluster.polling import eventually
from tests.contract.site import arrays
from tests.contract.site.test_slurm import site, slow_sbatch

__all__ = ["site"]
pytestmark = pytest.mark.real


def squeue(site: Any, array: str) -> list[str]:
    return sorted(site.cluster.run_slurm("squeue", "-h", "-t", "all", "-j", array, "-o", "%i %T").splitlines())


def test_equal_pods_are_one_array_and_each_has_its_own_end(site: Any) -> None:
    pods = arrays.submit_pods(site, 5, flags=["--begin=now+6"])
    eventually(lambda: {site.status(pod).reason for pod in pods} == {"BeginTime"}, "all are queued")
    array = arrays.check_ids(site, pods, "ARRAY_INDEX")
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


def restart(site: Any) -> None:
    site.kill(site.processes[-1])
    site.start()


def test_one_running_pod_is_cancelled_by_its_hub_and_one_at_the_site(site: Any) -> None:
    arrays.check_each_has_its_own_end(
        site, "ARRAY_INDEX", lambda: restart(site), lambda job: site.cluster.run_slurm("scancel", job)
    )


def test_killed_between_asking_slurm_and_its_answer(site: Any) -> None:
    slow_sbatch(site, 1.5)
    site.kill(site.processes[0], signal.SIGTERM)
    site.start()
    array = arrays.check_killed_before_the_answer(site, "ARRAY_INDEX", lambda: (time.sleep(0.3), restart(site)))
    assert squeue(site, array) == [f"{array}_{index} COMPLETED" for index in range(3)]
    names = site.cluster.run_slurm("squeue", "-h", "-t", "all", "-o", "%F %j").splitlines()
    assert {line for line in names if arrays.newest(site) in line} == {f"{array} pb-{arrays.newest(site)}"}
