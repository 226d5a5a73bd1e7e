"""The submitter's end of a command that the script of a job starts: who may connect to it, and how it ends."""

from __future__ import annotations

import base64
import contextlib
import os
import select
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.site.sessions import channel_client
from cluster.polling import eventually

KINDS = ("control", "input", "output", "error")


class Client:
    """A running client, and the file that it has written for the script."""

    def __init__(self, folder: Path) -> None:
        sessions = folder / "control" / "sessions"
        sessions.mkdir(parents=True)
        words = [
            sys.executable,
            "-I",
            "-S",
            channel_client.__file__,
            str(folder),
            socket.gethostname(),
            "echo",
            "a b\n",
        ]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        self.file = eventually(lambda: next(sessions.glob("[0-9a-f]*"), None), "the file")
        self.token = self.file.name
        hosts, port, size, *encoded = self.file.read_text().splitlines()
        assert (hosts, size) == ("127.0.0.1", "")
        assert base64.b64decode("".join(encoded)) == b"echo\0a b\n\0"
        self.port = int(port)

    def connect(self, line: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), 5)
        connection.sendall(line.encode())
        return connection


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    made = Client(tmp_path)
    yield made
    made.process.kill()
    made.process.communicate()


def test_the_script_of_the_job_serves_the_command(client: Client) -> None:
    assert stat.S_IMODE(client.file.stat().st_mode) == 0o600
    control, into, out, err = (client.connect(f"{client.token} {kind}\n") for kind in KINDS)
    assert client.process.stdin is not None
    client.process.stdin.write(b"typed")
    client.process.stdin.close()
    client.process.stdin = None
    assert into.makefile("rb").read() == b"typed"
    out.sendall(b"out")
    err.sendall(b"err")
    out.close()
    err.close()
    control.sendall(b"exit 3\n")
    assert client.process.communicate(timeout=10) == (b"out", b"err")
    assert client.process.returncode == 3
    assert not client.file.exists()


def test_who_does_not_know_the_secret_gets_nothing(client: Client) -> None:
    lines = [
        "",
        "\n",
        "control\n",
        f"{'0' * 32} output\n",
        f"{client.token[:-1]} output\n",
        f"{client.token} other\n",
        "x" * 300,
    ]
    strangers = [client.connect(line) for line in lines for _ in range(12)]
    for stranger, line in zip(strangers, (line for line in lines for _ in range(12)), strict=True):
        if line:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(1) == b""
    # the client takes either of two that say the same
    rivals = [client.connect(f"{client.token} control\n") for _ in range(2)]
    (loser, *_), _, _ = select.select(rivals, [], [], 10)
    with contextlib.suppress(ConnectionResetError):
        assert loser.recv(1) == b""
    rivals.remove(loser)
    into, out, err = (client.connect(f"{client.token} {kind}\n") for kind in KINDS[1:])
    out.sendall(b"of the script")
    for connection in (into, out, err):
        connection.close()
    rivals[0].sendall(b"exit 0\n")
    assert client.process.communicate(timeout=10)[0] == b"of the script"
    assert client.process.returncode == 0


@pytest.mark.parametrize("said", [b"", b"exit\n", b"exit 256\n", b"exit -1\n", b"nothing\n", b"x" * 10**6])
def test_a_lost_script_is_an_error_in_words(client: Client, said: bytes) -> None:
    for kind in KINDS[1:]:
        client.connect(f"{client.token} {kind}\n").close()
    with client.connect(f"{client.token} control\n") as control, contextlib.suppress(ConnectionError):
        control.sendall(said)
    _, text = client.process.communicate(timeout=10)
    assert (client.process.returncode, text) == (126, b"the connection to the script of the job was lost\n")


def test_a_script_without_a_channel_and_a_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    words = [sys.executable, "-I", "-S", channel_client.__file__, str(tmp_path), "host", "true"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    assert (done.returncode, done.stderr) == (126, "the job's script starts no commands: No such file or directory\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "control" / "sessions").symlink_to(tmp_path / "elsewhere")
    done = subprocess.run(words, capture_output=True, text=True, timeout=10)
    assert done.returncode == 126 and "starts no commands" in done.stderr
    assert os.listdir(tmp_path / "elsewhere") == []
