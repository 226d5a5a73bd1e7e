"""The pace of a control loop."""

from __future__ import annotations

import time
from itertools import pairwise

from bridge.clock import SystemClock
from bridge.loop import BATCH_DELAY, Loop
from bridge.threads import Supervisor
from cluster.polling import eventually


class Recorder(Loop):
    """Records when it reconciles."""

    def __init__(self) -> None:
        super().__init__("recorder", (), None, 1, SystemClock())
        self.times: list[float] = []

    def reconcile(self) -> None:
        self.times.append(time.monotonic())


def test_a_change_after_a_pause_is_reconciled_before_the_next_ones_are_collected() -> None:
    supervisor, loop = Supervisor(), Recorder()
    loop.start(supervisor)
    delays = []
    for count in range(1, 7):
        time.sleep(3 * BATCH_DELAY)
        loop.times.clear()
        began = time.monotonic()
        loop.wake()
        eventually(lambda: loop.times, f"reconciliation {count}")
        delays.append(loop.times[0] - began)
    supervisor.stop()
    assert supervisor.join(5) == []
    assert min(delays) < 0.7 * BATCH_DELAY, "the fastest, since the machine may be busy"


def test_changes_in_quick_succession_share_a_reconciliation() -> None:
    supervisor, loop = Supervisor(), Recorder()
    loop.start(supervisor)
    end = time.monotonic() + 10 * BATCH_DELAY
    while time.monotonic() < end:
        loop.wake()
        time.sleep(0.001)
    supervisor.stop()
    assert supervisor.join(5) == []
    assert len(loop.times) >= 2
    assert all(later - earlier >= 0.9 * BATCH_DELAY for earlier, later in pairwise(loop.times))
