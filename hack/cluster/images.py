"""A container image of Debian's busybox-static: a folder, in apptainer's format."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from cluster.errors import ClusterError

NAMES = ("busybox", "busybox_latest")
"""Names of the folders: ``busybox:latest`` is ``busybox_latest``."""
_FOLDERS = ("bin", "dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr/bin", "var/tmp")


def write_busybox(folder: Path) -> None:
    """Write the image into ``folder``, readable by all users."""
    program = shutil.which("busybox")
    if program is None:
        raise ClusterError("no busybox on this machine: the package busybox-static has it")
    image = folder / NAMES[0]
    for name in _FOLDERS:
        (image / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (image / name).chmod(0o1777)
    shutil.copy(program, image / "bin" / "busybox")
    applets = subprocess.run([program, "--list"], capture_output=True, text=True, check=True).stdout.split()
    for name in applets:
        link = image / "bin" / name
        if name != "busybox":
            link.symlink_to("busybox")
    # a runtime mounts these from outside; the targets must exist
    (image / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (image / "etc" / "group").write_text("root:x:0:\n")
    for name in ("hosts", "resolv.conf", "localtime"):
        (image / "etc" / name).touch()
    for name in NAMES[1:]:
        (folder / name).symlink_to(NAMES[0])
