"""Scrapes of podbridge's metrics: their duration and size."""

from __future__ import annotations

import statistics
import time
from urllib.request import urlopen

SCRAPES = 20
LIMIT = 100.0
"""Longest scrape, in milliseconds."""


def longest(port: int) -> tuple[float, str]:
    """Scrape a process ``SCRAPES`` times, every 0.2 s; return the longest scrape in ms, and a note on the others."""
    durations, text = [], ""
    for _ in range(SCRAPES):
        began = time.monotonic()
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        durations.append((time.monotonic() - began) * 1000)
        time.sleep(0.2)
    series = sum(1 for line in text.splitlines() if line and not line.startswith("#"))
    return max(durations), f"p50 {statistics.median(durations):.0f} ms, {series} series, {len(text) / 1024:.0f} KiB"
