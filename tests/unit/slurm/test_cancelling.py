import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bridge.config.hub import Config
from bridge.errors import LostLeadershipError, SlurmUnavailableError
from bridge.slurm.cancelling import cancel_if_ours, exclude_if_ours, shrink_if_ours
from bridge.slurm.link import encode
from bridge.slurm.models import JobLink, PodRef
from bridge.slurm.slurm_client import SlurmClient
from bridge.telemetry.metrics import SLURM_CANCELS_REFUSED
from tests.fakes.slurmrestd import TOKEN, FakeSlurm, paths

ROOT = Path(__file__).parents[3]


def comment(*uids: str, cluster: str = "here") -> str:
    return encode(JobLink(cluster, tuple(PodRef("ns", f"pod-{uid}", uid) for uid in uids)))


@pytest.fixture
def slurm() -> Iterator[FakeSlurm]:
    with FakeSlurm() as fake:
        yield fake


@pytest.fixture
def client(slurm: FakeSlurm) -> SlurmClient:
    return SlurmClient(Config(slurm_rest_api=slurm.url), TOKEN)


def test_a_job_of_the_pod_is_cancelled(slurm: FakeSlurm, client: SlurmClient) -> None:
    job = slurm.add({"admin_comment": comment("a", "b")})
    slurm.start(job.job_id)
    assert client.version
    slurm.calls.clear()
    assert cancel_if_ours(client, job.job_id, "here", ["a"], None)
    assert job.states == ["CANCELLED"]
    assert paths(slurm.calls) == ["GET job/1?flags=MIXED", "DELETE job/1"]


ACTIONS: dict[str, Callable[..., object]] = {
    "cancel": cancel_if_ours,
    "exclude": lambda client, job_id, *more: exclude_if_ours(client, job_id, job_id, ("node-1",), *more),
    "shrink": lambda client, job_id, *more: shrink_if_ours(client, job_id, job_id, {"node-1"}, *more),
}
each_action = pytest.mark.parametrize("act", ACTIONS.values(), ids=ACTIONS)


def running(slurm: FakeSlurm, words: str, nodes: str = "node-[0-2]") -> int:
    job = slurm.add({"admin_comment": words, "flags": ["EXTERNAL_JOB"]})
    slurm.start(job.job_id, nodes)
    return job.job_id


def writes(slurm: FakeSlurm) -> int:
    return slurm.count("DELETE", "job") + slurm.count("POST", "job/")


@each_action
@pytest.mark.parametrize(
    ("words", "uids"),
    [
        (comment("a", cluster="elsewhere"), ["a"]),
        (comment("a", cluster="here-shard-b"), ["a"]),
        (comment("other"), ["a"]),
        (comment("a"), ["a", "b"]),
        ("", ["a"]),
        ("{}", ["a"]),
    ],
)
def test_a_job_that_is_not_the_pods_stays_as_it_is(
    slurm: FakeSlurm, client: SlurmClient, act: Callable[..., object], words: str, uids: list[str]
) -> None:
    """slurmctld may have lost its state, and assigned the id to a job of another user, since the last poll."""
    job_id = running(slurm, words)
    before = SLURM_CANCELS_REFUSED._value.get()
    assert not act(client, job_id, "here", uids, None)
    assert (slurm.jobs[job_id].states, writes(slurm)) == (["RUNNING"], 0)
    assert SLURM_CANCELS_REFUSED._value.get() == before + 1


@each_action
def test_a_process_that_leads_no_more_changes_nothing(
    slurm: FakeSlurm, client: SlurmClient, act: Callable[..., object]
) -> None:
    job_id = running(slurm, comment("a"))

    def check_leadership() -> None:
        raise LostLeadershipError("lease lost")

    with pytest.raises(LostLeadershipError):
        act(client, job_id, "here", ["a"], check_leadership)
    assert (slurm.jobs[job_id].states, writes(slurm)) == (["RUNNING"], 0)


