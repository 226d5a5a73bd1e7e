"""Steps that take long: printed, one run at a time, with a log of their output."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cluster import places
from cluster.errors import ClusterError


def say(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def locked(what: str = "install") -> Iterator[None]:
    """Lock a part of the cache folder: other runs that install into it wait."""
    places.cache().mkdir(parents=True, exist_ok=True)
    with (places.cache() / f".{what}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run that installs into the same cache")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_long(
    what: str, command: Sequence[str], unit: str, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    """Run a command that takes long; print a count of its output lines, and the last ones if it fails."""
    log = places.cache() / "log" / f"{what.split()[0]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    begun = spoken = time.monotonic()
    lines = []
    with subprocess.Popen(
        list(command),
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        assert child.stdout is not None  # noqa: S101
        for line in child.stdout:
            lines.append(line)
            if time.monotonic() - spoken > 10:
                spoken = time.monotonic()
                say(f"  {what}: {len(lines)} {unit}, {spoken - begun:.0f} s")
    log.write_text("".join(lines))
    if child.returncode:
        raise ClusterError(f"{what} failed with {child.returncode} (all of it: {log}):\n{''.join(lines[-15:])}")
    say(f"  {what}: done in {time.monotonic() - begun:.0f} s")
