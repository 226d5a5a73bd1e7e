"""A small API server on a real socket, with faults that a real one cannot produce on demand.

It stores any kind of object, counts resource versions, lists in pages, watches with bookmarks, merges patches and
answers with ``Status`` objects. The suites that run on both the fake and a real kube-apiserver check that it behaves
like the real one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests import builders

Object = dict[str, Any]


@dataclass
class Request:
    """A request of a client."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "true"


Fault = Callable[["Handler", Request], bool]
"""Handles a request and returns ``True``, or leaves it to the server."""


class RefusalError(Exception):
    def __init__(self, code: int, reason: str, message: str = "", field: str = "") -> None:
        super().__init__(message)
        self.status = {
            "kind": "Status",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": message or reason,
            **({"details": {"causes": [{"field": field, "message": message}]}} if field else {}),
        }


@dataclass
class Address:
    collection: str
    kind: str
    namespace: str
    name: str
    sub: str

    @classmethod
    def of(cls, path: str) -> Address:
        parts = [unquote(part) for part in path.strip("/").split("/")]
        size = 2 if parts[0] == "api" else 3
        root, rest = parts[:size], parts[size:]
        namespace = ""
        if len(rest) >= 3 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        rest += ["", "", ""]
        return cls("/".join([*root, rest[0]]), rest[0].capitalize().removesuffix("s"), namespace, rest[1], rest[2])


