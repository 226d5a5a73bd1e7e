"""Parts of ``hack/release.sh``: the versions of all files, and archives that are the same in each build.

- ``python -m release check VERSION``: compare the version with each file that names one;
- ``python -m release chart FOLDER HOMEPAGE URL``: package the Helm chart with its icon, which will be in ``URL``;
- ``python -m release pack SOURCE FOLDER``: archive the folder SOURCE.

Members of an archive have the time ``$SOURCE_DATE_EPOCH`` (seconds since 1970), no owner, and fixed modes.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

import yaml

from cluster.systems import install

ROOT = Path(__file__).parents[1]
_VERSION = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}")
_HEADING = re.compile(r"(?m)^## \[([^\]]+)\] - \d{4}-\d{2}-\d{2}$")
_HOMEPAGE, _ICON = "https://podbridge.example.org", "icon.svg"
_IMAGE = r"\bpodbridge:(\d[\w.]*\w)"
_WHEEL = r"\bpodbridge-(\d[\w.]*)-py3-none-any\.whl"
_NAMED = (
    *(
        (f"docs/{page}.md", "tag of the image", _IMAGE)
        for page in ("admins/air-gapped", "admins/image", "admins/install", "developers/local-cluster")
    ),
    *(
        (f"docs/{page}.md", "name of the wheel", _WHEEL)
        for page in ("admins/releases", "admins/tracing", "sites/plugin", "sites/sites", "users/run-pods")
    ),
    ("compose.yaml", "tag of the image", _IMAGE),
    ("hack/slurm/Dockerfile", "ARG PODBRIDGE", _IMAGE),
    ("config", "tag of the image", _IMAGE),
    ("config", "label app.kubernetes.io/version", r'app\.kubernetes\.io/version: "?([^"\s]+)'),
)
"""Files and folders that name the version in their text: path, what names it, and a pattern."""


def versions(root: Path = ROOT) -> dict[str, str]:
    """Return the version in each file that names one; empty if the file names none.

    The changelog names that of its first heading with a date: ``## [0.1.0] - 2026-11-30``.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((root / "helm/podbridge/Chart.yaml").read_text())
    code = re.search(r'(?m)^__version__ = "(.*)"$', (root / "bridge/__init__.py").read_text())
    dated = _HEADING.search((root / "CHANGELOG.md").read_text())
    return {
        "pyproject.toml: project.version": str(project["version"]),
        "bridge/__init__.py: __version__": code[1] if code else "",
        "helm/podbridge/Chart.yaml: version": str(chart["version"]),
        "helm/podbridge/Chart.yaml: appVersion": str(chart["appVersion"]),
        "CHANGELOG.md: first heading with a date": dated[1] if dated else "",
        **{f"{name}: {subject}": _named(root, name, pattern) for name, subject, pattern in _NAMED},
    }


def _named(root: Path, name: str, pattern: str) -> str:
    """Return the version that all matches of a file, or of the files of a folder, have; several: those that differ."""
    place = root / name
    files = sorted(place.glob("*.yaml")) if place.is_dir() else [place]
    return ", ".join(sorted({found for file in files for found in re.findall(pattern, file.read_text())}))


def problems(wanted: str, found: dict[str, str]) -> list[str]:
    """Return a line for each version that is not the wanted one, and one if the wanted one is no version."""
    if not _VERSION.fullmatch(wanted):
        return [f"{wanted!r} is no version; allowed: MAJOR.MINOR.PATCH, for example 0.2.0"]
    return [f"{place} is {version or 'missing'}, not {wanted}" for place, version in found.items() if version != wanted]


def pack(source: Path, archive: Path, epoch: int) -> None:
    """Write a folder to a ``.tar.gz`` below the name of the folder. The same files result in the same bytes."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in sorted(path for path in source.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(f"{source.name}/{file.relative_to(source)}")
            member.size, member.mtime = file.stat().st_size, epoch
            member.mode = 0o755 if file.stat().st_mode & 0o100 else 0o644
            with file.open("rb") as data:
                tar.addfile(member, data)
    archive.write_bytes(gzip.compress(content.getvalue(), mtime=epoch))


def chart(folder: Path, epoch: int, homepage: str, url: str) -> Path:
    """Package the Helm chart with Helm, which checks it, and pack the files again with fixed times.

    ``homepage`` and ``url``, the address of the folder with the files of the release, replace those of Chart.yaml. The
    icon of the chart is one of these files.
    """
    install.ensure(modules=[install.HELM])
    helm = str(install.binaries(install.HELM.packages)["helm"])
    with tempfile.TemporaryDirectory() as work:
        command = [helm, "package", str(ROOT / "helm/podbridge"), "--destination", work]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (packaged,) = Path(work).glob("*.tgz")
        with tarfile.open(packaged) as tar:
            tar.extractall(work, filter="data")
        meta = Path(work) / "podbridge/Chart.yaml"
        meta.write_text(with_addresses(meta.read_text(), homepage, url))
        target = folder / packaged.name
        pack(Path(work) / "podbridge", target, epoch)
    shutil.copyfile(ROOT / "bridge/apps/dashboard/static" / _ICON, folder / _ICON)
    return target


def with_addresses(chart_yaml: str, homepage: str, url: str) -> str:
    """Return a Chart.yaml with the addresses of a release in place of those of the checkout."""
    return chart_yaml.replace(f"{_HOMEPAGE}/{_ICON}", f"{url.rstrip('/')}/{_ICON}").replace(_HOMEPAGE, homepage)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    match list(arguments):
        case ["check", wanted]:
            lines = problems(wanted, versions())
            for line in lines:
                print(f"error: {line}", file=sys.stderr)
            return 1 if lines else 0
        case ["chart", folder, homepage, url]:
            chart(Path(folder), epoch, homepage, url)
        case ["pack", source, folder]:
            pack(Path(source), Path(folder) / f"{Path(source).name}.tar.gz", epoch)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
