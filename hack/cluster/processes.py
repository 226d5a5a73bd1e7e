"""Daemons by name: started in the background, and found again by pid and start time."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from cluster.errors import ClusterError

STOP_PATIENCE = 10.0
"""Seconds until all threads of a process must have stopped after SIGSTOP."""


class Processes:
    """The daemons of one cluster; their pid files are ``run/<name>.pid``, their output is in ``logs/<name>.log``.

    A pid file holds the pid and the start time of the process, so that a pid that the kernel has reused is never
    signalled.
    """

    def __init__(self, run: Path, logs: Path) -> None:
        self._run = run
        self._logs = logs

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
        """Start ``argv`` in a new session; its output is appended to the log. Return the pid."""
        self._run.mkdir(parents=True, exist_ok=True)
        self._logs.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("ab") as log:
            child = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(env or {})},
                cwd="/",
                start_new_session=True,
            )
        self.record(name, child.pid)
        child.returncode = 0  # ``pid`` reaps it: no warning when the handle is dropped
        return child.pid

    def record(self, name: str, pid: int) -> None:
        """Write the pid file of a process that runs."""
        self._file(name).write_text(f"{pid} {_state_and_start(pid)[1]}\n")

    def log(self, name: str) -> Path:
        """Return the file of the daemon's output."""
        return self._logs / f"{name}.log"

    def names(self) -> list[str]:
        """List the daemons that were started and not stopped."""
        return sorted(file.stem for file in self._run.glob("*.pid"))

    def pid(self, name: str) -> int | None:
        """Return the pid of the running daemon; ``None`` if it does not run."""
        try:
            pid, started = (int(word) for word in self._file(name).read_text().split())
        except (OSError, ValueError):
            return None
        state, since = _state_and_start(pid)
        if since != started:
            return None
        if state in "ZX" and len(_threads(pid)) < 2:  # its connections live as long as one of its threads
            with contextlib.suppress(ChildProcessError):  # a child of this process
                os.waitpid(pid, os.WNOHANG)
            return None
        return pid

    def signal(self, name: str, number: int) -> None:
        """Send a signal to the running daemon."""
        pid = self.pid(name)
        if pid is None:
            raise ClusterError(f"{name} is not running")
        send_signal(pid, number)

    def stop(self, names: Iterable[str], grace: float = 10) -> None:
        """Stop the daemons with SIGTERM, all at once, and after ``grace`` seconds with SIGKILL (0: at once)."""
        waiting = {name: pid for name in names if (pid := self.pid(name)) is not None}
        for name in waiting:
            self._send(name, signal.SIGTERM if grace else signal.SIGKILL)
            self._send(name, signal.SIGCONT)  # a test may have sent SIGSTOP
        end = time.monotonic() + grace
        while waiting := {name: pid for name, pid in waiting.items() if self.pid(name)}:
            if time.monotonic() > end:
                for name in waiting:
                    self._send(name, signal.SIGKILL)
            time.sleep(0.01)

    def forget(self, name: str) -> None:
        """Remove the pid file of a daemon that has ended."""
        self._file(name).unlink(missing_ok=True)

    def wait(self, name: str, ready: Callable[[], bool], timeout: float = 60) -> None:
        """Wait until ``ready``. If the daemon ends or is late, raise an error with the last lines of its log."""
        end = time.monotonic() + timeout
        while not ready():
            if self.pid(name) is None:
                raise ClusterError(f"{name} ended at its start. {self.tail(name)}")
            if time.monotonic() > end:
                raise ClusterError(f"{name} is not ready after {timeout:.0f} s. {self.tail(name)}")
            time.sleep(0.05)

    def tail(self, name: str, lines: int = 15) -> str:
        """Return the path of the log and its last lines."""
        try:
            last = self.log(name).read_text(errors="replace").splitlines()[-lines:]
        except OSError:
            last = []
        return f"Last lines of {self.log(name)}:\n" + "\n".join(f"  {line}" for line in last or ["(empty)"])

    def _file(self, name: str) -> Path:
        return self._run / f"{name}.pid"

    def _send(self, name: str, number: int) -> None:
        pid = self.pid(name)
        if pid is not None:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process; after SIGSTOP, wait until all its threads have stopped.

    Raises :class:`ClusterError` if they have not within ``STOP_PATIENCE`` seconds.
    """
    os.kill(pid, number)
    if number != signal.SIGSTOP:
        return
    end = time.monotonic() + STOP_PATIENCE
    while not all(_state_and_start(thread)[0] in "TtXZ" for thread in _threads(pid)):
        if time.monotonic() >= end:
            raise ClusterError(f"process {pid} did not stop within {STOP_PATIENCE:g} s of SIGSTOP")
        time.sleep(0.005)


def run(command: Sequence[str], text: str | None = None, check: bool = True, timeout: float = 120) -> str:
    """Run a tool; return its output, with ``check=False`` also its standard error."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, errors="replace", timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{shlex.join(command)} did not end within {timeout:g} s") from error
    if check and done.returncode:
        raise ClusterError(
            f"{shlex.join(command)} ended with {done.returncode}: {(done.stderr or done.stdout).strip()}"
        )
    return done.stdout if check else done.stdout + done.stderr


def _state_and_start(pid: int) -> tuple[str, int]:
    """Return the state letter of a process and its start, in clock ticks since boot; ``("X", 0)`` if there is none."""
    try:
        # the name, in parentheses, may contain any character
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[19])


def _threads(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def inside(folder: Path, seen_as: str) -> list[int]:
    """Return the pids of all processes that see ``folder`` at the path ``seen_as`` of their file system."""
    try:
        wanted = folder.stat()
    except OSError:
        return []
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            there = os.stat(f"/proc/{entry.name}/root{seen_as}")
        except OSError:
            continue
        if (there.st_dev, there.st_ino) == (wanted.st_dev, wanted.st_ino):
            found.append(int(entry.name))
    return found


def kill_inside(folder: Path, seen_as: str, timeout: float = 20) -> None:
    """Kill all processes that see ``folder`` at ``seen_as``, also those that are started meanwhile."""
    _kill_all(lambda: inside(folder, seen_as), timeout)


def of_user(uid: int) -> list[int]:
    """Return the pids of all processes of a user."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == uid and _state_and_start(int(entry.name))[0] not in "ZX":
                    found.append(int(entry.name))
    return found


def kill_user(uid: int, timeout: float = 20) -> None:
    """Kill all processes of a user, also those that are started meanwhile."""
    _kill_all(lambda: of_user(uid), timeout)


def _kill_all(find: Callable[[], list[int]], timeout: float) -> None:
    end = time.monotonic() + timeout
    while pids := find():
        if time.monotonic() > end:
            raise ClusterError(f"processes that do not end: {pids}")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
