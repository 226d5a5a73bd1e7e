"""Supervised threads: the process ends with an error if one of them dies."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

log = logging.getLogger(__name__)

SWITCH_INTERVAL = 0.001
"""Seconds after which a computing thread yields the interpreter lock to a thread with an answer or a request."""
GC_THRESHOLD = 50_000
"""New objects between two collections of cycles: a collection visits all objects, and caches and bodies have many."""


def at_once(threads: int, call: Callable[[K], V], items: Iterable[K]) -> dict[K, V]:
    """Call ``call`` for each item on up to ``threads`` threads; return the results by item.

    After an error, no further call begins. The first error is raised when the calls in progress have ended.
    """
    # no ThreadPoolExecutor: the interpreter joins its threads at exit (concurrent.futures.thread._python_exit), so one
    # call that waits for slurmrestd or NATS would delay the end of the process by its time-out
    remaining = list(items)
    if min(threads, len(remaining)) <= 1:
        return {item: call(item) for item in remaining}
    results: dict[K, V] = {}
    errors: list[BaseException] = []

    def run() -> None:
        while not errors:
            try:
                item = remaining.pop()
            except IndexError:
                return
            try:
                results[item] = call(item)
            except BaseException as error:
                errors.append(error)

    helpers = [
        threading.Thread(target=run, name="at-once", daemon=True) for _ in range(min(threads, len(remaining)) - 1)
    ]
    remaining.reverse()
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]
    return results


class Supervisor:
    """Starts the background threads of the process and detects when one of them ends.

    ``stopping`` is set when the process has to end: by a signal, or because a thread died. Threads wait on it instead
    of sleeping. ``failure`` has the name of the thread that died and the reason. The process then exits with status 1,
    and Kubernetes restarts it.
    """

    def __init__(self, parent: Supervisor | None = None) -> None:
        self._parent = parent
        self._groups: list[Supervisor] = []
        self.stopping = threading.Event()
        self.failure: str | None = None
        self._threads: list[threading.Thread] = []
        self._writers: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def group(self) -> Supervisor:
        """Return a supervisor of threads that may end before the process, when its ``stop`` is called.

        They also end with the process. If one of them dies, the process ends.
        """
        group = Supervisor(self)
        with self._lock:
            self._groups = [other for other in self._groups if not other.is_over()] + [group]
        if self.stopping.is_set():
            group.stop()
        return group

    def lasting(self) -> Supervisor:
        """Return a supervisor of threads that go on when this one stops, until its own ``stop`` is called.

        If one of them dies, the process ends.
        """
        return Supervisor(self)

    def is_over(self) -> bool:
        """Whether ``stop`` was called and all threads have ended."""
        return self.stopping.is_set() and not any(thread.is_alive() for thread in self._threads)

    def spawn(
        self, name: str, target: Callable[[], object], *, writes: bool = False, ends: bool = False
    ) -> threading.Thread:
        """Run ``target`` in a thread. If it returns before ``stopping`` is set, the process ends, unless ``ends``.

        ``writes``: the thread sends writes that only the leader may send; the lease is released after it has ended.
        """
        # a daemon: the interpreter joins other threads at exit, and a hanging slurmrestd would delay the end
        thread = threading.Thread(target=self._guard, args=(name, target, ends), name=name, daemon=True)
        with self._lock:
            # without an ident, a thread is about to be started
            self._threads = [other for other in self._threads if other.is_alive() or other.ident is None]
            self._writers.intersection_update(self._threads)
            self._threads.append(thread)
            if writes:
                self._writers.add(thread)
        thread.start()
        return thread

    def spawn_every(self, name: str, period: float, call: Callable[[], object]) -> threading.Thread:
        """Call ``call`` in a thread, ``period`` seconds after the start and after each call."""

        def repeat() -> None:
            while not self.stopping.wait(period):
                call()

        return self.spawn(name, repeat)

    def _guard(self, name: str, target: Callable[[], object], ends: bool) -> None:
        try:
            target()
        except BaseException as error:
            log.exception("thread died", extra={"kv": {"thread": name}})
            self.fail(f"thread {name} died: {type(error).__name__}: {error}")
        else:
            if not ends and not self.stopping.is_set():
                self.fail(f"thread {name} returned before the process stopped")

    def fail(self, reason: str) -> None:
        """Make the process end with status 1."""
        with self._lock:
            if self.failure is None and not self.stopping.is_set():
                self.failure = reason
        if self._parent is not None:
            self._parent.fail(reason)
        self.stop()

    def stop_on_signals(self) -> None:
        """Stop at SIGTERM or SIGINT; only the main thread may call this."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        # commands and containers inherit that a signal is ignored, as nohup and shells do in the background, but no
        # handler
        for number in (signal.SIGHUP, signal.SIGQUIT):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, lambda *_: None)

    def stop(self) -> None:
        """Make all threads end."""
        self.stopping.set()
        with self._lock:
            groups = list(self._groups)
        for group in groups:
            group.stop()

    def join(self, timeout: float, *, writers: bool = False) -> list[str]:
        """Wait at most ``timeout`` seconds for all threads, or only ``writers``; return the names of running ones.

        Threads that start during the call are not included.
        """
        with self._lock:
            supervisors = [self, *self._groups]
        threads = [
            thread
            for supervisor in supervisors
            for thread in list(supervisor._threads)
            if not writers or thread in supervisor._writers
        ]
        end = time.monotonic() + timeout
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end - time.monotonic()))
        return [thread.name for thread in threads if thread.is_alive()]

    def wait_for_stop(self) -> None:
        """Wait until the process has to end; the main thread calls this.

        Python runs the handler of a signal in the main thread. One that arrives just before an endless wait begins does
        not interrupt it.
        """
        while not self.stopping.wait(1.0):
            pass

    def wait(self, seconds: float) -> bool:
        """Wait; return ``True`` as soon as the process has to end."""
        return self.stopping.wait(seconds)
