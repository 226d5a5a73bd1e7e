"""One cluster: start, stop, and what a test wants in between."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from cluster import install, kube, places, pools, realnode, tools
from cluster.errors import ClusterError
from cluster.options import Record
from cluster.parts import Parts
from cluster.podbridges import submitter
from cluster.ports import free_block
from cluster.processes import kill_inside
from cluster.slurm import node_names
from cluster.views import SEEN_AS

NAMESPACES = ("slurm-bridge", "podbridge")


class Cluster(Parts):
    """A cluster in the folder ``state``.

    ``start`` makes a fresh one: nothing of an earlier run is kept. In between, single daemons may be stopped, killed
    and started again, and find their data. All methods raise :class:`ClusterError`.
    """

    @classmethod
    def load(cls, state: Path | str) -> Cluster:
        """Open the cluster that was started in the folder ``state``."""
        record = Record.read(Path(state))
        if record is None:
            raise ClusterError(f"no cluster in {state}")
        return cls(state, **dataclasses.asdict(record.options))

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if places.kept_state() in self.state.parents:
            self.stop_podbridges()
        else:
            self.stop()

    # --- all of it ----------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start everything but podbridge. If a daemon fails, all is stopped and the error shows its last words.

        Where the same cluster runs already, only daemons that have ended are started again.
        """
        if os.geteuid() != 0:
            raise ClusterError("a local cluster needs root: it makes mount namespaces and runs Slurm for several users")
        with self._locked():
            record = Record.read(self.state)
            if record and record.complete and any(self.processes.pid(name) for name in self.processes.names()):
                if record.options != self.options:
                    raise ClusterError(f"another cluster runs in {self.state} ({record.options}): stop it first")
                self._first_port = record.first_port
                for name in [name for name in self.daemons if self.processes.pid(name) is None]:
                    self.start_daemon(name)
                return
            self._install()
            self._end()
            try:
                self._prepare()
                self._launch()
                Record(self.options, self._first_port, complete=True).write(self.state)
            except BaseException:
                self._end()
                raise

    def stop(self) -> None:
        """Stop every process of this cluster: daemons, podbridge, the processes of Slurm's jobs. Safe to repeat."""
        if not self.state.exists():
            return
        with self._locked():
            self._end()

    def stop_podbridges(self) -> None:
        """Stop podbridge and the submitters, under all their names; daemons run on."""
        with self._locked():
            names = [name for name in self.processes.names() if name not in self.daemons]
            self.processes.stop(names, grace=10)
            for name in names:
                self.processes.forget(name)

    @property
    def running(self) -> bool:
        """Whether all daemons that should run do."""
        return bool(self._first_port) and all(self.processes.pid(name) for name in self.daemons)

    @property
    def daemons(self) -> list[str]:
        """Names of the daemons, in the order of starting."""
        return list(self._commands())

    # --- one daemon ---------------------------------------------------------------------------------------------------
    def start_daemon(self, name: str, wait: bool = True) -> None:
        """Start one daemon with the data it had, and wait until it answers."""
        commands = self._commands()
        if name not in commands:
            raise ClusterError(f"no daemon {name}; there are {', '.join(commands)}")
        if self.processes.pid(name) is None:
            self.processes.start(name, commands[name])
        if wait:
            self.wait_daemon(name)

    def wait_daemon(self, name: str, timeout: float = 60) -> None:
        """Wait until a daemon answers."""
        self.processes.wait(name, lambda: self._answers(name), timeout)

    def stop_daemon(self, name: str, grace: float = 10) -> None:
        """End one daemon with SIGTERM, after ``grace`` seconds with SIGKILL. A slurmd's jobs go on."""
        self.processes.stop([name], grace)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon or to podbridge (SIGKILL, SIGSTOP, SIGCONT, ...)."""
        self.processes.signal(name, number)
        if number == signal.SIGKILL:
            self.processes.stop([name], 0)

    def pid(self, name: str) -> int | None:
        """Pid of a running daemon or podbridge."""
        return self.processes.pid(name)

    # --- podbridge ----------------------------------------------------------------------------------------------------
    def start_podbridge(
        self,
        args: Sequence[str] = ("run",),
        name: str = "podbridge",
        config_overrides: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        wait: bool = True,
    ) -> None:
        """Start ``podbridge <args>`` of this checkout.

        ``config_overrides`` are laid over the configuration that is written for it, ``<state>/<name>.yaml``. Several
        may run, each under a ``name`` of its own. With ``wait``, returns when ``/readyz`` says 200.
        """
        variables = {**self._podbridge_env(args[0]), **(env or {})}
        self._podbridges.start(args, name, config_overrides or {}, variables, self.api if wait else None)

    def stop_podbridge(self, name: str = "podbridge", grace: float = 20) -> None:
        """End podbridge as Kubernetes would: SIGTERM, after ``grace`` seconds SIGKILL."""
        self._podbridges.stop(name, grace)

    def podbridge_port(self, what: str, name: str = "podbridge") -> int:
        """Port of a podbridge that was started: ``admission``, ``health``, ``metrics`` or ``kubelet``."""
        return self._podbridges.port(what, name)

    # --- pools --------------------------------------------------------------------------------------------------------
    def start_submitters(self) -> None:
        """Start a submitter at each site, and wait until all take jobs."""
        for site in self.sites:
            self.start_submitter(site, wait=False)
        for site in self.sites:
            self._podbridges.wait_submitter(site, submitter(site))

    def start_submitter(
        self,
        site: str,
        overrides: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        wait: bool = True,
        number: int = 1,
        module: str = "",
    ) -> str:
        """Start a submitter as the site's user; returns the name of its process, ``<site>-submitter``.

        ``overrides`` are laid over the configuration that is written for it, ``<state>/sites/<site>/site.toml``. Those
        with a ``number`` of 2 and more are named ``<site>-submitter-<number>``. ``module`` is run instead of podbridge.
        """
        name = self._podbridges.start_submitter(site, overrides or {}, env or {}, number, module)
        if wait:
            self._podbridges.wait_submitter(site, name)
        return name

    def stop_submitter(self, site: str, number: int = 1, grace: float = 20) -> None:
        """End a submitter as systemd would: SIGTERM, after ``grace`` seconds SIGKILL. Its jobs go on."""
        self._podbridges.stop(submitter(site, number), grace)

    # --- inside -------------------------------------------------------------------------------------------------------
    @property
    def _local_ports(self) -> int:
        """How many ports all but the pools take; slurmdbd's comes after the nodes', the real node's are the last."""
        return super()._local_ports + (1 if self.options.slurm and self._slurm.accounting else 0)

    def _commands(self) -> dict[str, list[str]]:
        """Command line of each daemon, in the order of starting."""
        kubernetes = self._kube.daemons() if self.options.kube else {}
        slurm = self._slurm.daemons() if self.options.slurm else {}
        real_node = self.real_node.daemons() if self.options.real_node else {}
        return {**kubernetes, **slurm, **real_node, **self._pools.daemons()}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the state folder: starts and stops of other processes wait."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / ".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _prepare(self) -> None:
        """Write a fresh state folder."""
        foreign = [entry.name for entry in self.state.iterdir() if entry.name != ".lock"]
        if foreign and Record.read(self.state) is None:
            raise ClusterError(f"{self.state} holds other things ({', '.join(foreign[:5])}): name an empty folder")
        for entry in self.state.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry.name != ".lock":
                entry.unlink()
        self._first_port = free_block(self._local_ports + self._pools.ports)
        Record(self.options, self._first_port).write(self.state)
        if self.options.kube:
            self._kube.write()
        if self.options.slurm:
            self._slurm.write()
            self.jwt_file.touch(mode=0o600)
            self.jwt_file.write_text(self.token(30 * 86400))
        if self.options.real_node:
            self._kube.user_kubeconfig("kubelet", f"system:node:{realnode.NAME}", ("system:nodes",))
            self.real_node.write()
        self._pools.write()
        if self.options.slurm or self.options.pools:
            self._podbridges.configure("podbridge", {})
        enter = self._slurm.enter if self.options.slurm else None
        kubectl = install.binaries()["kubectl"] if self.options.kube else None
        tools.write(self.state, {key: value for key, value in self.env.items() if key != "PATH"}, kubectl, enter)

    def _launch(self) -> None:
        """Start the daemons, most of them at once, wait for each, and create nodes and namespaces."""
        commands = self._commands()
        for name, command in commands.items():
            if name not in kube.NEED_APISERVER:
                self.processes.start(name, command)
        if self.options.kube:
            self.wait_daemon("etcd")
            self.wait_daemon("kube-apiserver")
            for name in commands.keys() & set(kube.NEED_APISERVER):
                self.processes.start(name, commands[name])
            for name in NAMESPACES:
                self.add_namespace(name)
            self.apply_manifests()
            if self.options.pools:
                self.add_namespace(pools.NAMESPACE, {"bridge.vk.io/pools": "*"})
                self.open_to_pools(pools.NAMESPACE)
            if self.options.kwok:
                for name in node_names(self.options.nodes):
                    if self.options.real_node and name == realnode.NAME:
                        continue  # its kubelet makes it
                    self.api.ensure("/api/v1/nodes", kube.node_object(name, self.options.size))
        for name in commands:
            self.wait_daemon(name)
        if self.options.real_node:
            self._wait_real_node()

    def _wait_real_node(self) -> None:
        """Wait until the real node takes pods: it begins as not ready, and loses the taint of that a moment later."""

        def ready() -> bool:
            status, node = self.api.request("GET", f"/api/v1/nodes/{realnode.NAME}")
            return status == 200 and kube.is_ready(node) and not node["spec"].get("taints")

        self.processes.wait(realnode.KUBELET, ready)

    def _install(self) -> None:
        """Get everything that this cluster is made of."""
        needs = self._pools.needs()
        if self.options.slurm:
            needs["slurm"].append(self.options.slurm)
            needs["accounting"] = [self.options.slurm] if self._slurm.accounting else []
        install.ensure(**needs, kube=self.options.kube, real_node=self.options.real_node)

    def _answers(self, name: str) -> bool:
        """Whether a daemon does its work."""
        if self.options.kube and name in self._kube.daemons():
            return self._kube.answers(name)
        if self.options.real_node and name in self.real_node.daemons():
            return self.real_node.answers(name)
        if name in self._pools.daemons():
            return self._pools.answers(name)
        return self._slurm.answers(name)

    def _end(self) -> None:
        """Stop everything that belongs to this state folder."""
        known: list[str] = []
        with contextlib.suppress(ClusterError):  # nothing is installed any more
            known = self.daemons
        podbridges = [name for name in self.processes.names() if name not in known]
        self.processes.stop(podbridges, grace=10)
        self.processes.stop(self.processes.names(), grace=0)  # nothing of theirs is kept: no need to ask
        kill_inside(self.state / "slurm", SEEN_AS)
        realnode.end(self.state / realnode.FOLDER)
        pools.end(self.state)
        self._pools.nats.hosts.stop()
        for name in self.processes.names():
            self.processes.forget(name)
