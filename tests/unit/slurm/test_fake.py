from collections.abc import Iterator

import pytest

from bridge.slurm import hostlist
from tests.fakes.component_suite import ComponentSuite
from tests.fakes.slurm_suite import SlurmSuite
from tests.fakes.slurmrestd import TOKEN, FakeSlurm


class FakeSite:
    token = TOKEN

    def __init__(self, slurm: FakeSlurm) -> None:
        self.slurm, self.version, self.url = slurm, slurm.release[:5], slurm.url

    def settle(self) -> None:
        for job in self.slurm.jobs.values():
            if job.states == ["PENDING"] and job.asked.get("cpus_per_task", 1) < 128:
                others = {other.nodes for other in self.slurm.whole(job.leader) if job.leader}
                free = self.slurm.nodes.keys() - others - set(job.asked.get("excluded_nodes", []))
                least = job.asked.get("minimum_nodes") or str(job.asked.get("nodes", 1)).split("-")[0]
                self.slurm.start(job.job_id, hostlist.compress(sorted(free)[: int(least)]))


@pytest.fixture(params=["22.05.8", "24.11.5", "26.05.5"])
def site(request: pytest.FixtureRequest) -> Iterator[FakeSite]:
    with FakeSlurm(request.param, nodes=2) as slurm:
        slurm.accepted = {TOKEN}
        yield FakeSite(slurm)


class TestFake(SlurmSuite, ComponentSuite):
    """The fake keeps what it promises."""
