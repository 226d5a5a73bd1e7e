"""Groups of threads that end before their process does."""

import signal
import subprocess
import sys
import threading

from bridge.core.threads import Supervisor

DEAF = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
"""What nohup, and shells without job control, ignore in the background."""


def test_a_group_ends_by_itself_and_the_process_goes_on() -> None:
    supervisor = Supervisor()
    group = supervisor.group()
    thread = group.spawn("a", group.stopping.wait)
    assert not group.is_over()
    group.stop()
    thread.join(5)
    assert group.is_over()
    assert not supervisor.stopping.is_set()
    assert supervisor.failure is None
    supervisor.group()
    assert group not in supervisor._groups


def test_lasting_threads_end_by_their_own_stop_and_their_death_ends_the_process() -> None:
    supervisor = Supervisor()
    lasting = supervisor.lasting()
    thread = lasting.spawn("a", lasting.stopping.wait)
    supervisor.stop()
    assert not lasting.stopping.is_set() and thread.is_alive()
    lasting.stop()
    thread.join(5)
    assert not thread.is_alive() and supervisor.failure is None
    other = Supervisor()
    other.lasting().spawn("b", lambda: None).join(5)
    assert other.failure == "thread b returned before the process stopped"


def test_a_group_ends_with_the_process_and_is_waited_for() -> None:
    supervisor, hold = Supervisor(), threading.Event()
    group = supervisor.group()
    group.spawn("ends", group.stopping.wait)
    group.spawn("writes", hold.wait, writes=True)
    supervisor.stop()
    assert supervisor.join(0.2) == ["writes"]
    assert supervisor.join(0.2, writers=True) == ["writes"]
    hold.set()
    assert supervisor.join(5) == []
    late = supervisor.group()
    assert late.stopping.is_set()


def test_a_thread_of_a_group_that_dies_ends_the_process() -> None:
    supervisor = Supervisor()
    other = supervisor.group()
    group = supervisor.group()
    group.spawn("short", lambda: None).join(5)
    assert supervisor.stopping.wait(5)
    assert supervisor.failure is not None
    assert "short" in supervisor.failure
    assert other.stopping.is_set()


def test_a_repeated_call_goes_on_until_the_process_stops_and_its_error_ends_the_process() -> None:
    supervisor, calls = Supervisor(), iter([None, None, ValueError("broken")])

    def call() -> None:
        if (error := next(calls)) is not None:
            raise error

    supervisor.spawn_every("repeats", 0.001, call).join(5)
    assert supervisor.failure == "thread repeats died: ValueError: broken"
    stopped = Supervisor()
    thread = stopped.spawn_every("waits", 3600, call)
    stopped.stop()
    thread.join(5)
    assert not thread.is_alive() and stopped.failure is None


def test_children_of_a_process_in_the_background_are_not_deaf_to_signals() -> None:
    supervised = "from bridge.core.threads import Supervisor; Supervisor().stop_on_signals()"
    assert [ended_by(number, supervised) for number in DEAF] == [-number for number in DEAF]
    assert [ended_by(number, "") for number in DEAF] == [0, 0, 0], "without it, they are"


def ended_by(number: int, before: str) -> int:
    """Return the status of a child that sends itself the signal; its parent runs in the background."""
    child = f"subprocess.run(['sh', '-c', 'kill -{number} $$'])"
    code = f"{before}\nimport subprocess, sys\nsys.exit({child}.returncode % 256)"
    words = ["env", "--ignore-signal=INT", "--ignore-signal=QUIT", "--ignore-signal=HUP", sys.executable, "-c", code]
    status = subprocess.run(words, check=False).returncode
    return status - 256 if status > 128 else status
