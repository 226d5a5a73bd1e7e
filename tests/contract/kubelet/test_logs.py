"""``kubectl logs``, through a real API server, of pods whose site is in memory."""

from __future__ import annotations

import http.client
import resource
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from bridge.clock import rfc3339
from bridge.errors import SiteDownError
from bridge.protocol.model.jobs import Termination
from cluster.polling import eventually
from tests.contract.kubelet.conftest import NAMESPACE, Site
from tests.fakes.log_pool import running, terminated

pytestmark = pytest.mark.real


def out(site: Site, *args: str) -> str:
    done = site.kubectl("logs", *args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_log_and_parts_of_it(site: Site) -> None:
    name, now = site.pod(), time.time()
    for age, text in ((3600, b"old\n"), (60, b"newer\n"), (1, b"newest\n")):
        site.write(name, text, now - age)
    assert out(site, name) == "old\nnewer\nnewest\n"
    assert out(site, name, "--tail=1") == "newest\n"
    assert out(site, name, "--tail=0") == ""
    assert out(site, name, "--since=10m") == "newer\nnewest\n"
    assert out(site, name, f"--since-time={rfc3339(now - 30)}") == "newest\n"
    assert out(site, name, "--limit-bytes=5") == "old\nn"
    stamped = out(site, name, "--timestamps", "--tail=1").split()
    assert stamped[0].startswith(rfc3339(now - 1)[:16])
    assert stamped[1] == "newest"


def test_an_unusual_log_arrives_as_it_is(site: Site) -> None:
    name = site.pod()
    text = bytes(range(256)) * 10 + "ü€\n".encode() + b"x" * 1_000_000 + b"\n no end of line"
    site.write(name, text)
    done = subprocess.run(site.kubectl_command("logs", name), capture_output=True, timeout=60)
    assert done.stdout == text


def test_containers_of_a_pod(site: Site) -> None:
    name = site.pod("two-containers", "running", "main", "side")
    site.write(name, b"from main\n")
    site.write(name, b"from side\n", container="side")
    assert out(site, name, "-c", "side") == "from side\n"
    assert sorted(out(site, name, "--all-containers", "--prefix").splitlines()) == [
        f"[pod/{name}/main] from main",
        f"[pod/{name}/side] from side",
    ]


def test_the_log_before_a_restart(site: Site) -> None:
    name = site.pod()
    site.write(name, b"second life\n")
    refused = site.kubectl("logs", name, "--previous")
    assert f'previous terminated container "main" in pod "{name}" not found' in refused.stderr
    site.pool.runs(site.uid(name), NAMESPACE, name, running("main", last=Termination(exit_code=1)))
    site.write(name, b"first life\n", previous=True)
    assert out(site, name, "--previous") == "first life\n"
    assert out(site, name) == "second life\n"


def test_a_pod_that_has_ended(site: Site) -> None:
    name = site.pod()
    site.write(name, b"last words\n")
    site.pool.runs(site.uid(name), NAMESPACE, name, terminated("main", 3), phase="ended")
    site.pool.end(site.uid(name), "main")
    assert out(site, name) == "last words\n"
    assert out(site, name, "--follow") == "last words\n"


def test_a_container_that_has_not_started(site: Site) -> None:
    name = site.pod(state="pending")
    done = site.kubectl("logs", name)
    assert done.returncode == 1
    assert f'container "main" in pod "{name}" is waiting to start: ContainerCreating' in done.stderr


def test_a_silent_site_is_told_in_words(site: Site) -> None:
    name = site.pod()
    site.pool.fail(SiteDownError("pool pool-one does not answer"))
    try:
        done = site.kubectl("logs", name)
    finally:
        site.pool.fail(None)
    assert done.returncode == 1
    assert "pool pool-one does not answer" in done.stderr


def test_options_that_are_not_allowed(site: Site) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{site.pod()}/log?"
    for query in ("tailLines=x", "limitBytes=0", "sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z"):
        assert site.kubectl("get", "--raw", path + query).returncode == 1


def test_interlink_2_5_a_quiet_follow_lives_longer_than_30_seconds_and_ends_with_its_client(site: Site) -> None:
    name = site.pod()
    with subprocess.Popen(site.kubectl_command("logs", "-f", name), stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        site.write(name, b"begin\n")
        assert following.stdout.readline() == b"begin\n"
        time.sleep(33)
        begin = time.monotonic()
        site.write(name, b"after a long silence\n")
        assert following.stdout.readline() == b"after a long silence\n"
        assert time.monotonic() - begin < 1
        assert site.pool.open == 1
        following.kill()
    assert site.pool.wait_open(0, timeout=5)


def test_a_follow_ends_with_its_container(site: Site) -> None:
    name = site.pod()
    with subprocess.Popen(site.kubectl_command("logs", "-f", name), stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        site.write(name, b"only line\n")
        assert following.stdout.readline() == b"only line\n"
        site.pool.end(site.uid(name), "main")
        assert following.stdout.read() == b""
        assert following.wait(10) == 0


def test_124_logs_followed_at_once_and_a_plain_request_beside_them(site: Site) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 2000
    pods = [site.pod() for _ in range(4)]  # a pod may have 32 logs, a namespace alone 128
    context = ssl.create_default_context(cafile=str(site.cluster.state / "kube" / "ca.crt"))
    context.load_cert_chain(site.cluster.state / "kube" / "admin.crt", site.cluster.state / "kube" / "admin.key")
    port = int(site.client.server.rsplit(":", 1)[1])

    def ask(pod: str, query: str) -> tuple[Any, http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        connection.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/log{query}")
        return connection, connection.getresponse()

    with ThreadPoolExecutor(32) as threads:
        opened = list(threads.map(lambda pod: ask(pod, "?follow=true"), pods * 31))
    assert {response.status for _, response in opened} == {200}
    assert site.pool.wait_open(124)
    begin = time.monotonic()
    with closing(ask(pods[0], "")[1]) as plain:
        assert (plain.status, plain.read()) == (200, b"")
    assert time.monotonic() - begin < 3
    begin = time.monotonic()
    for pod in pods:
        site.write(pod, b"for all\n")
    assert [response.readline() for _, response in opened] == [b"for all\n"] * 124
    assert time.monotonic() - begin < 5
    for connection, response in opened:
        response.close()
        connection.close()
    assert site.pool.wait_open(0)
    eventually(lambda: len(site.kubelet._streams) == 0)
