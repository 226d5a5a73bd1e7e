"""The client on the wire: what breaks, what hangs, what lies in between."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.config.hub import Config, SlurmSection
from bridge.errors import ConfigError, SlurmAuthError, SlurmError, SlurmUnavailableError, SlurmUnknownOutcomeError
from bridge.slurm import slurm_transport
from bridge.slurm.models import JobLink, JobRequest, PodRef
from bridge.slurm.slurm_client import SlurmClient
from tests.fakes.relay import Relay
from tests.fakes.server_certificate import certificates
from tests.fakes.slurmrestd import TOKEN, FakeSlurm, paths
from tests.fakes.socket_server import SocketServer

QUICK = SlurmSection(connect_timeout=0.2, read_timeout=0.04)
REQUEST = JobRequest("n", JobLink("c", (PodRef("ns", "p", "u"),)), external=True)


@pytest.fixture
def slurm() -> Iterator[FakeSlurm]:
    with FakeSlurm() as running:
        yield running


@pytest.fixture
def client(slurm: FakeSlurm) -> SlurmClient:
    made = SlurmClient(Config(slurm_rest_api=slurm.url, slurm=SlurmSection(read_timeout=0.3)), TOKEN)
    assert made.version
    return made


def only(method: str, fault: Any) -> Callable[[str, str], Any]:
    return lambda asked, path: fault if asked == method else None


@pytest.mark.parametrize("fault", ["reset", "hang", "reset-after", "hang-after", (502, b"bad gateway"), (504, b"late")])
def test_a_write_without_an_answer_is_unknown(slurm: FakeSlurm, client: SlurmClient, fault: Any) -> None:
    slurm.fault = only("POST", fault)
    with pytest.raises(SlurmUnknownOutcomeError) as told:
        client.submit(REQUEST)
    assert told.value.retryable
    assert len(slurm.jobs) == (1 if str(fault).endswith("-after") else 0)
    assert slurm.count("POST", "job/submit") == 1


@pytest.mark.parametrize(
    "fault", ["reset", "hang", (502, b"bad gateway"), (404, b"<html>"), (200, b"<html>"), (200, b"")]
)
def test_a_read_without_an_answer_says_nothing(slurm: FakeSlurm, client: SlurmClient, fault: Any) -> None:
    slurm.fault = only("GET", fault)
    for call in (lambda: client.job(1), client.jobs, client.job_states, client.nodes, client.partitions):
        with pytest.raises(SlurmUnavailableError) as told:
            call()
        assert type(told.value) is SlurmUnavailableError


def test_nobody_there(client: SlurmClient, slurm: FakeSlurm) -> None:
    slurm.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        gone = SlurmClient(Config(slurm_rest_api=f"http://127.0.0.1:{taken.getsockname()[1]}"), TOKEN)
        gone._negotiation = client._negotiation
        with pytest.raises(SlurmUnavailableError, match="Connection refused") as told:
            gone.submit(REQUEST)
    assert type(told.value) is SlurmUnavailableError


def test_an_answer_that_drips_is_cut_off() -> None:
    def drip(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        with pytest.raises(OSError):
            while True:
                connection.sendall(b" " * 10)
                threading.Event().wait(0.01)

    with SocketServer(drip) as server, pytest.raises(SlurmUnavailableError, match="not complete after"):
        SlurmClient(Config(slurm_rest_api=f"http://127.0.0.1:{server.port}", slurm=QUICK), TOKEN).ping()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SSH-2.0-x\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 999 ?\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n\xff\xff\xff\xff",
    ],
)
def test_garbage_on_the_wire(said: bytes) -> None:
    def say(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(said)

    with SocketServer(say) as server, pytest.raises(SlurmUnavailableError):
        SlurmClient(Config(slurm_rest_api=f"http://127.0.0.1:{server.port}"), TOKEN).ping()


def test_an_endless_answer_is_cut_off(client: SlurmClient, slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_transport, "LARGEST_ANSWER", 1000)
    slurm.fault = only("GET", (200, b" " * 2000))
    with pytest.raises(SlurmUnavailableError, match="more than 1000 bytes"):
        client.jobs()


def test_the_token_is_in_no_message(slurm: FakeSlurm, client: SlurmClient) -> None:
    for fault in ("reset", (401, b"Authentication failure"), (500, TOKEN[:10].encode())):
        slurm.fault = only("GET", fault)
        with pytest.raises(SlurmError) as told:
            client.jobs()
        assert TOKEN not in str(told.value)


def test_refused_token(slurm: FakeSlurm, client: SlurmClient) -> None:
    slurm.fault = only("POST", (401, b"Authentication failure"))
    with pytest.raises(SlurmAuthError, match="refuses the token"):
        client.submit(REQUEST)


# --- versions ---------------------------------------------------------------------------------------------------------
def test_a_new_slurmrestd_is_asked_anew(slurm: FakeSlurm, client: SlurmClient) -> None:
    assert client.version.name == "v0.0.45"
    slurm.release, slurm.served = "24.11.5", ("v0.0.41", "v0.0.42")
    with pytest.raises(SlurmUnavailableError):
        client.jobs()
    assert client.jobs() == []
    assert (client.version.name, client.slurm_release) == ("v0.0.42", "24.11.5")


def test_a_proxy_that_says_404_takes_nothing_that_is_known_away(slurm: FakeSlurm, client: SlurmClient) -> None:
    client.jobs()
    slurm.fault = lambda method, path: (404, b"<html>")
    for _ in range(2):
        with pytest.raises(SlurmUnavailableError):
            client.jobs()
    assert (client.version.name, client.slurm_release) == ("v0.0.45", "26.05.5")
    slurm.fault = None
    assert client.jobs() == []


def test_the_version_is_asked_for_once_and_cheaply(slurm: FakeSlurm) -> None:
    slurm.release, slurm.served = "24.11.5", ("v0.0.41", "v0.0.42")
    client = SlurmClient(Config(slurm_rest_api=slurm.url), TOKEN)
    client.jobs()
    client.nodes()
    assert paths(slurm.calls) == [*["GET ping"] * 4, "GET jobs?flags=MIXED", "GET nodes"]


def test_a_version_too_new_or_not_served_is_named(slurm: FakeSlurm) -> None:
    with pytest.raises(ConfigError, match=r"slurmApiVersion: v0.0.41 .*serves v0.0.42, v0.0.43, v0.0.44, v0.0.45"):
        _ = SlurmClient(Config(slurm_rest_api=slurm.url, slurm_api_version="v0.0.41"), TOKEN).version
    slurm.served = ("v0.0.99",)
    with pytest.raises(SlurmError, match=r"serves v0.0.99, podbridge knows"):
        _ = SlurmClient(Config(slurm_rest_api=slurm.url), TOKEN).version


@pytest.mark.parametrize("fault", [(404, b"<html>"), (502, b""), "reset", (200, b"{}")])
def test_a_proxy_is_no_version(slurm: FakeSlurm, fault: Any) -> None:
    client = SlurmClient(Config(slurm_rest_api=slurm.url), TOKEN)
    slurm.fault = only("GET", fault)
    with pytest.raises(SlurmUnavailableError):
        _ = client.version
    slurm.fault = None
    assert client.version.name == "v0.0.45"


def test_slurmctld_need_not_be_up_for_the_version(slurm: FakeSlurm) -> None:
    slurm.down = True
    client = SlurmClient(Config(slurm_rest_api=slurm.url), TOKEN)
    assert client.version.name == "v0.0.45"
    with pytest.raises(SlurmUnavailableError):
        client.ping()


def test_a_job_id_that_is_another_ones_is_not_taken(slurm: FakeSlurm, client: SlurmClient) -> None:
    other = json.dumps({"meta": {"plugin": {}}, "errors": [], "jobs": [{"job_id": 8, "job_state": ["RUNNING"]}]})
    slurm.fault = lambda method, path: (200, other.encode()) if "/job/" in path else None
    with pytest.raises(SlurmUnavailableError, match="no job 7"):
        client.job(7)


def test_one_job_that_can_not_be_read_spoils_the_list(slurm: FakeSlurm, client: SlurmClient) -> None:
    for jobs in ([{"job_id": 1}, {"job_id": None}], [{"job_id": 1}, 5]):
        body = json.dumps({"meta": {"plugin": {}}, "errors": [], "jobs": jobs}).encode()
        slurm.fault = lambda method, path, body=body: (200, body)  # type: ignore[misc]
        with pytest.raises(SlurmUnavailableError):
            client.jobs()


# --- other ways to slurmrestd -----------------------------------------------------------------------------------------
def test_a_unix_socket(slurm: FakeSlurm, tmp_path: Path) -> None:
    path = tmp_path / "rest socket"
    port = int(slurm.url.rpartition(":")[2])
    with contextlib.closing(Relay(str(path), ("127.0.0.1", port))):
        client = SlurmClient(Config(slurm_rest_api=f"unix://{path}"), TOKEN)
        assert client.submit(REQUEST).job_id == 1
        assert client.job(1).name == "n"
    path.unlink()
    with pytest.raises(SlurmUnavailableError, match="No such file") as told:
        SlurmClient(Config(slurm_rest_api=f"unix://{path}"), TOKEN).ping()
    assert type(told.value) is SlurmUnavailableError


def test_https_with_ca_and_client_certificate(slurm: FakeSlurm, tmp_path: Path) -> None:
    ca, cert, key = certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    slurm._server.socket = context.wrap_socket(slurm._server.socket, server_side=True)
    url = slurm.url.replace("http", "https")
    full = SlurmSection(ca_file=ca, cert_file=cert, key_file=key, connect_timeout=1, read_timeout=1)
    SlurmClient(Config(slurm_rest_api=url, slurm=full), TOKEN).ping()
    for lacking in (SlurmSection(cert_file=cert, key_file=key), SlurmSection(ca_file=ca)):
        with pytest.raises(SlurmUnavailableError):
            SlurmClient(Config(slurm_rest_api=url, slurm=lacking), TOKEN).ping()
    with pytest.raises(ConfigError, match=r"slurm.caFile: no such file"):
        SlurmClient(Config(slurm_rest_api=url, slurm=SlurmSection(ca_file=tmp_path / "none")), TOKEN)


def test_a_proxy_of_the_environment_is_used(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("http_proxy", slurm.url)
    client = SlurmClient(Config(slurm_rest_api="http://slurm.invalid:6820"), TOKEN)
    with pytest.raises(SlurmUnavailableError):
        client.ping()
    assert slurm.calls[0] == ("GET", "http://slurm.invalid:6820/slurm/v0.0.45/ping")
