"""The log of a job, from the URL that its peer publishes.

The URL comes from a peer, which anyone can run. It is therefore read only from configured hosts, without redirects,
without the DMS's token, and up to a number of bytes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from urllib.parse import SplitResult, urlsplit

import requests
from urllib3.exceptions import HTTPError

from bridge.config.nunet import NunetSection
from bridge.errors import SiteDownError, SiteError, SiteRefusedError
from bridge.pools.nunet.dms_client import CONNECT_TIMEOUT
from bridge.protocol.model.requests import LogOptions

FOLLOW_PERIOD = 2.0
"""Seconds between two reads of a log that is followed."""
MOST_BYTES = 16 * 2**20
"""Bytes of one log, at most: the whole log is read again for each new part of it."""
TIMEOUT = 30.0
"""Seconds without a byte of a log after which it breaks off."""
_PIECE = 65536


def own_host(url: str) -> str:
    """Return the host and the port of a URL, as an entry of ``logHosts``."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return f"{f'[{host}]' if ':' in host else host}:{_port(parts)}"


def check_url(url: str, section: NunetSection) -> str:
    """Return the URL if it may be read; raises SiteRefusedError."""
    schemes = ("https", "http") if section.url.startswith("http://") else ("https",)
    hosts = section.log_hosts or [own_host(section.url)]
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), _port(parts)
    except ValueError:
        parts, host, port = urlsplit(""), "", 0
    if parts.scheme not in schemes or "@" in parts.netloc or not host or "\\" in url or any(c <= " " for c in url):
        raise SiteRefusedError(
            f"the log URL {url[:200]!r} of the peer is not allowed; allowed: {', '.join(schemes)} without a user"
        )
    if not any(_matches(host, port, allowed.lower()) for allowed in hosts):
        raise SiteRefusedError(
            f"the host of the log URL {url[:200]!r} is not allowed; allowed: {', '.join(hosts)}",
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


def read(url: str, section: NunetSection, skip: int = 0) -> Iterator[bytes]:
    """Iterate over the log after its first ``skip`` bytes, up to MOST_BYTES bytes in all. Raises SiteError."""
    check_url(url, section)
    bytes_read = 0
    try:
        with requests.Session() as session:
            session.trust_env = False
            # a session does not close the connection of an answer that is not read to its end
            with session.get(url, timeout=(CONNECT_TIMEOUT, TIMEOUT), allow_redirects=False, stream=True) as answer:
                if answer.status_code != 200:
                    raise SiteRefusedError(f"GET {url}: HTTP {answer.status_code}", retryable=True)
                # the available bytes: iter_content would wait for a whole piece, also after the log was closed
                while piece := answer.raw.read1(_PIECE, decode_content=True)[: max(0, MOST_BYTES - bytes_read)]:
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
        self._fetch, self._ended, self._options = fetch, ended, options
        self._closed = threading.Event()
        self._pieces = self._limited_pieces()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._closed.is_set():
            raise StopIteration
        return next(self._pieces)

    def close(self) -> None:
        """End the log."""
        self._closed.set()

    def _limited_pieces(self) -> Iterator[bytes]:
        bytes_left = self._options.limit_bytes
        for piece in self._lines():
            yield piece if bytes_left is None else piece[:bytes_left]
            if bytes_left is not None and (bytes_left := bytes_left - len(piece)) <= 0:
                return

    def _lines(self) -> Iterator[bytes]:
        bytes_sent, is_last_read, tail = 0, not self._options.follow or self._ended(), self._options.tail
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

    def _pieces_after(self, skip: int) -> Iterator[bytes]:
        return itertools.takewhile(lambda _: not self._closed.is_set(), self._fetch(skip))


def refuse_options(options: LogOptions) -> None:
    """Raise SiteRefusedError for options that need more than the text of a log."""
    for name, value in (("since", options.since), ("timestamps", options.timestamps), ("previous", options.previous)):
        if value:
            raise SiteRefusedError(f"--{name} is not possible: logs of NuNet jobs have no times and no earlier runs")
