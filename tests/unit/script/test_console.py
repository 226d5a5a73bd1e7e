"""The console of a container: real terminals, pipes and processes of this machine, without a container runtime."""

from __future__ import annotations

import ast
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.script import console
from cluster.polling import eventually

PROGRAM = [sys.executable, "-I", "-S", console.__file__]


class Container:
    """A container ``main`` in an empty directory of a job."""

    def __init__(self, folder: Path, command: str, *, tty: str = "", once: str = "") -> None:
        self.folder, self.log = folder, folder / "log"
        (folder / "run").mkdir()
        for end in ("in", "out"):
            os.mkfifo(folder / f"run/main.{end}")
        with self.log.open("wb") as log:
            self.keeper = subprocess.Popen([*PROGRAM, "keep", "run/main", tty, once], cwd=folder, stdout=log)
            words = [*PROGRAM, "start", str(folder / "run/main"), tty, "bash", "-c", command]
            self.process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL)
        start = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        (folder / "run/main.pid").write_text(f"{self.process.pid} {start} boot\n")
        eventually(lambda: (folder / "run/main.console").exists(), "the keeper listens")

    def attach(self, sends: str = "1", terminal: int | None = None) -> subprocess.Popen[bytes]:
        ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} if terminal is None else {}
        if terminal is not None:
            ends = {"stdin": terminal, "stdout": terminal}
        return subprocess.Popen([*PROGRAM, "attach", "run/main", sends], cwd=self.folder, bufsize=0, **ends)

    def end(self) -> None:
        for process in (self.process, self.keeper):
            if process.poll() is None:
                process.kill()
            process.wait(10)


@pytest.fixture
def made() -> Iterator[list[Container]]:
    containers: list[Container] = []
    yield containers
    for container in containers:
        container.end()


def test_a_client_feeds_a_container_and_ends_its_input(tmp_path: Path, made: list[Container]) -> None:
    made.append(container := Container(tmp_path, "cat; echo over; exit 5", once="1"))
    client = container.attach()
    sent = os.urandom(300_000)
    assert client.communicate(sent, timeout=20)[0] == sent + b"over\n"
    assert (client.returncode, container.process.wait(10), container.keeper.wait(10)) == (0, 5, 0)
    assert container.log.read_bytes() == sent + b"over\n"


def test_a_client_that_is_killed_ends_the_input_if_it_is_open_once(tmp_path: Path, made: list[Container]) -> None:
    made.append(container := Container(tmp_path, "cat; echo over", once="1"))
    watching = container.attach("")
    client = container.attach()
    stdin, seen = client.stdin, watching.stdout
    assert stdin is not None and seen is not None
    eventually(lambda: stdin.write(b"x") and select.select([seen], [], [], 0.1)[0], "both are attached")
    client.kill()
    client.wait()
    assert container.process.wait(10) == 0
    assert re.fullmatch(b"x+over\n", watching.communicate(timeout=10)[0])


def test_a_client_that_takes_nothing_is_dropped(tmp_path: Path, made: list[Container]) -> None:
    made.append(container := Container(tmp_path, "head -c 3000000 /dev/zero"))
    client = container.attach()
    os.kill(client.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert container.process.wait(30) == 0
    assert container.keeper.wait(30) == 0
    assert time.monotonic() - began < 2 * console.PATIENCE + 5
    assert container.log.stat().st_size == 3_000_000
    client.kill()
    client.wait()


def test_the_terminal_of_a_container_has_the_size_of_the_clients(tmp_path: Path, made: list[Container]) -> None:
    text = "tty; while :; do stty size; sleep 0.05; done"
    made.append(container := Container(tmp_path, text, tty="1"))
    eventually(lambda: b"/dev/pts/" in container.log.read_bytes(), "it runs in a terminal")
    ours, theirs = pty.openpty()
    size(ours, 40, 120)
    client = container.attach(terminal=theirs)
    seen = until(ours, b"40 120\r\n")
    size(ours, 50, 132)
    client.send_signal(signal.SIGWINCH)
    until(ours, b"50 132\r\n", seen)
    # a shell survives SIGINT if its child ends by itself at that moment
    eventually(lambda: os.write(ours, b"\x03") and container.process.poll() is not None, "the container has ended")
    assert container.process.returncode == -signal.SIGINT
    assert client.wait(10) == 0


def test_a_keeper_ends_with_a_script_that_is_killed_before_the_container_starts(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    words = " ".join([*PROGRAM, "keep", "run/main", "1", "''"])
    shell = subprocess.Popen(["bash", "-c", f"{words} & echo $!; sleep 60"], cwd=tmp_path, stdout=subprocess.PIPE)
    assert shell.stdout is not None
    pid = int(shell.stdout.readline())
    eventually(lambda: (tmp_path / "run/main.console").exists(), "the keeper listens")
    shell.kill()
    shell.wait()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or b"Z" in state(pid), "the keeper has ended")


def state(pid: int) -> bytes:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]


def size(terminal: int, rows: int, columns: int) -> None:
    console.fcntl.ioctl(terminal, console.termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def until(terminal: int, text: bytes, seen: bytes = b"") -> bytes:
    while text not in seen:
        assert select.select([terminal], [], [], 20)[0], seen
        seen += os.read(terminal, 1000)
    return seen.partition(text)[2]


def test_it_runs_on_python_3_6_and_needs_nothing_else() -> None:
    source = Path(console.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert not re.search(r"-> (list|dict|tuple|set)\[", source)
