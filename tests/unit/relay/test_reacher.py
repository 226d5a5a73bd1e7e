"""The program that listens for a pod: real processes and sockets of this machine, without a site."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.relay import multiplexer, pod_processes, programs, reacher
from bridge.relay.relayed import RelayedConnection
from cluster.polling import eventually
from cluster.ports import free_block
from controllers.reach.reach_stream import ReachStream
from tests.fakes.process_session import ProcessSession

PROGRAM = [sys.executable, "-I", "-S", "-c", programs.text(multiplexer, pod_processes, reacher)]
ADDRESS = "127.77.0.1"
CLIENT = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as sock:
    sock.sendall(sys.stdin.buffer.read())
    sock.shutdown(socket.SHUT_WR)
    while data := sock.recv(65536):
        sys.stdout.buffer.write(data)
"""


class Pod:
    """A folder of a job, and the program in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_block(1)
        (folder / "run").mkdir()
        words = [*PROGRAM, "keep", str(os.getpid()), "", ADDRESS, str(self.port), "web.team:80"]
        self.keeper = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self.keeper.stdout is not None and self.keeper.stdout.readline() == b"ready\n"
        self.accepted: list[tuple[str, RelayedConnection]] = []
        self.clients: list[subprocess.Popen[bytes]] = []

    def attach(self) -> ReachStream:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        process = subprocess.Popen([*PROGRAM, "attach"], cwd=self.folder, **pipes)
        stream = ReachStream(ProcessSession(process), lambda text, each: self.accepted.append((text, each)))
        threading.Thread(target=stream.run, daemon=True).start()
        return stream

    def client(self, sent: bytes = b"", *, of_pod: bool = True) -> subprocess.Popen[bytes]:
        """Start a client; ``of_pod``: as a container."""
        words = [sys.executable, "-c", CLIENT, ADDRESS, str(self.port)]
        ends: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        client = subprocess.Popen(words, **ends)
        if of_pod:
            start = Path(f"/proc/{client.pid}/stat").read_text().rpartition(")")[2].split()[19]
            (self.folder / f"run/c{client.pid}.pid").write_text(f"{client.pid} {start} boot\n")
        self.clients.append(client)
        assert client.stdin is not None
        client.stdin.write(sent)
        client.stdin.close()
        client.stdin = None
        return client

    def next(self) -> RelayedConnection:
        eventually(lambda: self.accepted, "a connection", 20)
        text, connection = self.accepted.pop(0)
        assert text == "web.team:80"
        return connection

    def end(self) -> None:
        for process in (self.keeper, *self.clients):
            process.kill()
            process.communicate()


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.end()


def received(connection: RelayedConnection) -> bytes:
    data = b""
    while piece := connection.receive():
        data += piece
    return data


def test_data_goes_both_ways_and_a_client_that_has_sent_all_receives_all(pod: Pod) -> None:
    stream = pod.attach()
    sent = b"question" * 20_000
    client = pod.client(sent)
    connection = pod.next()
    assert received(connection) == sent
    connection.send(b"answer" * 100_000)
    connection.end_input()
    connection.close()  # sends nothing: the client takes the rest
    assert client.communicate(timeout=20)[0] == b"answer" * 100_000
    stream.close()


def test_only_processes_of_the_pod_are_served(pod: Pod) -> None:
    stream = pod.attach()
    stranger, client = pod.client(of_pod=False), pod.client(b"hello")
    connection = pod.next()
    assert received(connection) == b"hello"
    assert b"reset" in stranger.communicate(timeout=20)[1]
    assert not pod.accepted
    connection.close()
    assert b"reset" in client.communicate(timeout=20)[1]
    stream.close()


def test_connections_wait_for_a_hub_and_the_last_one_serves(pod: Pod) -> None:
    client = pod.client(b"early")
    first = pod.attach()
    connection = pod.next()
    assert received(connection) == b"early"
    second = pod.attach()
    assert b"reset" in client.communicate(timeout=20)[1]
    pod.client(b"late")
    assert received(pod.next()) == b"late"
    for stream in (first, second):
        stream.close()


def test_a_port_in_use_and_an_ended_script(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with socket.create_server((ADDRESS, 0)) as server:
        words = [*PROGRAM, "keep", str(os.getpid()), "", ADDRESS, str(server.getsockname()[1]), "web.team:80"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=20, text=True)
    assert "can't be used: Address already in use; allowed: NAME:LOCAL:PORT" in done.stderr
    words = [*PROGRAM, "keep", "1234567", "", ADDRESS, str(free_block(1)), "web.team:80"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=20, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")
