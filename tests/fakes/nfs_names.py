"""Programs that see names as on an NFS mount with default options: see ``nfs_names.c``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_suffix(".c")


def environment(at: Path) -> dict[str, str]:
    """Compile the library below ``at``; return the variables that load it into a program."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    library = at / "nfs_names.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}
