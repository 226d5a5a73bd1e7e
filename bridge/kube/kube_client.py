"""The HTTP client of the API server. Arguments are paths and dictionaries, results are dictionaries.

The typed objects of the ``kubernetes`` library need 3 to 10 times the CPU time, and its typed bind raises after a
success. So the library is used only for configuration and for the connections of watches
(:mod:`bridge.kube.kube_access`).

A write is sent once. If its connection breaks or the answer is late, the outcome is unknown
(:class:`KubeUnavailableError`), and the caller must read the object. Two answers mean that the server did nothing, and
the client retries: 429 with ``Retry-After``, and 401 if the credentials have changed.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Generator, Mapping
from email.utils import parsedate_to_datetime
from functools import cache
from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

import urllib3

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.errors import KubeNotFoundError
from bridge.http.curl_client import Answer, CallError, HttpLimits
from bridge.http.fencing import fence
from bridge.kube import streams
from bridge.kube.kube_access import KubeAccess, configuration
from bridge.kube.resources import is_collection
from bridge.kube.responses import error_of, no_answer, parsed, short, unavailable
from bridge.kube.streams import BROKEN, TextStream, interrupt
from bridge.telemetry.metrics import KUBE_REQUESTS

Object = dict[str, Any]
Params = Mapping[str, str | int | bool]

JSON = "application/json"
PATCHES = {
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "json": "application/json-patch+json",
    "apply": "application/apply-patch+yaml",
}
TRIES = 3
MAX_WAIT = 10.0
LARGEST_ANSWER = 1 << 30
LARGEST_PAGE = 1 << 24
"""Bytes of a page of several objects. Parsed, they may need 16 times as much, and a process has 1 GiB."""
LARGEST_REFUSAL = 1 << 20
R = TypeVar("R", Answer, urllib3.BaseHTTPResponse)
_NO_RETRIES = urllib3.Retry(False, redirect=False)
_counter, _timeout = cache(KUBE_REQUESTS.labels), cache(urllib3.Timeout)


class KubeClient:
    """The client of one API server; safe for many threads.

    Errors are the ``Kube*`` classes of :mod:`bridge.errors`, with the message "VERB PATH: reason: message (status)".
    ``connect_timeout`` and ``read_timeout`` are seconds. A slow answer is aborted after twice ``read_timeout``.
    ``sleep`` waits after an answer 429.
    """

    def __init__(
        self,
        access: KubeAccess,
        *,
        user_agent: str = "podbridge",
        connect_timeout: float = 3.0,
        read_timeout: float = 30.0,
        sleep: Callable[[float], object] = time.sleep,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._access = access
        self._agent = user_agent
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._sleep = sleep
        self._clock = clock
        self._tries = TRIES
        self._check: Callable[[], None] | None = None
        self._watches: set[urllib3.BaseHTTPResponse] = set()
        self._watches_lock = threading.Lock()
        self._closed = threading.Event()

    @classmethod
    def load(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        user_agent: str = "podbridge",
        pool_size: int = 64,
        **options: Any,
    ) -> KubeClient:
        """Create a client from the kubeconfig (given, ``$KUBECONFIG``, in-cluster); ``options`` are the constructor's.

        No request is sent. Raises :class:`bridge.errors.ConfigError`.
        """
        clock = options.get("clock", SYSTEM_CLOCK)
        access = KubeAccess(lambda: configuration(kubeconfig, context), pool_size=pool_size, clock=clock)
        return cls(access, user_agent=user_agent, **options)

    @property
    def server(self) -> str:
        """URL of the API server."""
        return self._access.server

    def fenced(self, check: Callable[[], None]) -> KubeClient:
        """Return a client on the same connections that calls ``check`` right before it sends a write.

        ``check`` raises (:class:`bridge.errors.LostLeadershipError`) to stop the write.
        """
        client = copy.copy(self)
        client._check = check
        return client

    def hurried(self, read_timeout: float) -> KubeClient:
        """Return a client on the same connections with a shorter ``read_timeout`` and without retries after 429."""
        client = copy.copy(self)
        client._read_timeout = read_timeout
        client._tries = 1
        return client

    def get(self, path: str, params: Params | None = None, *, metadata_only: bool = False) -> Object:
        """GET an object or a list; with ``metadata_only``, without spec and status.

        Raises KubeTooLargeError for a page (``limit``) of several objects with more than LARGEST_PAGE bytes.
        """
        if path.endswith(("/.", "/..")):
            # a pod may name an owner, a ConfigMap or a Secret so, and the API server none: it refuses the request, and
            # a client that shortens the path would read the collection or the namespace
            raise KubeNotFoundError(f"GET {path}: no object has this name", status=404, kube_reason="NotFound")
        accept = JSON
        if metadata_only:
            kind = "PartialObjectMetadataList" if is_collection(path) else "PartialObjectMetadata"
            accept = f"{JSON};as={kind};g=meta.k8s.io;v=v1"
        is_page = int((params or {}).get("limit", 0)) > 1
        most = LARGEST_PAGE if is_page else LARGEST_ANSWER
        answer = self._call("GET", path, params, accept=accept, most=most)
        if "items" in answer and answer["items"] is None:  # an empty list of metadata
            answer["items"] = []
        return answer

    def server_time(self) -> float:
        """Return the time of the API server (epoch, whole seconds), from the header ``Date`` of an answer."""
        answer = self._send("GET", "/version", None, None, JSON, JSON)
        self._count("GET", answer.status)
        try:
            return parsedate_to_datetime(answer.headers["date"]).timestamp()
        except (KeyError, ValueError) as error:
            raise unavailable("GET /version: the answer has no valid header Date", reason="NoDate") from error

    def create(self, path: str, body: Object, params: Params | None = None) -> Object:
        """POST to a collection or a sub-resource; return the stored object (a Status for a binding)."""
        return self._call("POST", path, params, body)

    def patch(
        self,
        path: str,
        body: Object | list[Object],
        *,
        kind: Literal["merge", "strategic", "json", "apply"] = "merge",
        params: Params | None = None,
    ) -> Object:
        """PATCH; ``apply`` requires ``fieldManager`` in ``params``."""
        return self._call("PATCH", path, params, body, content_type=PATCHES[kind])

    def replace(self, path: str, body: Object) -> Object:
        """PUT; a ``resourceVersion`` in ``body`` makes it conditional."""
        return self._call("PUT", path, None, body)

    def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE; ``body`` is a DeleteOptions object, for example with ``preconditions``."""
        return self._call("DELETE", path, None, body)

    def watch(self, path: str, params: Params, *, idle_timeout: float) -> Generator[Object, None, None]:
        """Yield the events of a watch, including bookmarks, until the server ends it.

        Raises :class:`KubeGoneError` if the resource version is too old, the matching error for an ERROR event, and
        :class:`KubeUnavailableError` (``kube_reason`` "IdleTimeout") after ``idle_timeout`` seconds without a complete
        event: a time limit of the server does not end a half-open connection.
        """
        request = f"WATCH {path}"
        response = self._stream(path, {**params, "watch": True}, idle_timeout)
        self._count("WATCH", response.status)
        if response.status != 200:
            raise error_of(request, response.status, self._refusal(request, response), response.headers)
        with self._watches_lock:
            self._watches.add(response)
        try:
            # checked after the add: a close() before it has interrupted the other watches only
            if self._closed.is_set():
                return
            yield from streams.events(request, response, idle_timeout, self._clock)
        finally:
            with self._watches_lock:
                self._watches.discard(response)
            response.close()
            response.release_conn()

    def text(self, path: str, params: Params, *, idle_timeout: float) -> TextStream:
        """GET a text that the server may continue, such as a log; it breaks after ``idle_timeout`` silent seconds."""
        request = f"GET {path}"
        response = self._stream(path, params, idle_timeout, accept="*/*")
        self._count("GET", response.status)
        if response.status != 200:
            raise error_of(request, response.status, self._refusal(request, response), response.headers)
        return TextStream(request, response)

    def close(self) -> None:
        """End all watches permanently; they raise or end in the threads that read them.

        Call this at the stop of the process: a thread that reads a quiet watch does not notice other signals.
        """
        self._closed.set()
        self._interrupt()

    def _interrupt(self) -> None:
        with self._watches_lock:
            for response in self._watches:
                interrupt(response)

    def _call(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: Any = None,
        *,
        content_type: str = JSON,
        accept: str = JSON,
        most: int = LARGEST_ANSWER,
    ) -> Object:
        request = f"{method} {path}"
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        tries = 1
        while True:
            answer = self._send(method, path, params, data, content_type, accept, most)
            self._count(method, answer.status)
            if 200 <= answer.status < 300:
                return parsed(request, answer.status, answer.body)
            error = error_of(request, answer.status, answer.body, answer.headers)
            if answer.status != 429 or error.retry_after is None or tries >= self._tries:
                raise error
            tries += 1
            self._sleep(min(error.retry_after, MAX_WAIT))

    def _send(
        self,
        method: str,
        path: str,
        params: Params | None,
        data: bytes | None,
        content_type: str,
        accept: str,
        most: int = LARGEST_ANSWER,
    ) -> Answer:
        """Send one request and read its answer of at most ``most`` bytes."""
        headers = {"Accept": accept, "User-Agent": self._agent}
        if data is not None:
            headers["Content-Type"] = content_type
        limits = HttpLimits(self._connect_timeout, self._read_timeout, 2 * self._read_timeout, most)

        def send() -> Answer:
            with fence(self._check if method != "GET" else None):
                return self._access.client.call(method, _url(path, params), headers, data, limits)

        try:
            return self._authorized(headers, send)
        except CallError as error:
            self._count(method, None)
            raise no_answer(f"{method} {path}", error) from error

    def _stream(
        self, path: str, params: Params, read_timeout: float, *, accept: str = JSON
    ) -> urllib3.BaseHTTPResponse:
        """Open a watch or a text."""
        headers = {"Accept": accept, "User-Agent": self._agent}

        def send() -> urllib3.BaseHTTPResponse:
            return self._access.pool.urlopen(
                "GET",
                self._access.prefix + _url(path, params),
                headers=headers,
                retries=_NO_RETRIES,
                redirect=False,
                assert_same_host=False,
                timeout=_timeout(None, self._connect_timeout, read_timeout),
                preload_content=False,
            )

        try:
            return self._authorized(headers, send)
        except BROKEN as error:
            self._count("GET", None)
            raise unavailable(f"GET {path}: no answer: {short(error)}", reason="Broken") from error

    def _authorized(self, headers: dict[str, str], send: Callable[[], R]) -> R:
        """Set the ``Authorization`` header and send; after 401 and a change of the credentials, send once more."""
        authorization = self._authorize(headers)
        answer = send()
        if answer.status != 401 or not self._access.renew(authorization):
            return answer
        if isinstance(answer, urllib3.BaseHTTPResponse):
            # urllib3 keeps a connection for the next request only if its answer was read to the end
            answer.drain_conn()
        self._authorize(headers)
        return send()

    def _authorize(self, headers: dict[str, str]) -> str | None:
        """Set the ``Authorization`` header and return it; ``None`` with client certificates."""
        authorization = self._access.authorization()
        if authorization is not None:
            headers["Authorization"] = authorization
        return authorization

    @staticmethod
    def _refusal(request: str, response: urllib3.BaseHTTPResponse) -> bytes:
        """Read the body of an answer without events."""
        try:
            return bytes(response.read(LARGEST_REFUSAL))
        except BROKEN as error:
            raise unavailable(f"{request}: no answer: {short(error)}", reason="Broken") from error
        finally:
            response.close()

    def _count(self, method: str, status: int | None) -> None:
        _counter(method, str(status or "error")).inc()


def _url(path: str, params: Params | None) -> str:
    words = {key: str(value).lower() if isinstance(value, bool) else value for key, value in (params or {}).items()}
    return f"{path}?{urlencode(words)}" if words else path
