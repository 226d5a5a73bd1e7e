import http.client
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import flask
import pytest

from bridge.errors import BridgeError
from bridge.serving.https import Server
from bridge.serving.streaming import Streams


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="unix-") as folder:  # a socket's path has at most 107 bytes
        yield Path(folder, "s")


def make_server(path: Path) -> Server:
    app = flask.Flask("test")

    @app.route("/short", methods=["GET", "POST"])
    def short() -> str:
        return f"body {flask.request.get_data(as_text=True)}"

    @app.get("/long")
    def long() -> flask.Response:
        return flask.Response((piece for piece in (b"", b"one\n", b"two\n")), content_type="text/plain")

    return Server(app, "", 0, threads=2, streams=Streams(lambda where: where == "/long"), drain=0.0, unix=path)


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("unix", timeout=5)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(5)
        self.sock.connect(str(self.path))


def get(path: Path, where: str, body: str | None = None) -> str:
    connection = Connection(path)
    try:
        connection.request("GET", where, body)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_requests_and_long_answers(path: Path, run_server: Callable[[Server], Server]) -> None:
    assert run_server(make_server(path)).port == 0
    assert get(path, "/short", "of a GET") == "body of a GET"
    assert get(path, "/long") == "one\ntwo\n"


def test_only_its_user_can_open_the_socket(path: Path, run_server: Callable[[Server], Server]) -> None:
    before = os.umask(0)
    try:
        run_server(make_server(path))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_socket_is_gone_after_a_stop(path: Path) -> None:
    server = make_server(path)
    server.start()
    stop = threading.Event()
    thread = threading.Thread(target=server.run, args=(stop,), daemon=True)
    thread.start()
    assert path.is_socket()
    stop.set()
    thread.join(10)
    assert not path.exists()


def test_a_socket_that_a_killed_process_left_is_replaced(path: Path, run_server: Callable[[Server], Server]) -> None:
    code = f"import socket, os; s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -signal.SIGKILL
    assert path.is_socket()
    run_server(make_server(path))
    assert get(path, "/short") == "body "


def test_the_socket_of_a_running_server_is_not_taken(path: Path, run_server: Callable[[Server], Server]) -> None:
    run_server(make_server(path))
    with pytest.raises(BridgeError, match="another process listens"):
        make_server(path).start()
    assert get(path, "/short") == "body "


def test_a_file_that_is_no_socket_is_kept(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(BridgeError, match="cannot listen"):
        make_server(path).start()
    assert path.read_text() == "precious"
