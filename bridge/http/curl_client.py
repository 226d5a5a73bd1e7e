"""Short HTTP calls by libcurl, for the calls that podbridge makes for each pod.

libcurl parses answers in C, and a thread that waits for an answer does not hold the interpreter lock: a call needs a
fifth of the CPU time of ``requests`` and a third of that of urllib3 (docs/developers/performance.md).

libcurl sends a request again if the server closes a connection that was used before, also a write
(``Curl_retry_request``). Its callback before each request (``CURLOPT_PREREQFUNCTION``) prevents that, and calls the
fence (:mod:`bridge.http.fencing`) when the connection is ready, right before the first byte. libcurl looks for closed
connections at most once a second; this module does so before each call.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pycurl

from bridge.http import fencing

_LATE = pycurl.E_OPERATION_TIMEDOUT


class CallError(Exception):
    """A call without a complete answer.

    ``sent``: the server may have received the request. ``late``: the answer took too long. ``large``: it has too many
    bytes.
    """

    def __init__(self, text: str, *, sent: bool, late: bool, large: bool = False) -> None:
        super().__init__(text)
        self.sent = sent
        self.late = late
        self.large = large


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server; the names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Address:
    """The server, and how to reach it. ``base`` is the URL without a path; with a ``unix_socket``, its host is ignored.

    Without ``ca_file``, no server can be verified over https. Without ``proxy``, none is used, also if the environment
    names one. ``server_name`` is the name in the certificate if it is not the host.
    """

    base: str
    ca_file: Path | str | None = None
    verify: bool = True
    verify_name: bool = True
    server_name: str = ""
    cert_file: Path | str | None = None
    key_file: Path | str | None = None
    unix_socket: str = ""
    proxy: str = ""
    proxy_headers: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Limits of one call, in seconds: to connect, between two parts of the answer, in all; ``size`` in bytes.

    libcurl counts the time between two parts in whole seconds.
    """

    connect: float
    read: float
    total: float
    size: int


