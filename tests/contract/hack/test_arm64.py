"""The image for arm64, built on another machine: its programs and libraries, run by an emulator."""

import json
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from bridge import __version__
from cluster.systems import debian, image

pytestmark = [pytest.mark.real, pytest.mark.long_only, pytest.mark.timeout(900)]
AARCH64 = 183
"""Number of the machine in the header of an ELF file (EM_AARCH64 of the ELF specification)."""
EMULATOR = "qemu-aarch64-static"
LIBRARIES = "usr/local/lib/python3.13/dist-packages"
NEED_CXX = {"google._upb._message", "frozenlist._frozenlist"}
"""Modules with a replacement in Python, since the image has no libstdc++."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The files of the image, and an emulator."""
    debian.ensure_machine(EMULATOR)
    built = image.build(architecture="arm64")
    folder = tmp_path_factory.mktemp("root")
    with tarfile.open(built.archive) as archive:
        (listed,) = json.load(image.member(archive, "manifest.json"))
        assert json.load(image.member(archive, listed["Config"]))["architecture"] == "arm64"
        for name in listed["Layers"]:
            with tarfile.open(fileobj=image.member(archive, name)) as layer:
                layer.extractall(folder, filter="tar")
    assert built.size < image.LIMIT_MB * 1e6
    (folder / "emulator").write_bytes(Path(shutil.which(EMULATOR)).read_bytes())
    for path in (folder, folder / "emulator"):
        path.chmod(0o755)
    return folder


def run(root, *arguments):
    command = ["chroot", "--userspec=65532:65532", str(root), "/emulator", "/usr/bin/python3", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def native(root):
    """Return the ELF files of the image with their machines."""
    found = {}
    for file in root.rglob("*"):
        if file.is_file() and not file.is_symlink() and file != root / "emulator":
            with file.open("rb") as content:
                head = content.read(20)
            if head[:4] == b"\x7fELF":
                found[file.relative_to(root)] = int.from_bytes(head[18:20], "little")
    return found


def test_all_native_files_are_of_the_architecture(root):
    found = native(root)
    assert len(found) > 100
    assert {str(file): machine for file, machine in found.items() if machine != AARCH64} == {}


def test_all_extension_modules_load(root):
    modules = {
        ".".join([*file.relative_to(LIBRARIES).parts[:-1], file.name.partition(".")[0]])
        for file in native(root)
        if file.is_relative_to(LIBRARIES) and file.suffix == ".so" and ".libs" not in str(file)
    }
    assert len(modules) > 10
    code = f"""
import importlib, platform
for name in {sorted(modules - NEED_CXX)}:
    importlib.import_module(name)
print(platform.machine())
"""
    done = run(root, "-c", code)
    assert (done.stdout, done.stderr) == ("aarch64\n", "")


def test_podbridge_runs(root):
    done = run(root, "/usr/local/bin/podbridge", "version", "--client")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"\b{re.escape(__version__)}\b", done.stdout)
