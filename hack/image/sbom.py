"""Prints the bill of materials of a root folder (CycloneDX 1.6, JSON): ``sbom.py ROOT``.

The components are the Debian packages of ``var/lib/dpkg/status.d`` and the installed Python packages. The output
depends on the content of the folder alone: it has no time, and its serial number is derived from the components. The
script needs only Python's standard library, since it runs in the build of the image.
"""

from __future__ import annotations

import json
import platform
import sys
import uuid
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any
from urllib.parse import quote

_MAIN = "podbridge"
_SPDX = "License-Expression"


def bill(root: Path) -> dict[str, Any]:
    """Return the bill of materials of ``root``. Raise ValueError if podbridge is not installed there."""
    python = {component["name"]: component for component in _python(root)}
    main = python.pop(_MAIN, None)
    if main is None:
        raise ValueError(f"{root}: {_MAIN} is not installed there")
    components = sorted([*_debian(root), *python.values()], key=lambda component: component["bom-ref"])
    content = json.dumps([main, components], sort_keys=True)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": main | {"type": "application"}},
        "components": components,
    }


def _debian(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the Debian packages: one file with the fields of its control file for each."""
    for file in sorted((root / "var/lib/dpkg/status.d").glob("*")):
        fields = HeaderParser().parsestr(file.read_text())
        name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version)}?arch={architecture}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _python(root: Path) -> Iterator[dict[str, Any]]:
    """Yield the Python packages, with their licences where the metadata have an SPDX expression."""
    folders = sorted(root.glob("usr/local/lib/python3.*/dist-packages"))
    found: dict[str, Distribution] = {}
    for distribution in distributions(path=[str(folder) for folder in folders]):
        found[distribution.metadata["Name"].lower().replace("_", "-")] = distribution
    for name, distribution in sorted(found.items()):
        purl = f"pkg:pypi/{quote(name)}@{quote(distribution.version)}"
        component = {"type": "library", "bom-ref": purl, "name": name, "version": distribution.version, "purl": purl}
        if licence := distribution.metadata.get(_SPDX):
            component["licenses"] = [{"expression": licence}]
        yield component


if __name__ == "__main__":
    json.dump(bill(Path(sys.argv[1])), sys.stdout, indent=1, sort_keys=True)
    print()
    print(f"made with Python {platform.python_version()}", file=sys.stderr)
