"""Commands in containers of running jobs (``kubectl exec``), over a real nats-server."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.model.sessions import CommandOptions
from bridge.protocol.nats.request_client import PoolClient
from cluster.polling import eventually
from tests import processes
from tests.contract.site import jobs
from tests.contract.site.conftest import Site, new_place
from tests.contract.site.sessions import enter, outcome

pytestmark = pytest.mark.real

LOTS = 5 * 2**20


@pytest.fixture(scope="module")
def site(nats_url: str) -> Any:
    """One site for all tests."""
    text = '[local]\ncpus = 4\nmemory = "4Gi"\n'
    with new_place() as place, Site(place, nats_url, "local", text) as made:
        yield made


@pytest.fixture
def job(site: Any) -> Any:
    """A pod that runs, with the variable MARK."""
    uid = jobs.submit_pod(site, "export HERE=1; sleep 300", env=[{"name": "MARK", "value": "of the pod"}])
    yield uid
    jobs.cancel(site, uid)


def test_exit_code_output_and_variables(site: Any, job: str) -> None:
    assert outcome(enter(site, job, "sh", "-c", "echo out; echo err >&2; exit 7")) == (7, b"out\n", b"err\n")
    assert outcome(enter(site, job, "printenv", "MARK")) == (0, b"of the pod\n", b"")
    code, out, err = outcome(enter(site, job, "no-such-program"))
    assert (code, out) == (127, b"")
    assert b"no-such-program" in err
    assert outcome(enter(site, job, "sh", "-c", "kill -KILL $$"))[0] == 137
    words = ["a b", "'\"$HOME`", "", "-n", "\u00fc\n"]
    assert outcome(enter(site, job, "printf", "%s|", *words))[1].decode() == "".join(f"{word}|" for word in words)


def test_much_data_in_both_directions(site: Any, job: str) -> None:
    data = os.urandom(LOTS)
    session = enter(site, job, "cat", stdin=True)

    def send() -> None:
        session.send(data)
        session.end_input()

    sender = threading.Thread(target=send)
    sender.start()
    assert outcome(session) == (0, data, b"")
    sender.join()


def test_a_terminal(site: Any, job: str) -> None:
    session = enter(site, job, "bash", "--norc", "-i", stdin=True, tty=True)
    session.resize(123, 45)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += session.receive().data  # type: ignore[union-attr]

    session.send(b"stty size; echo $TERM.\n")
    until(b"45 123\r\n")
    until(b"xterm.")
    # the process that writes is the one to interrupt: bash itself may be between two commands, and go on
    session.send(b"sh -c 'echo begun; exec sleep 100'; echo not-reached; exit 1\n")
    until(b"begun\r\n")
    session.send(b"\x03")
    session.send(b"exit 9\n")
    assert outcome(session)[0] == 9


def test_the_hub_ends_the_command(site: Any, job: str) -> None:
    session = enter(site, job, "sleep", "1234.5")
    eventually(lambda: processes.with_word("1234.5"), "the command runs")
    session.close()
    eventually(lambda: not processes.with_word("1234.5"), "the command has ended")
    with pytest.raises(SiteRefusedError):
        session.receive()


def test_a_command_that_ignores_its_end_is_killed(site: Any, job: str) -> None:
    session = enter(site, job, "bash", "-c", "trap '' TERM HUP; while :; do sleep 0.2; done", "mark-4567.8")
    eventually(lambda: processes.with_word("mark-4567.8"), "the command runs")
    session.close()
    eventually(lambda: not processes.with_word("mark-4567.8"), "the command was killed")


def test_the_end_of_the_container_ends_the_command(site: Any, job: str) -> None:
    session = enter(site, job, "sleep", "2345.6")
    eventually(lambda: processes.with_word("2345.6"), "the command runs")
    jobs.cancel(site, job, forget=False)
    try:
        assert outcome(session)[0] != 0, "the script ended the command first"
    except SiteRefusedError as error:
        assert "the container has ended" in str(error)
    eventually(lambda: not processes.with_word("2345.6"), "the command has ended")


def test_a_killed_submitter_leaves_no_command(site: Any, job: str) -> None:
    enter(site, job, "sleep", "3456.7")
    eventually(lambda: processes.with_word("3456.7"), "the command runs")
    site.kill(site.processes[-1])
    eventually(lambda: not processes.with_word("3456.7"), "the command has ended")
    site.start()


def test_what_is_left_in_the_background_ends_no_session_late(site: Any, job: str) -> None:
    began = time.monotonic()
    assert outcome(enter(site, job, "sh", "-c", "sleep 20 & echo done"))[:2] == (0, b"done\n")
    assert time.monotonic() - began < 10


def test_refusals(site: Any, job: str) -> None:
    with pytest.raises(SiteRefusedError, match="no job"):
        enter(site, jobs.uid(), "true")
    stranger = PoolClient(site.link, "bridge.v1", site.pool, "another-cluster")
    with pytest.raises(SiteRefusedError, match="another cluster"):
        stranger.open_session(job, CommandOptions(container="main", command=["true"]))
    with pytest.raises(SiteRefusedError, match="'other' is not running"):
        site.client.open_session(job, CommandOptions(container="other", command=["true"]))
    with pytest.raises(SiteRefusedError, match="NUL"):
        enter(site, job, "a\0b")
    site.config.write_text(site.config.read_text() + "[limits]\nallow_exec = false\n")
    eventually(lambda: site.announced and not site.announced[-1].commands, "announced")
    with pytest.raises(SiteRefusedError, match=r"limits\.allow_exec is false"):
        enter(site, job, "true")
