"""Processes of this machine, as tests look for them."""

from __future__ import annotations

import contextlib
from pathlib import Path


def with_word(word: str) -> list[int]:
    """Return the processes whose command line has this word, but not those of a client with it."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if word.encode() in words and not words[0].endswith(b"kubectl"):
                pids.append(int(path.parent.name))
    return pids


def in_folder(folder: Path) -> list[int]:
    """Return the processes whose working directory is this one."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if path.readlink() == folder:
                pids.append(int(path.parent.name))
    return pids
