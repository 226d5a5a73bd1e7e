"""Write the files that follow from others: ``./hack/generate.sh``. ``--check`` only compares.

``--check`` leaves out ``config/``, which needs Helm: ``tests/contract/controllers/test_chart.py`` compares it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from generate import chart, commands, dashboards, layers, manifests, reference, roles, site_keys, slurm_config
from generate.marked import ROOT

Generator = Callable[[], Mapping[Path, str]]
"""Returns the content of each file that it generates."""
WITHOUT_HELM: Sequence[Generator] = (
    layers.files,
    reference.files,
    commands.files,
    site_keys.files,
    slurm_config.files,
    dashboards.files,
    chart.files,
)
ALL: Sequence[Generator] = (*WITHOUT_HELM, manifests.files, roles.files)
"""In the order in which one reads what another writes."""


def stale(generator: Generator) -> dict[Path, str]:
    """Return the content of each file of a generator that is missing or differs."""
    return {file: text for file, text in generator().items() if not file.exists() or file.read_text() != text}


def main(arguments: Sequence[str]) -> int:
    """Write the files, or with ``--check`` name those that differ; return the exit status."""
    if arguments not in ([], ["--check"]):
        print("usage: hack/generate.sh [--check]    --check: name the files that are out of date, and fail")
        return 0 if arguments in (["--help"], ["-h"]) else 2
    failed = False
    for generator in (*WITHOUT_HELM, roles.files) if arguments else ALL:
        for file, text in stale(generator).items():
            if arguments:
                print(f"out of date: {file.relative_to(ROOT)}: run ./hack/generate.sh")
                failed = True
                continue
            print(f"written: {file.relative_to(ROOT)}")
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