@dataclass(slots=True)
class _Call:
    """What the callbacks of one call collect."""

    most: int
    parts: list[bytes]
    header: list[bytes]
    size: int = 0
    requests: int = 0
    error: BaseException | None = None

    def before(self, *_: Any) -> int:
        """Return whether libcurl may send the request now, on a connection that is ready."""
        self.requests += 1
        if self.requests > 1:
            return int(pycurl.PREREQFUNC_ABORT)
        check = fencing.current()
        if check is not None:
            try:
                check()
            except BaseException as error:  # an exception would not pass through libcurl
                self.requests, self.error = 0, error
                return int(pycurl.PREREQFUNC_ABORT)
        return int(pycurl.PREREQFUNC_OK)

    def take(self, part: bytes) -> int:
        """Store a part of the answer; any other result than its length makes libcurl abort."""
        self.size += len(part)
        self.parts.append(part)
        return len(part) if self.size <= self.most else -1

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer."""
        pairs = (line.decode("latin-1").partition(":") for line in self.header)
        return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}


class CurlClient:
    """Connections to one server; safe for many threads. Each handle has one connection and one call at a time."""

    def __init__(self, address: Address, *, pool_size: int) -> None:
        self._address, self._base = address, address.base
        self._connect_to = ""
        if address.server_name:
            parts = urlsplit(address.base)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
            self._base = urlunsplit(parts._replace(netloc=f"{address.server_name}:{port}"))
            self._connect_to = f"{address.server_name}:{port}:{host}:{port}"
        # appends and pops of a deque are thread-safe; beyond the size, the oldest handle is dropped, which closes it
        self._idle: deque[pycurl.Curl] = deque(maxlen=pool_size)

    def call(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, limits: HttpLimits
    ) -> Answer:
        """Send one request and return the answer. Redirects are not followed.

        Raises :class:`CallError`, ValueError for an invalid header or path, and what the fence raises.
        """
        lines = [_line(name, value) for name, value in headers.items()]
        if any(character <= " " for character in path):
            raise ValueError(f"path: {path!r} contains white space or control characters")
        call = _Call(limits.size, [], [])
        curl = self._open_connection() or self._new()
        try:
            self._prepare(curl, method, path, lines, body, call)
            for option, seconds in ((pycurl.CONNECTTIMEOUT_MS, limits.connect), (pycurl.TIMEOUT_MS, limits.total)):
                curl.setopt(option, max(1, round(seconds * 1000)))
            curl.setopt(pycurl.LOW_SPEED_TIME, max(1, round(limits.read)))
            curl.perform()
            status = int(curl.getinfo(pycurl.RESPONSE_CODE))
        except pycurl.error as error:
            text = self._text(curl, error, call, limits)
            curl.close()
            if call.error is not None:
                raise call.error from None
            late, large = error.args[0] == _LATE, call.size > call.most
            raise CallError(text, sent=call.requests > 0, late=late, large=large) from None
        except BaseException:
            curl.close()
            raise
        self._idle.append(curl)
        return Answer(status, call.headers(), call.parts[0] if len(call.parts) == 1 else b"".join(call.parts))

    def close(self) -> None:
        """Close the connections that no call uses."""
        while self._idle:
            self._idle.pop().close()

    def _open_connection(self) -> pycurl.Curl | None:
        """Return a handle whose connection the server has not closed; ``None`` if there is none."""
        while True:
            try:
                curl = self._idle.pop()
            except IndexError:
                return None
            descriptor = int(curl.getinfo(pycurl.ACTIVESOCKET))
            if descriptor < 0 or not _readable(descriptor):
                return curl
            curl.close()

    def _new(self) -> pycurl.Curl:
        """Create a handle for one connection."""
        address, curl = self._address, pycurl.Curl()
        for option, value in (
            (pycurl.NOSIGNAL, 1),  # signals interrupt other threads
            (pycurl.PATH_AS_IS, 1),  # an object named .. must not become a request for its collection
            (pycurl.MAXCONNECTS, 1),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.LOW_SPEED_LIMIT, 1),
            (pycurl.TCP_NODELAY, 1),
            (pycurl.TCP_KEEPALIVE, 1),
            (pycurl.PROXY, address.proxy),
            (pycurl.SSL_VERIFYPEER, int(address.verify)),
            (pycurl.SSL_VERIFYHOST, 2 if address.verify and address.verify_name else 0),
        ):
            curl.setopt(option, value)
        if self._connect_to:
            curl.setopt(pycurl.CONNECT_TO, [self._connect_to])
        if address.proxy_headers:
            curl.setopt(pycurl.PROXYHEADER, [_line(name, value) for name, value in address.proxy_headers.items()])
        for option, path in (
            (pycurl.CAINFO, address.ca_file),
            (pycurl.SSLCERT, address.cert_file),
            (pycurl.SSLKEY, address.key_file or address.cert_file),
            (pycurl.UNIX_SOCKET_PATH, address.unix_socket),
        ):
            if path:
                curl.setopt(option, os.fspath(path))
        return curl

    def _prepare(
        self, curl: pycurl.Curl, method: str, path: str, headers: Sequence[str], body: bytes | None, call: _Call
    ) -> None:
        curl.setopt(pycurl.URL, self._base + path)
        # a handle keeps its options: without this, a read after a write would send the former body
        curl.setopt(pycurl.HTTPGET, 1)
        if body is not None:
            curl.setopt(pycurl.POSTFIELDS, body)
        curl.setopt(pycurl.CUSTOMREQUEST, method)
        # an empty Expect: libcurl would wait for "100 Continue" before a large body
        curl.setopt(pycurl.HTTPHEADER, ["Expect:", *headers])
        curl.setopt(pycurl.PREREQFUNCTION, call.before)
        curl.setopt(pycurl.WRITEFUNCTION, call.take)
        curl.setopt(pycurl.HEADERFUNCTION, call.header.append)

    @staticmethod
    def _text(curl: pycurl.Curl, error: pycurl.error, call: _Call, limits: HttpLimits) -> str:
        """Return what failed: the text of the operating system if there is one."""
        code, text = error.args[0], str(error.args[-1])
        if code == _LATE and call.header:
            return f"not complete after {limits.total:g} s"
        if code == _LATE:
            return "timed out"
        if call.size > call.most:
            return f"more than {call.most} bytes"
        # the callback has refused a second request (_Call.before)
        if code == pycurl.E_ABORTED_BY_CALLBACK:
            return "the connection was closed"
        number = int(curl.getinfo(pycurl.OS_ERRNO))
        return os.strerror(number) if code == pycurl.E_COULDNT_CONNECT and number else text[:200]


def _readable(descriptor: int) -> bool:
    """Whether a socket has an event: between two calls, that is the end of the connection."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN | select.POLLRDHUP)
    return bool(waiting.poll(0))


def _line(name: str, value: str) -> str:
    if any(character in "\r\n\0" for character in value):
        raise ValueError(f"header {name}: contains a line break or NUL")
    return f"{name}: {value}"
