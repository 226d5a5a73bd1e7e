"""Container images that are made without a build: of Debian's busybox-static, and of single programs.

A folder is an image in apptainer's format, an archive like ``docker save`` is one for containerd.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cluster.errors import ClusterError

NAMES = ("busybox", "busybox_latest")
"""Names of the folders: ``busybox:latest`` is ``busybox_latest``."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
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


def add_programs(folder: Path, name: str, root: Path, *paths: str) -> None:
    """Add an image to those of :func:`write_busybox`: busybox, and what a root folder has at these paths.

    The libraries of programs are added too. Links are followed in the root folder, where they may be absolute.
    """
    image = folder / name
    shutil.copytree(folder / NAMES[0], image, symlinks=True)
    pack = """{ printf '%s\\n' "$@"; ldd "$@" 2>/dev/null | grep -o '/[^ :]*'; } | sort -u | tar -ch -T - 2>/dev/null"""
    packed = subprocess.Popen(["chroot", root, "sh", "-c", pack, "sh", *paths], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", image], stdin=packed.stdout, check=True)
    packed.wait()


@dataclass(frozen=True)
class Entry:
    """An image of an archive."""

    tags: Sequence[str]
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    user: str = ""


def write_archive(root: Path, target: Path, entries: Mapping[str, Entry]) -> None:
    """Write an archive like ``docker save``: images whose one layer is the folder ``root``.

    The keys of ``entries`` are names of files beside ``target``.
    """
    folder = target.parent
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        archive.add(root, arcname=".")
    diff = f"sha256:{sha256(layer.read_bytes()).hexdigest()}"
    manifest = []
    with tarfile.open(target, "w") as archive:
        archive.add(layer, arcname="layer.tar")
        for name, entry in entries.items():
            words = {"Entrypoint": list(entry.entrypoint), "Cmd": list(entry.command), "User": entry.user}
            config = {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": {"Env": ["PATH=/bin:/usr/bin"], **{key: value for key, value in words.items() if value}},
                "rootfs": {"type": "layers", "diff_ids": [diff]},
            }
            path = folder / f"{name}.json"
            path.write_text(json.dumps(config))
            archive.add(path, arcname=path.name)
            manifest.append({"Config": path.name, "RepoTags": list(entry.tags), "Layers": ["layer.tar"]})
        path = folder / "manifest.json"
        path.write_text(json.dumps(manifest))
        archive.add(path, arcname=path.name)
