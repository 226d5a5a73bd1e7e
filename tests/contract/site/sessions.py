"""Sessions at a site."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from bridge.errors import SiteRefusedError
from bridge.protocol.model.sessions import STDERR, STDOUT, CommandOptions, Exit, Session
from cluster.polling import eventually
from tests import processes
from tests.contract.site import jobs


def enter(site: Any, job: str, *command: str, **more: Any) -> Session:
    return site.client.open_session(job, CommandOptions(container="main", command=list(command), **more))


def outcome(session: Session) -> tuple[int, bytes, bytes]:
    """Return exit code, output and error output; close the session."""
    texts = {STDOUT: b"", STDERR: b""}
    try:
        while not isinstance(item := session.receive(), Exit):
            texts[item.channel] += item.data
        return item.code, texts[STDOUT], texts[STDERR]
    finally:
        session.close()


def attach(site: Any, job: str, *, stdin: bool = False, tty: bool = False) -> Session:
    return site.client.open_session(job, CommandOptions(container="main", attach=True, stdin=stdin, tty=tty))


def check_attach(site: Any) -> None:
    """Attach clients to containers with an input and with a terminal."""
    job = jobs.submit_pod(site, "cat; echo end; exit 3", stdin=True, stdinOnce=True)
    session = attach(site, job, stdin=True)
    session.send(b"hello\n")
    session.end_input()
    assert outcome(session) == (0, b"hello\nend\n", b"")
    assert site.wait(job, "ended").containers[0].ended.exit_code == 3
    jobs.cancel(site, job)
    job = jobs.submit_pod(site, "read line; stty size; echo $line; exit 4", stdin=True, tty=True)
    terminal = attach(site, job, stdin=True, tty=True)
    terminal.resize(123, 45)
    time.sleep(0.5)
    terminal.send(b"typed\n")
    assert outcome(terminal)[1].splitlines()[-2:] == [b"45 123", b"typed"]
    assert site.wait(job, "ended").containers[0].ended.exit_code == 4
    jobs.cancel(site, job)


def check_commands(site: Any) -> None:
    """Run commands in a pod: input, outputs, exit code, a terminal, and their ends with their client and their pod."""
    eventually(lambda: site.announced and site.announced[-1].commands, "announced")
    job = jobs.submit_pod(site, "sleep 300", env=[{"name": "MARK", "value": "of the pod"}])
    words = ["sh", "-c", 'cat; echo err >&2; echo "$MARK $1"; exit 7', "sh", "a b'\n"]
    session = enter(site, job, *words, stdin=True)
    data = os.urandom(2**20)
    session.send(data)
    session.end_input()
    assert outcome(session) == (7, data + b"of the pod a b'\n\n", b"err\n")
    text = "read line; stty size; echo $TERM $line; sleep 0.5; stty size; exit 9"
    terminal = enter(site, job, "sh", "-c", text, stdin=True, tty=True)
    terminal.resize(123, 45)
    terminal.send(b"typed\n")
    code, out, _ = outcome(terminal)
    assert (code, out.splitlines()[-3:]) == (9, [b"45 123", b"xterm typed", b"45 123"])
    mark, other = f"13{os.getpid()}.5", f"24{os.getpid()}.5"
    session = enter(site, job, "sleep", mark)
    eventually(lambda: processes.with_word(mark), "the command runs")
    session.close()
    eventually(lambda: not processes.with_word(mark), "the command has ended with its client")
    session = enter(site, job, "sh", "-c", f"trap '' TERM HUP; sleep {other}", tty=True)
    eventually(lambda: processes.with_word(other), "the command runs")
    jobs.cancel(site, job)
    with contextlib.suppress(SiteRefusedError):
        assert outcome(session)[0] != 0
    eventually(lambda: not processes.with_word(other), "the command has ended with its pod", 30)
