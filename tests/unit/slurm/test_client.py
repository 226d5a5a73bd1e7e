"""The time limit of a list of all jobs, by the calls before it."""

from contextlib import suppress
from typing import Any

import pytest

from bridge.config.hub import Config, SlurmSection
from bridge.errors import SlurmFederationError, SlurmUnavailableError
from bridge.slurm.models import JobLink, JobRequest, PodRef
from bridge.slurm.slurm_client import SlurmClient
from bridge.slurm.slurm_transport import MOST_PATIENCE
from bridge.slurm.versions import VERSIONS
from tests.fakes.clock import FakeClock

READ_TIMEOUT = 15.0


class Transport:
    """Answers after ``seconds``, or not in time; ``limits`` are the time limits of the calls."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock, self.seconds = clock, 0.0
        self.limits: list[float] = []

    def send(self, method: str, path: str, endpoint: str, body: Any = None, patience: float = 1) -> tuple[int, bytes]:
        if endpoint == "ping":
            return 200, b'{"meta": {"plugin": {}}, "errors": []}'
        self.limits.append(patience * READ_TIMEOUT)
        self.clock.advance(min(self.seconds, self.limits[-1]))
        if self.seconds >= self.limits[-1]:
            raise SlurmUnavailableError("timed out")
        return 200, b'{"meta": {"plugin": {}}, "errors": [], "jobs": []}'


@pytest.fixture
def transport() -> Transport:
    return Transport(FakeClock())


@pytest.fixture
def client(transport: Transport) -> SlurmClient:
    config = Config(slurm=SlurmSection(read_timeout=READ_TIMEOUT))
    client = SlurmClient(config, "e30.eyJzdW4iOiJzbHVybSJ9.x", clock=transport.clock)
    client._transport = client._negotiation._transport = transport  # type: ignore[assignment]
    return client


def limits(client: SlurmClient, transport: Transport, seconds: float, calls: int) -> list[float]:
    """Return the time limits of calls that take ``seconds``, in multiples of the time limit of the first call."""
    transport.seconds = seconds
    transport.limits.clear()
    for _ in range(calls):
        with suppress(SlurmUnavailableError):
            client.job_states()
    return [limit / READ_TIMEOUT for limit in transport.limits]


def test_after_a_hang_the_time_limit_decreases_again(client: SlurmClient, transport: Transport) -> None:
    assert limits(client, transport, 1e9, 6) == [1, 2, 4, 8, 16, MOST_PATIENCE]
    assert limits(client, transport, 0.01, 6) == [16, 8, 4, 2, 1, 1]


def test_a_list_that_is_always_slow_keeps_its_time_limit(client: SlurmClient, transport: Transport) -> None:
    assert limits(client, transport, 20.0, 6) == [1, 2, 2, 2, 2, 2]
    assert limits(client, transport, 40.0, 6) == [2, 4, 4, 4, 4, 4]


@pytest.mark.parametrize("version", ["v0.0.38", "v0.0.42", "v0.0.45"])
@pytest.mark.parametrize(("job_id", "federated"), [(0x03FFFFFF, False), (0x04000001, True)])
def test_a_job_with_the_id_of_a_federation_is_cancelled_and_refused(
    client: SlurmClient, monkeypatch: pytest.MonkeyPatch, job_id: int, federated: bool, version: str
) -> None:
    """Another cluster of the federation could run it, whose nodes are not in Kubernetes."""
    calls: list[tuple[str, str, Any]] = []
    monkeypatch.setattr(SlurmClient, "version", VERSIONS[version])

    def call(endpoint: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
        calls.append((method, path, None if endpoint == "submit" else body))
        return {"job_id": job_id, "errors": [], "warnings": []}

    monkeypatch.setattr(client, "_call", call)
    request = JobRequest("p", JobLink("c", (PodRef("ns", "p", "u"),)), external=False)
    if not federated:
        assert client.submit(request).job_id == job_id
        return
    with pytest.raises(SlurmFederationError, match="is in a federation") as told:
        client.submit(request)
    old = version == "v0.0.38"
    cancelled = ("DELETE", f"job/{job_id}", None) if old else ("DELETE", "jobs/", {"jobs": [str(job_id)]})
    assert calls == [("POST", "job/submit", None), cancelled]
    assert (f"scancel {job_id}" if old else "was cancelled") in str(told.value)
