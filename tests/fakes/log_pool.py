"""A site in memory for tests of logs: statuses as set by the test, logs as lines with their times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bridge.clock import rfc3339
from bridge.errors import BridgeError, SiteRefusedError
from bridge.protocol.model.announcement import READY, Announcement, Readiness
from bridge.protocol.model.jobs import ContainerState, JobStatus, JobUsage, Termination
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.model.sessions import CommandOptions, Connection, Session

Line = tuple[float, bytes]


class LogPool:
    """One pool. ``write`` adds to a log, ``end`` ends the streams that follow it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.statuses: dict[str, JobStatus] = {}
        self.asked: list[tuple[str, LogOptions]] = []
        self.sessions: Callable[[Mapping[str, Any], CommandOptions], Session] | None = None
        self.usage: Callable[[Sequence[str]], Iterable[JobUsage]] | None = None
        self.connections: Callable[[Mapping[str, Any], int], Connection] | None = None
        self.problem: BridgeError | None = None
        self.open = 0
        """Number of open streams."""
        self._lines: dict[tuple[str, str, bool], list[Line]] = {}
        self._ended: set[tuple[str, str]] = set()
        self.changed = threading.Condition(threading.RLock())

    def runs(self, job: str, namespace: str, name: str, *containers: ContainerState, phase: str = "running") -> None:
        self.statuses[job] = JobStatus(
            job=job, namespace=namespace, name=name, phase=phase, containers=list(containers)
        )

    def write(self, job: str, container: str, text: bytes, at: float = 0.0, *, previous: bool = False) -> None:
        with self.changed:
            lines = self._lines.setdefault((job, container, previous), [])
            lines.extend((at, line) for line in text.splitlines(keepends=True))
            self.changed.notify_all()

    def end(self, job: str, container: str) -> None:
        with self.changed:
            self._ended.add((job, container))
            self.changed.notify_all()

    def fail(self, problem: BridgeError | None) -> None:
        with self.changed:
            self.problem = problem
            self.changed.notify_all()

    def logs(self, pod: Mapping[str, Any], options: LogOptions) -> Iterator[bytes]:
        job = pod["metadata"]["uid"]
        self.asked.append((job, options))
        if self.problem is not None:
            raise self.problem
        if job not in self.statuses:
            raise SiteRefusedError(f"job {job} is not known", reason="NotFound")
        return Reader(self, job, options)

    def read(self, reader: Reader, job: str, options: LogOptions) -> Iterator[bytes]:
        lines = self._lines.setdefault((job, options.container, options.previous), [])
        shown = [line for line in list(lines) if options.since is None or line[0] >= options.since]
        if options.tail is not None:
            shown = shown[len(shown) - min(options.tail, len(shown)) :]
        position = len(lines)
        for line in shown:
            yield _written(line, options.timestamps)
        while options.follow and not options.previous:
            with self.changed:
                while not (
                    len(lines) > position
                    or self.problem is not None
                    or reader.closed
                    or (job, options.container) in self._ended
                ):
                    self.changed.wait()
                news, position = lines[position:], len(lines)
                problem = self.problem
            if problem is not None:
                raise problem
            if not news:
                return
            yield b"".join(_written(line, options.timestamps) for line in news)

    def wait_open(self, count: int, timeout: float = 10) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.open == count, timeout)

    # --- the rest of a pool -------------------------------------------------------------------------------------------
    def job(self, job: str) -> JobStatus | None:
        return self.statuses.get(job)

    def jobs(self) -> dict[str, JobStatus]:
        return dict(self.statuses)

    def status(self, pod: Mapping[str, Any]) -> JobStatus | None:
        return self.statuses.get(pod["metadata"]["uid"])

    def announced(self) -> tuple[Announcement, float] | None:
        return None

    def ready(self) -> Readiness:
        return READY

    def complete_at(self) -> float | None:
        return None

    def subscribe(self, changed: Callable[[str], None]) -> None:
        raise NotImplementedError


class Reader:
    """A stream of a log; ``close`` may be called from any thread and ends a wait."""

    def __init__(self, pool: LogPool, job: str, options: LogOptions) -> None:
        self._pool = pool
        self.closed = False
        self._pieces = _limited(pool.read(self, job, options), options.limit_bytes)
        self._count(1)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except (StopIteration, BridgeError):
            self.close()
            raise

    def close(self) -> None:
        with self._pool.changed:
            if not self.closed:
                self.closed = True
                self._count(-1)

    def _count(self, step: int) -> None:
        with self._pool.changed:
            self._pool.open += step
            self._pool.changed.notify_all()


def running(name: str, started_at: float = 1_700_000_000.0, **more: Any) -> ContainerState:
    return ContainerState(name=name, state="running", started_at=started_at, **more)


def terminated(name: str, exit_code: int = 0, **more: Any) -> ContainerState:
    return ContainerState(name=name, state="terminated", ended=Termination(exit_code=exit_code), **more)


def _written(line: Line, timestamps: bool) -> bytes:
    return f"{rfc3339(line[0], micro=True)} ".encode() + line[1] if timestamps else line[1]


def _limited(pieces: Iterator[bytes], limit: int | None) -> Iterator[bytes]:
    for piece in pieces:
        if limit is None:
            yield piece
            continue
        yield piece[:limit]
        limit -= len(piece)
        if limit <= 0:
            return
