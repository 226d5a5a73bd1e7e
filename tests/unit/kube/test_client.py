from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import urllib3

from bridge import errors
from bridge.errors import ConfigError
from bridge.kube import kube_access
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import PODS, SECRETS
from cluster.polling import eventually
from tests import builders
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeApi, Handler, Request
from tests.fakes.server_certificate import certificates

POD = PODS.path("ns", "a")
BODY = {"metadata": {"name": "a"}}


def test_verbs(api: FakeApi, client: KubeClient) -> None:
    created = client.create(PODS.path("ns"), BODY)
    assert client.get(POD) == created
    assert client.get(PODS.path(), {"limit": 5})["items"][0]["metadata"]["name"] == "a"
    assert client.patch(POD, {"metadata": {"labels": {"x": "1"}}})["metadata"]["labels"] == {"x": "1"}
    replaced = client.replace(POD, {"metadata": {"name": "a"}})
    assert "labels" not in replaced["metadata"]
    uid = created["metadata"]["uid"]
    assert client.delete(POD, {"preconditions": {"uid": uid}})["status"] == "Success"
    assert [request.method for request in api.requests] == ["POST", "GET", "GET", "PATCH", "PUT", "DELETE"]
    assert client.server == api.url


@pytest.mark.parametrize("name", [".", ".."])
def test_no_object_has_a_name_that_would_shorten_the_path(api: FakeApi, client: KubeClient, name: str) -> None:
    with pytest.raises(errors.KubeNotFoundError, match="no object has this name"):
        client.get(SECRETS.path("ns", name))
    assert api.requests == []


@pytest.mark.parametrize(
    ("kind", "content_type"),
    [
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("json", "application/json-patch+json"),
        ("apply", "application/apply-patch+yaml"),
    ],
)
def test_content_type_of_patches(api: FakeApi, client: KubeClient, kind: Any, content_type: str) -> None:
    client.create(PODS.path("ns"), BODY)
    client.patch(POD, {"metadata": {}}, kind=kind, params={"fieldManager": "me", "force": True})
    assert api.requests[-1].headers["Content-Type"] == content_type
    assert api.requests[-1].query == {"fieldManager": "me", "force": "true"}
    assert api.requests[-1].headers["User-Agent"] == "podbridge"


def test_metadata_only(api: FakeApi, client: KubeClient) -> None:
    client.create(PODS.path("ns"), BODY)
    client.get(POD, metadata_only=True)
    client.get(PODS.path("ns"), metadata_only=True)
    one, many = (request.headers["Accept"] for request in api.requests[-2:])
    assert ";as=PartialObjectMetadata;" in one
    assert ";as=PartialObjectMetadataList;" in many


@pytest.mark.parametrize(
    ("status", "error", "retryable"),
    [
        (400, errors.KubeInvalidError, False),
        (401, errors.KubeForbiddenError, False),
        (403, errors.KubeForbiddenError, False),
        (404, errors.KubeNotFoundError, False),
        (405, errors.KubeInvalidError, False),
        (409, errors.KubeConflictError, False),
        (410, errors.KubeGoneError, False),
        (413, errors.KubeInvalidError, False),
        (422, errors.KubeInvalidError, False),
        (429, errors.KubeUnavailableError, True),
        (500, errors.KubeUnavailableError, True),
        (503, errors.KubeUnavailableError, True),
        (504, errors.KubeUnavailableError, True),
    ],
)
def test_errors(api: FakeApi, client: KubeClient, status: int, error: type, retryable: bool) -> None:
    api.fail(status)
    with pytest.raises(errors.KubeError, match=rf"^PATCH /api/v1/namespaces/ns/pods/a: .*\({status}\)$") as caught:
        client.patch(POD, {})
    assert type(caught.value) is error
    assert caught.value.retryable is retryable
    assert caught.value.status == status
    assert len(api.requests) == 1


def test_a_patch_of_another_object_with_the_same_name_is_a_conflict(api: FakeApi, client: KubeClient) -> None:
    created = client.create(PODS.path("ns"), BODY)
    with pytest.raises(errors.KubeConflictError, match=r"metadata\.uid"):
        client.patch(POD, {"metadata": {"uid": "another"}})
    client.patch(POD, {"metadata": {"uid": created["metadata"]["uid"]}})


