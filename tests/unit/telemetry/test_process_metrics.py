"""The metrics of the process are those of prometheus_client, with fewer system calls."""

from __future__ import annotations

import mmap
import subprocess
import sys
from types import SimpleNamespace

import pytest
from prometheus_client import PROCESS_COLLECTOR, REGISTRY, CollectorRegistry
from prometheus_client.core import Metric

from bridge.telemetry import metrics, process_metrics

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the library has no such metrics elsewhere")


def found(registry: CollectorRegistry) -> dict[str, Metric]:
    return {metric.name: metric for metric in registry.collect() if metric.name.startswith("process_")}


def value(metric: Metric) -> float:
    return float(metric.samples[0].value)


def test_the_default_registry_has_the_metrics_of_the_library() -> None:
    assert metrics.BUILD_INFO  # the module that registers them
    own, library = found(REGISTRY), {metric.name: metric for metric in PROCESS_COLLECTOR.collect()}
    assert own.keys() == library.keys()
    for name, metric in library.items():
        assert (own[name].type, own[name].documentation) == (metric.type, metric.documentation)
        assert [sample.name for sample in own[name].samples] == [sample.name for sample in metric.samples]
    for name in ("process_start_time_seconds", "process_max_fds"):
        assert value(own[name]) == value(library[name])
    for name in ("process_virtual_memory_bytes", "process_resident_memory_bytes"):
        assert value(own[name]) == pytest.approx(value(library[name]), rel=0.05)
    assert value(own["process_cpu_seconds"]) == pytest.approx(value(library["process_cpu_seconds"]), abs=1.0)


def test_open_files_are_counted_as_by_the_library() -> None:
    """In a process of its own: objects that other tests have left close their files at any time."""
    script = """
import os
from bridge.telemetry.process_metrics import open_files
from prometheus_client import PROCESS_COLLECTOR
for count in (0, 2):
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
    (library,) = [m.samples[0].value for m in PROCESS_COLLECTOR.collect() if m.name == "process_open_fds"]
    print(open_files() - (library - 1))  # the library counts the folder that it lists
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert [float(line) for line in done.stdout.split()] == [0, 0]


def test_each_scrape_has_the_current_values() -> None:
    memory = value(found(REGISTRY)["process_resident_memory_bytes"])
    size = 64 * 2**20
    with mmap.mmap(-1, size) as kept:  # pages of the kernel: malloc may return memory that is resident already
        kept[:: mmap.PAGESIZE] = b"x" * (size // mmap.PAGESIZE)
        assert value(found(REGISTRY)["process_resident_memory_bytes"]) > memory + size / 2


def test_old_kernels_have_no_number_of_open_files_as_the_size_of_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_metrics.os, "stat", lambda _: SimpleNamespace(st_size=0))
    monkeypatch.setattr(process_metrics.os, "listdir", lambda _: ["0", "1", "2"])
    assert process_metrics.open_files() == 3


def test_a_system_without_proc_keeps_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_metrics, "PROCESS_COLLECTOR", SimpleNamespace(collect=list))
    registry = CollectorRegistry()
    process_metrics.replace_library(registry)
    assert not list(registry.collect())
