"""Real servers for the tests: nats-server, and an nginx that terminates TLS before it."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import nats
from click.testing import CliRunner
from nats.aio.client import Client as Bare

from bridge.apps.cli.nats_command import nats as command
from bridge.config.pools import NatsSection
from bridge.core.threads import Supervisor
from bridge.errors import SiteRefusedError
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.sessions import STDOUT
from bridge.protocol.nats.messages import (
    Announce,
    BuildConfigMessage,
    CancelMessage,
    Description,
    Empty,
    Files,
    Grant,
    Logs,
    Snapshot,
    SnapshotPage,
    Status,
    SubmitMessage,
    SubmittedMessage,
    UsageAnswer,
    UsageRequest,
)
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.request_server import Run
from bridge.protocol.nats.two_way import TwoWay
from bridge.serving.certificates import make_pair
from cluster.polling import eventually
from cluster.ports import free_block
from cluster.processes import send_signal

OWNER = "c1"
PREFIX = "bridge.v1"


def free_port() -> int:
    """Find a port without a listener that no outgoing connection takes."""
    return free_block(1)


def concurrently(count: int, call: Callable[[int], object], threads: int = 16) -> None:
    """Call with each number below ``count``; raise the first error."""
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(call, range(count)):
            pass


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def certificate(folder: Path, *names: str) -> tuple[Path, Path, Path]:
    """Create a CA and a certificate; return the files of CA, certificate and key."""
    pair = make_pair(names, 86400, now=time.time())
    files = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
    for file, text in zip(files, (pair.ca, pair.cert, pair.key), strict=True):
        file.write_bytes(text)
    return files


def nats_config(*words: object) -> str:
    """Run ``podbridge nats config``; return its output."""
    result = CliRunner().invoke(command, ["config", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


class NatsServer:
    """A nats-server that can be killed, stopped and started again on the same port."""

    def __init__(self, folder: Path, config: str = "", *, config_file: Path | None = None) -> None:
        self.port, self.monitoring = free_port(), free_port()
        self.binary = Path(sys.executable).parent / "nats-server"
        self.log = folder / "nats-server.log"
        self.config = config_file or folder / "plain.conf"
        if config_file is None:
            self.config.write_text(config)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self, *ports: int) -> NatsServer:
        with self.log.open("ab") as log:
            addresses = f"-a 127.0.0.1 -p {self.port} -m {self.monitoring}".split()
            words = [self.binary, *addresses, "-c", self.config]
            self.process = subprocess.Popen(words, stderr=log, stdout=log)
        eventually(lambda: self._up(*ports))
        return self

    def _up(self, *ports: int) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return all(listens(port) for port in (self.port, *ports))

    def connections(self) -> int:
        """Return the number of connections, from the server."""
        return self._monitored("connz")["num_connections"]

    def routes(self) -> int:
        """Return the number of connections to other servers of the cluster."""
        return self._monitored("routez")["num_routes"]

    def _monitored(self, path: str) -> Any:
        with urlopen(f"http://127.0.0.1:{self.monitoring}/{path}") as answer:
            return json.load(answer)

    def signal(self, number: int) -> None:
        assert self.process is not None
        send_signal(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None


def attack(
    url: str, plot: Callable[[Bare, Any], Awaitable[None]], **access: Any
) -> tuple[list[str], list[str], list[str]]:
    """Run ``plot(client, on_message)`` with a bare client of nats-py, which does not follow the protocol.

    Return the refusals of subscriptions and of messages by the server, and the subjects that ``on_message`` has got.
    """
    refused: list[str] = []
    heard: list[str] = []

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    async def on_message(message: Any) -> None:
        heard.append(message.subject)

    async def run() -> None:
        client = await nats.connect(url, error_cb=on_error, allow_reconnect=False, **access)
        await plot(client, on_message)
        await client.flush()
        await asyncio.sleep(0.3)
        await client.close()

    asyncio.run(run())
    subscriptions, messages = ([text for text in refused if word in text] for word in ("subscription", "publish"))
    return subscriptions, messages, heard


class Nginx:
    """An nginx that terminates TLS; ``location`` is the block of its only server."""

    def __init__(self, folder: Path, location: str, cert: Path, key: Path, name: str = "localhost") -> None:
        self.port = free_port()
        self.folder = folder
        (folder / "nginx.conf").write_text(f"""
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{self.port} ssl;
    server_name {name};
    ssl_certificate {cert};
    ssl_certificate_key {key};
    {location}
  }}
}}
""")
        self.start()

    def start(self) -> None:
        binary = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
        assert binary, "nginx is missing: apt-get install nginx-light"
        command = [binary, "-p", self.folder, "-c", self.folder / "nginx.conf"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        eventually(lambda: listens(self.port))

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


def status(job: str, phase: str = "queued", **more: Any) -> JobStatus:
    return JobStatus(job=job, **{"owner": OWNER, **more}, namespace="ns", name="pod", phase=phase)


@dataclass
class Site:
    """A submitter without a batch system: it records its requests."""

    pool: str = "alpha"
    submitter: str = "s-1"
    sequence: int = 0
    jobs: dict[str, JobStatus] = field(default_factory=dict)
    submits: list[tuple[str, SubmitMessage]] = field(default_factory=list)
    grants: list[tuple[str, str, str]] = field(default_factory=list)
    log: bytes = b""
    delay: float = 0.0
    readers_gone: int = 0
    wait: threading.Event = field(default_factory=threading.Event)
    digest: str = "d1"
    config: dict[str, Any] = field(default_factory=dict)
    described: int = 0
    snapshots: int = 0

    def submit(self, owner: str, job: str, submit: SubmitMessage) -> SubmittedMessage:
        self.submits.append((job, submit))
        if self.delay:
            time.sleep(self.delay)
        existed = job in self.jobs
        return SubmittedMessage(status=self.jobs.setdefault(job, status(job)), existed=existed)

    def cancel(self, owner: str, job: str, cancel: CancelMessage) -> Status:
        if cancel.forget:
            self.jobs.pop(job, None)
        return Status(status=self.jobs.get(job))

    def status(self, owner: str, job: str, body: Empty) -> Status:
        if job == "boom":
            raise KeyError(job)
        return Status(status=self.jobs.get(job))

    def grant(self, owner: str, job: str, grant: Grant) -> Status:
        self.grants.append((owner, job, grant.ticket))
        return Status(status=self.jobs.get(job))

    def snapshot(self, owner: str, job: str, snapshot: Snapshot) -> SnapshotPage:
        self.snapshots += 1
        left = sorted(job for job in self.jobs if job > snapshot.after)
        page = tuple(self.jobs[job] for job in left[: snapshot.limit])
        more = len(left) > snapshot.limit
        return SnapshotPage(submitter=self.submitter, sequence=self.sequence, jobs=page, more=more)

    def files(self, owner: str, job: str, files: Files) -> Empty:
        if job not in self.jobs:
            raise SiteRefusedError(f"job {job} is not here", reason="NotFound", hint="look elsewhere")
        return Empty()

    def usage(self, owner: str, job: str, request: UsageRequest) -> UsageAnswer:
        return UsageAnswer(jobs=())

    def announce(self) -> Announce:
        return Announce(
            pool=self.pool,
            submitter=self.submitter,
            sequences={OWNER: self.sequence},
            time=time.time(),
            period=5,
            version="test",
            digest=self.digest,
        )

    def describe(self, owner: str, job: str, body: Empty) -> Description:
        self.described += 1
        return Description(announce=self.announce(), buildconfig=self.buildconfig())

    def buildconfig(self) -> BuildConfigMessage:
        return BuildConfigMessage(pool=self.pool, digest=self.digest, config=self.config)

    def logs(self, owner: str, job: str, logs: Logs) -> Run:
        if logs.container == "missing":
            raise SiteRefusedError("no such container", reason="ContainerNotFound")

        def run(stream: TwoWay) -> None:
            stream.send(STDOUT, self.log)
            if logs.container == "breaks":
                raise OSError("disk")
            while logs.follow and not self.wait.wait(0.05):
                if stream.is_over:
                    self.readers_gone += 1
                    return
            stream.send(STDOUT, end=True)

        return run


PATIENCE = 60.0
"""Seconds after which a message is lost."""


class PlainMessages:
    """Messages over the server that nobody handles: their delay is that of the machine and of the server."""

    def __init__(self, world: World, server: NatsServer) -> None:
        self._link, other = world.link(server.url, "plain"), world.link(server.url, "other")
        self._seen: queue.SimpleQueue[tuple[bytes, float]] = queue.SimpleQueue()
        other.subscribe("plain.message", lambda _subject, data, _respond: self._seen.put((data, time.monotonic())))
        self._number = 0
        # messages of one connection may overtake the subscription of another
        eventually(lambda: self._link.publish("plain.message", b"0") or not self._seen.empty())

    def delay(self) -> float:
        """Send a message; return after how many seconds it has arrived."""
        self._number += 1
        text, begun = str(self._number).encode(), time.monotonic()
        self._link.publish("plain.message", text)
        while (seen := self._seen.get(timeout=PATIENCE))[0] != text:
            pass
        return seen[1] - begun


class World:
    """Links that end with the test."""

    def __init__(self) -> None:
        self.supervisor = Supervisor()

    def link(
        self, server: str, name: str = "test", *, wait: bool = True, inbox_prefix: str = "_INBOX", **files: Any
    ) -> Link:
        link = Link(NatsSection(servers=[server], **files), name, inbox_prefix)
        link.start(self.supervisor)
        if wait:
            eventually(lambda: link.connected, timeout=20)
        return link

    def close(self) -> None:
        self.supervisor.stop()
        left = self.supervisor.join(10)
        assert left == [], f"threads that go on: {left}"
        assert self.supervisor.failure is None
