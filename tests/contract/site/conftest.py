"""A real nats-server, real submitters as processes of their own, and the hub's end of the wire."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from bridge.config.pools import NatsSection
from bridge.core.threads import Supervisor
from bridge.errors import SiteDownError, SiteError, SiteUnknownOutcomeError
from bridge.protocol.nats.envelope import parse
from bridge.protocol.nats.messages import Announce, CancelMessage, Empty, Event, Logs, Snapshot
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, SNAPSHOT, STATUS, SUBMIT
from cluster.polling import eventually
from cluster.ports import free_block, listening
from tests.contract.site import jobs

OWNER = "c1"

RUN = "from bridge.apps.cli.main import main; main()"
CHECKOUT = Path(__file__).resolve().parents[3]


class Site:
    """A pool's site: its folder, its submitters, and what a hub hears of it."""

    patience = 30.0
    """Seconds in which a job starts or ends."""

    def __init__(self, path, url, batch, text=""):
        self.path, self.url = path, url
        self.folder = path / "site"
        self.config = path / "site.toml"
        self.pool = "site-" + os.urandom(3).hex()
        self.config.write_text(
            f'pool = "{self.pool}"\nfolder = "{self.folder}"\n[nats]\nservers = ["{url}"]\n'
            f"[announce]\nperiod = 1\ncapacity_period = 1\n{text}\n"
            + ("" if "[batch]" in text else f'[batch]\nkind = "{batch}"\n')
        )
        self.environment = dict(os.environ)
        self.listen(NatsSection(servers=[url]))

    def listen(self, nats):
        """Connect as the hub."""
        self.processes = []
        self.supervisor = Supervisor()
        self.link = Link(nats, "hub", f"{nats.inbox_prefix}.{OWNER}")
        self.events, self.announced, self.heard = [], [], threading.Condition()
        base = f"bridge.v1.{self.pool}"
        self.link.subscribe(f"{base}.event.{OWNER}", self._event)
        self.link.subscribe(f"{base}.announce", self._announce)
        self.link.start(self.supervisor)
        eventually(lambda: self.link.connected)
        self.client = PoolClient(self.link, "bridge.v1", self.pool, OWNER)

    def _event(self, subject, data, respond):
        self.events.append((time.time(), parse(Event, data)))

    def _announce(self, subject, data, respond):
        self.announced.append(parse(Announce, data))

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def start(self, wait=True):
        log = (self.path / f"submitter-{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, "submitter", "--config", str(self.config)],
            cwd=CHECKOUT,
            env=self.environment,
            stdout=log,
            stderr=log,
        )
        log.close()
        self.processes.append(process)
        if wait:
            eventually(self.answers, what="an answer")
            eventually(lambda: "connected to nats" in self.said(-1), what="its connection")
        return process

    def answers(self):
        for process in self.processes:
            if process.poll() not in (None, -9, 0):
                raise AssertionError(self.said())
        with contextlib.suppress(SiteError):
            return self.client.call(DESCRIBE, "", Empty(), timeout=1)
        return None

    def kill(self, process, number=signal.SIGKILL):
        process.send_signal(number)
        process.wait(10)

    def said(self, number=None):
        files = sorted(self.path.glob("submitter-*.log"))
        return "\n".join(file.read_text() for file in (files if number is None else [files[number]]))

    def submit(self, command, **more):
        """Submit a job that runs this command, and return its UID."""
        job = jobs.uid()
        self.client.call(SUBMIT, job, jobs.submit(command, **more))
        return job

    def status(self, uid):
        return self.client.call(STATUS, uid, Empty()).status

    def wait(self, uid, phase, timeout=20.0):
        last = None

        def look():
            nonlocal last
            with contextlib.suppress(SiteDownError, SiteUnknownOutcomeError):
                last = self.status(uid)
            return last if last is not None and last.phase == phase else None

        try:
            return eventually(look, timeout=timeout)
        except AssertionError:
            raise AssertionError(f"{uid} was not {phase} within {timeout} s: {last}") from None

    def heard_end(self, uid):
        """The first event that says that a job has ended, and when it came."""

        def look():
            return next(((at, e) for at, e in self.events if (e.status.job, e.status.phase) == (uid, "ended")), None)

        return eventually(look, f"the event of the end of {uid}", 10)

    def log(self, uid, **more):
        with contextlib.closing(self.client.logs(uid, Logs(container="main", stream="x" * 8, **more))) as reader:
            return b"".join(reader)

    def end(self):
        with contextlib.suppress(SiteError, AssertionError):
            for job in self.client.call(SNAPSHOT, "", Snapshot()).jobs:
                self.client.call(CANCEL, job.job, CancelMessage(grace=0, forget=True))
            eventually(lambda: not self.client.call(SNAPSHOT, "", Snapshot()).jobs, timeout=15)
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
        self.supervisor.stop()
        self.supervisor.join(3)


@pytest.fixture(scope="session")
def nats_url():
    port = free_block(1)
    server = Path(sys.executable).parent / "nats-server"
    process = subprocess.Popen([str(server), "-a", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL)

    def answers():
        assert process.poll() is None, f"nats-server ended with {process.returncode}"
        return listening(port)

    try:
        eventually(answers, "nats-server listens")
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@contextlib.contextmanager
def new_place():
    """Yield a folder on a short path that every machine of the site sees; remove it afterwards."""
    path = Path(tempfile.mkdtemp(prefix="site-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def place():
    """A folder on a short path that every machine of the site sees."""
    with new_place() as path:
        yield path


@pytest.fixture
def site(place, nats_url):
    """A site with the batch system ``local`` and one submitter."""
    with Site(place, nats_url, "local", '[local]\ncpus = 4\nmemory = "4Gi"\n') as made:
        yield made


@pytest.fixture
def make_site(place, nats_url):
    """Make sites of any kind."""
    made = []

    def make(batch="local", text=""):
        path = place / str(len(made))
        path.mkdir()
        made.append(Site(path, nats_url, batch, text))
        return made[-1]

    yield make
    for one in made:
        one.end()
