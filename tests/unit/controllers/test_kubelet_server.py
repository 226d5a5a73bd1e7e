from __future__ import annotations

import http.client
import json
import logging
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.core.shares import Shares
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError
from bridge.kube.kube_client import KubeClient
from bridge.protocol.model.sessions import STDOUT, Exit, Output
from cluster.polling import eventually
from controllers.kubelet.kubelet_server import Kubelet, KubeletSettings
from tests.fakes.client_certificate import Authority, client_files
from tests.fakes.kube_api import FakeApi, Handler, Request
from tests.fakes.log_pool import LogPool, running
from tests.fakes.memory_session import MemorySession
from tests.fakes.quick_stop import make_quick
from tests.fakes.spdy_client import SpdyClient

CA = Authority()
POD = {
    "metadata": {"name": "a", "namespace": "ns", "uid": "uid-a"},
    "spec": {"nodeName": "one", "containers": [{"name": "main"}]},
}
ADMIN = "admin"
LOG = "/containerLogs/ns/a/main?follow=true"


class Running:
    """A kubelet API on an API server that knows the token ``admin`` and lets admins do everything."""

    def __init__(self, folder: Path, api: FakeApi, **settings: Any) -> None:
        self.pool = LogPool("one")
        self.pool.runs("uid-a", "ns", "a", running("main"))
        self.supervisor = Supervisor()
        self.kubelet = Kubelet(
            KubeletSettings(host="127.0.0.1", port=0, **settings),
            KubeClient.load(api.kubeconfig(folder)),
            find=lambda namespace, name: (POD, self.pool) if (namespace, name) == ("ns", "a") else None,
            pods=lambda: [POD],
            pools=lambda: {"one": self.pool},
        )
        make_quick(self.kubelet._server)
        self.kubelet.start(self.supervisor)

    def connect(self, file: Path | None = None) -> http.client.HTTPSConnection:
        pair = self.kubelet._certificates.pair
        assert pair is not None
        context = ssl.create_default_context(cadata=pair.ca.decode())
        if file is not None:
            context.load_cert_chain(file)
        return http.client.HTTPSConnection("127.0.0.1", self.kubelet.port, timeout=20, context=context)

    def get(self, path: str, token: str | None = ADMIN, file: Path | None = None) -> http.client.HTTPResponse:
        connection = self.connect(file)
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        response = connection.getresponse()
        response.connection = connection  # type: ignore[attr-defined]
        return response

    def stop(self) -> None:
        self.supervisor.stop()
        assert self.supervisor.join(10) == []
        assert self.supervisor.failure is None


def reviews(handler: Handler, request: Request) -> bool:
    """Answer reviews as an API server would."""
    kind = request.path.rsplit("/", 1)[-1]
    spec = (request.body or {}).get("spec") or {}
    if kind == "tokenreviews":
        known = spec["token"] in ("admin", "bob")
        status: dict[str, Any] = {"authenticated": known, "user": {"username": spec["token"]} if known else {}}
    elif kind == "subjectaccessreviews":
        status = {"allowed": spec["user"] == "admin" or "masters" in spec.get("groups", ())}
    else:
        return False
    handler.answer(201, json.dumps({"kind": "Review", "status": status}).encode(), {})
    return True


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi() as started:
        started.faults.append(reviews)
        yield started


@pytest.fixture
def served(tmp_path: Path, api: FakeApi) -> Iterator[Running]:
    client = KubeClient.load(api.kubeconfig(tmp_path))
    data = {"client-ca-file": CA.pem.decode()}
    client.create(
        "/api/v1/namespaces/kube-system/configmaps",
        {"metadata": {"name": "extension-apiserver-authentication"}, "data": data},
    )
    started = Running(tmp_path, api)
    yield started
    started.stop()


def test_tokens_and_certificates_are_both_taken(served: Running, tmp_path: Path) -> None:
    assert served.kubelet.ready() is None
    masters = client_files(tmp_path, CA, "apiserver", groups=("masters",))
    assert served.get("/healthz").status == 200
    assert served.get("/healthz", token=None, file=masters).status == 200
    assert served.get("/healthz", token=None).status == 401
    assert served.get("/healthz", token="stranger").status == 401
    assert served.get("/healthz", token="bob").status == 403
    # a certificate that says who somebody is goes before a token, as with a kubelet
    assert served.get("/healthz", token="admin", file=client_files(tmp_path, CA, "carol")).status == 403


