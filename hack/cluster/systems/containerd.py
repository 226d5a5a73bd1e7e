"""containerd of a real node: its configuration, the network of its pods, its images."""

from __future__ import annotations

import json
from pathlib import Path

from cluster.processes import run
from cluster.systems import images

SOCKET = "/run/containerd/containerd.sock"
"""In the node's mount namespace, where ``/run`` is private."""
TAGS = ("docker.io/library/busybox:1", "docker.io/library/busybox:latest")
"""The images of pods. The kubelet would pull a tag ``latest``, and there is no registry."""
_PAUSE = "docker.io/podbridge/pause:1"
CLIENT = ("ctr", "--address", SOCKET, "--namespace", "k8s.io")
"""The command line of a client, in the node's mount namespace."""


def file(folder: Path) -> Path:
    """Return the path of containerd's configuration file in a node's folder."""
    return folder / "containerd.toml"


def write(folder: Path, subnet: str) -> None:
    """Write configuration, network (pods get addresses of ``subnet``) and the archive of images."""
    file(folder).write_text(_CONFIGURATION.format(folder=folder, socket=SOCKET, pause=_PAUSE))
    (folder / "cni").mkdir()
    ipam = {"type": "host-local", "subnet": subnet, "routes": [{"dst": "0.0.0.0/0"}], "dataDir": str(folder / "ipam")}
    plugins = [{"type": "ptp", "ipam": ipam}]
    network = {"cniVersion": "1.0.0", "name": "podbridge", "plugins": plugins}
    (folder / "cni" / "podbridge.conflist").write_text(json.dumps(network, indent=1))
    _write_images(folder)


def load(folder: Path, enter: Path) -> bool:
    """Import the images; return whether containerd has them. ``enter`` runs a program in the node's namespace."""
    done = folder / "images.loaded"
    if not done.exists():
        if "SERVER" not in run([str(enter), *CLIENT, "version"], check=False).upper():
            return False
        run([str(enter), *CLIENT, "images", "import", str(folder / "images.tar")])
        done.touch()
    return "busybox" in run([str(enter), *CLIENT, "images", "list", "--quiet"], check=False)


def _write_images(folder: Path) -> None:
    """Write an archive of busybox, for pods and for their sandboxes."""
    images.write_busybox(folder / "images")
    entries = {
        "busybox": images.Entry(TAGS, command=["sh"]),
        "pause": images.Entry((_PAUSE,), command=["sleep", "2147483647"]),
    }
    images.write_archive(folder / "images" / images.NAMES[0], folder / "images.tar", entries)


# opt and nri would create folders and sockets outside of the node's folder
_CONFIGURATION = """\
version = 3
root = "{folder}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]

[grpc]
address = "{socket}"

[plugins."io.containerd.cri.v1.images"]
snapshotter = "overlayfs"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/usr/lib/cni"]
conf_dir = "{folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "runc"
SystemdCgroup = false
"""
