from __future__ import annotations

import time
from pathlib import Path

import pytest

from bridge.errors import CertificateError, KubeUnavailableError
from bridge.kube.kube_client import KubeClient
from bridge.serving.certificates import Certificates, make_pair
from controllers.kubelet.trust import VALIDITY, Trust, read_client_ca
from tests.fakes.client_certificate import Authority
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeApi

DAY = 86400.0
CA = Authority()


def make(folder: Path | None = None, clock: FakeClock | None = None) -> tuple[Trust, Certificates, list[bytes]]:
    certificates, read = Certificates(gauge=None), [CA.pem]
    return (
        Trust(certificates, lambda: read[0], ["127.0.0.1"], clock or FakeClock(time.time()), folder),
        certificates,
        read,
    )


def write(folder: Path, pair: object = None) -> None:
    made = pair or make_pair(["127.0.0.1"], DAY, now=time.time())
    (folder / "tls.crt").write_bytes(made.cert)  # type: ignore[attr-defined]
    (folder / "tls.key").write_bytes(made.key)  # type: ignore[attr-defined]


def test_a_pair_made_here_is_renewed_in_time() -> None:
    clock = FakeClock(time.time())
    trust, certificates, _ = make(clock=clock)
    trust.step()
    first = certificates.pair
    clock.advance(VALIDITY / 2)
    trust.step()
    assert certificates.pair is first
    clock.advance(VALIDITY / 3)
    trust.step()
    assert certificates.pair != first
    assert certificates.clients == CA.pem


def test_files_are_served_and_read_again(tmp_path: Path) -> None:
    trust, certificates, _ = make(tmp_path)
    with pytest.raises(CertificateError, match=r"tls\.crt"):
        trust.serve()
    write(tmp_path)
    trust.step()
    first = certificates.pair
    assert first is not None
    write(tmp_path)
    trust.step()
    assert certificates.pair != first


def test_files_that_are_no_good_change_nothing(tmp_path: Path) -> None:
    trust, certificates, _ = make(tmp_path)
    write(tmp_path)
    trust.step()
    first = certificates.pair
    (tmp_path / "tls.crt").write_text("half a file")
    trust.step()
    (tmp_path / "tls.key").unlink()
    trust.step()
    assert certificates.pair is first


def test_authorities_are_taken_over_and_kept_while_nobody_answers() -> None:
    trust, certificates, read = make()
    trust.step()
    assert (certificates.clients, trust.problem) == (CA.pem, None)
    read.pop()
    with pytest.raises(IndexError):
        trust.authenticate()
    other = Authority().pem
    read.append(other)
    trust.step()
    assert certificates.clients == other


def test_a_silent_api_server_is_told_and_changes_nothing(tmp_path: Path) -> None:
    with FakeApi() as api:
        client = KubeClient.load(api.kubeconfig(tmp_path)).hurried(1)
        certificates = Certificates(gauge=None)
        trust = Trust(certificates, lambda: read_client_ca(client), ["127.0.0.1"], FakeClock(time.time()))
        path = "/api/v1/namespaces/kube-system/configmaps"
        data = {"client-ca-file": "a remark — with a dash\n" + CA.pem.decode() + "another\n"}
        client.create(path, {"metadata": {"name": "extension-apiserver-authentication"}, "data": data})
        trust.step()
        assert (certificates.clients, trust.problem) == (CA.pem, None)
        api.fail(503)
        trust.step()
        assert certificates.clients == CA.pem
        assert trust.problem is not None
        with pytest.raises(KubeUnavailableError):
            trust.authenticate()


def test_no_config_map_means_no_client_certificates(tmp_path: Path) -> None:
    with FakeApi() as api:
        assert read_client_ca(KubeClient.load(api.kubeconfig(tmp_path))) == b""
