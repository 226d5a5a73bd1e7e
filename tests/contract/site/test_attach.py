"""Clients that are attached to containers of running jobs (``kubectl attach``), over a real nats-server."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.model.sessions import Exit, Session
from bridge.protocol.nats.messages import CancelMessage
from bridge.protocol.nats.request_table import CANCEL
from cluster.polling import eventually
from tests import processes
from tests.contract.site import jobs
from tests.contract.site.conftest import Site, new_place
from tests.contract.site.sessions import attach, outcome

pytestmark = pytest.mark.real
Run = Callable[..., str]


@pytest.fixture(scope="module")
def site(nats_url: str) -> Any:
    """One site for all tests."""
    text = '[local]\ncpus = 8\nmemory = "4Gi"\n'
    with new_place() as place, Site(place, nats_url, "local", text) as made:
        yield made


@pytest.fixture
def run(site: Any) -> Iterator[Run]:
    """Run pods with a console; at the end, none of their keepers is left."""
    made: list[str] = []

    def start(command: str, **console: bool) -> str:
        made.append(jobs.submit_pod(site, command, **console))
        return made[-1]

    yield start
    for job in made:
        with contextlib.suppress(SiteRefusedError):
            jobs.cancel(site, job)
    eventually(lambda: not processes.with_word("keep"), "no keeper is left")


class Reader:
    def __init__(self, session: Session) -> None:
        self.session, self.seen = session, b""

    def until(self, text: bytes) -> None:
        while text not in self.seen:
            item = self.session.receive()
            assert not isinstance(item, Exit), self.seen
            self.seen += item.data
        self.seen = self.seen.partition(text)[2]


def test_the_input_reaches_the_container_and_ends_it(site: Any, run: Run) -> None:
    """As ``kubectl run -i``."""
    job = run("cat; echo end; exit 3", stdin=True, stdinOnce=True)
    session = attach(site, job, stdin=True)
    session.send(b"hello\n")
    reader = Reader(session)
    reader.until(b"hello\n")
    lots = b"0123456789" * 50_000 + b"\n"
    sender = threading.Thread(target=lambda: (session.send(lots), session.end_input()))
    sender.start()
    reader.until(lots)
    sender.join()
    code, out, err = outcome(session)
    assert (code, reader.seen + out, err) == (0, b"end\n", b"")
    done = site.wait(job, "ended")
    assert done.containers[0].ended.exit_code == 3
    assert site.log(job) == b"hello\n" + lots + b"end\n"


def test_detached_clients_leave_the_container_running(site: Any, run: Run) -> None:
    job = run("while read line; do echo got $line; done; echo over", stdin=True)
    for word in (b"one", b"two"):
        session = attach(site, job, stdin=True)
        session.send(word + b"\n")
        Reader(session).until(b"got " + word + b"\n")
        session.close()
    silent, writer = attach(site, job), attach(site, job, stdin=True)
    time.sleep(0.5)
    writer.send(b"three\n")
    writer.end_input()
    for session in (silent, writer):  # the output from now on, also without input
        Reader(session).until(b"got three\n")
        session.close()
    eventually(lambda: not processes.with_word("attach"), "no client is left")
    assert site.status(job).phase == "running"


def test_a_terminal(site: Any, run: Run) -> None:
    job = run("exec bash --norc -i", stdin=True, tty=True)
    session = attach(site, job, stdin=True, tty=True)
    session.resize(123, 45)
    reader = Reader(session)
    time.sleep(0.5)
    session.send(b"stty size; echo $TERM.; tty\n")
    reader.until(b"45 123\r\n")
    reader.until(b"xterm.")
    session.resize(80, 24)
    time.sleep(0.5)
    session.send(b"stty size\n")
    reader.until(b"24 80\r\n")
    session.send(b"echo begun; sleep 100; echo not-reached; exit 1\n")
    reader.until(b"begun\r\n")
    time.sleep(0.3)
    session.send(b"\x03")
    reader.until(b"^C")
    session.close()
    session = attach(site, job, stdin=True, tty=True)
    reader = Reader(session)
    session.send(b"echo again-$((1 + 1))\n")
    reader.until(b"again-2\r\n")
    session.send(b"exit 9\n")
    assert outcome(session)[0] == 0
    assert site.wait(job, "ended").containers[0].ended.exit_code == 9


def test_the_end_of_the_container_is_orderly(site: Any, run: Run) -> None:
    """A container with a terminal gets SIGTERM, and what it says then arrives."""
    job = run("trap 'echo asked; exit 0' TERM; while :; do echo ready; sleep 0.1; done", stdin=True, tty=True)
    session = attach(site, job, stdin=True, tty=True)
    Reader(session).until(b"ready\r\n")
    site.client.call(CANCEL, job, CancelMessage(grace=10))
    assert b"asked\r\n" in outcome(session)[1]


def test_a_container_without_a_console_is_refused(site: Any, run: Run) -> None:
    job = run("sleep 300")
    code, out, _ = outcome(attach(site, job, stdin=True))
    assert (code, out) == (127, b"")