@pytest.mark.parametrize("text", ["404 page not found", "<html>not found", '{"error":"no such route"}', ""])
def test_404_of_a_proxy_does_not_mean_that_the_object_is_gone(api: FakeApi, client: KubeClient, text: str) -> None:
    api.fail(404, text=text)
    with pytest.raises(errors.KubeUnavailableError) as caught:
        client.get(POD)
    assert caught.value.retryable


@pytest.mark.parametrize("text", ["<html>hello", "[1]", '"x"', "{", "null"])
def test_success_that_is_no_object(api: FakeApi, client: KubeClient, text: str) -> None:
    api.fail(200, text=text)
    with pytest.raises(errors.KubeUnavailableError):
        client.get(POD)


def test_messages_are_cut_and_keep_secrets_back(api: FakeApi, client: KubeClient) -> None:
    text = json.dumps({"kind": "Status", "code": 422, "reason": "Invalid", "message": "hunter2 " + "x" * 900})
    api.fail(422, text=text)
    with pytest.raises(errors.KubeInvalidError, match="hunter2") as caught:
        client.create(PODS.path("ns"), BODY)
    assert len(str(caught.value)) < 400
    with pytest.raises(errors.KubeInvalidError) as caught:
        client.create(SECRETS.path("ns"), BODY)
    assert "hunter2" not in str(caught.value)
    assert "Invalid" in str(caught.value)


def with_sleep(api: FakeApi, folder: Path, slept: list[float]) -> KubeClient:
    return KubeClient.load(api.kubeconfig(folder), sleep=slept.append)


def test_429_waits_as_told_then_goes_on(api: FakeApi, tmp_path: Path) -> None:
    slept: list[float] = []
    api.fail(429, times=2, headers={"Retry-After": "3"})
    with_sleep(api, tmp_path, slept).create(PODS.path("ns"), BODY)
    assert slept == [3.0, 3.0]
    assert len(api.objects["api/v1/pods"]) == 1


def test_429_is_not_followed_for_ever(api: FakeApi, tmp_path: Path) -> None:
    slept: list[float] = []
    api.fail(429, headers={"Retry-After": "3600"})
    client = with_sleep(api, tmp_path, slept)
    with pytest.raises(errors.KubeUnavailableError) as caught:
        client.get(POD)
    assert (slept, len(api.requests)) == ([10.0, 10.0], 3)
    assert caught.value.retry_after == 3600
    with pytest.raises(errors.KubeUnavailableError):
        client.hurried(1).get(POD)
    assert (len(slept), len(api.requests)) == (2, 4)


@pytest.mark.parametrize(("status", "headers"), [(429, {}), (503, {"Retry-After": "1"}), (500, {})])
def test_nothing_else_is_tried_again(api: FakeApi, tmp_path: Path, status: int, headers: dict[str, str]) -> None:
    slept: list[float] = []
    api.fail(status, headers=headers)
    with pytest.raises(errors.KubeUnavailableError):
        with_sleep(api, tmp_path, slept).get(POD)
    assert (slept, len(api.requests)) == ([], 1)


def test_fence_is_asked_before_each_write_and_stops_it(api: FakeApi, client: KubeClient) -> None:
    asked: list[int] = []
    lost = False

    def check() -> None:
        asked.append(len(api.requests))
        if lost:
            raise errors.LostLeadershipError("lost")

    fenced = client.fenced(check)
    fenced.create(PODS.path("ns"), BODY)
    fenced.get(POD)
    fenced.patch(POD, {"metadata": {"labels": {"a": "b"}}})
    assert sorted(set(asked)) == [0, 2]
    lost = True
    with pytest.raises(errors.LostLeadershipError):
        fenced.delete(POD)
    assert [request.method for request in api.requests] == ["POST", "GET", "PATCH"]
    client.delete(POD)


def test_fence_is_asked_again_after_a_wait(api: FakeApi, client: KubeClient) -> None:
    clock = FakeClock()
    until = clock.now + 5

    def check() -> None:
        if clock.now > until:
            raise errors.LostLeadershipError("lost")

    client._sleep = clock.advance
    api.fail(429, times=1, headers={"Retry-After": "8"})
    with pytest.raises(errors.LostLeadershipError):
        client.fenced(check).create(PODS.path("ns"), BODY)
    assert len(api.requests) == 1


