"""File systems in files, mounted; and what a job is that is written to them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.site.jobs.job_record import Meta

META = Meta("ns", "pod", 1, 2**20, 0, "", None, (), "", 30.0, 1.0, 1.0)
FILE_SYSTEMS = {
    "ext4": (64, ["mkfs.ext4"], "loop,commit=300"),
    "ext4-plain": (64, ["mkfs.ext4", "-O", "^has_journal"], "loop"),
    "xfs": (300, ["mkfs.xfs"], "loop,nouuid"),
    "btrfs": (1024, ["mkfs.btrfs"], "loop,commit=300"),
}
"""The size of an image in MiB, how it is made, and how it is mounted.

Nothing goes to disk unasked for minutes (XFS, and ext4 without a journal: 30 s). What is unmounted here may stay
mounted in the namespace of another test, and XFS mounts no copy beside it unasked.
"""


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", FILE_SYSTEMS[image.suffix[1:]][2], image, place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def made(kind: str, folder: Path, size: int = 0) -> Path:
    """Make an image of so many MiB, empty; the test is skipped where the kernel can't mount it."""
    if f"\t{kind.partition('-')[0]}\n" not in Path("/proc/filesystems").read_text():
        pytest.skip(f"this kernel has no {kind}")
    usual, command, _ = FILE_SYSTEMS[kind]
    path = folder / f"disk.{kind}"
    with path.open("wb") as file:
        file.truncate((size or usual) * 2**20)
    subprocess.run([*command, "-q", path], check=True)
    return path
