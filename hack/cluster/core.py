"""One cluster: start and stop it as a whole or daemon by daemon."""

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

from cluster import places, pools, shards, tools
from cluster.errors import ClusterError
from cluster.options import Record
from cluster.parts import Parts
from cluster.podbridges import submitter
from cluster.ports import free_block
from cluster.processes import kill_inside
from cluster.systems import install, kube, kueue, realnode
from cluster.systems.slurm import node_names
from cluster.views import SEEN_AS

NAMESPACES = ("slurm-bridge", "podbridge")


class Cluster(Parts):
    """A cluster in the folder ``state``.

    ``start`` creates an empty one: data of an earlier run is deleted. Daemons that are stopped or killed and started
    again keep their data. All methods raise :class:`ClusterError`.
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
        """Start everything except podbridge. If a daemon fails, stop all; the error has the last lines of its log.

        If the same cluster runs already, start only the daemons that have ended.
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
            self._end_recorded()
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
            self._end_recorded()

    def stop_podbridges(self) -> None:
        """Stop podbridge and the submitters, under all their names; the daemons keep running."""
        with self._locked():
            names = [name for name in self.processes.names() if name not in self.daemons]
            self.processes.stop(names, grace=10)
            for name in names:
                self.processes.forget(name)

    @property
    def running(self) -> bool:
        """Return whether all daemons run."""
        return bool(self._first_port) and all(self.processes.pid(name) for name in self.daemons)

    @property
    def daemons(self) -> list[str]:
        """Return the names of the daemons, in the order of starting."""
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
        """Stop one daemon with SIGTERM, after ``grace`` seconds with SIGKILL. The jobs of a slurmd keep running."""
        self.processes.stop([name], grace)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a daemon or to podbridge (SIGKILL, SIGSTOP, SIGCONT, ...)."""
        self.processes.signal(name, number)
        if number == signal.SIGKILL:
            self.processes.stop([name], 0)

    def pid(self, name: str) -> int | None:
        """Return the pid of a running daemon or podbridge; ``None`` if it does not run."""
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

        ``config_overrides`` are merged into its configuration, ``<state>/<name>.yaml``. Several processes
        may run, each under a ``name`` of its own; they may belong to another ``installation``, which was added by
        :meth:`add_installation`. With ``wait``, return after ``/readyz`` has answered 200.
        """
        installation = (config_overrides or {}).get("installation", "podbridge")
        variables = {**self._podbridge_env(args[0], installation), **(env or {})}
        self._podbridges.start(args, name, config_overrides or {}, variables, self.api if wait else None)

    def start_shards(self) -> None:
        """Start the podbridges of all shards but the first, each under the name of its installation."""
        for number in range(2, self.options.schedulers + 1):
            settings = shards.settings(number)
            self.start_podbridge(name=settings["installation"], config_overrides=settings)

    def stop_podbridge(self, name: str = "podbridge", grace: float = 20) -> None:
        """Stop podbridge as Kubernetes would: SIGTERM, after ``grace`` seconds SIGKILL."""
        self._podbridges.stop(name, grace)

    def podbridge_port(self, what: str, name: str = "podbridge") -> int:
        """Return a port of a podbridge that was started: ``admission``, ``health``, ``metrics`` or ``kubelet``."""
        return self._podbridges.port(what, name)

    # --- pools --------------------------------------------------------------------------------------------------------
    def start_submitters(self) -> None:
        """Start a submitter at each site, and wait until all accept jobs."""
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
        """Start a submitter as the site's user; return the name of its process, ``<site>-submitter``.

        ``overrides`` are merged into its configuration, ``<state>/sites/<site>/site.toml``. Submitters
        with a ``number`` of 2 and more are named ``<site>-submitter-<number>``. ``module`` runs instead of podbridge.
        """
        name = self._podbridges.start_submitter(site, overrides or {}, env or {}, number, module)
        if wait:
            self._podbridges.wait_submitter(site, name)
        return name

    def stop_submitter(self, site: str, number: int = 1, grace: float = 20) -> None:
        """Stop a submitter as systemd would: SIGTERM, after ``grace`` seconds SIGKILL. Its jobs keep running."""
        self._podbridges.stop(submitter(site, number), grace)

    # --- inside -------------------------------------------------------------------------------------------------------
    @property
    def _local_ports(self) -> int:
        """Number of ports of all parts but the pools; slurmdbd's follows the nodes', the real node's are the last."""
        return super()._local_ports + (1 if self.options.slurm and self._slurm.accounting else 0)

    def _commands(self) -> dict[str, list[str]]:
        """Return the command line of each daemon, in the order of starting."""
        kubernetes = self._kube.daemons() if self.options.kube else {}
        slurm = self._slurm.daemons() if self.options.slurm else {}
        real_node = self.real_node.daemons() if self.options.real_node else {}
        return {**kubernetes, **self._controller_daemons(), **slurm, **real_node, **self._pools.daemons()}

    def _controller_daemons(self) -> dict[str, list[str]]:
        return {name: command for setup in self._controllers for name, command in setup.daemons().items()}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the state folder: starts and stops by other processes wait."""
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
        for setup in self._controllers:
            self._kube.user_kubeconfig(setup.user, setup.user, ("system:masters",))
            setup.write()
        if self.options.slurm:
            self._slurm.write()
            self.jwt_file.touch(mode=0o600)
            self.jwt_file.write_text(self.token(30 * 86400))
        if self.options.real_node:
            self._kube.user_kubeconfig("kubelet", f"system:node:{realnode.NAME}", ("system:nodes",))
            if self.options.dra:
                self._kube.user_kubeconfig(realnode.DRA_DRIVER, realnode.DRA_DRIVER, ("system:masters",))
            self.real_node.write()
        self._pools.write()
        if self.options.slurm or self.options.pools:
            self._podbridges.configure("podbridge", {})
        enter = self._slurm.enter if self.options.slurm else None
        programs = [install.binaries()["kubectl"]] if self.options.kube else []
        programs += install.binaries(install.HELM.packages).values() if self.options.helm else []
        tools.write(self.state, {key: value for key, value in self.env.items() if key != "PATH"}, programs, enter)

    def _launch(self) -> None:
        """Start the daemons, most of them at once, wait for each, and create nodes and namespaces."""
        commands = self._commands()
        later = (*kube.NEED_APISERVER, *realnode.NEED_CONTAINERD, *self._controller_daemons())
        for name, command in commands.items():
            if name not in later:
                self.processes.start(name, command)
        if self.options.kube:
            self.wait_daemon("etcd")
            self.wait_daemon("kube-apiserver")
            for name in commands.keys() & set(kube.NEED_APISERVER):
                self.processes.start(name, commands[name])
            self._start_controllers()
            for name in NAMESPACES:
                self.add_namespace(name)
            if not self.options.helm:
                self.apply_manifests()
            for number in range(2, self.options.schedulers + 1):
                self.add_namespace(shards.numbered("slurm-bridge", number))
                self.add_installation(shards.numbered("podbridge", number))
            if self.options.pools:
                self.add_namespace(pools.NAMESPACE, {"bridge.vk.io/pools": "*"})
                self.open_to_pools(pools.NAMESPACE)
            if self.options.kwok:
                for name in [*node_names(self.options.nodes), *([kueue.LOCAL_NODE] if self.options.kueue else [])]:
                    if self.options.real_node and name == realnode.NAME:
                        continue  # its kubelet creates it
                    self.api.ensure("/api/v1/nodes", kube.node_object(name, self.options.size))
        if self.options.real_node:
            self.wait_daemon(realnode.CONTAINERD)
            for name in commands.keys() & set(realnode.NEED_CONTAINERD):
                self.processes.start(name, commands[name])
        for name in commands:
            self.wait_daemon(name)
        for setup in self._controllers:
            for path, body in setup.webhook_objects():
                self.api.ensure(path, body)
        if self.options.kueue:
            for path, body in kueue.first_objects(self.options.nodes, self.options.size):
                self.api.ensure(path, body)
        if self.options.real_node:
            self.processes.wait(realnode.KUBELET, lambda: realnode.accepts_pods(self.api))

    def _start_controllers(self) -> None:
        """Create the CRDs of the controllers beside the control plane, and start those, which end without the CRDs."""
        for setup in self._controllers:
            self.kubectl("create", f"--filename={setup.crds}")
        if self._controllers:
            self.processes.wait("kube-apiserver", lambda: kube.crds_established(self.api))
        if self.options.kueue:
            self.add_namespace(kueue.NAMESPACE)
        for name, command in self._controller_daemons().items():
            self.processes.start(name, command)

    def _install(self) -> None:
        """Install everything that this cluster needs."""
        needs = self._pools.needs()
        if self.options.slurm:
            needs["slurm"].append(self.options.slurm)
            needs["accounting"] = [self.options.slurm] if self._slurm.accounting else []
        wanted = (
            (install.INTERLINK, self.options.interlink),
            (install.GANGS, self.options.gangs),
            (install.TRAINER, self.options.gangs),
            (install.KUBERAY, self.options.kuberay),
            (install.kueue_module(self.options.kueue_version), self.options.kueue),
            (install.HELM, self.options.helm),
        )
        modules = [module for module, chosen in wanted if chosen]
        if self.options.kube and self.options.kubernetes in install.CONTROL_PLANES:
            modules.append(install.CONTROL_PLANES[self.options.kubernetes])
        install.ensure(
            **needs,
            kube=self.options.kube,
            real_node=self.options.real_node,
            dra=self.options.dra,
            scheduler=self.options.kueue or self.options.helm,
            modules=modules,
        )

    def _answers(self, name: str) -> bool:
        """Return whether a daemon answers."""
        if self.options.kube and name in self._kube.daemons():
            return self._kube.answers(name)
        for setup in self._controllers:
            if name in setup.daemons():
                return setup.answers(name)
        if self.options.real_node and name in self.real_node.daemons():
            return self.real_node.answers(name)
        if name in self._pools.daemons():
            return self._pools.answers(name)
        return self._slurm.answers(name)

    def _end_recorded(self) -> None:
        """Stop everything that belongs to this state folder, with the options of its record."""
        (self if Record.read(self.state) is None else type(self).load(self.state))._end()

    def _end(self) -> None:
        """Stop everything that belongs to this state folder."""
        known: list[str] = []
        with contextlib.suppress(ClusterError):  # its programs are no longer installed
            known = self.daemons
        podbridges = [name for name in self.processes.names() if name not in known]
        self.processes.stop(podbridges, grace=10)
        self.processes.stop(self.processes.names(), grace=0)  # their data is not kept: no need for SIGTERM
        kill_inside(self.state / "slurm", SEEN_AS)
        realnode.end(self.state / realnode.FOLDER)
        pools.end(self.state)
        for hosts in self._pools.hosts:
            hosts.stop()
        for name in self.processes.names():
            self.processes.forget(name)
