"""Paths: this checkout, the cache folder, and the Debian suite of each Slurm version."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

SUITES = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
"""Slurm version -> the Debian suite whose packages hold it."""

DEFAULT_SLURM = "26.05"

KUBERNETES = {
    "1.32": "v1.32.5",
    "1.33": "v1.33.13",
    "1.34": "v1.34.4",
    "1.35": "v1.35.4",
    "1.36": "v1.36.3",
    "1.37": "v1.37.2",
}
"""Kubernetes version -> the release that a go.mod of ``hack/tools`` pins."""

DEFAULT_KUBERNETES = "1.36"

KUEUE = {"0.15": "v0.15.2", "0.16": "v0.16.1"}
"""Kueue version -> the release that a go.mod of ``hack/tools`` pins."""

DEFAULT_KUEUE = "0.15"


def kubernetes() -> str:
    """Return the version of Kubernetes of a cluster that names none (``$PODBRIDGE_KUBERNETES``)."""
    return os.environ.get("PODBRIDGE_KUBERNETES") or DEFAULT_KUBERNETES


def kueue() -> str:
    """Return the version of Kueue of the tests (``$PODBRIDGE_KUEUE``)."""
    return os.environ.get("PODBRIDGE_KUEUE") or DEFAULT_KUEUE


def cache() -> Path:
    """Return the folder of everything that is downloaded or built once (``$PODBRIDGE_CACHE``)."""
    if chosen := os.environ.get("PODBRIDGE_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "podbridge"


def kept_state() -> Path:
    """Return the folder of clusters that tests keep running (``pytest --keep``); short, as sockets lie in it."""
    return Path("/tmp") / f"podbridge-kept-{zlib.crc32(str(CHECKOUT).encode()):08x}"


def default_state() -> Path:
    """Return the default state folder of ``up.sh`` (``$PODBRIDGE_STATE``)."""
    if chosen := os.environ.get("PODBRIDGE_STATE"):
        return Path(chosen).absolute()
    return cache() / "state" / "default"
