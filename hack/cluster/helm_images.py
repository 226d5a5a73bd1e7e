"""The images of other projects that the chart can start: nats, redis, interLink, OAuth2-proxy.

They are made of programs of this machine and of the cache, and share one layer: busybox, and the programs in ``/bin``.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

from cluster import images, install
from cluster.containerd import CLIENT
from cluster.core import Cluster
from cluster.processes import run

_REGISTRY, _TAG = "docker.io/podbridge", "local"
_REDIS = "redis-server"


def prepare(cluster: Cluster) -> dict[str, Any]:
    """Make the images and import them into containerd of the real node; return the values that name them."""
    install.ensure(machine=[_REDIS], modules=[install.INTERLINK, install.OAUTH2_PROXY])
    folder = cluster.state / "helm-images"
    shutil.rmtree(folder, ignore_errors=True)
    images.write_busybox(folder)
    root = folder / images.NAMES[0]
    built = install.binaries(["interlink-api", "oauth2-proxy"])
    programs = {
        "nats": Path(sys.executable).parent / "nats-server",
        "interlink": built["interlink-api"],
        "oauth2-proxy": built["oauth2-proxy"],
        "redis": Path(shutil.which(_REDIS) or _REDIS),
    }
    for program in programs.values():
        shutil.copy(program, root / "bin" / program.name)
    _copy_libraries(programs["redis"], root)
    archive = folder / "images.tar"
    entries = {
        name: images.Entry([f"{_REGISTRY}/{name}:{_TAG}"], entrypoint=[f"/bin/{program.name}"])
        for name, program in programs.items()
    }
    images.write_archive(root, archive, entries)
    cluster.real_node.run(*CLIENT, "images", "import", str(archive))

    def image(name: str) -> dict[str, Any]:
        return {"image": {"registry": _REGISTRY, "repository": name, "tag": _TAG}}

    return {
        "nats": image("nats"),
        "redis": image("redis"),
        "plugin": {"interlink": image("interlink"), "oauth2Proxy": image("oauth2-proxy")},
    }


def _copy_libraries(program: Path, root: Path) -> None:
    """Copy the shared libraries of a program, at their paths."""
    for line in run(["ldd", str(program)]).splitlines():
        found = re.search(r"(/\S+) \(0x", line)
        if found:
            target = root / found[1].lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found[1], target)
