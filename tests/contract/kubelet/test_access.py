"""Authentication and authorization by a real API server."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import subprocess
import uuid
from pathlib import Path

import pytest

from cluster import Cluster, pki
from tests.contract.kubelet.conftest import NAMESPACE, NODE, Site, grant, token

pytestmark = pytest.mark.real

PATHS = ["/pods", "/runningpods/", "/stats/summary", "/metrics/resource", "/healthz", "/nothing"]


def get(site: Site, path: str, bearer: str | None = None, pair: tuple[Path, Path] | None = None) -> tuple[int, bytes]:
    context = site.trusting()
    if pair is not None:
        context.load_cert_chain(*pair)
    connection = http.client.HTTPSConnection("127.0.0.1", site.kubelet.port, timeout=20, context=context)
    connection.request("GET", path, headers={"Authorization": f"Bearer {bearer}"} if bearer else {})
    response = connection.getresponse()
    return response.status, response.read()


def account() -> str:
    return f"sa-{uuid.uuid4().hex[:8]}"


def client_pair(cluster: Cluster, folder: Path, user: str, *groups: str) -> tuple[Path, Path]:
    return pki.Authority(cluster.state / "kube", "ca").write(folder / user, user, groups)


def test_nobody_is_let_in_unknown(site: Site) -> None:
    name = site.pod()
    for path in [*PATHS, f"/containerLogs/{NAMESPACE}/{name}/main", f"/exec/{NAMESPACE}/{name}/main"]:
        assert get(site, path) == (401, b"Unauthorized")
        assert get(site, path, "rubbish")[0] == 401
        assert get(site, path, "a.b.c")[0] == 401


def test_a_token_without_rights_is_403_and_one_with_them_is_not(site: Site) -> None:
    name, plain, granted = site.pod(), account(), account()
    site.write(name, b"hello\n")
    path = f"/containerLogs/{NAMESPACE}/{name}/main"
    without, having = token(site, plain), token(site, granted)
    grant(site, f"system:serviceaccount:{NAMESPACE}:{granted}", "proxy", names=(NODE,))
    status, text = get(site, path, without)
    assert status == 403
    assert f"system:serviceaccount:{NAMESPACE}:{plain}".encode() in text
    assert get(site, path, having) == (200, b"hello\n")


def test_rights_are_those_of_a_kubelet(site: Site) -> None:
    name = account()
    bearer = token(site, name)
    grant(site, f"system:serviceaccount:{NAMESPACE}:{name}", "stats", "healthz")
    expected = {"/stats/summary": 200, "/healthz": 200, "/metrics/resource": 403, "/pods": 403, "/nothing": 403}
    assert {path: get(site, path, bearer)[0] for path in expected} == expected


def test_the_administrators_certificate_is_enough(site: Site) -> None:
    folder = site.cluster.state / "kube"
    for stem in ("admin", "kubelet-client"):
        pair = (folder / f"{stem}.crt", folder / f"{stem}.key")
        assert get(site, "/healthz", pair=pair) == (200, b"ok")
        assert get(site, "/nothing", pair=pair)[0] == 404


def test_a_certificate_of_the_cluster_without_rights_is_403(site: Site, tmp_path: Path) -> None:
    status, text = get(site, "/pods", pair=client_pair(site.cluster, tmp_path, "carol", "staff"))
    assert status == 403
    assert b"user=carol" in text


def test_groups_of_a_certificate_count(site: Site, tmp_path: Path) -> None:
    assert get(site, "/healthz", pair=client_pair(site.cluster, tmp_path, "dave", "x", "system:masters"))[0] == 200


def test_a_certificate_of_another_authority_gets_no_connection(site: Site, tmp_path: Path) -> None:
    pair = pki.Authority(tmp_path, "other").write(tmp_path / "eve", "eve", ("system:masters",))
    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        get(site, "/healthz", pair=pair)


def test_the_front_proxys_certificate_is_not_a_clients(site: Site) -> None:
    folder = site.cluster.state / "kube"
    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        get(site, "/healthz", pair=(folder / "front-proxy.crt", folder / "front-proxy.key"))


def test_lists(site: Site) -> None:
    name = site.pod()
    folder = site.cluster.state / "kube"
    pair = (folder / "admin.crt", folder / "admin.key")
    pods = json.loads(get(site, "/pods", pair=pair)[1])
    assert name in [pod["metadata"]["name"] for pod in pods["items"]]
    summary = json.loads(get(site, "/stats/summary", pair=pair)[1])
    assert summary["node"]["nodeName"] == NODE
    assert f'pod="{name}"'.encode() in get(site, "/metrics/resource", pair=pair)[1]


@pytest.mark.parametrize("websockets", ["true", "false"])
@pytest.mark.parametrize(
    ("command", "word"),
    [
        (("exec", "POD", "--", "ls"), "kubectl exec is not possible in pods on pool pool-one yet"),
        (("port-forward", "POD", ":80"), "kubectl port-forward is not possible to pods on pool pool-one"),
        (("cp", "POD:/etc/hosts", "/dev/null"), "kubectl exec is not possible in pods on pool pool-one yet"),
    ],
)
def test_what_is_not_possible_is_told_by_kubectl(
    site: Site, websockets: str, command: tuple[str, ...], word: str
) -> None:
    name = site.pod()
    own = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": websockets, "KUBECTL_PORT_FORWARD_WEBSOCKETS": websockets}
    done = subprocess.run(
        site.kubectl_command(*(part.replace("POD", name) for part in command)),
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **own},
    )
    assert done.returncode == 1
    assert word in done.stderr


def test_an_api_server_that_is_down_lets_nobody_new_in(site: Site) -> None:
    bearer = token(site, account())
    site.cluster.stop_daemon("kube-apiserver")
    try:
        status, text = get(site, "/healthz", bearer)
        assert status == 503
        assert b"a request to the API server failed" in text
        assert get(site, "/healthz")[0] == 401
    finally:
        site.cluster.start_daemon("kube-apiserver")
    assert get(site, "/healthz", bearer)[0] == 403
