"""Certificates and keys that a kubeconfig contains, as files that end with the process.

The ``kubernetes`` library writes them to files in the temporary folder and deletes these when the process ends by
itself; after SIGKILL, the private key would stay.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ATTRIBUTES = ("ssl_ca_cert", "cert_file", "key_file")
"""The attributes of the library's ``Configuration`` that are names of files."""
PREFIX = "podbridge-keys-"
READS = 3
"""Attempts: the library shares the files of equal certificates among all threads, and another one may delete them."""


class MemoryFile(str):
    """The name of a file in memory, which only this process can open. It exists as long as this object."""

    __slots__ = ("_descriptor",)
    _descriptor: int

    def __new__(cls, content: bytes) -> MemoryFile:
        """Create the file. Raises ``OSError``."""
        descriptor = os.memfd_create("podbridge-key")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
        except BaseException:
            os.close(descriptor)
            raise
        result = super().__new__(cls, f"/proc/self/fd/{descriptor}")
        result._descriptor = descriptor
        return result

    def __del__(self) -> None:
        os.close(self._descriptor)


def load(read: Callable[[str | None], None], configuration: Any) -> None:
    """Call ``read`` with a folder for files, and replace these in ``configuration`` by files in memory.

    ``read`` fills the library's ``Configuration``. It gets ``None`` on a system other than Linux: the library's files
    stay. Raises what ``read`` raises, and ``OSError``.
    """
    if sys.platform != "linux":
        read(None)
        return
    for attempt in range(READS):
        with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
            read(folder)
            try:
                _move(configuration)
                return
            except FileNotFoundError:
                if attempt == READS - 1:
                    raise


def _move(configuration: Any) -> None:
    for attribute in ATTRIBUTES:
        name = getattr(configuration, attribute)
        if name and Path(name).parent.name.startswith(PREFIX):
            setattr(configuration, attribute, MemoryFile(Path(name).read_bytes()))
