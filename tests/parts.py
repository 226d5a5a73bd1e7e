"""The parts of a long run: which tests belong to each, and how long it takes.

A short run consists of all tests on the main versions of Slurm and Kubernetes; those with a longer form (they use the
fixture ``long``) have the short one. A part consists of the tests of one other version, or of tests in their
longer form. ``./hack/test.sh --long PART`` runs one, ``python -m tests.parts COMMIT`` names that of a commit.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cluster import places

SLURMS = ("26.05", "24.11", "22.05")
"""Versions of Slurm of the tests; the first one is the main version."""
VERSIONS = frozenset((*SLURMS, *places.KUBERNETES))


@dataclass(frozen=True)
class Part:
    """A part of a long run: minutes on 2 cores, and what it is about."""

    minutes: int
    about: str


PARTS: Mapping[str, Part] = {
    "24.11": Part(20, "all tests on Slurm 24.11"),
    "22.05": Part(20, "all tests on Slurm 22.05"),
    "kubernetes": Part(15, "tests of gangs and of kubectl on the other versions of Kubernetes"),
    "1.33": Part(20, "end-to-end tests on Kubernetes 1.33"),
    "1.35": Part(20, "end-to-end tests on Kubernetes 1.35"),
    "kueue": Part(20, "Kueue with more jobs and kills, MultiKueue, and its other version"),
    "kills": Part(20, "a kill after every call and every write, and 100 kills of a storm"),
    "sites": Part(20, "150 kills of daemons of sites, NATS servers and the hub, and 75 while pods race"),
    "outages": Part(15, "outages of sites, nodes, NATS servers, plugins and the API server"),
    "condor": Part(17, "groups and sessions at an HTCondor, and nodes that a site's Slurm loses"),
    "install": Part(20, "chart, kind, quick start, traces"),
    "release": Part(15, "release, docs site, kube-score"),
    "services": Part(10, "JupyterHub, whose servers are pods at sites, Dask with workers there, and kube-proxy"),
    "fuzz": Part(15, "fuzzing at full length"),
    "pythons": Part(15, "unit tests on other versions of Python, and command lines of 20,000 pods"),
}
_LONGER = {
    "tests/chaos/test_kill_sweep.py": "kills",
    "tests/chaos/test_places_sweep.py": "kills",
    "tests/chaos/test_storm.py": "kills",
    "tests/chaos/test_pools.py": "sites",
    "tests/chaos/test_race.py": "sites",
    "tests/chaos/": "outages",
    "tests/contract/controllers/test_kube_proxy.py": "services",
    "tests/contract/hack/": "release",
    "tests/contract/site/": "condor",
    "tests/e2e/helm/": "install",
    "tests/e2e/tracing/": "install",
    "tests/e2e/kueue/": "kueue",
    "tests/e2e/dask/": "services",
    "tests/e2e/notebooks/": "services",
    "tests/": "fuzz",
}
"""Beginning of the path of a test with a longer form -> its part; the first one that matches counts."""


def version(parameters: Collection[object]) -> str:
    """Return the version of Slurm or of Kubernetes among the parameters of a test; empty if there is none.

    A parameter may be a tuple that begins with one.
    """
    values = (value[0] if isinstance(value, tuple) and value else value for value in parameters)
    return next((value for value in values if isinstance(value, str) and value in VERSIONS), "")


def is_version(part: str) -> bool:
    """Whether a part consists of ordinary tests on another version, instead of tests in their longer form."""
    return part in SLURMS[1:] or part == "kubernetes"


def of(path: str, parameters: Collection[object], has_longer_form: bool) -> str:
    """Return the part that has the test; empty if only the short run has it."""
    if path.startswith("tests/unit/"):
        return "fuzz" if has_longer_form else ""
    if (other := version(parameters)) in SLURMS[1:]:
        return other
    if other in places.KUBERNETES and other != places.DEFAULT_KUBERNETES:
        return "kubernetes"
    return next(part for folder, part in _LONGER.items() if path.startswith(folder)) if has_longer_form else ""


def of_commit(commit: str) -> str:
    """Return the part whose turn it is, by the hash of a commit."""
    return list(PARTS)[int(commit, 16) % len(PARTS)]


if __name__ == "__main__":
    name = of_commit(sys.argv[1])
    print(name, PARTS[name].minutes)
