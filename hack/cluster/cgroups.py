"""A cgroup of one name in every hierarchy of this machine: version 1, version 2 or both."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from cluster.errors import ClusterError

_MOUNT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
"""Controllers of version 2 that a kubelet needs, where the machine has it."""


def make(name: str) -> None:
    """Make the cgroup ``name`` below the root of every hierarchy."""
    for root in _hierarchies():
        control = root / "cgroup.subtree_control"
        if control.exists():
            for controller in _CONTROLLERS:
                with contextlib.suppress(OSError):  # version 1 has it, or this kernel lacks it
                    control.write_text(f"+{controller}")
        folder = root / name
        folder.mkdir(exist_ok=True)
        if root.name == "cpuset":  # empty in version 1 until it is set
            for file in ("cpuset.cpus", "cpuset.mems"):
                (folder / file).write_text((root / file).read_text())


def remove(name: str, timeout: float = 20) -> None:
    """Kill every process in the cgroup ``name`` and below, then remove it everywhere. Safe to repeat."""
    end = time.monotonic() + timeout
    while folders := [root / name for root in _hierarchies() if (root / name).exists()]:
        for folder in folders:
            for pid in _pids(folder):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for inner, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):  # a process in it has not ended yet
                    os.rmdir(inner)
        if time.monotonic() > end:
            raise ClusterError(f"cgroups that can't be removed: {', '.join(map(str, folders))}")
        time.sleep(0.02)


def _pids(folder: Path) -> list[int]:
    found = []
    for inner, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            with contextlib.suppress(OSError):
                found += [int(word) for word in Path(inner, "cgroup.procs").read_text().split()]
    return [pid for pid in found if pid]


def _hierarchies() -> list[Path]:
    if (_MOUNT / "cgroup.procs").exists():
        return [_MOUNT]
    return sorted(root for root in _MOUNT.iterdir() if (root / "cgroup.procs").exists() and not root.is_symlink())
