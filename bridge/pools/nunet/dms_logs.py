"""The log of a job, from the URL that its peer publishes.

The URL comes from a peer, which anyone can run. It is therefore read only from configured hosts, without redirects,
without the DMS's token, and up to a number of bytes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import requests
from urllib3.exceptions import HTTPError

from bridge.errors import SiteDownError, SiteError, SiteRefusedError
from bridge.protocol.model.requests import LogOptions

FOLLOW_PERIOD = 2.0
"""Seconds between two reads of a log that is followed."""
_PIECE = 65536


@dataclass(frozen=True, slots=True)
class LogAccess:
    """Which logs are read.

    Parameters
    ----------
    hosts
        Allowed hosts, ``name`` or ``name:port``; ``*.example.org``: every host in that domain. Without a port, every
        port of the host.
    insecure
        Whether ``http`` is allowed besides ``https``.
    most
        Bytes of one log, at most.
    connect_timeout, timeout
        Seconds.
    """

    hosts: tuple[str, ...]
    insecure: bool = False
    most: int = 16 * 2**20
    connect_timeout: float = 5.0
    timeout: float = 30.0


def own_host(url: str) -> str:
    """Return the host and the port of a URL, as one of :attr:`LogAccess.hosts`."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{_port(parts)}"


def check_url(url: str, access: LogAccess) -> str:
    """Return the URL if it may be read; raises SiteRefusedError."""
    schemes = ("https", "http") if access.insecure else ("https",)
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), _port(parts)
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if parts.scheme not in schemes or "@" in parts.netloc or not host or "\\" in url or any(c <= " " for c in url):
        raise SiteRefusedError(
            f"the log URL {url[:200]!r} of the peer is not allowed; allowed: {', '.join(schemes)} without a user"
        )
    if not any(_matches(host, port, allowed.lower()) for allowed in access.hosts):
        raise SiteRefusedError(
            f"the host of the log URL {url[:200]!r} is not allowed; allowed: {', '.join(access.hosts) or 'none'}",
            hint="logHosts of the pool",
        )
    return url


def _port(parts: SplitResult) -> int:
    return parts.port or (80 if parts.scheme == "http" else 443)


def _matches(host: str, port: int, allowed: str) -> bool:
    name, colon, number = allowed.rpartition(":")
    if not colon or not number.isdigit() or name.endswith(":") or (":" in name and not name.startswith("[")):
        name, number = allowed, ""
    name = name.removeprefix("[").removesuffix("]")
    if number and str(port) != number:
        return False
    return host == name or (name.startswith("*.") and host.endswith(name[1:]))


def read(url: str, access: LogAccess, skip: int = 0) -> Iterator[bytes]:
    """Iterate over the log after its first ``skip`` bytes, up to ``access.most`` bytes in all. Raises SiteError."""
    check_url(url, access)
    bytes_read = 0
    try:
        with requests.Session() as session:
            session.trust_env = False
            timeouts = (access.connect_timeout, access.timeout)
            # a session does not close the connection of an answer that is not read to its end
            with session.get(url, timeout=timeouts, allow_redirects=False, stream=True) as answer:
                if answer.status_code != 200:
                    raise SiteRefusedError(f"GET {url}: HTTP {answer.status_code}", retryable=True)
                # the available bytes: iter_content would wait for a whole piece, also after the log was closed
                while piece := answer.raw.read1(_PIECE, decode_content=True)[: max(0, access.most - bytes_read)]:
                    new_bytes = piece[max(0, skip - bytes_read) :]
                    bytes_read += len(piece)
                    yield new_bytes
    except (requests.RequestException, HTTPError, OSError) as error:
        raise SiteDownError(f"GET {url}: {type(error).__name__}") from error


class Log:
    """The pieces of a log; with ``follow`` until the job has ended. Any thread may call :meth:`close`.

    ``fetch`` returns the log after a number of bytes. Every fetch after the first reads the whole log again: no other
    way is published. ``ended``: the job has ended.
    """

    def __init__(self, fetch: Callable[[int], Iterator[bytes]], ended: Callable[[], bool], options: LogOptions) -> None:
        self._ended = ended
        self._closed = threading.Event()
        self._fetch = fetch
        self._pieces = self._limited_pieces(options)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._closed.is_set():
            raise StopIteration
        return next(self._pieces)

    def close(self) -> None:
        """End the log."""
        self._closed.set()

    def _limited_pieces(self, options: LogOptions) -> Iterator[bytes]:
        bytes_left = options.limit_bytes
        for piece in self._lines(options.tail, follow=options.follow):
            yield piece if bytes_left is None else piece[:bytes_left]
            if bytes_left is not None:
                bytes_left -= len(piece)
                if bytes_left <= 0:
                    return

    def _pieces_after(self, skip: int) -> Iterator[bytes]:
        return itertools.takewhile(lambda _: not self._closed.is_set(), self._fetch(skip))

    def _lines(self, tail: int | None, *, follow: bool) -> Iterator[bytes]:
        """Iterate over the log, from its last ``tail`` lines."""
        bytes_sent, is_last_read = 0, not follow or self._ended()
        if tail is not None:
            content = b"".join(self._pieces_after(0))
            bytes_sent = len(content)
            yield b"".join(content.splitlines(keepends=True)[-tail:] if tail else ())
        else:
            for piece in self._pieces_after(0):
                bytes_sent += len(piece)
                yield piece
        while not is_last_read and not self._closed.wait(FOLLOW_PERIOD):
            is_last_read = self._ended()
            try:
                for piece in self._pieces_after(bytes_sent):
                    bytes_sent += len(piece)
                    yield piece
            except SiteError:
                if is_last_read:
                    raise
            yield b""  # the server notices here that its client is gone


def refuse_options(options: LogOptions) -> None:
    """Raise SiteRefusedError for options that need more than the text of a log."""
    for name, value in (("since", options.since), ("timestamps", options.timestamps), ("previous", options.previous)):
        if value:
            raise SiteRefusedError(f"--{name} is not possible: logs of NuNet jobs have no times and no earlier runs")
