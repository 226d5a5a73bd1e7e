"""Write the archive of the kubectl plugin and its manifest for krew: ``python hack/krew.py HOMEPAGE URL FOLDER``.

``URL`` is the address of the folder from which the archive will be downloaded.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
from pathlib import Path

from bridge import __version__

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "hack" / "krew"
MEMBERS = (SOURCES / "kubectl-podbridge", ROOT / "LICENSE")


def write(homepage: str, url: str, folder: Path) -> tuple[Path, Path]:
    """Write archive and manifest to ``folder``; return their paths. The archive of a version has always one digest."""
    archive = folder / f"kubectl-podbridge-{__version__}.tar"
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for source in MEMBERS:
            member = tar.gettarinfo(source, source.name)
            member.mode = 0o755 if source.parent == SOURCES else 0o644
            member.mtime = member.uid = member.gid = 0
            member.uname = member.gname = ""
            with source.open("rb") as content:
                tar.addfile(member, content)
    compressed = archive.with_suffix(".tar.gz")
    compressed.write_bytes(_gzip(archive.read_bytes()))
    archive.unlink()
    values = {
        "VERSION": __version__,
        "HOMEPAGE": homepage,
        "URL": f"{url.rstrip('/')}/{compressed.name}",
        "SHA256": hashlib.sha256(compressed.read_bytes()).hexdigest(),
    }
    text = (SOURCES / "podbridge.yaml").read_text()
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    manifest = folder / "podbridge.yaml"
    manifest.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("#")))
    return compressed, manifest


def _gzip(content: bytes) -> bytes:
    import gzip

    return gzip.compress(content, mtime=0)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    for path in write(sys.argv[1], sys.argv[2], Path(sys.argv[3])):
        print(path)
