"""Groups on a real Slurm of which a node's slurmd is killed: the whole group ends, and nothing of it runs on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster
from cluster.polling import eventually
from tests import processes
from tests.contract.site import gangs

pytestmark = [pytest.mark.real, pytest.mark.long_only]

NODES = ("node-0", "node-1")
GRACE = 90.0
"""Seconds after the end of the job in which the launcher and the wrappers have ended all pods."""


@pytest.fixture(scope="module", params=["26.05", "24.11"])
def slurm(request: pytest.FixtureRequest, state_folder: Path) -> Iterator[Cluster]:
    """A Slurm that soon gives up a node whose slurmd does not answer."""
    state, conf = state_folder / f"lost-{request.param}", ["SlurmdTimeout=6"]
    with Cluster(state, slurm=request.param, nodes=2, kube=False, slurm_conf=conf) as cluster:
        yield cluster


@pytest.fixture
def site(slurm: Cluster, make_site: Any) -> Any:
    made = make_site(
        "slurm",
        f'[slurm]\nbin_dir = "{slurm.state}/bin"\nprograms = {{ srun = ["srun"] }}\n'
        '[batch]\nkind = "slurm"\nperiod = 1\nlost_after = 3\nsettle = 4\nlag = 2\n',
    )
    made.start()
    return made


@pytest.mark.parametrize("driver", [{}, {"cpus": 2}], ids=["one component", "two components"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_killed_slurmd_ends_all_pods_of_the_group(
    site: Any, slurm: Cluster, number: int, driver: dict[str, Any]
) -> None:
    """``number``: that of its node; the script of the job runs on node 0."""
    mark = f"83{os.getpid()}.{number}{len(driver)}"
    group = gangs.Group(site, 3, by_rank={0: driver})
    group.submit_all(f"sleep {mark}")
    group.wait("running")
    eventually(lambda: len(processes.with_word(mark)) == 3, "all pods run")
    slurm.kill(f"slurmd-{NODES[number]}")
    try:
        assert {end.reason for end in group.wait("ended", 60)} == {"NodeFail"}
        eventually(lambda: not processes.with_word(mark), "no pod runs on", GRACE)
    finally:
        slurm.start_daemon(f"slurmd-{NODES[number]}")
        slurm.run_slurm("scontrol", "update", f"nodename={NODES[number]}", "state=resume", check=False)
    group.check_nothing_left()
