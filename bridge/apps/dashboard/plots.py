"""The last day as small plots: paths of an SVG of 288 by 60 units, one unit for five minutes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bridge.slurm.day_history import DAY, MOST, PERIOD, Sample

WIDTH, HEIGHT = MOST, 60
HOURS = 24
STARTED, ENDED = Sample._fields.index("started"), Sample._fields.index("ended")
GAP = 2.5 * PERIOD
"""Seconds between two samples above which a plot has a gap: nothing was sampled."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot: its name, its numbers in words, and its paths with their CSS classes, the lowest first."""

    name: str
    text: str
    paths: tuple[tuple[str, str], ...]


def of(samples: Sequence[Sample], now: float, *, what: str = "jobs") -> list[Plot]:
    """Return the plots of the day that ends at ``now`` (seconds since the epoch); none without samples.

    ``what`` is counted: ``jobs`` of Slurm, where others use CPUs too, or ``pods`` of pools.
    """
    shown = [each for each in samples if now - DAY <= each.at <= now + PERIOD]
    if not shown:
        return []
    last = shown[-1]
    top = max(max(each.cpus, each.own_cpus + each.other_cpus) for each in shown)
    others = f", {last.other_cpus:,} by other jobs" if what == "jobs" else ""
    used = Plot(
        "CPUs in use",
        f"{last.own_cpus:,} by podbridge's pods{others}, of {last.cpus:,}",
        (
            ("other", _area(shown, now, lambda each: each.own_cpus + each.other_cpus, top)),
            ("use", _area(shown, now, lambda each: each.own_cpus, top)),
            ("limit", _line(shown, now, lambda each: each.cpus, top)),
        ),
    )
    most = max(each.waiting for each in shown)
    waiting = Plot(
        f"podbridge's waiting {what}",
        f"{last.waiting:,} now, {most:,} at most",
        (("waits", _area(shown, now, lambda each: each.waiting, most)),),
    )
    return [used, waiting, _hourly(f"Started {what}", shown, now, STARTED), _hourly(f"Ended {what}", shown, now, ENDED)]


def _x(at: float, now: float) -> float:
    return max(0.0, min(float(WIDTH), WIDTH * (at - now + DAY) / DAY))


def _y(value: float, top: float) -> float:
    return HEIGHT - HEIGHT * value / top if top else float(HEIGHT)


def _runs(samples: Iterable[Sample]) -> list[list[Sample]]:
    """Return the samples in parts without a gap."""
    result: list[list[Sample]] = []
    for each in samples:
        if not result or each.at - result[-1][-1].at > GAP:
            result.append([])
        result[-1].append(each)
    return result


def _steps(run: Sequence[Sample], now: float, value: Callable[[Sample], float], top: float) -> str:
    """Return the steps of a run, from the left end of its first sample; a sample counts until the next one."""
    ends = [each.at for each in run[1:]] + [run[-1].at + PERIOD]
    return "".join(f"V{_y(value(each), top):.1f}H{_x(end, now):.1f}" for each, end in zip(run, ends, strict=True))


def _area(samples: Sequence[Sample], now: float, value: Callable[[Sample], float], top: float) -> str:
    return "".join(
        f"M{_x(run[0].at, now):.1f} {HEIGHT}{_steps(run, now, value, top)}V{HEIGHT}Z" for run in _runs(samples)
    )


def _line(samples: Sequence[Sample], now: float, value: Callable[[Sample], float], top: float) -> str:
    return "".join(
        f"M{_x(run[0].at, now):.1f} {_y(value(run[0]), top):.1f}{_steps(run, now, value, top)}"
        for run in _runs(samples)
    )


def _hourly(name: str, samples: Sequence[Sample], now: float, column: int) -> Plot:
    """Return the counts of a column of the samples as one bar an hour."""
    counts = [0] * HOURS
    for each in samples:
        counts[min(HOURS - 1, max(0, int((each.at - now + DAY) / 3600)))] += each[column]
    top, width = max(counts), WIDTH // HOURS
    bars = (
        f"M{hour * width + 1} {HEIGHT}V{_y(count, top):.1f}h{width - 2}V{HEIGHT}Z"
        for hour, count in enumerate(counts)
        if count
    )
    text = f"{sum(counts):,} in the last day, {counts[-1]:,} in the last hour"
    return Plot(name, text, (("use", "".join(bars)),))
