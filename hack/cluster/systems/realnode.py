"""A real node: kubelet, containerd and runc on this machine, for the Slurm node of the same name.

Both daemons run in one mount namespace, held open by a third process. There ``/run``, ``/var/lib`` and ``/var/log`` are
private, the node's folder is at ``/srv``, and the kernel settings that a kubelet and CNI plugins change are copies.
So their mounts end with their processes, no settings of the machine change, and each process that sees the folder at
``/srv`` belongs to this node. Containers have other root folders: they are found by the node's cgroup.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import shlex
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import cgroups, views
from cluster.errors import ClusterError
from cluster.ports import http_status
from cluster.processes import kill_inside, run
from cluster.systems import containerd, debian
from cluster.systems.kube import Api, is_ready
from cluster.systems.slurm import Size
from cluster.views import SEEN_AS

NAME = "node-0"
FOLDER = "real-node"
PORTS = 2
"""Number of ports: the kubelet's API, the kubelet's health."""
HOLDER, CONTAINERD, KUBELET = f"{NAME}-view", f"{NAME}-containerd", f"{NAME}-kubelet"
DRA_DRIVER = f"{NAME}-dra-driver"
NEED_CONTAINERD = (KUBELET, DRA_DRIVER)
"""Daemons that are started after containerd answers: a kubelet ends if it waits too long for it."""
DRIVER_NAME = "gpu.example.com"
GPUS = 4
"""Number of devices of the DRA driver, and of GPUs of the node in Slurm."""
EVICTION_MIB = 100
"""Memory that a kubelet reserves by default: its hard eviction threshold."""
MAX_PODS = 125
"""As many as addresses."""
_BLOCKS = list(ipaddress.ip_network("198.18.0.0/15").subnets(new_prefix=25))
"""Addresses of pods, from the range that is reserved for tests: a block for each node on this machine."""
_ENTER_TRIES = 1200
"""A minute: mounts take long on a busy machine."""
_PRIVATE = ("/run", "/var/lib", "/var/log")
_SETTINGS = (
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)


@dataclass(frozen=True)
class RealNode:
    """The real node in the folder ``folder`` of a cluster's state."""

    folder: Path
    first_port: int
    kubeconfig: Path
    client_ca: Path
    """The CA of clients of the kubelet."""
    kubelet: Path
    """The kubelet's program."""
    driver: Path | None = None
    """The program of the DRA driver, if the node has one."""
    driver_kubeconfig: Path | None = None

    @property
    def enter(self) -> Path:
        """The program that runs another one in the node's mount namespace."""
        return self.folder / "enter"

    @property
    def addresses(self) -> str:
        """Addresses of its pods."""
        return str(_BLOCKS[self.first_port % len(_BLOCKS)])

    @property
    def cgroup(self) -> str:
        """Name of the cgroup of its pods."""
        return _cgroup(self.folder)

    def write(self) -> None:
        """Write configurations, images and scripts into an empty folder, and make the cgroup."""
        if any(self.folder.is_relative_to(private) for private in _PRIVATE):
            raise ClusterError(f"{self.folder}: a real node's state folder can't be in {', '.join(_PRIVATE)}")
        for name in ("kubelet", "settings"):
            (self.folder / name).mkdir(parents=True)
        if self.driver:  # it creates none of the directories of its sockets
            for path in (self._registration.parent, self._plugins / DRIVER_NAME):
                path.mkdir(parents=True)
        for name in _SETTINGS:
            copy = self._copy(name)
            copy.write_text(Path("/proc/sys", name).read_text())
        containerd.write(self.folder, self.addresses)
        (self.folder / "kubelet.json").write_text(json.dumps(self._configuration(), indent=1))
        self._script("hold", self._hold())
        self._script("enter", self._enter())
        cgroups.make(self.cgroup)

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of each daemon, in the order of starting."""
        enter = str(self.enter)
        kubelet = [
            *(str(self.kubelet), f"--config={self.folder / 'kubelet.json'}", f"--kubeconfig={self.kubeconfig}"),
            *(f"--hostname-override={NAME}", f"--node-ip={address()}"),
            *(f"--root-dir={self.folder / 'kubelet'}", f"--cert-dir={self.folder / 'kubelet' / 'pki'}"),
        ]
        return {
            HOLDER: [str(self.folder / "hold")],
            CONTAINERD: [enter, "containerd", f"--config={containerd.file(self.folder)}"],
            KUBELET: [enter, *kubelet],
            **({DRA_DRIVER: [enter, *self._driver()]} if self.driver else {}),
        }

    def answers(self, name: str) -> bool:
        """Return whether a daemon answers; containerd must also have the images."""
        if name == HOLDER:
            return self._view.exists()
        if name == CONTAINERD:
            return containerd.load(self.folder, self.enter)
        if name == DRA_DRIVER:
            return self._registration.is_socket()
        return http_status(f"http://127.0.0.1:{self.first_port + 1}/healthz") == 200

    def run(self, *argv: str) -> str:
        """Run a program (``ctr``, ...) in the node's mount namespace; return its output."""
        return run([str(self.enter), *argv])

    # --- inside -------------------------------------------------------------------------------------------------------
    @property
    def _view(self) -> Path:
        """File of the pid of the process that holds the mount namespace; it exists when everything is mounted."""
        return self.folder / "view"

    @property
    def _registration(self) -> Path:
        """Socket at which the kubelet finds the DRA driver."""
        return self.folder / "kubelet" / "plugins_registry" / f"{DRIVER_NAME}-reg.sock"

    @property
    def _plugins(self) -> Path:
        return self.folder / "kubelet" / "plugins"

    def _driver(self) -> list[str]:
        """Return the command line of the DRA driver, which tells each container its devices in a file."""
        return [
            *(str(self.driver), "kubelet-plugin", f"--kubeconfig={self.driver_kubeconfig}", f"--node-name={NAME}"),
            *(f"--drivername={DRIVER_NAME}", f"--num-devices={GPUS}", "--enable-device-metadata"),
            f"--plugin-registration-path={self._registration.parent}",
            *(f"--datadir={self._plugins}", "--cdi-dir=/var/run/cdi"),
        ]

    def _copy(self, setting: str) -> Path:
        return self.folder / "settings" / setting.replace("/", ".")

    def _configuration(self) -> Mapping[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address(),
            "port": self.first_port,
            "healthzBindAddress": "127.0.0.1",
            "healthzPort": self.first_port + 1,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.client_ca)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{containerd.SOCKET}",
            "maxPods": MAX_PODS,
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "enforceNodeAllocatable": [],
            "makeIPTablesUtilChains": False,
            "resolvConf": "",
            "podLogsDir": str(self.folder / "logs"),
            "volumePluginDir": str(self.folder / "kubelet" / "volume-plugins"),
            "nodeStatusUpdateFrequency": "5s",
            # a full disk of the machine evicts no pods
            "evictionHard": {"memory.available": f"{EVICTION_MIB}Mi"},
            "imageGCHighThresholdPercent": 100,
            "logging": {"verbosity": 2},
        }

    def _hold(self) -> str:
        folder, view = shlex.quote(str(self.folder)), shlex.quote(str(self._view))
        lines = [f"mount --rbind {folder} {SEEN_AS}"]
        lines += [f"mount -t tmpfs -o mode=755 {NAME} {path}" for path in _PRIVATE]
        lines += ["mkdir -p /var/lib/cni /run/lock", "mkdir /run/log"]
        lines += [f"mount --bind {shlex.quote(str(self._copy(name)))} /proc/sys/{name}" for name in _SETTINGS]
        lines += [f"echo $$ >{view}.tmp", f"mv {view}.tmp {view}", "exec sleep infinity"]
        inner = shlex.quote("\n".join(lines))
        return f"rm -f {view}\nexec unshare --mount --propagation private sh -ec {inner}"

    def _enter(self) -> str:
        view = shlex.quote(str(self._view))
        path = f"{debian.containerd_folder()}:{views.PATH}"
        return "\n".join(
            [
                "tries=0",
                f"until [ -s {view} ]; do",
                f"    if [ $tries = {_ENTER_TRIES} ]; then echo '{HOLDER} has no mount namespace' >&2; exit 1; fi",
                "    tries=$((tries + 1)); sleep 0.05",
                "done",
                f"export PATH={shlex.quote(path)} LC_ALL=C",
                f'exec nsenter --target "$(cat {view})" --mount -- "$@"',
            ]
        )

    def _script(self, name: str, text: str) -> None:
        file = self.folder / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)


def size(dra: bool = False) -> Size:
    """Return the size of this machine as its kubelet offers it to pods; ``dra``: with the GPUs of the DRA driver."""
    meminfo = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return Size(os.cpu_count() or 1, int(meminfo["MemTotal"].split()[0]) // 1024 - EVICTION_MIB, GPUS * dra)


def address() -> str:
    """Return this machine's address: a kubelet refuses one of the loopback. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError as error:
            raise ClusterError(f"a real node needs an address besides the loopback: {error}") from error
        return str(probe.getsockname()[0])


def accepts_pods(api: Api) -> bool:
    """Return whether the real node is Ready; it is not at first, and its taint is removed a moment later."""
    status, node = api.request("GET", f"/api/v1/nodes/{NAME}")
    return status == 200 and is_ready(node) and not node["spec"].get("taints")


def end(folder: Path) -> None:
    """Remove the remains of the real node in ``folder``: daemons, shims, containers, cgroups. Safe to repeat."""
    kill_inside(folder, SEEN_AS)
    cgroups.remove(_cgroup(folder))


def _cgroup(folder: Path) -> str:
    """Return the name of the cgroup of all pods of this node, derived from the folder."""
    return f"podbridge-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}"
