"""The behaviour of slurmrestd that ``bridge.slurm`` relies on: run on the fake, and on real ones of each version."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, Protocol

import pytest

from bridge.config.hub import Config, SlurmSection
from bridge.errors import SlurmAuthError, SlurmNotFoundError, SlurmRefusedError, SlurmUnavailableError
from bridge.slurm import allotments, states
from bridge.slurm.cancelling import shrink_if_ours
from bridge.slurm.models import Job, JobLink, JobRequest, PodRef
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.snapshot import Poller
from cluster.polling import eventually

NEWEST = {"22.05": "v0.0.38", "24.11": "v0.0.42", "26.05": "v0.0.45"}


class Site(Protocol):
    """One Slurm under test."""

    version: str
    url: str
    token: str

    def settle(self) -> None:
        """Start pending jobs that can start; a real Slurm does so by itself."""


def link(cluster: str = "here") -> JobLink:
    return JobLink(cluster, (PodRef("default", "pod", str(uuid.uuid4())),))


def ask(client: SlurmClient, **fields: Any) -> JobRequest:
    """Return a request for a small job of the kind that the version prefers."""
    defaults: dict[str, Any] = {"name": "suite", "link": link(), "external": client.version.external_jobs}
    return JobRequest(**{**defaults, "cpus": 1, "memory_mib": 100, "partition": "main", **fields})


def settled(site: Site, check: Callable[[], Any]) -> Any:
    """Wait for a true value of ``check``; pending jobs of a fake site start before each call."""

    def settle_and_check() -> Any:
        site.settle()
        return check()

    return eventually(settle_and_check, timeout=15)


def free_nodes(cluster: Any) -> None:
    """Cancel the jobs that earlier tests left, and wait until each node of a real Slurm is idle."""

    def idle() -> bool:
        left = cluster.run_slurm("squeue", "-h", "-o", "%A").split()
        if left:
            cluster.run_slurm("scancel", *left, check=False)  # one that has ended meanwhile is an error
        return not left and set(cluster.run_slurm("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"}

    eventually(idle, "idle nodes", timeout=60)


class SlurmSuite:
    """A subclass defines the fixture ``site``."""

    @pytest.fixture
    def client(self, site: Site) -> SlurmClient:
        return SlurmClient(Config(slurm_rest_api=site.url), site.token)

    @pytest.fixture
    def running(self, site: Site, client: SlurmClient) -> Any:
        """Return a function that submits a job and waits for its nodes; cancel all jobs at the end."""
        ids: list[int] = []

        def run(request: JobRequest) -> Job:
            ids.append(client.submit(request).job_id)
            return settled(site, lambda: (job := client.job(ids[-1])) and states.is_allocated(job.states) and job)

        yield run
        for job_id in ids:
            client.cancel(job_id)

    def test_the_newest_common_version_is_spoken(self, site: Site, client: SlurmClient) -> None:
        assert client.version.name == NEWEST[site.version]
        assert client.slurm_release.startswith(site.version)
        assert client.user_name == "slurm"
        client.ping()

    def test_a_job_is_submitted_runs_and_is_cancelled(self, site: Site, client: SlurmClient, running: Any) -> None:
        request = ask(client, gres=("gpu:1",), time_limit=7)
        job = running(request)
        assert (job.link, job.name, job.partition, job.time_limit) == (request.link, "suite", "main", 7)
        assert len(job.nodes) == 1
        assert job.nodes[0] in {node.name for node in client.nodes()}
        assert job.start_time >= job.submit_time > 1_700_000_000
        client.cancel(job.job_id)
        ended = settled(site, lambda: (now := client.job(job.job_id)) and states.end_of(now.states) and now)
        assert states.end_of(ended.states).reason == "Cancelled"
        client.cancel(job.job_id)

    def test_slurmctld_itself_says_that_there_is_no_such_job(self, client: SlurmClient) -> None:
        with pytest.raises(SlurmNotFoundError, match="Invalid job id") as told:
            client.job(987654)
        assert told.value.code == 2017
        client.cancel(987654)

    def test_a_refusal_has_slurms_own_code_and_words(self, client: SlurmClient) -> None:
        with pytest.raises(SlurmRefusedError, match="Invalid partition name specified") as told:
            client.submit(ask(client, partition="nope"))
        assert (told.value.code, told.value.retryable) == (2000, False)
        with pytest.raises(SlurmRefusedError, match="node configuration is not available"):
            client.submit(ask(client, memory_mib=99_000_000))

    def test_a_job_id_is_success_whatever_stands_beside_it(self, site: Site, client: SlurmClient) -> None:
        request = ask(client, cpus=9999)
        if site.version == "24.11":
            with pytest.raises(SlurmRefusedError) as told:
                client.submit(request)
            assert told.value.code == 2014
            return
        done = client.submit(request)
        assert done.warning == "Requested partition configuration not available now"
        assert states.is_pending(client.job(done.job_id).states)
        client.cancel(done.job_id)

    def test_the_nodes_of_a_job_alone(self, client: SlurmClient, running: Any) -> None:
        if not client.version.allocations:
            return
        job = running(ask(client))
        assert client.allocation(job.job_id) == job.nodes
        (given,) = client.resources(job.job_id).values()
        assert len(given.cores) >= 1
        assert given.sockets * given.cores_per_socket >= len(given.cores)
        waiting = client.submit(ask(client, cpus=9999)).job_id
        for none in (waiting, 987654):
            with pytest.raises(SlurmRefusedError, match="resources: "):
                client.allocation(none)
        client.cancel(waiting)

    def test_a_job_shows_what_slurm_has_given_to_it(self, client: SlurmClient, running: Any) -> None:
        job = running(ask(client, cpus=3, memory_mib=500, gres=("gpu:2",)))
        shown = [job.allotment]
        if client.version.allocations:
            cpus = {node.name: node.cpus for node in client.nodes()}
            shown.append(allotments.of_nodes(client.allotted(job.job_id), cpus))
        for given in shown:
            assert given is not None
            assert (given.cpus, given.memory_mib, given.count("gpu", "")) == (3, 500, 2)

    def test_an_uneven_division_between_nodes_is_shown(self, client: SlurmClient, running: Any) -> None:
        """Without a number of tasks on a node, Slurm puts most of them on the first one."""
        job = running(ask(client, tasks=8, min_nodes=2, max_nodes=2, memory_mib=500, gres=("gpu:2",)))
        given = Poller(client, "here", Config()).refresh().jobs[job.job_id].job.allotment
        assert given is not None
        assert (given.cpus, given.memory_mib, given.count("gpu", "")) == (8, 1000, 4)
        each = [(name, one.cpus, one.memory_mib, one.count("gpu", "")) for name, one in given.nodes]
        first, second = job.nodes
        shown = client.version.allocations or not client.version.numbers  # in between, only with DETAIL
        assert each == ([(first, 7, 500, 2), (second, 1, 500, 2)] if shown else [])

    def test_lists_agree_with_single_answers(self, client: SlurmClient, running: Any) -> None:
        job = running(ask(client))
        assert {each.job_id: each for each in client.jobs()}[job.job_id].nodes == job.nodes
        if client.version.job_states:
            assert states.is_allocated(client.job_states()[job.job_id])

    def test_update_time_tells_whether_anything_has_changed(self, client: SlurmClient, running: Any) -> None:
        job = running(ask(client))
        now = client.server_time()
        assert abs(now - time.time()) < 5
        everything = client.jobs_changed_since(1)
        assert everything is not None
        assert job.job_id in {each.job_id for each in everything}
        assert client.jobs_changed_since(now + 1000) is None

    def test_nodes_and_partitions(self, client: SlurmClient) -> None:
        nodes = {node.name: node for node in client.nodes()}
        assert nodes["node-0"].cpus == 128
        assert nodes["node-0"].memory_mib == 512_000
        assert nodes["node-0"].gres.startswith("gpu:8")
        assert nodes["node-0"].partitions == ("main",)
        assert not states.is_drained(nodes["node-0"].states)
        (main,) = client.partitions()
        assert (main.name, main.default, main.max_minutes) == ("main", True, 0)
        assert set(main.nodes) == set(nodes)

    def test_nodes_are_told_again_only_after_a_change(self, client: SlurmClient) -> None:
        def unchanged(moment: int) -> int:
            """Wait until a look at the nodes finds no change; slurmctld counts seconds."""
            for _ in range(50):
                found = client.nodes_since(moment)
                if found is None:
                    return moment
                assert {node.name for node in found[0]} >= {"node-0", "node-1"}
                moment = found[1]
                time.sleep(0.3)
            raise AssertionError("the nodes change all the time")

        moment = unchanged(0)
        if not client.version.node_updates:
            return
        client.set_node("node-1", "DRAIN", "slurm-bridge: why")
        found = client.nodes_since(moment)
        assert found is not None
        assert states.is_drained({node.name: node for node in found[0]}["node-1"].states)
        client.set_node("node-1", "UNDRAIN")
        moment = unchanged(found[1])
        assert client.nodes_since(moment) is None

    def test_a_node_is_drained_and_given_back(self, site: Site, client: SlurmClient) -> None:
        if not client.version.node_updates:
            with pytest.raises(SlurmRefusedError, match="can't drain nodes"):
                client.set_node("node-1", "DRAIN", "why")
            return

        def drained() -> bool:
            return states.is_drained({node.name: node for node in client.nodes()}["node-1"].states)

        def reason() -> str:
            return {node.name: node for node in client.nodes()}["node-1"].reason

        for _ in range(2):
            client.set_node("node-1", "DRAIN", "slurm-bridge: why")
            assert drained()
        assert reason() == "slurm-bridge: why"
        for _ in range(2):
            client.set_node("node-1", "UNDRAIN")
            assert not drained()
        kept = site.version == "24.11"
        assert reason() == ("slurm-bridge: why" if kept else "")
        client.set_node("node-1", "DRAIN", "slurm-bridge: why")
        client.set_node("node-1", "UNDRAIN", "podbridge: resumed")
        assert reason() == ("podbridge: resumed" if kept else "")
        with pytest.raises(SlurmNotFoundError) as told:
            client.set_node("nope", "DRAIN", "why")
        assert told.value.code == 2018

    def test_nodes_are_excluded(self, site: Site, client: SlurmClient, running: Any) -> None:
        every = {node.name for node in client.nodes()}
        if not client.version.exclude_nodes:
            with pytest.raises(SlurmRefusedError, match="can't exclude nodes"):
                client.submit(ask(client, excluded_nodes=("node-0",)))
            return
        others = tuple(sorted(every - {"node-1"}))
        job = running(ask(client, excluded_nodes=others))
        assert job.nodes == ("node-1",)
        assert job.excluded_nodes == others
        with pytest.raises(SlurmRefusedError) as told:
            client.set_excluded_nodes(job.job_id, ("node-1",))
        assert told.value.code == 2073
        with pytest.raises(SlurmRefusedError) as told:
            client.submit(ask(client, excluded_nodes=("no-such-node",)))
        assert told.value.code == 2018

    def test_the_excluded_nodes_of_a_waiting_job_change(self, site: Site, client: SlurmClient) -> None:
        if site.version != "26.05":
            return  # other versions refuse a job that no node can run, so that none would be pending
        job_id = client.submit(ask(client, cpus=9999)).job_id
        for nodes in (("node-0",), ("node-1",), ()):
            client.set_excluded_nodes(job_id, nodes)
            assert client.job(job_id).excluded_nodes == nodes
        client.cancel(job_id)

    @pytest.mark.parametrize("external", [False, True], ids=["batch", "external"])
    def test_a_running_job_gives_back_nodes_but_not_that_of_its_script(
        self, site: Site, client: SlurmClient, running: Any, external: bool
    ) -> None:
        if external and not client.version.external_jobs:
            return
        two = {"min_nodes": 2, "max_nodes": 2, "tasks": 2, "gres": ("gpu:1",)}
        job = running(ask(client, external=external, cpus=3, **two))
        first, second = job.nodes
        assert job.batch_host == ("" if external else first)
        poller = Poller(client, "here", Config())
        assert poller.refresh().jobs[job.job_id].job.nodes == (first, second)
        kept = second if external else first
        if not external:
            with pytest.raises(SlurmRefusedError) as told:
                client.shrink(job.job_id, (second,))
            assert told.value.code == 2018
        key = job.link.keys
        for released in ((job.nodes[external - 1],), ()):
            assert shrink_if_ours(client, job.job_id, job.job_id, {*job.nodes} - {kept}, "here", key, None) == released
            now = client.job(job.job_id)
            assert (now.nodes, now.states, now.submit_time) == ((kept,), job.states, job.submit_time)
            assert now.allotment is not None
            assert (now.allotment.cpus, now.allotment.memory_mib, now.allotment.count("gpu", "")) == (3, 100, 1)
        poller.read(job.job_id)  # a poll reads no job whose state is the same, unless it is a witness
        assert poller.snapshot.jobs[job.job_id].job.nodes == (kept,)
        assert poller.refresh().jobs[job.job_id].job.nodes == (kept,)
        with pytest.raises(SlurmRefusedError):  # 22.05 without slurmdbd: 2103, for each second update of a job
            client.shrink(job.job_id, (first, second))
        assert shrink_if_ours(client, job.job_id, job.job_id, {kept}, "here", key, None) == ()

    def test_a_token_that_is_not_accepted(self, site: Site) -> None:
        client = SlurmClient(Config(slurm_rest_api=site.url), "e30.eyJzdW4iOiJzbHVybSJ9.nonsense")
        if site.version == "22.05":
            with pytest.raises(SlurmUnavailableError) as unsure:
                client.job(1)
            assert "token" in unsure.value.hint
            return
        with pytest.raises(SlurmAuthError) as told:
            client.job(1)
        assert told.value.code == 1007
        with pytest.raises(SlurmAuthError):
            client.submit(ask(client))

    def test_no_token(self, site: Site) -> None:
        with pytest.raises(SlurmAuthError, match="no Slurm token"):
            SlurmClient(Config(slurm_rest_api=site.url), None).ping()

    def test_a_version_is_pinned(self, site: Site) -> None:
        older = {"22.05": "v0.0.38", "24.11": "v0.0.41", "26.05": "v0.0.43"}[site.version]
        client = SlurmClient(Config(slurm_rest_api=site.url, slurm_api_version=older), site.token)
        assert client.version.name == older
        job_id = client.submit(ask(client)).job_id
        assert client.job(job_id).link is not None
        client.cancel(job_id)

    def test_the_poller_follows_a_job_to_its_end(self, site: Site, client: SlurmClient) -> None:
        other = client.submit(ask(client, link=link("elsewhere"))).job_id
        poller = Poller(client, "here", Config(slurm=SlurmSection(poll_busy=0.1)))
        request = ask(client)
        job_id = client.submit(request).job_id
        poller.expect(job_id, request.link)
        first = poller.refresh()
        assert (first.sequence, first.error) == (1, "")
        assert set(first.partitions) == {"main"}
        assert "node-0" in first.nodes
        assert job_id in first.jobs
        assert other not in first.jobs
        assert first.by_uid[request.link.pods[0].uid] == (job_id,)

        def known(wish: Callable[[Any], bool]) -> Any:
            return settled(site, lambda: (now := poller.refresh().jobs[job_id]) and wish(now) and now)

        placed = known(lambda now: states.is_allocated(now.job.states))
        assert placed.job.nodes
        assert placed.confirmations == 0
        client.cancel(job_id)
        client.cancel(other)
        assert known(lambda now: now.confirmations == 1).job.link == request.link
        told = poller.refresh().jobs[job_id]
        assert (told.confirmations, told.missing) == (2, False)
        # a new process reads the same from the comment alone
        fresh = Poller(SlurmClient(Config(slurm_rest_api=site.url), site.token), "here", Config()).refresh()
        assert fresh.by_uid[request.link.pods[0].uid] == (job_id,)
        assert fresh.jobs[job_id].confirmations == 1
