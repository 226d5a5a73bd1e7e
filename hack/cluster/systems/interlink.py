"""interLink's own API server and virtual kubelet, and podbridge's plugins, beside a running cluster.

Each process listens on a port of the loopback. Its configuration is in ``<state>/interlink``, its output in
``<state>/logs``. The cluster stops it together with podbridge.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cluster import tools
from cluster.core import Cluster
from cluster.errors import ClusterError
from cluster.ports import free_block, listening
from cluster.systems import install
from cluster.views import SEEN_AS

HOST = "127.0.0.1"
UNIX = "unix://"
ATTEMPTS = 5
START = 3.0
"""Seconds in which a process that listens becomes ready."""
NAMESPACE = "interlink"
"""Namespace of the pods for interLink's virtual nodes; podbridge does not manage it."""
RESOURCES = {"CPU": "64", "Memory": "64Gi", "Pods": "1000"}
"""Resources of a virtual node until the plugin's answer to a ping replaces them."""
TOLERATION = {"key": "virtual-node.interlink/no-schedule", "operator": "Exists", "effect": "NoSchedule"}
"""The toleration of the taint of interLink's virtual nodes."""


@dataclass(frozen=True)
class Program:
    """One process: its command line, the URL that it answers at, and its variables."""

    argv: Sequence[str]
    url: str
    env: Mapping[str, str] = field(default_factory=dict)
    ready: str = ""
    """Text that it logs when it is ready."""

    @property
    def listens(self) -> bool:
        """Whether it accepts connections."""
        if not self.url.startswith(UNIX):
            return listening(int(self.url.rpartition(":")[2]))
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.url.removeprefix(UNIX)) == 0


class Interlink:
    """interLink's processes on one cluster with the option ``interlink``. All methods raise :class:`ClusterError`."""

    def __init__(self, cluster: Cluster) -> None:
        if not cluster.options.interlink:
            raise ClusterError("this cluster has no programs of interLink")
        self.cluster = cluster
        self.folder = cluster.state / "interlink"
        self.folder.mkdir(exist_ok=True)
        self._programs: dict[str, Program] = {}
        self._binaries = install.binaries(install.INTERLINK.packages)

    def start_plugin(
        self,
        site: str,
        name: str = "plugin",
        options: Sequence[str] = (),
        socket: str = "",
        https: bool = False,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Start ``podbridge plugin`` as the user of a site, with the site's batch system in its process.

        ``options`` are added to the command line, ``env`` to its variables. With ``socket``, the name of a file in the
        user's home, the plugin listens on this Unix domain socket. Return the plugin's URL.
        """
        port = 0 if socket else free_block(1)
        file = self.cluster.sites[site].folder / "home" / socket
        address = f"unix://{SEEN_AS}/home/{socket}" if socket else f"{HOST}:{port}"
        variables = [f"{key}={value}" for key, value in (env or {}).items()]
        command = [
            "env",
            *variables,
            *tools.PODBRIDGE,
            "plugin",
            "--site",
            f"{SEEN_AS}/site.toml",
            "--listen",
            address,
            *(() if socket else ("--allow-local-users",)),
            *options,
        ]
        url = f"unix://{file}" if socket else f"{'https' if https else 'http'}://{HOST}:{port}"
        return self._add(name, Program([str(self.cluster.sites[site].as_user), *command], url))

    def start_api(self, plugin: str, name: str = "interlink-api") -> str:
        """Start interLink's API server in front of the plugin with this URL; return the API server's URL."""
        host, plugin_port = _split(plugin)
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
        return self._add(name, Program([str(self._binaries["interlink-api"])], f"http://{HOST}:{port}", env))

    def start_virtual_kubelet(self, node: str, url: str, settings: Mapping[str, Any] | None = None) -> str:
        """Start interLink's virtual kubelet for a node, a client of the API server or plugin with this URL.

        ``settings`` are merged into its configuration. Return the name of the process.
        """
        host, port = _split(url)
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
        self._add(name, Program(command, f"https://{HOST}:{kubelet_port}", env, ready="Pod cache in-sync"))
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
            processes.wait(name, lambda: program.listens, timeout=30)
            try:
                processes.wait(name, lambda: self._logged(name, program.ready, logged), timeout=START)  # noqa: B023
                break
            except ClusterError:
                if attempt == ATTEMPTS:
                    raise
                processes.stop([name], 0)

    def remove(self, *names: str) -> None:
        """Stop processes, which are then not known any more."""
        self.cluster.processes.stop(names)
        for name in names:
            self.cluster.processes.forget(name)
            del self._programs[name]

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


def _split(url: str) -> tuple[str, str]:
    """Return the address and the port of a URL as interLink's configuration has them; no port for a socket."""
    if url.startswith(UNIX):
        return url, ""
    address, _, port = url.rpartition(":")
    return address, port
