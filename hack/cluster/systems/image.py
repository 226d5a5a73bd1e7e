"""The image of podbridge, built from the Dockerfile by podman in a storage of the cache: ``./hack/image.sh``.

No daemon runs, and nothing is pulled: the build stages start from a folder that debootstrap makes of Debian's packages.
The same inputs result in the same image, byte by byte, as long as Debian's and PyPI's packages are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bridge.protocol.model.architecture import HERE
from cluster import places
from cluster.errors import ClusterError
from cluster.processes import run
from cluster.steps import locked, run_long, say
from cluster.systems import debian

REPOSITORY = "podbridge"
ARCHITECTURES = ("amd64", "arm64")
"""Those of a release."""
BASE = "localhost/podbridge-base:trixie"
"""The base of the build stages; the Dockerfile names the image of a registry."""
SBOM = "usr/share/podbridge/sbom.cdx.json"
LIMIT_MB = 150
_SUITE = "trixie"
_INPUTS = (
    "Dockerfile",
    "pyproject.toml",
    "requirements.lock",
    "README.md",
    "LICENSE",
    "bridge",
    "admission",
    "scheduler",
    "controllers",
    "hack/image",
)
_CONFIG = ("Cmd", "Entrypoint", "Env", "Labels", "User", "WorkingDir")
"""Fields of the image's configuration that are kept."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True)
class Recipe:
    """What an image is built from."""

    repository: str
    dockerfile: str
    inputs: Sequence[str]
    """Files and folders of the checkout that the Dockerfile copies, and the Dockerfile."""
    target: str = ""
    """The last stage to build; empty: the last one of the Dockerfile."""
    tag: str = ""
    """Tag of the image; empty: podbridge's version."""

    def digest(self, checkout: Path = places.CHECKOUT) -> str:
        """Return a digest of names, contents and modes of all inputs."""
        total = hashlib.sha256(self.target.encode())
        for file in _files(checkout, self.inputs):
            total.update(f"{file.relative_to(checkout)} {file.stat().st_mode & 0o111} ".encode())
            total.update(hashlib.sha256(file.read_bytes()).digest())
        return total.hexdigest()


PODBRIDGE = Recipe(REPOSITORY, "Dockerfile", _INPUTS)
SLURM = Recipe("podbridge-slurm", "hack/slurm/Dockerfile", ("hack/slurm",), "slurm", "test")
"""A whole Slurm for tests in one container."""


@dataclass(frozen=True)
class Image:
    """An image that was built."""

    archive: Path
    """An archive like ``docker save``."""
    name: str
    """Name and tag as containerd has them after the import."""

    @property
    def size(self) -> int:
        """Size of the unpacked layers in bytes."""
        with tarfile.open(self.archive) as archive:
            return sum(archive.getmember(name).size for name in set(self._manifest(archive)["Layers"]))

    @property
    def identity(self) -> str:
        """Digest of the image's configuration, which has the digests of all layers."""
        with tarfile.open(self.archive) as archive:
            return Path(str(self._manifest(archive)["Config"])).stem

    def read(self, path: str) -> bytes:
        """Return the content of a file of the image. Raise :class:`ClusterError` if there is none."""
        with tarfile.open(self.archive) as archive:
            for name in reversed(self._manifest(archive)["Layers"]):
                with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                    found = next((entry for entry in layer if entry.name.lstrip("./") == path and entry.isfile()), None)
                    content = layer.extractfile(found) if found else None
                    if content:
                        return content.read()
        raise ClusterError(f"{self.name}: no file {path}")

    @staticmethod
    def _manifest(archive: tarfile.TarFile) -> dict[str, list[str] | str]:
        manifest: dict[str, list[str] | str] = json.load(member(archive, "manifest.json"))[0]
        return manifest


