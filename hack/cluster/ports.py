"""Free ports, below the range that the kernel uses for outgoing connections.

A block of ports belongs to the process that asked for it until the process ends: test processes that run at once get
different ports, also before anything listens at them.
"""

from __future__ import annotations

import fcntl
import functools
import random
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from io import BufferedRandom

from cluster import places
from cluster.errors import ClusterError

LOWEST, HIGHEST = 10_000, 32_000
_claimed: set[int] = set()


def free_block(count: int) -> int:
    """Claim ``count`` consecutive ports without a listener; return the first."""
    for _ in range(200):
        first = random.randrange(LOWEST, HIGHEST - count)  # noqa: S311
        if _all_free(first, count) and _claim(first, count):
            return first
    raise ClusterError(f"no {count} consecutive free ports between {LOWEST} and {HIGHEST}")


def own_address() -> str:
    """Return this machine's address for other machines: no endpoint may have that of the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])


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


@functools.cache
def _locks() -> BufferedRandom:
    """Return the file whose bytes stand for ports; closing it would release the locks of this process."""
    places.cache().mkdir(parents=True, exist_ok=True)
    return (places.cache() / "ports.lock").open("w+b")


def _claim(first: int, count: int) -> bool:
    """Return whether these ports now belong to this process, and did not before."""
    ports = range(first, first + count)
    if not _claimed.isdisjoint(ports):
        return False
    try:
        fcntl.lockf(_locks(), fcntl.LOCK_EX | fcntl.LOCK_NB, count, first)
    except OSError:
        return False
    _claimed.update(ports)
    return True


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
