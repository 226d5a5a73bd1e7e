"""containerd of a real node: its configuration, the network of its pods, its images."""

from __future__ import annotations

import json
import platform
import tarfile
from hashlib import sha256
from pathlib import Path

from cluster import images
from cluster.processes import run

SOCKET = "/run/containerd/containerd.sock"
"""In the node's mount namespace, where ``/run`` is private."""
TAGS = ("docker.io/library/busybox:1", "docker.io/library/busybox:latest")
"""The images of pods. The kubelet would pull a tag ``latest``, and there is no registry."""
_PAUSE = "docker.io/podbridge/pause:1"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
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
    """Write an archive like ``docker save``: one layer with busybox, for pods and for their sandboxes."""
    images.write_busybox(folder / "images")
    layer = folder / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        archive.add(folder / "images" / images.NAMES[0], arcname=".")
    diff = f"sha256:{sha256(layer.read_bytes()).hexdigest()}"
    manifest = []
    with tarfile.open(folder / "images.tar", "w") as archive:
        archive.add(layer, arcname="layer.tar")
        for name, tags, command in (("busybox", TAGS, ["sh"]), ("pause", (_PAUSE,), ["sleep", "2147483647"])):
            config = {
                "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
                "os": "linux",
                "config": {"Env": ["PATH=/bin:/usr/bin"], "Cmd": command},
                "rootfs": {"type": "layers", "diff_ids": [diff]},
            }
            path = folder / f"{name}.json"
            path.write_text(json.dumps(config))
            archive.add(path, arcname=path.name)
            manifest.append({"Config": path.name, "RepoTags": list(tags), "Layers": ["layer.tar"]})
        path = folder / "manifest.json"
        path.write_text(json.dumps(manifest))
        archive.add(path, arcname=path.name)


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
