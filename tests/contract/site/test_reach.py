"""Connections of pods to Services, over a real nats-server; the hub's part is that of the controllers."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from bridge import names
from bridge.errors import SiteRefusedError
from bridge.protocol.nats.request_table import SUBMIT
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from cluster.polling import eventually
from cluster.ports import free_block
from controllers.reach.reach_connections import Client, ReachConnections
from controllers.reach.reach_stream import ReachStream
from tests import processes
from tests.contract.site import jobs
from tests.contract.site.conftest import Site, new_place

pytestmark = pytest.mark.real

CLIENT = """
import os, socket, sys
for line in sys.argv[1:]:
    host, port = line.split(":")
    try:
        with socket.create_connection((os.environ.get(host, host), int(port)), 30) as sock:
            sock.sendall(b"x" * 300000)
            sock.shutdown(socket.SHUT_WR)
            print(line, sum(len(data) for data in iter(lambda: sock.recv(65536), b"")), flush=True)
    except OSError as error:
        print(line, error, flush=True)
import time; time.sleep(1000)
"""


@pytest.fixture(scope="module")
def site(nats_url: str) -> Any:
    """One site for all tests."""
    text = '[local]\ncpus = 4\nmemory = "4Gi"\n[limits]\nallow_reach = true\n'
    with new_place() as place, Site(place, nats_url, "local", text) as made:
        yield made


@pytest.fixture(scope="module")
def echo() -> Iterator[int]:
    """A server in the cluster that returns what it receives."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as server:

        def serve(sock: socket.socket) -> None:
            with sock:
                while data := sock.recv(65536):
                    sock.sendall(data)

        def accept() -> None:
            while True:
                try:
                    sock = server.accept()[0]
                except OSError:
                    return
                threading.Thread(target=serve, args=(sock,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]


def client(site: Any, reach: str, *lines: str) -> tuple[str, dict[str, Any]]:
    """Submit a pod that connects to each line; return its UID and the pod."""
    job = jobs.uid()
    container = {"name": "main", "image": "none", "command": [sys.executable, "-c", CLIENT, *lines]}
    metadata = {"namespace": "default", "name": "pod", "uid": job, "annotations": {names.REACH: reach}}
    pod = {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container]}}
    config = BuildConfig.model_validate({"runtime": {"kind": "none"}, "limits": {"allow_reach": True}})
    script = build(pod, config, Objects({}, {}, {}), site.pool).script
    site.client.call(SUBMIT, job, jobs.submit("").model_copy(update={"script": script, "time_limit": 600.0}))
    return job, pod


def serve(site: Any, job: str, pod: dict[str, Any], port: int) -> threading.Thread:
    """Serve the stream of a pod as the controllers do."""
    made = ReachConnections(
        lambda _client: pod, lambda *_: None, lambda _: socket.create_connection(("127.0.0.1", port)), lambda *_: None
    )
    about = Client("default", "pod", job, site.pool)
    stream = ReachStream(site.client.reach(job), lambda text, each: made.accept(about, text, each))
    thread = threading.Thread(target=stream.run, daemon=True)
    thread.start()
    return thread


def said(site: Any, job: str, count: int) -> list[str]:
    """Wait for the first lines of the pod's log."""
    jobs.await_container(site, job)

    def read() -> list[str]:
        return list(site.log(job).decode().splitlines())

    eventually(lambda: len(read()) >= count, lambda: f"{count} lines: {read()}", 40)
    return read()


def streams(site: Any, job: str) -> set[int]:
    return {*processes.in_folder(site.folder / "jobs" / job)} & {*processes.with_word("attach")}


def test_names_and_variables_lead_to_the_service_and_the_end_of_the_pod_leaves_nothing(site: Any, echo: int) -> None:
    port = free_block(1)
    lines = [f"web:{port}", f"web.default.svc:{port}", f"WEB_SERVICE_HOST:{port}"]
    job, pod = client(site, f"web:{port}:80", *lines)
    site.wait(job, "running")
    thread = serve(site, job, pod, echo)
    assert said(site, job, 3) == [f"{line} 300000" for line in lines]
    jobs.cancel(site, job)
    thread.join(20)
    assert not thread.is_alive()
    eventually(lambda: not processes.in_folder(site.folder / "jobs" / job), "nothing is left")


def test_a_killed_submitter_ends_the_stream_and_its_successor_has_another(site: Any, echo: int) -> None:
    port = free_block(1)
    job, pod = client(site, f"web:{port}", *[f"web:{port}"] * 2)
    site.wait(job, "running")
    serve(site, job, pod, echo)
    said(site, job, 2)
    eventually(lambda: len(streams(site, job)) == 1, "one stream")
    site.kill(site.processes[-1])
    eventually(lambda: not streams(site, job), "no stream is left")
    site.start()
    serve(site, job, pod, echo)
    eventually(lambda: len(streams(site, job)) == 1, "one stream")
    jobs.cancel(site, job)
    eventually(lambda: not processes.in_folder(site.folder / "jobs" / job), "nothing is left")


def test_a_local_port_in_use_is_an_error_with_words(site: Any) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        job, _ = client(site, f"web:{port}", f"web:{port}")
        status = site.wait(job, "ended")
    assert (status.outcome, status.reason) == ("Failed", "NotPossibleAtSite")
    assert f"annotation {names.REACH}: port {port} of this machine can't be used" in status.message


def test_refusals(site: Any, nats_url: str) -> None:
    with pytest.raises(SiteRefusedError, match=r"not found|does not know|no job"):
        site.client.reach(jobs.uid())
    job = site.submit("sleep 100")
    site.wait(job, "running")
    with new_place() as place, Site(place, nats_url, "local") as other:
        there = other.submit("sleep 100")
        other.wait(there, "running")
        with pytest.raises(SiteRefusedError, match=r"limits.allow_reach is false"):
            other.client.reach(there)
