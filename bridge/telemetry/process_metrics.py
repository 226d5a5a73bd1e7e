"""The metrics of the process itself, with the names of prometheus_client's own and fewer system calls.

Each system call releases the GIL, which a thread of a busy process then gets back only after some milliseconds.
prometheus_client opens two files for a scrape, and lists all open ones with a call for each.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from pathlib import Path

from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PROC = Path("/proc/self")


class ProcessMetrics(Collector):
    """CPU time, memory and open files of this process. ``start`` is its start, in seconds since the epoch."""

    def __init__(self, start: float) -> None:
        self._start = start
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._statm: int | None = None

    def collect(self) -> Iterable[Metric]:
        """Return the metrics, for a scrape; see proc(5) and prometheus_client's ``ProcessCollector``."""
        virtual, resident = self._memory()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield _gauge("virtual_memory_bytes", "Virtual memory size in bytes.", virtual)
        yield _gauge("resident_memory_bytes", "Resident memory size in bytes.", resident)
        yield _gauge("start_time_seconds", "Start time of the process since unix epoch in seconds.", self._start)
        text = "Total user and system CPU time spent in seconds."
        yield CounterMetricFamily("process_cpu_seconds_total", text, value=time.process_time())
        yield _gauge("open_fds", "Number of open file descriptors.", open_files())
        yield _gauge("max_fds", "Maximum number of open file descriptors.", limit)

    def _memory(self) -> tuple[int, int]:
        """Return the bytes of virtual and of resident memory; the file stays open, so that one call reads it."""
        if self._statm is None:
            self._statm = os.open(PROC / "statm", os.O_RDONLY | os.O_CLOEXEC)
        virtual, resident = os.pread(self._statm, 128, 0).split()[:2]
        return int(virtual) * self._page, int(resident) * self._page


def open_files() -> int:
    """Return the number of open file descriptors. Linux before 6.2 does not say it as the size of the folder."""
    folder = PROC / "fd"
    return os.stat(folder).st_size or len(os.listdir(folder))


def replace_library(registry: CollectorRegistry) -> None:
    """Register the metrics in place of those of prometheus_client, which has none on systems without /proc."""
    for metric in PROCESS_COLLECTOR.collect():
        if metric.name == "process_start_time_seconds":
            registry.unregister(PROCESS_COLLECTOR)
            registry.register(ProcessMetrics(metric.samples[0].value))


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"process_{name}", text, value=value)
