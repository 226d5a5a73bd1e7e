"""Clusters of test runs that were killed, and so have not stopped them."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from cluster.core import Cluster
from cluster.options import FILE
from cluster.processes import Processes

PREFIX = "podbridge-"
"""Prefix of the folders of test runs; each has the clusters of one process."""
_OWNER = "owner"
_TMP = Path("/tmp")


def make_folder(parent: Path = _TMP, owner: int | None = None) -> Path:
    """Create a folder for clusters that belong to a process, by default to this one; the path is short (sockets)."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    folder.chmod(0o755)
    Processes(folder, folder).record(_OWNER, owner or os.getpid())
    return folder


def stop(parent: Path = _TMP) -> list[Path]:
    """Stop the clusters whose process has ended, and remove their folders; return those."""
    found = [folder for folder in sorted(parent.glob(f"{PREFIX}*")) if _is_orphan(folder)]
    for folder in found:
        for record in folder.glob(f"*/{FILE}"):
            Cluster.load(record.parent).stop()
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _is_orphan(folder: Path) -> bool:
    owner = folder / f"{_OWNER}.pid"
    if not owner.exists() or folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return False
    return Processes(folder, folder).pid(_OWNER) is None
