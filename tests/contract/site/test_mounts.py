"""A real mount in a job's folder, in a mount namespace of the test's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.site.conftest import CHECKOUT

pytestmark = pytest.mark.real

REMOVE = """\
import subprocess, sys
from bridge.site.files.removal import remove_tree
job = sys.argv[1]
remove_tree(job)
subprocess.run(["umount", f"{job}/fuse/data"], check=True)
print(sys.argv[1], "is as it was")
remove_tree(job)
"""


def test_what_is_mounted_in_a_folder_is_not_removed_with_it(tmp_path: Path) -> None:
    data, job = tmp_path / "data", tmp_path / "job"
    data.mkdir()
    (data / "precious").write_text("x")
    (job / "fuse" / "data").mkdir(parents=True)
    mount = 'mount --bind "$1" "$2/fuse/data" && exec "$3" -c "$4" "$2"'
    words: list[Any] = ["unshare", "-r", "-m", "sh", "-c", mount, "sh", data, job, sys.executable, REMOVE]
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is as it was" in done.stdout
    assert (data / "precious").read_text() == "x"
    assert not job.exists()
