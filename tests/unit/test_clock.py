"""The machine's clocks."""

import time

import pytest

from bridge.clock import SystemClock


def test_seconds_continue_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, suspended = SystemClock(), 3600.0
    seconds = {time.CLOCK_MONOTONIC: 100.0, time.CLOCK_BOOTTIME: 100.0}
    monkeypatch.setattr(time, "clock_gettime", seconds.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: seconds[time.CLOCK_MONOTONIC])
    before = clock.monotonic()
    seconds[time.CLOCK_BOOTTIME] += suspended
    assert clock.monotonic() - before == suspended
