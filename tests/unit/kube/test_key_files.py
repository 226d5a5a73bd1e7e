"""The certificates and the private key of a kubeconfig are in no file that a killed process would leave."""

from __future__ import annotations

import base64
import json
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import kube_config

from bridge.kube import kube_access
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import PODS
from tests import builders
from tests.fakes.clock import FakeClock
from tests.fakes.server_certificate import certificates
from tests.fakes.web_server import Handler, serving


class Api(Handler):
    """Answers each request with an empty object, on one connection each."""

    def respond(self) -> None:
        self.answer(b"{}", headers={"Content-Length": "2", "Connection": "close"})


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A kubeconfig that contains all certificates, for a server that requires that of the client."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    ca, cert, key = certificates(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    tls.load_verify_locations(ca)
    tls.verify_mode = ssl.CERT_REQUIRED
    text = {file: base64.b64encode(file.read_bytes()).decode() for file in (ca, cert, key)}
    user = {"client-certificate-data": text[cert], "client-key-data": text[key]}
    with serving(Api, tls=tls) as server:
        url, authority = f"https://127.0.0.1:{server.server_port}", {"certificate-authority-data": text[ca]}
        yield Path(builders.kubeconfig(tmp_path, url, user, **authority))


def load(kubeconfig: Path) -> kube_access.KubeAccess:
    return kube_access.KubeAccess(
        lambda: kube_access.configuration(str(kubeconfig), None), pool_size=1, clock=FakeClock()
    )


def requests(found: kube_access.KubeAccess) -> None:
    """Send requests by calls and by watches, each on new connections."""
    for _ in range(2):
        assert KubeClient(found, clock=FakeClock()).get(PODS.path("ns", "p")) == {}
        assert found.pool.request("GET", "/", retries=False).status == 200


def test_no_file_is_left_while_the_connections_use_the_key(kubeconfig: Path, tmp_path: Path) -> None:
    found = load(kubeconfig)
    assert not list((tmp_path / "tmp").iterdir())
    requests(found)
    again = load(kubeconfig)  # the library remembers the names of files that no longer exist
    requests(again)
    requests(found)
    assert not list((tmp_path / "tmp").iterdir())


def test_the_key_is_closed_with_the_connections(kubeconfig: Path) -> None:
    def open_keys() -> int:
        found = 0
        for number in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # that of the list itself
                found += "podbridge-key" in os.readlink(f"/proc/self/fd/{number}")
        return found

    before = open_keys()
    found = load(kubeconfig)
    assert open_keys() == before + 3
    found.pool.close()
    del found
    assert open_keys() == before


def test_a_file_that_another_thread_deletes_is_written_again(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library shares the files of equal certificates among threads."""
    move, left = kube_access._move, [2]

    def deleted_first(configuration: Any) -> None:
        if left[0]:
            left[0] -= 1
            Path(configuration.key_file).unlink()
        move(configuration)

    monkeypatch.setattr(kube_access, "_move", deleted_first)
    requests(load(kubeconfig))
    assert left == [0]


def test_on_other_systems_the_files_of_the_library_stay(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kube_access.sys, "platform", "darwin")
    kube_config._temp_files.clear()
    requests(load(kubeconfig))
    assert len(list((tmp_path / "tmp").iterdir())) == 3


def test_files_of_the_user_are_used_as_they_are(kubeconfig: Path, tmp_path: Path) -> None:
    content = json.loads(kubeconfig.read_text())
    content["users"][0]["user"] = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    kubeconfig.write_text(json.dumps(content))
    found = kube_access.configuration(str(kubeconfig), None)
    assert (found.cert_file, found.key_file) == (str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    requests(load(kubeconfig))