def test_interlink_2_5_a_follow_outlives_every_timeout_of_requests(
    served: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.serving.http_connection.ANSWER_TIMEOUT", 0.2)
    response = served.get(LOG)
    time.sleep(1.0)
    served.pool.write("uid-a", "main", b"late\n")
    assert response.readline() == b"late\n"


def test_200_follows_at_once_and_a_plain_request_beside_them(
    served: Running, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Shares, "enter", lambda *_: lambda: None)  # the server itself has room for 512, of any pods
    opened = [served.get(LOG) for _ in range(200)]
    assert {response.status for response in opened} == {200}
    assert len(served.kubelet._streams) == 200
    begin = time.monotonic()
    assert served.get("/healthz").read() == b"ok"
    assert time.monotonic() - begin < 5
    served.pool.write("uid-a", "main", b"for all\n")
    assert [response.readline() for response in opened] == [b"for all\n"] * 200
    asked = [request.path.rsplit("/", 1)[-1] for request in api.requests]
    assert asked.count("tokenreviews") == 1
    for response in opened:
        response.close()
        response.connection.close()  # type: ignore[attr-defined]
    assert served.pool.wait_open(0)


def test_a_command_over_tls(served: Running, caplog: pytest.LogCaptureFixture) -> None:
    session = MemorySession()
    served.pool.sessions = lambda pod, options: session
    connection = served.connect()
    forms = "v4.channel.k8s.io"
    headers = {"Connection": "Upgrade", "Upgrade": "SPDY/3.1", "X-Stream-Protocol-Version": forms}
    path = "/exec/ns/a/main?command=cat&input=1&output=1"
    with caplog.at_level(logging.INFO, "controllers.kubelet.command_sessions"):
        connection.request("POST", path, headers={"Authorization": "Bearer bob", **headers})
        assert connection.getresponse().status == 403
        connection = served.connect()
        connection.request("POST", path, headers={"Authorization": f"Bearer {ADMIN}", **headers})
        with raw_answer(connection) as client:
            error, stdin, stdout = (client.open(kind) for kind in ("error", "stdin", "stdout"))
            client.send(stdin, b"abc", end=True)
            eventually(lambda: session.input_ended)
            session.news.put(Output(STDOUT, session.input * 100_000))
            session.news.put(Exit(0))
            assert client.status(error)["status"] == "Success"
            assert client.content[stdout] == b"abc" * 100_000
            assert len(served.kubelet._streams) == 1
        eventually(lambda: len(served.kubelet._streams) == 0)
    begin, end = (vars(record) for record in caplog.records)
    assert begin["msg"] == "command started"
    assert end["msg"] == "command ended"
    told = str(end)
    for words in ("ns/a", "main", "one", "admin", "'bytes_in': 3", "'bytes_out': 300000", "'end': '0'"):
        assert words in told
    assert "cat" not in told.replace("command_sessions", "")


@contextmanager
def raw_answer(connection: http.client.HTTPSConnection) -> Iterator[SpdyClient]:
    """Read the headers of an answer 101; yield the client of what follows."""
    sock = connection.sock
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += sock.recv(1)
    assert head.startswith(b"HTTP/1.1 101 ")
    yield SpdyClient(sock)
    connection.close()


def test_without_an_api_server_nobody_is_let_in(tmp_path: Path) -> None:
    with FakeApi() as api:
        gone = api
    started = Running(tmp_path, gone)
    try:
        assert started.kubelet.ready() is not None
        assert started.get("/healthz").status == 503
        assert started.get("/healthz", token=None).status == 401
    finally:
        started.stop()


def test_missing_certificate_files_are_told_at_once(tmp_path: Path, api: FakeApi) -> None:
    with pytest.raises(BridgeError, match=r"tls\.crt"):
        Running(tmp_path, api, cert_dir=tmp_path)


def test_stopping_ends_follows(tmp_path: Path, api: FakeApi) -> None:
    started = Running(tmp_path, api)
    response = started.get(LOG)
    assert response.status == 200
    begin = time.monotonic()
    started.stop()
    assert time.monotonic() - begin < 5
    assert started.pool.wait_open(0)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