def version() -> str:
    """Return the version of podbridge, which is the tag of its image."""
    project = tomllib.loads((places.CHECKOUT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def build(
    tag: str | None = None, again: bool = False, base: str = BASE, recipe: Recipe = PODBRIDGE, architecture: str = HERE
) -> Image:
    """Return the image of this checkout; build it unless the cache has it, or ``again``.

    ``architecture`` is one of :data:`ARCHITECTURES`. Raise :class:`ClusterError` if a step of the Dockerfile fails.
    """
    name = f"docker.io/library/{recipe.repository}:{tag or recipe.tag or version()}"
    folder = places.cache() / "image"
    key = hashlib.sha256(f"{recipe.digest()} {name} {base} {architecture}".encode()).hexdigest()[:12]
    archive = folder / f"{key}.tar"
    with locked("image"):
        if again or not archive.exists():
            folder.mkdir(parents=True, exist_ok=True)
            with locked():
                debian.ensure_machine("podman")
            if base == BASE:
                ensure_base()
            say(f"building {name} for {architecture} from {recipe.dockerfile} (about 100 s, later builds 15 s)")
            run_long("podman build", _build_command(recipe, name, base, again, architecture), "lines")
            saved, aside = archive.with_suffix(".saved"), archive.with_suffix(".tmp")
            saved.unlink(missing_ok=True)
            run(podman("save", "--quiet", "--format=docker-archive", f"--output={saved}", name))
            reproducible(saved, aside)
            saved.unlink()
            aside.rename(archive)
            for old in sorted(folder.glob("*.tar"), key=lambda file: file.stat().st_mtime)[:-4]:
                old.unlink()
        os.utime(archive)
    return Image(archive, name)


def reproducible(saved: Path, target: Path) -> None:
    """Copy an archive of podman without what differs from build to build: ids, names of hosts, comments.

    The layers are the same in each build: all their files are from 1970, in a fixed order.
    """
    with tarfile.open(saved) as source, tarfile.open(target, "w") as archive:
        (manifest,) = json.load(member(source, "manifest.json"))
        config = json.load(member(source, manifest["Config"]))
        kept = {key: config[key] for key in ("architecture", "os", "created", "rootfs")}
        kept["config"] = {key: value for key, value in config["config"].items() if value and key in _CONFIG}
        kept["history"] = [{key: step[key] for key in step if key != "comment"} for step in config["history"]]
        content = json.dumps(kept, sort_keys=True).encode()
        manifest["Config"] = f"{hashlib.sha256(content).hexdigest()}.json"
        for name in dict.fromkeys(manifest["Layers"]):
            _add(archive, name, source.getmember(name).size, member(source, name))
        _add(archive, manifest["Config"], len(content), io.BytesIO(content))
        listed = json.dumps([manifest], sort_keys=True).encode()
        _add(archive, "manifest.json", len(listed), io.BytesIO(listed))


def member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """Return a file of an archive, open for reading. Raise :class:`ClusterError` if it is none."""
    found = archive.extractfile(name)
    if found is None:
        raise ClusterError(f"{archive.name!r}: {name} is no file")
    return found


def _add(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = size
    archive.addfile(entry, content)


def _build_command(recipe: Recipe, name: str, base: str, again: bool, architecture: str) -> list[str]:
    """Return the command line of the build.

    Packages are downloaded as on this machine: with its network, its index of Python packages and its certificates,
    none of which remain in the image.
    """
    settings = [f"--build-arg={key}={os.environ[key]}" for key in ("PIP_INDEX_URL",) if key in os.environ]
    if _CERTIFICATES.exists():
        settings += [f"--volume={_CERTIFICATES}:/build/ca.crt:ro", "--build-arg=PIP_CERT=/build/ca.crt"]
    return [
        *podman("build", "--isolation=chroot", "--network=host", "--timestamp=0", "--format=docker"),
        *(("--no-cache",) if again else ("--layers",)),
        *settings,
        f"--platform=linux/{architecture}",
        f"--build-arg=BUILDPLATFORM=linux/{HERE}",  # podman 4.3 does not set it
        f"--file={places.CHECKOUT / recipe.dockerfile}",
        *([f"--target={recipe.target}"] if recipe.target else []),
        f"--build-arg=BASE={base}",
        f"--tag={name}",
        str(places.CHECKOUT),
    ]


def ensure_base() -> None:
    """Import a minimal Debian as the base of the build stages, unless the storage has it."""
    if subprocess.run(podman("image", "exists", BASE), check=False).returncode == 0:
        return
    with locked():
        debian.ensure_debootstrap()
    folder = places.cache() / "image" / "base.tmp"
    shutil.rmtree(folder, ignore_errors=True)
    say(f"making a base of Debian {_SUITE}'s packages for the image (about a minute, once)")
    run_long("debootstrap", ["debootstrap", "--variant=minbase", _SUITE, str(folder)], "steps")
    with subprocess.Popen(["tar", "-C", str(folder), "-c", "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(podman("import", "--quiet", "-", BASE), stdin=packed.stdout, check=True, capture_output=True)
    shutil.rmtree(folder)


def podman(*args: str) -> list[str]:
    """Return the command line of podman with its own storage: images of this machine's users are not touched."""
    folder = places.cache() / "image"
    where = (f"--root={folder / 'storage'}", f"--runroot={folder / 'run'}", "--storage-driver=overlay")
    return ["podman", *where, "--cgroup-manager=cgroupfs", "--events-backend=none", *args]


def _files(checkout: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yield all files of the inputs, in the order of their names."""
    for name in names:
        path = checkout / name
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and "__pycache__" not in file.parts)


# --- the command line -------------------------------------------------------------------------------------------------
def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    options = _parser().parse_args(argv)
    try:
        if options.pin:
            pinned = pin(places.CHECKOUT / "Dockerfile")
            print(f"Dockerfile: the base is now {pinned}")
            return 0
        recipe = SLURM if options.slurm else PODBRIDGE
        image = build(options.tag, options.no_cache, options.base, recipe, options.arch)
        if options.output:
            shutil.copyfile(image.archive, options.output)
        if options.sbom:
            options.sbom.write_bytes(image.read(SBOM))
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    print(
        f"{image.name}: {image.size / 1e6:.0f} MB, sha256:{image.identity[:12]}, in {options.output or image.archive}"
    )
    return 0


def pin(dockerfile: Path) -> str:
    """Write the newest digest of the base's tag into the Dockerfile; return the new reference. Needs skopeo."""
    text = dockerfile.read_text()
    found = re.search(r"^ARG BASE=(\S+?)@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    if found is None:
        raise ClusterError(f"{dockerfile}: no line ARG BASE=NAME:TAG@sha256:DIGEST")
    if shutil.which("skopeo") is None:
        raise ClusterError("--pin needs skopeo, which reads the digest from the registry: apt install skopeo")
    answer = run(["skopeo", "inspect", "--no-tags", "--format={{.Digest}}", f"docker://{found[1]}"]).strip()
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", answer):
        raise ClusterError(f"skopeo inspect {found[1]}: no digest: {answer[:80]}")
    dockerfile.write_text(text.replace(found[0], f"ARG BASE={found[1]}@{answer}"))
    return f"{found[1]}@{answer}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hack/image.sh", description="Build the image of podbridge.")
    parser.add_argument("--tag", help=f"tag of the image ({version()})")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the archive, like `docker save`, here too")
    parser.add_argument("--sbom", type=Path, metavar="FILE", help="write the bill of materials (CycloneDX, JSON) here")
    parser.add_argument("--arch", choices=ARCHITECTURES, default=HERE, help="architecture of the image (%(default)s)")
    parser.add_argument("--no-cache", action="store_true", help="run all steps again")
    parser.add_argument(
        "--base", default=BASE, metavar="IMAGE", help="base of the build stages (made of Debian's packages)"
    )
    parser.add_argument("--slurm", action="store_true", help="build the test Slurm instead")
    parser.add_argument("--pin", action="store_true", help="only write the base's newest digest into the Dockerfile")
    return parser


if __name__ == "__main__":
    sys.exit(main())
