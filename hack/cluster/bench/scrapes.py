"""Scrapes of podbridge's metrics beside those of a bare server: their duration and size."""

from __future__ import annotations

import http.client
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from subprocess import PIPE, Popen

SCRAPES = 100
PAUSE = 0.1
"""Seconds between two scrapes."""
LIMIT = 100.0
"""Longest scrape, in milliseconds."""


def longest(port: int) -> tuple[float, str]:
    """Scrape a process ``SCRAPES`` times; return the longest scrape in ms, and a note on the others.

    The connection stays open, as that of a Prometheus does. A server with a single thread, in a process of its own,
    returns as many bytes in turn: its scrapes show how long the machine makes any process wait.
    """
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        text = _text(connection)
        with _bare(len(text)) as bare_port, closing(http.client.HTTPConnection("127.0.0.1", bare_port)) as other:
            found: list[float] = []
            limit: list[float] = []
            for _ in range(SCRAPES):
                for link, durations in ((connection, found), (other, limit)):
                    began = time.monotonic()
                    _text(link)
                    durations.append((time.monotonic() - began) * 1000)
                time.sleep(PAUSE)
    series = sum(1 for line in text.splitlines() if line and not line.startswith(b"#"))
    note = f"{_figures(found)}; a bare server {_figures(limit)}; {series} series, {len(text) / 1024:.0f} KiB"
    return max(found), note


def _text(connection: http.client.HTTPConnection) -> bytes:
    connection.request("GET", "/metrics")
    return connection.getresponse().read()


def _figures(durations: list[float]) -> str:
    p95 = statistics.quantiles(durations, n=20)[-1]
    return f"p50 {statistics.median(durations):.0f}, p95 {p95:.0f}, longest {max(durations):.0f} ms"


@contextmanager
def _bare(size: int) -> Iterator[int]:
    """Run a server that answers each request with ``size`` bytes; yields its port."""
    with Popen([sys.executable, "-I", __file__, str(size)], stdout=PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline() if process.stdout else "")
        finally:
            process.terminate()


def _serve(size: int) -> None:
    """Serve one connection; print the port first."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        with connection:
            while connection.recv(64 * 1024):
                connection.sendall(answer)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