class FakeApi:
    """``with FakeApi() as api:``; then ``api.url``, or ``api.kubeconfig(folder)`` for a client."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.faults: list[Fault] = []
        self.objects: dict[str, dict[tuple[str, str], Object]] = {}
        self.history: list[tuple[int, str, str, Object]] = []
        self.oldest = 0
        self.bookmark_period = 0.1
        self.changed = threading.Condition()
        self.closing = False
        self._versions = itertools.count(100)
        self.version = next(self._versions)
        self._sockets: set[socket.socket] = set()
        api = self

        class Bound(Handler):
            pass

        Bound.api = api
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeApi:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self.cut()

    def kubeconfig(self, folder: Path, user: Object | None = None) -> str:
        return builders.kubeconfig(folder, self.url, user)

    # --- faults ---------------------------------------------------------------------------------------------------
    def fail(
        self, status: int, *, method: str = "", watch: bool | None = None, times: int = 10**9, **answer: Any
    ) -> None:
        """Answer ``status`` to the next ``times`` matching requests; ``headers`` and ``text`` may be given."""
        left = itertools.repeat(None, times)

        def fault(handler: Handler, request: Request) -> bool:
            if (method and request.method != method) or (watch is not None and request.watch != watch):
                return False
            if next(left, 0) is not None:
                return False
            reason = {410: "Expired", 429: "TooManyRequests", 503: "ServiceUnavailable"}.get(status, "Failed")
            text = answer.get("text", json.dumps(RefusalError(status, reason, f"fault {status}").status))
            handler.answer(status, text.encode(), answer.get("headers", {}))
            return True

        self.faults.append(fault)

    def cut(self) -> None:
        """Close every open connection."""
        for open_socket in list(self._sockets):
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)

    def compact(self) -> None:
        """Delete the history: older watches get 410."""
        with self.changed:
            self.oldest = self.version

    def opened(self, connection: socket.socket) -> None:
        self._sockets.add(connection)

    def closed(self, connection: socket.socket) -> None:
        self._sockets.discard(connection)

    # --- objects --------------------------------------------------------------------------------------------------
    def handle(self, request: Request) -> Object:
        address = Address.of(request.path)
        with self.changed:
            if request.method == "GET":
                return self._find(address) if address.name else self._list(address, request.query)
            if request.method == "POST" and not address.sub:
                return self._create(address, request.body)
            old = self._find(address)
            if request.method == "DELETE":
                return self._delete(address, old, request.body or {})
            new = merged(old, request.body) if request.method == "PATCH" else request.body
            return self._update(address, old, new)

    def _find(self, address: Address) -> Object:
        try:
            return self.objects[address.collection][address.namespace, address.name]
        except KeyError:
            raise RefusalError(404, "NotFound", f'{address.kind} "{address.name}" not found') from None

    def _list(self, address: Address, query: dict[str, str]) -> Object:
        start, version = 0, self.version
        if "continue" in query:
            at, start_text = query["continue"].split(":")
            start, version = int(start_text), int(at)
            if version < self.oldest:
                raise RefusalError(410, "Expired", "the continue token is too old")
        found = [
            {k: v for k, v in obj.items() if k not in ("kind", "apiVersion")}
            for (namespace, _), obj in sorted(self.objects.get(address.collection, {}).items())
            if not address.namespace or namespace == address.namespace
        ]
        end = start + int(query.get("limit", 10**9))
        metadata: Object = {"resourceVersion": str(version)}
        if end < len(found):
            metadata["continue"] = f"{version}:{end}"
        return {"kind": address.kind + "List", "apiVersion": "v1", "metadata": metadata, "items": found[start:end]}

    def _create(self, address: Address, body: Object) -> Object:
        name = body["metadata"]["name"]
        if (address.namespace, name) in self.objects.get(address.collection, {}):
            raise RefusalError(409, "AlreadyExists")
        metadata = {
            **body["metadata"],
            "namespace": address.namespace,
            "uid": str(uuid.uuid4()),
            "managedFields": [{"manager": "fake"}],
        }
        return self._store(address, {**body, "metadata": metadata}, "ADDED")

    def _update(self, address: Address, old: Object, new: Object) -> Object:
        if new["metadata"].get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise RefusalError(409, "Conflict", "the object has been modified")
        if new["metadata"].get("uid") not in (None, "", old["metadata"]["uid"]):
            raise RefusalError(422, "Invalid", "metadata.uid: field is immutable", "metadata.uid")
        kept = {k: old["metadata"].get(k) for k in ("uid", "namespace", "managedFields")}
        return self._store(address, {**new, "metadata": {**new["metadata"], **kept}}, "MODIFIED")

    def _delete(self, address: Address, old: Object, options: Object) -> Object:
        uid = (options.get("preconditions") or {}).get("uid")
        if uid and uid != old["metadata"]["uid"]:
            raise RefusalError(409, "Conflict", "the UID in the precondition differs")
        self._store(address, old, "DELETED")
        return {"kind": "Status", "status": "Success"}

    def _store(self, address: Address, obj: Object, change: str) -> Object:
        self.version = next(self._versions)
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.version)}}
        key = address.namespace, obj["metadata"]["name"]
        if change == "DELETED":
            del self.objects[address.collection][key]
        else:
            self.objects.setdefault(address.collection, {})[key] = obj
        self.history.append((self.version, address.collection, change, obj))
        self.changed.notify_all()
        return obj

    def events(self, request: Request) -> Iterator[Object]:
        """Yield the events of a watch, with bookmarks of later versions, until its time is over."""
        address = Address.of(request.path)
        seen = since = int(request.query["resourceVersion"])
        end = time.monotonic() + float(request.query.get("timeoutSeconds", 3600))
        while not self.closing and time.monotonic() < end:
            with self.changed:
                if seen < self.oldest:
                    yield {"type": "ERROR", "object": RefusalError(410, "Expired", "too old resource version").status}
                    return
                news = [entry for entry in self.history if entry[0] > seen]
                if not news:
                    self.changed.wait(min(self.bookmark_period, max(0.0, end - time.monotonic())))
                    news = [entry for entry in self.history if entry[0] > seen]
            for version, collection, change, obj in news:
                seen = version
                if collection == address.collection and address.namespace in ("", obj["metadata"]["namespace"]):
                    yield {"type": change, "object": obj}
            if not news and seen > since:
                metadata = {"resourceVersion": str(seen)}
                yield {"type": "BOOKMARK", "object": {"kind": address.kind, "metadata": metadata}}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    api: FakeApi

    def setup(self) -> None:
        super().setup()
        self.api.opened(self.connection)

    def finish(self) -> None:
        self.api.closed(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed by the client or by a fault
            super().handle()

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send_chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def serve(self) -> None:
        parts = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(
            self.command, parts.path, dict(parse_qsl(parts.query)), dict(self.headers), json.loads(raw) if raw else None
        )
        self.api.requests.append(request)
        for fault in list(self.api.faults):
            if fault(self, request):
                return
        if request.watch:
            self.start_stream()
            for event in self.api.events(request):
                self.send_chunk(json.dumps(event).encode() + b"\n")
            self.send_chunk(b"")
            return
        try:
            self.answer(201 if self.command == "POST" else 200, json.dumps(self.api.handle(request)).encode())
        except RefusalError as refusal:
            self.answer(refusal.status["code"], json.dumps(refusal.status).encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve  # noqa: N815


def merged(old: Any, patch: Any) -> Any:
    """Apply a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result
