"""Free ports, below the range that the kernel uses for outgoing connections."""

from __future__ import annotations

import random
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack

from cluster.errors import ClusterError

LOWEST, HIGHEST = 10_000, 32_000


def free_block(count: int) -> int:
    """Find ``count`` consecutive ports without a listener; return the first."""
    for _ in range(200):
        first = random.randrange(LOWEST, HIGHEST - count)  # noqa: S311
        if _all_free(first, count):
            return first
    raise ClusterError(f"no {count} consecutive free ports between {LOWEST} and {HIGHEST}")


def listening(port: int) -> bool:
    """Return whether this port of the loopback accepts connections."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def http_status(url: str) -> int:
    """Return the status of a URL's answer; 0 for no answer."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def _all_free(first: int, count: int) -> bool:
    with ExitStack() as held:
        for port in range(first, first + count):
            probe = held.enter_context(socket.socket())
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                return False
    return True
