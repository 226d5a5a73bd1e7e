"""An interLink plugin, or an API server in front of one, over real HTTP. Its jobs are timers.

It behaves like interLink's Slurm plugin where that matters: a second ``/create`` of a pod starts a second job, and a
``/delete`` of an unknown pod ends the connection without an answer. Tests make it drop, delay, repeat and garble
answers.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

FAULTS = ("drop-before", "drop-after", "late", "garble", "repeat", "500-before", "500-after", "502-after")
"""``before`` and ``after``: before and after the request is carried out. ``late``: the connection ends at once, and the
request is carried out :attr:`FakePlugin.delay` seconds later."""


@dataclass
class Job:
    uid: str
    number: int
    began: float
    seconds: float

    @property
    def over(self) -> bool:
        return time.time() - self.began >= self.seconds

    def state(self) -> dict[str, Any]:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began))
        if self.over:
            end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.began + self.seconds))
            return {"terminated": {"exitCode": 0, "startedAt": at, "finishedAt": end}}
        return {"running": {"startedAt": at}}


@dataclass
class FakePlugin:
    """``fault(method, path)`` returns the fault of a request, or ``None``. Use it as a context manager."""

    seconds: float = 3600.0
    fault: Callable[[str, str], str | None] = lambda method, path: None
    delay: float = 0.5
    method: str = "any"
    list_body: bool = False
    first_only: bool = False
    ping: tuple[int, str] = (200, "{}")
    token: str = ""
    unix: Path | None = None
    tls: ssl.SSLContext | None = None
    refuse: tuple[int, str, dict[str, str]] | None = None
    """An answer to every request: status, body, headers."""
    jobs: dict[str, Job] = field(default_factory=dict)
    creates: list[str] = field(default_factory=list)
    requests: list[tuple[str, str, Any]] = field(default_factory=list)
    log: Callable[[Any], tuple[int, list[bytes], float]] = lambda body: (200, [b"hello\n"], 0.0)
    """Status, pieces, and seconds between them, for the body of ``/getLogs``."""
    hung_up: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self._last: dict[str, bytes] = {}

    def __enter__(self) -> FakePlugin:
        plugin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = plugin.unix is None

            def log_message(self, *_: Any) -> None:
                pass

            def address_string(self) -> str:
                return ""

            def do_GET(self) -> None:
                plugin._serve(self)

            do_POST = do_DELETE = do_GET  # noqa: N815  (the names that http.server requires)

        class Server(socketserver.ThreadingMixIn, HTTPServer):
            daemon_threads = True
            request_queue_size = 128
            address_family = socket.AF_UNIX if plugin.unix else socket.AF_INET

            def server_bind(self) -> None:
                socketserver.TCPServer.server_bind(self)

            def handle_error(self, *_: Any) -> None:
                pass

        address: Any = str(self.unix) if self.unix else ("127.0.0.1", self.port)
        self._server = Server(address, Handler)
        if self.tls is not None:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        if not self.unix:
            self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        if self.unix:
            return f"unix://{self.unix}"
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def paths(self) -> list[tuple[str, str]]:
        return [(method, path) for method, path, _ in self.requests]

    # --- requests -----------------------------------------------------------------------------------------------------
    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        raw = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        method, path = handler.command, handler.path
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            return self._answer(handler, 400, b"not JSON")
        with self.lock:
            self.requests.append((method, path, body))
        if self.refuse is not None:
            status, text, headers = self.refuse
            return self._answer(handler, status, text.encode(), headers)
        if self.token and handler.headers.get("Authorization") != f"Bearer {self.token}":
            return self._answer(handler, 401, b"who are you")
        fault = self.fault(method, path) or ""
        if path == "/getLogs":
            return self._logs(handler, method, body)
        if fault == "late":
            timer = threading.Timer(self.delay, self._carry_out, (method, path, body))
            timer.daemon = True
            timer.start()
        if fault in ("late", "drop-before"):
            return self._drop(handler)
        if fault == "500-before":
            return self._answer(handler, 500, b"the plugin is ill")
        found = self._carry_out(method, path, body)
        if fault == "drop-after" or found is None:
            return self._drop(handler)
        if fault in ("500-after", "502-after"):
            return self._answer(handler, int(fault[:3]), b"the plugin is ill")
        status, content = found
        with self.lock:
            before, self._last[path] = self._last.get(path, b"[]"), content
        if fault == "repeat":
            content = before
        if fault == "garble":
            content = content[: len(content) // 2] + b"\xff{"
        return self._answer(handler, status, content)

    def _answer(
        self, handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str] | None = None
    ) -> None:
        handler.send_response(status)
        for name, value in (headers or {}).items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    def _drop(self, handler: BaseHTTPRequestHandler) -> None:
        handler.close_connection = True
        handler.connection.shutdown(socket.SHUT_RDWR)

    def _carry_out(self, method: str, path: str, body: Any) -> tuple[int, bytes] | None:
        if path in ("/status", "/getLogs") and self.method not in ("any", method):
            return 405, b"method not allowed"
        match path:
            case "/pinglink":
                return self.ping[0], self.ping[1].encode()
            case "/status" if body == []:
                return self.ping[0], self.ping[1].encode()
            case "/status":
                asked = body[:1] if self.first_only else body
                return 200, json.dumps([self._status(pod) for pod in asked]).encode()
            case "/create":
                return self._create(body)
            case "/delete":
                return self._delete(body)
        return 404, b"no such route"

    def _create(self, body: Any) -> tuple[int, bytes]:
        if isinstance(body, list) != self.list_body:
            kind = "array" if isinstance(body, list) else "object"
            text = (
                f"json: cannot unmarshal {kind} into Go value of type {'[]' if self.list_body else ''}RetrievedPodData"
            )
            return 500, text.encode()
        data = body[0] if isinstance(body, list) else body
        uid = data["pod"]["metadata"]["uid"]
        with self.lock:
            self.creates.append(uid)
            number = len(self.creates)
            self.jobs[uid] = Job(uid, number, time.time(), self.seconds)
        answer = {"PodUID": uid, "PodJID": str(number)}
        return 200, json.dumps([answer] if self.list_body else answer).encode()

    def _delete(self, pod: Any) -> tuple[int, bytes] | None:
        uid = pod["metadata"]["uid"]
        with self.lock:
            if self.jobs.pop(uid, None) is None:
                return None
        return 200, b"Pod deleted"

    def _status(self, pod: Any) -> dict[str, Any]:
        metadata = pod["metadata"]
        job = self.jobs.get(metadata["uid"])
        state = {} if job is None else job.state()
        containers = [
            {"name": each["name"], "state": state, "ready": False, "restartCount": 0, "image": "", "imageID": ""}
            for each in pod["spec"]["containers"]
        ]
        return {
            "name": metadata["name"],
            "UID": metadata["uid"],
            "namespace": metadata["namespace"],
            "JID": "" if job is None else str(job.number),
            "containers": containers,
            "initContainers": None,
        }

    def _logs(self, handler: BaseHTTPRequestHandler, method: str, body: Any) -> None:
        if self.method not in ("any", method):
            return self._answer(handler, 405, b"method not allowed")
        status, pieces, pause = self.log(body)
        handler.send_response(status)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        try:
            for piece in pieces:
                handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                time.sleep(pause)
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.hung_up.set()
            handler.close_connection = True
        return None
