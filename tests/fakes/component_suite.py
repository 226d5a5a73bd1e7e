"""What the client of slurmrestd does with heterogeneous jobs; runs on the fake and on real daemons."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bridge.config.hub import Config, SlurmSection
from bridge.errors import SlurmRefusedError
from bridge.slurm import states
from bridge.slurm.cancelling import cancel_if_ours
from bridge.slurm.components import is_over
from bridge.slurm.models import GroupRef, JobLink, JobRequest
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.snapshot import Poller
from tests.fakes.slurm_suite import Site, ask, settled


def heterogeneous(client: SlurmClient, *fields: dict[str, Any]) -> JobRequest:
    """Return a request for a job with one component for each element of ``fields``."""
    group, count = GroupRef("kueue", "default", f"group-{uuid.uuid4()}", ""), len(fields)
    parts = []
    for number, more in enumerate(fields):
        back = JobLink("here", (), group, count, f"s{number}", number, count)
        parts.append(ask(client, **{"external": client.version.external_components, "link": back, **more}))
    return replace(parts[0], components=tuple(parts[1:]))


class ComponentSuite:
    """A subclass is a :class:`~tests.fakes.slurm_suite.SlurmSuite`, too."""

    def test_a_heterogeneous_job_is_one_job(self, site: Site, client: SlurmClient, running: Any) -> None:
        if not client.version.heterogeneous:
            with pytest.raises(SlurmRefusedError, match="can't make a heterogeneous job of 2 components"):
                client.submit(heterogeneous(client, {"cpus": 1}, {"cpus": 2}))
            return
        request = heterogeneous(client, {"cpus": 1}, {"cpus": 2})
        job = running(request)
        assert (job.link, job.link.part, job.link.parts) == (request.link, 0, 2)
        first, second = job.parts
        assert (first.job_id, first.shape, second.shape) == (job.job_id, "s0", "s1")
        assert job.nodes == (*first.nodes, *second.nodes)
        assert len({*job.nodes}) == 2, "no two components share a node"
        assert {each.job_id: each.parts for each in client.jobs()}[job.job_id] == job.parts
        assert second.job_id not in {each.job_id for each in client.jobs()}
        assert states.is_allocated(client.job_states()[job.job_id])
        assert client.job_states([job.job_id]).keys() == {job.job_id}
        if client.version.allocations:
            assert client.allocation(second.job_id) == second.nodes

    def test_a_component_that_is_cancelled_ends_the_job_and_the_id_of_the_job_cancels_the_rest(
        self, site: Site, client: SlurmClient, running: Any
    ) -> None:
        if not client.version.heterogeneous:
            return
        request = heterogeneous(client, {"cpus": 1}, {"cpus": 2})
        job = running(request)
        client.cancel(job.parts[1].job_id)
        ended = settled(site, lambda: (now := client.job(job.job_id)) and states.end_of(now.states) and now)
        assert states.is_allocated(ended.parts[0].states)
        assert states.end_of(client.job_states([job.job_id])[job.job_id]) == states.end_of(ended.states)
        assert not is_over(ended)
        assert cancel_if_ours(client, job.job_id, "here", request.link.keys, None)
        assert settled(site, lambda: is_over(client.job(job.job_id)))

    def test_a_refused_component_cancels_the_others(self, client: SlurmClient) -> None:
        if not client.version.heterogeneous:
            return
        request = heterogeneous(client, {"cpus": 1}, {"partition": "nope"})
        with pytest.raises(SlurmRefusedError, match="Invalid partition name specified"):
            client.submit(request)
        assert all(states.end_of(job.states) for job in client.jobs() if job.link == request.link)

    def test_each_component_has_its_own_excluded_nodes(self, site: Site, client: SlurmClient) -> None:
        if not client.version.heterogeneous or site.version != "26.05":
            return  # other versions refuse a job that no node can run, so that none would be pending
        request = heterogeneous(client, {"cpus": 9999}, {"cpus": 9999, "excluded_nodes": ("node-0",)})
        job = client.job(client.submit(request).job_id)
        assert [part.excluded_nodes for part in job.parts] == [(), ("node-0",)]
        client.set_excluded_nodes(job.parts[1].job_id, ("node-1",))
        assert [part.excluded_nodes for part in client.job(job.job_id).parts] == [(), ("node-1",)]
        client.cancel(job.job_id)

    def test_the_poller_follows_a_heterogeneous_job(self, site: Site, client: SlurmClient) -> None:
        if not client.version.heterogeneous:
            return
        poller = Poller(client, "here", Config(slurm=SlurmSection(poll_busy=0.1)))
        poller.refresh()
        request = heterogeneous(client, {"cpus": 1}, {"cpus": 2})
        job_id = client.submit(request).job_id
        poller.expect(job_id, request.link)

        def known(wish: Callable[[Any], bool]) -> Any:
            return settled(site, lambda: (now := poller.refresh().jobs[job_id]) and wish(now) and now)

        placed = known(lambda now: states.is_allocated(now.job.states)).job
        assert [part.nodes for part in placed.parts] == [(node,) for node in placed.nodes]
        assert poller.snapshot.by_uid[request.link.keys[0]] == (job_id,)
        client.cancel(placed.parts[1].job_id)
        ended = known(lambda now: now.is_confirmed)
        assert not is_over(ended.job)
        client.cancel(job_id)
        assert known(lambda now: is_over(now.job)).is_confirmed