def reset(handler: Handler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.rfile.close()
    handler.wfile.close()
    handler.connection.close()


@pytest.mark.parametrize(
    "sent", [b"", b"HTTP/1.1 201 Crea", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", b"rubbish\r\n"]
)
@pytest.mark.parametrize("method", ["create", "get"])
def test_broken_connection_is_unknown_and_never_sent_again(
    api: FakeApi, client: KubeClient, sent: bytes, method: str
) -> None:
    client.get(PODS.path("ns"))  # now the connection is reused, as for most writes

    def break_off(handler: Handler, request: Request) -> bool:
        handler.connection.sendall(sent)
        reset(handler)
        return True

    api.faults.append(break_off)
    with pytest.raises(errors.KubeUnavailableError):
        client.create(PODS.path("ns"), BODY) if method == "create" else client.get(POD)
    assert len(api.requests) == 2


def test_connection_that_the_server_closed_meanwhile_is_replaced(api: FakeApi, client: KubeClient) -> None:
    client.get(PODS.path("ns"))
    api.cut()
    time.sleep(0.02)
    client.create(PODS.path("ns"), BODY)


def test_hanging_server(api: FakeApi, tmp_path: Path) -> None:
    def hang(handler: Handler, request: Request) -> bool:
        with api.changed:
            api.changed.wait_for(lambda: api.closing, 20)
        return True

    api.faults.append(hang)
    client = KubeClient.load(api.kubeconfig(tmp_path), read_timeout=0.1)
    with pytest.raises(errors.KubeUnavailableError, match="no answer in time"):
        client.get(POD)


def test_answer_that_trickles(api: FakeApi, tmp_path: Path) -> None:
    def drip(handler: Handler, request: Request) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not api.closing:
            handler.wfile.write(b" ")
            time.sleep(0.02)
        return True

    api.faults.append(drip)
    client = KubeClient.load(api.kubeconfig(tmp_path), read_timeout=0.1)
    begun = time.monotonic()
    with pytest.raises(errors.KubeUnavailableError, match="not complete after"):
        client.get(POD)
    assert time.monotonic() - begun < 2


def test_refused_connection(tmp_path: Path) -> None:
    with FakeApi() as api:
        file = api.kubeconfig(tmp_path)
    with pytest.raises(errors.KubeUnavailableError) as caught:
        KubeClient.load(file).create(PODS.path("ns"), BODY)
    assert (caught.value.status, caught.value.kube_reason, caught.value.retryable) == (0, "Refused", True)


def test_redirects_are_not_followed(api: FakeApi, client: KubeClient) -> None:
    api.fail(302, headers={"Location": "/login"}, text="")
    with pytest.raises(errors.KubeUnavailableError):
        client.get(POD)
    assert len(api.requests) == 1


def test_prefix_of_the_server_url(api: FakeApi, tmp_path: Path) -> None:
    api.url += "/clusters/one"
    client = KubeClient.load(api.kubeconfig(tmp_path))
    api.fail(403)
    with pytest.raises(errors.KubeForbiddenError, match=r"^GET /api/v1"):
        client.get(POD)
    assert api.requests[0].path == "/clusters/one" + POD


# --- credentials ------------------------------------------------------------------------------------------------------
def only_with(api: FakeApi, token: str) -> None:
    def check(handler: Handler, request: Request) -> bool:
        if request.headers.get("Authorization") == f"Bearer {token}":
            return False
        handler.answer(401, json.dumps({"kind": "Status", "code": 401, "reason": "Unauthorized"}).encode())
        return True

    api.faults[:] = [check]


def test_token_file_that_rotates(api: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    clock = FakeClock()
    client = KubeClient.load(api.kubeconfig(tmp_path, {"tokenFile": str(token)}), clock=clock)
    only_with(api, "one")
    client.create(PODS.path("ns"), BODY)
    token.write_text("two\n")
    only_with(api, "two")
    clock.advance(kube_access.RENEW_PERIOD)
    client.patch(POD, {"metadata": {"labels": {"a": "b"}}})
    client.get(POD)
    assert [request.headers["Authorization"] for request in api.requests] == [
        f"Bearer {token}" for token in ("one", "one", "two", "two")
    ]


def test_wrong_token_is_not_tried_for_ever(api: FakeApi, tmp_path: Path) -> None:
    clock = FakeClock()
    client = KubeClient.load(api.kubeconfig(tmp_path, {"token": "wrong"}), clock=clock)
    only_with(api, "right")
    with pytest.raises(errors.KubeForbiddenError):
        client.get(POD)
    assert len(api.requests) == 1
    clock.advance(60)
    with pytest.raises(errors.KubeForbiddenError):
        client.get(POD)
    assert len(api.requests) == 3


def test_credentials_that_vanish_are_an_error_of_the_call(api: FakeApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one")
    clock = FakeClock()
    client = KubeClient.load(api.kubeconfig(tmp_path, {"tokenFile": str(token)}), clock=clock)
    token.unlink()
    only_with(api, "one")
    clock.advance(60)
    client.create(PODS.path("ns"), BODY)
    only_with(api, "two")
    with pytest.raises(errors.KubeForbiddenError):
        client.get(POD)


def test_in_cluster_token_that_is_empty_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()

    class Library:
        host = "https://127.0.0.1:1"
        ssl_ca_cert = ca_cert_data = cert_file = key_file = tls_server_name = assert_hostname = proxy = (
            proxy_headers
        ) = None
        verify_ssl = True
        token = "one"

        def auth_settings(self) -> dict[str, Any]:
            if not self.token:
                raise RuntimeError("Token file exists but empty.")
            return {"BearerToken": {"value": f"bearer {self.token}\n"}}

    class Pool:
        proxy = None
        connection_pool_kw: ClassVar[dict[str, Any]] = {}

        def connection_from_url(self, url: str) -> urllib3.HTTPConnectionPool:
            return urllib3.HTTPConnectionPool("127.0.0.1")

    library = Library()
    monkeypatch.setattr("kubernetes.client.rest.RESTClientObject", lambda _: type("R", (), {"pool_manager": Pool()}))
    found = kube_access.KubeAccess(lambda: library, pool_size=1, clock=clock)
    assert found.authorization() == "bearer one"
    library.token = ""
    clock.advance(kube_access.HEADER_LIFE)
    assert found.authorization() == "bearer one"
    with found._lock:  # the thread that reads it has ended
        library.token = "two"
    assert found.authorization() == "bearer one"
    clock.advance(kube_access.HEADER_LIFE)
    eventually(lambda: found.authorization() == "bearer two")


@pytest.mark.parametrize("trusted", [True, False])
def test_a_watch_trusts_an_authority_without_key_identifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    """From Python 3.13 on, urllib3 refuses such an authority, which kubectl and libcurl trust."""
    monkeypatch.setattr("urllib3.util.ssl_.sys", SimpleNamespace(version_info=(3, 13)))
    contexts = []
    make = kube_access.create_urllib3_context
    monkeypatch.setattr(
        kube_access, "create_urllib3_context", lambda **more: contexts.append(make(**more)) or contexts[-1]
    )
    for name in ("right", "wrong"):
        (tmp_path / name).mkdir()
    ca, cert, key = certificates(tmp_path / "right")
    other, _, _ = certificates(tmp_path / "wrong")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        authority = {"certificate-authority": str(ca if trusted else other)}
        file = builders.kubeconfig(tmp_path, f"https://127.0.0.1:{server.server_port}", {"token": "t"}, **authority)
        found = kube_access.KubeAccess(lambda: kube_access.configuration(file, None), pool_size=1, clock=FakeClock())
        if trusted:
            assert found.pool.pool.maxsize == kube_access.WATCHES
            for _ in range(2):
                assert found.pool.request("GET", "/", retries=False, headers={"Connection": "close"}).status == 501
            # each connection loads certificates: two threads that do so in one context crash the process
            assert len(set(map(id, contexts))) == 2
        else:
            with pytest.raises(urllib3.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
                found.pool.request("GET", "/", retries=False)
        found.pool.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_exec_plugin(api: FakeApi, tmp_path: Path) -> None:
    version = "client.authentication.k8s.io/v1"
    counter = tmp_path / "runs"
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!/bin/sh\necho x >> {counter}\n"
        f'echo \'{{"apiVersion":"{version}","kind":"ExecCredential",'
        f'"status":{{"token":"t\'$(wc -l < {counter})\'"}}}}\'\n'
    )
    plugin.chmod(0o700)
    user = {"exec": {"apiVersion": version, "command": str(plugin), "interactiveMode": "Never"}}
    clock = FakeClock()
    client = KubeClient.load(api.kubeconfig(tmp_path, user), clock=clock)
    only_with(api, "t1")
    client.create(PODS.path("ns"), BODY)
    clock.advance(kube_access.HEADER_LIFE)
    client.get(POD)
    assert counter.read_text().count("x") == 1
    only_with(api, "t2")
    client.get(POD)
    assert counter.read_text().count("x") == 2


def hanging(api: FakeApi, folder: Path, clock: FakeClock) -> tuple[kube_access.KubeAccess, list[Any], threading.Event]:
    """Return credentials t0, t1, ..., the configurations read so far, and the event that ends the second read."""
    loads: list[Any] = []
    go = threading.Event()

    def load() -> Any:
        loads.append(kube_access.configuration(api.kubeconfig(folder, {"token": f"t{len(loads)}"}), None))
        if len(loads) == 2:
            go.wait(30)
        return loads[-1]

    return kube_access.KubeAccess(load, pool_size=1, clock=clock), loads, go


def test_a_plugin_that_hangs_holds_up_no_call(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube_access, "RENEW_WAIT", 0.1)
    clock = FakeClock()
    found, loads, go = hanging(api, tmp_path, clock)
    client = KubeClient(found, clock=clock)
    only_with(api, "t0")
    client.create(PODS.path("ns"), BODY)
    only_with(api, "t1")
    for _ in range(3):  # the first one starts to read the credentials again
        clock.advance(kube_access.HEADER_LIFE)
        with pytest.raises(errors.KubeForbiddenError):
            client.get(POD)
    assert len(loads) == 2
    only_with(api, "t0")
    client.get(POD)
    go.set()
    only_with(api, "t1")
    eventually(lambda: found.authorization() == "Bearer t1")
    client.get(POD)


def test_a_plugin_that_hangs_for_ever_and_a_lack_of_threads_end_no_refresh(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_access, "RENEW_WAIT", 0.1)
    clock = FakeClock()
    found, loads, go = hanging(api, tmp_path, clock)
    clock.advance(kube_access.RENEW_PERIOD)
    assert not found.renew("Bearer t0")
    clock.advance(kube_access.READER_LIFE)
    assert not found.renew("Bearer t0")
    clock.advance(1)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", raises(RuntimeError("can't start new thread")))
        assert not found.renew("Bearer t0")
    monkeypatch.setattr(kube_access, "RENEW_WAIT", 30)
    clock.advance(kube_access.RENEW_PERIOD)
    assert found.renew("Bearer t0")
    assert len(loads) == 3
    go.set()
    clock.advance(kube_access.RENEW_PERIOD)
    assert found.renew("Bearer t2")  # the late end of the first reader has released its own lock only


def raises(error: Exception) -> Any:
    def broken(*_: Any) -> None:
        raise error

    return broken


def test_a_refresh_that_hangs_holds_up_no_call(monkeypatch: pytest.MonkeyPatch, api: FakeApi, tmp_path: Path) -> None:
    clock = FakeClock()
    file = api.kubeconfig(tmp_path, {"token": "one"})
    found = kube_access.KubeAccess(lambda: kube_access.configuration(file, None), pool_size=1, clock=clock)
    go = threading.Event()
    monkeypatch.setattr(type(found._configuration), "auth_settings", lambda _: go.wait(30) and {})
    for _ in range(3):
        clock.advance(kube_access.HEADER_LIFE)
        assert found.authorization() == "Bearer one"
    go.set()
    eventually(lambda: found.authorization() is None)


def test_in_cluster(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import incluster_config

    (tmp_path / "token").write_text("inside")
    (tmp_path / "ca.crt").write_text("unused")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr(kube_access, "SERVICE_ACCOUNT", tmp_path / "token")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    configuration = kube_access.configuration(None, None)
    assert configuration.host == "https://[fd00::1]:443"
    assert configuration.auth_settings()["BearerToken"]["value"] == "bearer inside"
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path))
    assert KubeClient.load().server == api.url


@pytest.mark.parametrize("content", ["", "{", "[]", "a: b", '{"current-context": "x"}'])
def test_unusable_kubeconfig(tmp_path: Path, content: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(content)
    with pytest.raises(errors.ConfigError, match=str(file)):
        KubeClient.load(str(file))


def test_missing_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError):
        KubeClient.load(str(tmp_path / "none"))


def test_unknown_context(api: FakeApi, tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="nowhere"):
        KubeClient.load(api.kubeconfig(tmp_path), "nowhere")


def test_importing_the_client_does_not_load_the_library() -> None:
    import subprocess
    import sys

    code = "import sys, bridge.kube.kube_client; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=os.getcwd()).returncode == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "[1]",
        "current-context: 2024-99-99",
        "{current-context: c, contexts: , clusters: , users: }",
        "{current-context: c, contexts: [{name: c, context: {cluster: k}}], "
        "clusters: [{name: k, cluster: {server: 5}}]}",
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    with pytest.raises(ConfigError, match=f"cannot load the connection to Kubernetes from {file}: "):
        KubeClient.load(str(file), None, user_agent="test")
