"""Short HTTP calls by libcurl, for the calls that podbridge makes for each pod.

libcurl parses answers in C, and a thread that waits for an answer does not hold the interpreter lock: a call needs a
seventh of the CPU time of ``requests`` and a quarter of that of urllib3 (docs/performance.md).

libcurl sends a request again if it finds that the server has closed a connection that was used before, also a write
(``Curl_retry_request``). Its callback before each request (``CURLOPT_PREREQFUNCTION``) prevents that, and calls the
fence (:mod:`bridge.fencing`) when the connection is ready, right before the first byte.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pycurl

from bridge import fencing

_NO_TIME = pycurl.E_OPERATION_TIMEDOUT


class CallError(Exception):
    """A call without a complete answer. ``sent``: the server may have received the request."""

    def __init__(self, text: str, *, sent: bool) -> None:
        super().__init__(text)
        self.sent = sent


@dataclass(frozen=True, slots=True)
class Address:
    """The server, and how to reach it. ``base`` is the URL without a path; with a ``unix_socket``, its host is ignored.

    Without ``ca_file``, nobody can be verified over https. Without ``proxy``, none is used, whatever the environment.
    """

    base: str
    ca_file: Path | str | None = None
    cert_file: Path | str | None = None
    key_file: Path | str | None = None
    unix_socket: str = ""
    proxy: str = ""
    connect_timeout: float = 3.0


@dataclass(slots=True)
class _Call:
    """What the callbacks of one call collect."""

    write: bool
    most: int
    parts: list[bytes]
    size: int = 0
    requests: int = 0
    error: BaseException | None = None

    def before(self, *_: Any) -> int:
        """Return whether libcurl may send the request now, on a connection that is ready."""
        self.requests += 1
        if self.write and self.requests > 1:
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


class CurlClient:
    """Connections to one server; safe for many threads. Each handle has one connection and one call at a time."""

    def __init__(self, address: Address, *, pool_size: int) -> None:
        self._address = address
        self._idle: deque[pycurl.Curl] = deque(maxlen=pool_size)

    def call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        read_timeout: float,
        longest: float,
        most: int,
    ) -> tuple[int, bytes]:
        """Send one request; return the status and the body of the answer. Redirects are not followed.

        The answer may pause for about ``read_timeout`` seconds and has to be complete after ``longest``, with at most
        ``most`` bytes. Raises :class:`CallError`, ValueError for an invalid header or path, and what the fence raises.
        """
        lines = [_line(name, value) for name, value in headers.items()]
        if any(character <= " " for character in path):
            raise ValueError(f"path: {path!r} contains white space or control characters")
        call = _Call(method != "GET", most, [])
        try:
            curl = self._idle.pop()
        except IndexError:
            curl = self._new()
        try:
            self._prepare(curl, method, path, lines, body, call)
            curl.setopt(pycurl.LOW_SPEED_TIME, max(1, round(read_timeout)))
            curl.setopt(pycurl.TIMEOUT_MS, round(longest * 1000))
            curl.perform()
            status = int(curl.getinfo(pycurl.RESPONSE_CODE))
        except pycurl.error as error:
            text = self._text(curl, error, call, longest)
            curl.close()
            if call.error is not None:
                raise call.error from None
            raise CallError(text, sent=call.requests > 0) from None
        except BaseException:
            curl.close()
            raise
        self._idle.append(curl)
        return status, call.parts[0] if len(call.parts) == 1 else b"".join(call.parts)

    def close(self) -> None:
        """Close the connections that no call uses."""
        while self._idle:
            self._idle.pop().close()

    def _new(self) -> pycurl.Curl:
        """Create a handle for one connection."""
        address, curl = self._address, pycurl.Curl()
        for option, value in (
            (pycurl.NOSIGNAL, 1),  # signals interrupt other threads
            (pycurl.MAXCONNECTS, 1),
            (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
            (pycurl.CONNECTTIMEOUT_MS, max(1, round(address.connect_timeout * 1000))),
            (pycurl.LOW_SPEED_LIMIT, 1),
            (pycurl.TCP_NODELAY, 1),
            (pycurl.PROXY, address.proxy),
        ):
            curl.setopt(option, value)
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
        self,
        curl: pycurl.Curl,
        method: str,
        path: str,
        headers: Sequence[str],
        body: bytes | None,
        call: _Call,
    ) -> None:
        curl.setopt(pycurl.URL, self._address.base + path)
        curl.setopt(pycurl.HTTPGET, 1)
        if body is not None:
            curl.setopt(pycurl.POSTFIELDS, body)
        curl.setopt(pycurl.CUSTOMREQUEST, method)
        # an empty Expect: libcurl would wait for "100 Continue" before a large body
        curl.setopt(pycurl.HTTPHEADER, ["Expect:", *headers])
        curl.setopt(pycurl.PREREQFUNCTION, call.before)
        curl.setopt(pycurl.WRITEFUNCTION, call.take)

    @staticmethod
    def _text(curl: pycurl.Curl, error: pycurl.error, call: _Call, longest: float) -> str:
        """Return what failed: the text of the operating system if there is one."""
        code, text = error.args[0], str(error.args[-1])
        if code == _NO_TIME and call.parts:
            return f"not complete after {longest:g} s"
        if code == _NO_TIME:
            return "timed out"
        if call.size > call.most:
            return f"more than {call.most} bytes"
        if code == pycurl.E_ABORTED_BY_CALLBACK:
            return "the connection was closed"
        number = int(curl.getinfo(pycurl.OS_ERRNO))
        return os.strerror(number) if code == pycurl.E_COULDNT_CONNECT and number else text[:200]


def _line(name: str, value: str) -> str:
    if any(character in "\r\n\0" for character in value):
        raise ValueError(f"header {name}: contains a line break or NUL")
    return f"{name}: {value}"
