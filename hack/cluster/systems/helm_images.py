"""The images of other projects: nats, redis, interLink and OAuth2-proxy, which the chart can start, and Kueue.

They are made of programs of this machine and of the cache, and share one layer: busybox, and the programs in ``/bin``.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster import places
from cluster.core import Cluster
from cluster.processes import run
from cluster.systems import images, install
from cluster.systems.containerd import CLIENT

REGISTRY, TAG = "docker.io/podbridge", "local"
CHART = ("nats", "redis", "interlink", "oauth2-proxy")
"""Names of the images for the chart."""
KUEUE = "kueue"
"""Name of the image of Kueue's controller."""
_REDIS = "redis-server"
_NOBODY = "65532:65532"
"""The user of Kueue's own image: its Deployment requires one that is not root."""


def prepare(cluster: Cluster) -> dict[str, Any]:
    """Import the images for the chart into containerd of the real node; return the values that name them."""
    install.ensure(machine=[_REDIS], modules=[install.INTERLINK, install.OAUTH2_PROXY])
    archive = write(cluster.state / "helm-images", CHART)
    cluster.real_node.run(*CLIENT, "images", "import", str(archive))
    return values()


def values() -> dict[str, Any]:
    """Return values of the chart that name its images."""

    def image(name: str) -> dict[str, Any]:
        return {"image": {"registry": REGISTRY, "repository": name, "tag": TAG}}

    return {
        "nats": image("nats"),
        "redis": image("redis"),
        "plugin": {"interlink": image("interlink"), "oauth2Proxy": image("oauth2-proxy")},
    }


def write(folder: Path, names: Sequence[str]) -> Path:
    """Write an archive of images into ``folder``, which is made anew; return its path. Their programs are installed."""
    shutil.rmtree(folder, ignore_errors=True)
    images.write_busybox(folder)
    root = folder / images.NAMES[0]
    entries = {}
    for name in names:
        program = _program(name)
        shutil.copy(program, root / "bin" / program.name)
        user = _NOBODY if name == KUEUE else ""
        entries[name] = images.Entry([f"{REGISTRY}/{name}:{TAG}"], [f"/bin/{program.name}"], user=user)
    if "redis" in names:
        _copy_libraries(_program("redis"), root)
    if KUEUE in names:
        (root / "manager").symlink_to("bin/kueue")  # the command of its Deployment
    archive = folder / "images.tar"
    images.write_archive(root, archive, entries)
    return archive


def _program(name: str) -> Path:
    if name == "nats":
        return Path(sys.executable).parent / "nats-server"
    if name == "redis":
        return Path(shutil.which(_REDIS) or _REDIS)
    if name == KUEUE:
        return install.kueue_binary(places.DEFAULT_KUEUE)
    program = {"interlink": "interlink-api"}.get(name, name)
    return install.binaries([program])[program]


def _copy_libraries(program: Path, root: Path) -> None:
    """Copy the shared libraries of a program, at their paths."""
    for line in run(["ldd", str(program)]).splitlines():
        found = re.search(r"(/\S+) \(0x", line)
        if found:
            target = root / found[1].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found[1], target)
