"""interLink's own API server and virtual kubelet, and podbridge's plugins, beside a running cluster.

Each process listens on a port of the loopback. Its configuration is in ``<state>/interlink``, its output in
``<state>/logs``. The cluster stops it together with podbridge.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cluster import install, tools
from cluster.core import Cluster
from cluster.errors import ClusterError
from cluster.ports import free_block, listening
from cluster.views import SEEN_AS

HOST = "127.0.0.1"
ATTEMPTS = 5
START = 4.0
"""Seconds in which a process that listens becomes ready."""
NAMESPACE = "interlink"
"""Namespace of the pods for interLink's virtual nodes; podbridge does not manage it."""
RESOURCES = {"CPU": "64", "Memory": "64Gi", "Pods": "1000"}
"""Resources of a virtual node until the plugin's answer to a ping replaces them."""
TOLERATION = {"key": "virtual-node.interlink/no-schedule", "operator": "Exists", "effect": "NoSchedule"}
"""The toleration of the taint of interLink's virtual nodes."""


@dataclass(frozen=True)
class Program:
    """One process: its command line, its variables and its port."""

    argv: Sequence[str]
    port: int
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""
    """Text that it logs when it is ready."""

    @property
    def url(self) -> str:
        """The URL that it answers at."""
        return f"http://{HOST}:{self.port}"


class Interlink:
    """interLink's processes on one cluster with the option ``interlink``. All methods raise :class:`ClusterError`."""

    def __init__(self, cluster: Cluster) -> None:
        if not cluster.options.interlink:
            raise ClusterError("this cluster has no programs of interLink")
        self.cluster = cluster
        self.folder = cluster.state / "interlink"
        self.folder.mkdir(exist_ok=True)
        self._programs: dict[str, Program] = {}
        self._binaries = install.binaries(install.INTERLINK)

    def start_plugin(self, site: str, name: str = "plugin", options: Sequence[str] = ()) -> str:
        """Start ``podbridge plugin`` as the user of a site, with the site's batch system in its process.

        ``options`` are added to the command line. Return the plugin's URL.
        """
        port = free_block(1)
        command = [*tools.PODBRIDGE, "plugin", "--site", f"{SEEN_AS}/site.toml", "--listen", f"{HOST}:{port}", *options]
        return self._add(name, Program([str(self.cluster.sites[site].as_user), *command], port))

    def start_api(self, plugin: str, name: str = "interlink-api") -> str:
        """Start interLink's API server in front of the plugin with this URL; return the API server's URL."""
        host, _, plugin_port = plugin.rpartition(":")
        port = free_block(1)
        settings = {
            "InterlinkAddress": f"http://{HOST}",
            "InterlinkPort": str(port),
            "SidecarURL": host,
            "SidecarPort": plugin_port,
            "VerboseLogging": True,
            "DataRootFolder": f"{self.folder}/{name}",
        }
        env = {"INTERLINKCONFIGPATH": self._write(name, settings)}
        return self._add(name, Program([str(self._binaries["interlink-api"])], port, env))

    def start_virtual_kubelet(self, node: str, url: str, settings: Mapping[str, Any] | None = None) -> str:
        """Start interLink's virtual kubelet for a node, a client of the API server or plugin with this URL.

        ``settings`` are merged into its configuration. Return the name of the process.
        """
        host, _, port = url.rpartition(":")
        own = {
            "InterlinkURL": host,
            "InterlinkPort": port,
            "VerboseLogging": True,
            "Namespace": NAMESPACE,
            "PodIP": HOST,
            "HTTP": {"Insecure": True},
            "KubeletHTTP": {"Insecure": True},
            "Resources": RESOURCES,
        }
        name = f"{node}-virtual-kubelet"
        kubelet_port = free_block(1)
        env = {
            "CONFIGPATH": self._write(name, tools.merged(own, settings or {})),
            "NODENAME": node,
            "KUBECONFIG": str(self.cluster.user_kubeconfig(name, ("system:masters",))),
            "KUBELET_URL": HOST,
            "KUBELET_PORT": str(kubelet_port),
            "POD_IP": HOST,
        }
        command = [str(self._binaries["interlink-virtual-kubelet"])]
        self._add(name, Program(command, kubelet_port, env, ready="Pod cache in-sync"))
        self.cluster.processes.wait(name, lambda: self._exists(node))
        return name

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a process; SIGKILL also waits for its end."""
        self.cluster.kill(name, number)

    def start(self, name: str) -> None:
        """Start a process again that has ended, on its port, and wait until it is ready.

        interLink's virtual kubelet at times starts its cache of pods before it has told the cache to hold pods. It then
        waits without end, so it is started again.
        """
        if name not in self._programs:
            raise ClusterError(f"no process {name}; there are {', '.join(self._programs)}")
        program, processes = self._programs[name], self.cluster.processes
        for attempt in range(1, ATTEMPTS + 1):
            logged = self.log(name).stat().st_size if self.log(name).exists() else 0
            processes.start(name, program.argv, program.env)
            processes.wait(name, lambda: listening(program.port), timeout=30)
            try:
                processes.wait(name, lambda: self._logged(name, program.ready, logged), timeout=START)  # noqa: B023
                break
            except ClusterError:
                if attempt == ATTEMPTS:
                    raise
                processes.stop([name], 0)

    def log(self, name: str) -> Path:
        """Return the file of a process's output."""
        return self.cluster.processes.log(name)

    @property
    def names(self) -> list[str]:
        """The names of the processes, in the order of their first start."""
        return list(self._programs)

    def url(self, name: str) -> str:
        """Return the URL of a process that was started."""
        return self._programs[name].url

    def _add(self, name: str, program: Program) -> str:
        self._programs[name] = program
        self.start(name)
        return program.url

    def _logged(self, name: str, text: str, begin: int) -> bool:
        """Return whether the output of a process contains ``text`` after the byte ``begin``."""
        with self.log(name).open("rb") as file:
            file.seek(begin)
            return text.encode() in file.read()

    def _exists(self, node: str) -> bool:
        return self.cluster.api.request("GET", f"/api/v1/nodes/{node}")[0] == 200

    def _write(self, name: str, settings: Mapping[str, Any]) -> str:
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
        return str(file)
