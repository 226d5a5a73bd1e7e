"""Pods that reach Services, and the hub's part as in the controllers."""

from __future__ import annotations

import socket
import threading
from typing import Any

from bridge import names
from bridge.errors import SiteRefusedError
from bridge.protocol.model.sessions import Session
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
from tests.fakes.socket_server import SocketServer

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


def echo(sock: socket.socket) -> None:
    """Return what a client sends, as a server in the cluster does."""
    while data := sock.recv(65536):
        sock.sendall(data)


def client(site: Any, reach: str, *lines: str) -> tuple[str, dict[str, Any]]:
    """Submit a pod that connects to each line; return its UID and the pod."""
    job = jobs.uid()
    container = {"name": "main", "image": "none", "command": ["python3", "-c", CLIENT, *lines]}
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

    def session() -> Session | None:
        try:
            return site.client.reach(job)
        except SiteRefusedError as error:
            if error.reason != "NotRunning":
                raise
            return None

    opened = eventually(session, "the script runs", 30)
    stream = ReachStream(opened, lambda text, each: made.accept(about, text, each))
    thread = threading.Thread(target=stream.run, daemon=True)
    thread.start()
    return thread


def said(site: Any, job: str, count: int) -> list[str]:
    """Wait for the first lines of the pod's log."""
    jobs.await_container(site, job)

    def read() -> list[str]:
        return list(site.log(job).decode().splitlines())

    eventually(lambda: len(read()) >= count, f"{count} lines", 40)
    return read()


def check_reach(site: Any) -> None:
    """Reach a Service from a pod, by its name; the end of the pod ends its stream."""
    port = free_block(1)
    job, pod = client(site, f"web:{port}:80", *[f"web.default:{port}"] * 2)
    with SocketServer(echo) as server:
        stream = serve(site, job, pod, server.port)
        assert said(site, job, 2) == [f"web.default:{port} 300000"] * 2
        assert processes.with_word(str(port)), "the program that listens"
        jobs.cancel(site, job)
        stream.join(30)
    assert not stream.is_alive()
    eventually(lambda: not processes.with_word(str(port)), "nothing is left", 30)
