"""Groups of pods as one job of a real Slurm, in each version: two nodes with two pods each."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from cluster.polling import eventually
from cluster.systems import install
from tests.contract.site import gangs, jobs

pytestmark = pytest.mark.real


@pytest.fixture
def site(slurm_cluster: Any, make_site: Any) -> Any:
    """A site whose launcher waits for 5 seconds only. The nodes of some versions see another root directory."""
    variables = 'PATH = "/usr/bin:/bin", PODBRIDGE_START_WAIT_SECONDS = "5", PODBRIDGE_PLACE_WAIT_SECONDS = "5"'
    made = make_site(
        "slurm",
        f'[limits]\nallow_user_flags = true\n[slurm]\nbin_dir = "{slurm_cluster.state}/bin"\n'
        f'programs = {{ srun = ["srun"] }}\nenvironment = {{ {variables} }}\n'
        '[batch]\nkind = "slurm"\nperiod = 1\nlost_after = 3\nsettle = 4\nlag = 2\n',
    )
    made.cluster = slurm_cluster
    made.start()
    return made


def test_four_pods_run_as_one_job_on_two_nodes(site: Any) -> None:
    ends = gangs.check_one_job_for_all(site, machines_used=2)
    shown = site.cluster.run_slurm("scontrol", "show", "job", ends[0].job_id)
    assert "NumNodes=2" in shown and "NumCPUs=4" in shown and "MinMemoryNode=256M" in shown


def test_if_one_pod_does_not_start_none_does(site: Any) -> None:
    gangs.check_all_or_none(site)


def test_a_pod_takes_the_place_of_one_that_is_over(site: Any) -> None:
    """The pods request different resources: a heterogeneous job, whose components share no node."""
    eventually(lambda: any(announce.heterogeneous_gangs for announce in site.announced), "the site announces them")
    gangs.check_successor(site, {"cpus": 2, "memory": 2**28})
    options = ("--noheader", "--states=all", "--format=%i %C %m %D")
    shown = [line.split() for line in site.cluster.run_slurm("squeue", *options).splitlines() if "+" in line]
    assert [[job.split("+")[1], *more] for job, *more in sorted(shown)] == [
        ["0", "2", "256M", "1"],
        ["1", "2", "256M", "1"],
    ]


@pytest.mark.parametrize("driver", [{}, {"gpus": 0, "gpu_resource": ""}])
def test_each_pod_has_its_own_gpus_of_those_that_slurm_gave_the_job(site: Any, driver: dict[str, Any]) -> None:
    """Two pods on a node; another job has a GPU of one node, so that the nodes give the group different ones.

    ``driver``: of a heterogeneous job, the first pod.
    """
    gpus = {"gpus": 2, "gpu_resource": "nvidia.com/gpu"}
    other = site.submit("sleep 600", gpus=1, gpu_resource="nvidia.com/gpu")
    site.wait(other, "running", site.patience)
    group = gangs.Group(site, 3 if driver else 4, gpus, {0: driver} if driver else {})
    group.submit_all('echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $SLURM_JOB_GPUS"; sleep 3')
    expected = given(site, group.wait("running")[0].job_id)
    group.wait("ended")
    seen: dict[str, list[int]] = {}
    for rank in range(1 if driver else 0, group.size):
        node, devices, numbers = group.log(rank)[0].split()
        assert (devices, len(devices.split(","))) == (numbers, 2)
        seen.setdefault(node, []).extend(map(int, devices.split(",")))
    assert {node: sorted(numbers) for node, numbers in seen.items()} == expected
    group.check_nothing_left()
    jobs.cancel(site, other)


def given(site: Any, job: str) -> dict[str, list[int]]:
    """Return the GPUs of a job on each node that gives it any."""
    text = site.cluster.run_slurm("scontrol", "show", "job", "--details", job)
    result: dict[str, list[int]] = {}
    for node, indices in re.findall(r"Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=gpu:\d+\(IDX:([\d,-]+)\)", text):
        bounds = [part.partition("-") for part in indices.split(",")]
        result[node] = [n for first, _, last in bounds for n in range(int(first), int(last or first) + 1)]
    return result


@pytest.mark.not_on("26.05", reason="its root directory has no pivot_root; tests/e2e/pools has apptainer there")
@pytest.mark.parametrize("driver", [{}, {"cpus": 2}])
def test_commands_enter_the_containers_of_all_pods(site: Any, driver: dict[str, Any]) -> None:
    """Of an ordinary job, and of a heterogeneous one: srun refuses machines of other components than the named one."""
    gangs.check_commands(site, driver)


def test_one_pod_is_killed_and_the_others_run_on(site: Any) -> None:
    gangs.check_one_is_killed(site)


def test_pods_are_cancelled_while_their_job_is_queued(site: Any) -> None:
    gangs.check_cancelled_while_queued(site, flags=["--begin=now+1hour"])


def test_flags_that_change_the_size_of_the_job_end_all_pods(site: Any) -> None:
    group = gangs.Group(site, 2, {"flags": ["--nodes=1"]})
    group.submit_all("true")
    ends = group.wait("ended")
    assert {end.reason for end in ends} == {"BatchSystemRefused"}
    assert "flag '--nodes=1' is not allowed" in ends[0].message
    group.check_nothing_left()


@pytest.mark.parametrize("component", ["", "+1"])
def test_a_cancelled_job_ends_all_pods_with_slurms_reason(site: Any, component: str) -> None:
    """The job, or one component of a heterogeneous job."""
    group = gangs.Group(site, 2, by_rank={0: {"cpus": 2}} if component else {})
    group.submit_all("sleep 600")
    job = group.wait("running")[0].job_id
    site.cluster.run_slurm("scancel", job + component)
    assert {end.reason for end in group.wait("ended", 60)} == {"Cancelled"}
    group.check_nothing_left()


@pytest.mark.not_on("22.05", reason="its plugins include pmix")
@pytest.mark.not_on("24.11", reason="its plugins include pmix")
def test_a_way_of_mpi_that_slurm_does_not_have_is_refused(site: Any) -> None:
    group = gangs.Group(site, 2, mpi="pmix")
    with pytest.raises(SiteRefusedError, match=r"mpi 'pmix': .*\(slurm\).*; allowed: none, pmi2$"):
        group.submit(0, "true")


PMIX = """
import ctypes
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
# Open MPI's handles are addresses of its objects
WORLD, INT, SUM = (
    ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}")) for name in ("comm_world", "int", "op_sum")
)
rank, size, total = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(WORLD, ctypes.byref(rank))
mpi.MPI_Comm_size(WORLD, ctypes.byref(size))
one = ctypes.c_int(rank.value + 1)
mpi.MPI_Allreduce(ctypes.byref(one), ctypes.byref(total), 1, INT, SUM, WORLD)
print(f"rank {rank.value} of {size.value}: sum {total.value}", flush=True)
mpi.MPI_Finalize()
"""
"""A Python program, so that nothing has to be compiled; the library is Open MPI, which knows no other way."""


@pytest.mark.not_on("22.05", reason="its root directory is this machine's, without Open MPI")
@pytest.mark.not_on("26.05", reason="Debian builds it without the plugin pmix")
def test_the_members_are_one_world_by_pmix(site: Any) -> None:
    """On one node: the nodes share the machine's /tmp, where the plugin of each makes the same directory."""
    install.ensure(added=("openmpi", "python3.13"))
    group = gangs.Group(site, 4, per_node=4, mpi="pmix")
    group.submit_all(f"HOME=/tmp python3.13 -c {shlex.quote(PMIX)}")
    group.wait("ended")
    assert [group.log(rank)[-1:] for rank in range(4)] == [[f"rank {rank} of 4: sum 10"] for rank in range(4)]
    group.check_nothing_left()
