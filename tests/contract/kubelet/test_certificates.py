"""An API server that verifies the kubelet's certificate accepts only certificates of its CA."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster, pki
from tests.contract.kubelet.conftest import kube_only, serving

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def strict(state_folder: Path) -> Iterator[Cluster]:
    state = state_folder / "strict"
    authority = f"--kubelet-certificate-authority={state / 'kube' / 'ca.crt'}"
    with kube_only(state, apiserver_args=[authority]) as cluster:
        yield cluster


def write(cluster: Cluster, folder: Path) -> bytes:
    pair = pki.Authority(cluster.state / "kube", "ca").write(folder / "tls", "kubelet", hosts=("127.0.0.1",))
    return pair[0].read_bytes()


def test_files_of_its_authority_are_taken_and_change_in_place(strict: Cluster, tmp_path: Path) -> None:
    first = write(strict, tmp_path)
    with serving(strict, cert_dir=tmp_path) as site:
        name = site.pod()
        site.write(name, b"hello\n")
        assert site.kubectl("logs", name).stdout == "hello\n"
        assert write(strict, tmp_path) != first
        site.kubelet._trust.step()
        pair = site.kubelet._certificates.pair
        assert pair is not None
        assert pair.cert != first
        assert site.kubectl("logs", name).stdout == "hello\n"


def test_a_certificate_made_here_is_not(strict: Cluster) -> None:
    with serving(strict) as site:
        name = site.pod()
        site.write(name, b"hello\n")
        done = site.kubectl("logs", name)
        assert done.returncode == 1
        assert "certificate signed by unknown authority" in done.stderr
