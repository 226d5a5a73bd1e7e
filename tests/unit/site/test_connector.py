"""Which ports and processes are those of a pod: real sockets and processes of this machine."""

from __future__ import annotations

import ast
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bridge.relay.pod_processes import PodProcesses, acceptors
from bridge.site.sessions.port_sessions import program
from cluster.polling import eventually

LISTEN = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); "
WAYS = {
    "the process itself": f'exec "$0" -c "{LISTEN}time.sleep(60)"',
    "a child": f'"$0" -c "{LISTEN}time.sleep(60)"; true',
    "a child of the session that has lost its parent": f'("$0" -c "{LISTEN}time.sleep(60)" &); sleep 60',
    "a child that has a session of its own": f'setsid "$0" -c "{LISTEN}time.sleep(60)"; true',
}


class Shell:
    """A shell that leads a session, with a server on a port."""

    def __init__(self, text: str) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", text, sys.executable], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 30)[0]
        self.port = int(self.process.stdout.readline())

    def end(self) -> None:
        for pid in PodProcesses([self.process.pid], alone=False).pids():
            os.kill(pid, 9)
        self.process.wait(10)


@pytest.fixture
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    made = Shell(request.param)
    yield made
    made.end()


@pytest.mark.parametrize("shell", WAYS.values(), ids=WAYS, indirect=True)
def test_the_sockets_of_a_pod(shell: Shell) -> None:
    own = acceptors(shell.port, "127.0.0.1")
    assert len(own) == 1
    processes = PodProcesses([shell.process.pid], alone=True)
    assert processes.hold(own)
    assert processes.hold(own)  # from what it remembers
    with socket.create_server(("127.0.0.1", 0)) as another:  # of the same user
        foreign = acceptors(another.getsockname()[1], "127.0.0.1")
        assert len(foreign) == 1
        assert not processes.hold(foreign)
        assert not processes.hold(own | foreign)
    assert os.getpid() not in processes.pids()


@pytest.mark.parametrize("shell", [WAYS["a child"]], indirect=True)
def test_a_process_that_has_ended_or_another_with_its_number_holds_nothing(shell: Shell) -> None:
    own = acceptors(shell.port, "127.0.0.1")
    processes = PodProcesses([shell.process.pid], alone=False)
    assert processes.hold(own)
    processes._roots = {shell.process.pid: "1"}
    processes._holders.clear()
    assert not processes.hold(own)
    processes = PodProcesses([shell.process.pid], alone=False)
    assert processes.hold(own)
    shell.end()
    eventually(lambda: not acceptors(shell.port, "127.0.0.1"), "the port is closed")
    assert not processes.hold(own)
    assert processes.pids() == set()


def test_the_sockets_that_accept_a_connection() -> None:
    def of(family: int, address: str, only_v6: int = 1) -> socket.socket:
        sock = socket.socket(family)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only_v6)
        sock.bind((address, 0))
        sock.listen()
        return sock

    def inode(sock: socket.socket) -> int:
        return os.fstat(sock.fileno()).st_ino

    for sock, four, six in (
        (of(socket.AF_INET, "127.0.0.1"), True, False),
        (of(socket.AF_INET, ""), True, False),
        (of(socket.AF_INET, "127.0.0.2"), False, False),
        (of(socket.AF_INET6, "::1"), False, True),
        (of(socket.AF_INET6, "::", 0), True, True),
    ):
        with sock:
            port = sock.getsockname()[1]
            assert (acceptors(port, "127.0.0.1") == {inode(sock)}) is four
            assert (acceptors(port, "::1") == {inode(sock)}) is six
    assert acceptors(port, "127.0.0.1") == set()


def test_it_runs_on_python_3_6_and_needs_nothing_else() -> None:
    tree = ast.parse(program(), feature_version=(3, 6))
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported <= sys.stdlib_module_names
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.NamedExpr | ast.Match)]
    annotations = [
        annotation
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for annotation in (node.returns, *(argument.annotation for argument in node.args.args))
        if annotation is not None
    ]
    # a name, or a text that Python does not evaluate
    assert all(isinstance(each, ast.Name | ast.Constant | ast.Attribute) for each in annotations)