def test_a_comment_of_another_user_proves_nothing(slurm: FakeSlurm, client: SlurmClient) -> None:
    job = slurm.add({"comment": comment("a")}, user="alice")
    assert not cancel_if_ours(client, job.job_id, "here", ["a"], None)
    assert job.states == ["PENDING"]


def test_what_is_over_is_not_cancelled_again(slurm: FakeSlurm, client: SlurmClient) -> None:
    job = slurm.add({"admin_comment": comment("a")})
    slurm.end(job.job_id, "COMPLETED")
    assert cancel_if_ours(client, job.job_id, "here", ["a"], None)
    assert not cancel_if_ours(client, 99, "here", ["a"], None)
    assert slurm.count("DELETE", "job") == 0


def test_no_answer_is_no_cancel(slurm: FakeSlurm, client: SlurmClient) -> None:
    job = slurm.add({"admin_comment": comment("a")})
    slurm.fault = lambda method, path: (502, b"bad gateway") if method == "GET" and "/job/" in path else None
    with pytest.raises(SlurmUnavailableError):
        cancel_if_ours(client, job.job_id, "here", ["a"], None)
    assert job.states == ["PENDING"]


def test_the_excluded_nodes_of_the_pods_own_job_change(slurm: FakeSlurm, client: SlurmClient) -> None:
    job = slurm.add({"admin_comment": comment("a", "b")})
    assert client.version
    slurm.calls.clear()
    assert exclude_if_ours(client, job.job_id, job.job_id, ("node-1",), "here", ["a"], None)
    assert paths(slurm.calls) == ["GET job/1?flags=MIXED", "POST job/1"]


def test_a_job_that_is_gone_or_no_component_of_the_pods_is_not_updated(slurm: FakeSlurm, client: SlurmClient) -> None:
    job, other = slurm.add({"admin_comment": comment("a")}), slurm.add({"admin_comment": comment("b")})
    assert not exclude_if_ours(client, 99, 99, ("node-1",), "here", ["a"], None)
    assert not exclude_if_ours(client, job.job_id, other.job_id, ("node-1",), "here", ["a"], None)
    assert slurm.count("POST", "job/") == 0


@pytest.mark.parametrize("call", ["cancel", "set_excluded_nodes", "shrink"])
def test_no_other_module_cancels_or_updates(call: str) -> None:
    found = [
        str(file.relative_to(ROOT))
        for folder in ("bridge", "controllers", "scheduler")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(rf"slurm\.{call}\(", file.read_text())
    ]
    assert found == ["bridge/slurm/cancelling.py"]


def test_the_pods_own_job_gives_nodes_back(slurm: FakeSlurm, client: SlurmClient) -> None:
    job_id = running(slurm, comment("a", "b"))
    assert client.version
    slurm.calls.clear()
    assert shrink_if_ours(client, job_id, job_id, {"node-1", "node-9"}, "here", ["a"], None) == ("node-1",)
    assert slurm.jobs[job_id].nodes == "node-[0,2]"
    assert paths(slurm.calls) == ["GET job/1?flags=MIXED", "POST job/1"]
    assert shrink_if_ours(client, job_id, job_id, {"node-1"}, "here", ["a"], None) == ()
    assert shrink_if_ours(client, job_id, job_id, {"node-0", "node-2"}, "here", ["a"], None) == ()
    assert slurm.count("POST", "job/") == 1


@pytest.mark.parametrize("state", ["PENDING", "COMPLETED"])
def test_a_job_that_does_not_run_is_not_pinned_to_nodes(slurm: FakeSlurm, client: SlurmClient, state: str) -> None:
    """It was requeued since the decision."""
    job_id = running(slurm, comment("a"))
    slurm.jobs[job_id].states = [state]
    assert shrink_if_ours(client, job_id, job_id, {"node-1"}, "here", ["a"], None) == ()
    assert shrink_if_ours(client, 99, 99, {"node-1"}, "here", ["a"], None) == ()
    other = running(slurm, comment("b"))
    assert shrink_if_ours(client, job_id, other, {"node-1"}, "here", ["a"], None) == ()
    assert slurm.count("POST", "job/") == 0
