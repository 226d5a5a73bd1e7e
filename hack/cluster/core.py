"""One cluster: start, stop, and what a test wants in between."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from cluster import install, kube, places, tools
from cluster.errors import ClusterError
from cluster.options import Options, Record
from cluster.ports import free_block, http_status
from cluster.processes import Processes, kill_inside, run
from cluster.slurm import SEEN_AS, SlurmSetup, make_token, node_names

NAMESPACES = ("slurm-bridge", "podbridge")
SLURM_PORTS = 2
"""And one for each slurmd."""


class Cluster:
    """A cluster in the folder ``state``.

    ``start`` makes a fresh one: nothing of an earlier run is kept. In between, single daemons may be stopped, killed
    and started again, and find their data. All methods raise :class:`ClusterError`.
    """

    def __init__(
        self, state: Path | str, slurm: str | None = places.DEFAULT_SLURM, nodes: int = 4, **more: Any
    ) -> None:
        """Describe the cluster; ``more`` are the other fields of :class:`Options`."""
        self.state = Path(state).absolute()
        self.options = Options(slurm=slurm, nodes=nodes, **more)
        self.processes = Processes(self.state / "run", self.state / "logs")
        record = Record.read(self.state)
        self._first_port = record.first_port if record else 0

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
            install.ensure(self.options.slurm, kube=self.options.kube)
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

    # --- Kubernetes ---------------------------------------------------------------------------------------------------
    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._kube.kubeconfig("admin")

    @property
    def podbridge_kubeconfig(self) -> Path:
        """Kubeconfig of podbridge: it is ``system:serviceaccount:podbridge:podbridge`` and may do everything."""
        return self._kube.kubeconfig("podbridge")

    def user_kubeconfig(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig for another user, known by a client certificate."""
        safe = "".join(letter if letter.isalnum() else "-" for letter in name)
        return self._kube.user_kubeconfig(f"user-{safe}", name, groups)

    @property
    def api(self) -> kube.Api:
        """Plain calls as the administrator: ``cluster.api("GET", "/api/v1/nodes")``."""
        return kube.Api(self._kube)

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> str:
        """Run kubectl as the administrator; returns what it prints."""
        own = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self._kube.folder / 'cache'}")
        return run([str(install.binaries()["kubectl"]), *own, *args], input, check)

    def add_namespace(self, name: str) -> None:
        """Create a namespace in which pods can be created at once."""
        for path, body in kube.namespace_objects(name):
            self.api.ensure(path, body)

    def audit_events(self) -> list[dict[str, Any]]:
        """Read the audit log: one event for each request that was answered (needs ``audit=True``)."""
        lines = (self.state / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    # --- Slurm --------------------------------------------------------------------------------------------------------
    @property
    def slurm_rest_url(self) -> str:
        """URL of slurmrestd."""
        return f"http://127.0.0.1:{self._slurm.rest_port}"

    @property
    def jwt_file(self) -> Path:
        """File with a token of SlurmUser, valid for a month."""
        return self.state / "slurm.jwt"

    def token(self, lifetime: float = 3600, user: str = "slurm") -> str:
        """Make a token for ``user``, valid for ``lifetime`` seconds."""
        key = (self._slurm.folder / "etc" / "jwt_hs256.key").read_bytes()
        return make_token(key, user, lifetime)

    def run_slurm(self, *argv: str, input: str | None = None, check: bool = True) -> str:
        """Run a tool of this Slurm (``squeue``, ``sbatch``, ...) as root; returns what it prints.

        Its folder, and so that of jobs which it submits, is ``<state>/slurm/jobs``.
        """
        return run([str(self._slurm.enter), "env", f"--chdir={SEEN_AS}/jobs", *argv], input, check)

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
        settings = self._write_config(name, config_overrides or {})
        file = self.state / f"{name}.yaml"
        variables = {**self._podbridge_env(), **(env or {})}
        self.processes.start(name, [str(self.state / "bin" / "podbridge"), *args, "--config", str(file)], variables)
        if wait:
            port = settings["serving"]["healthPort"]
            self.processes.wait(name, lambda: http_status(f"http://127.0.0.1:{port}/readyz") == 200)
            if args[0] in ("run", "admission") and not config_overrides:
                self.processes.wait(name, self._admits)

    def _admits(self) -> bool:
        """Whether the API server asks the webhook already: it takes a moment to hear of a new registration."""
        container = {"name": "main", "image": "none"}
        body = {"metadata": {"generateName": "probe-"}, "spec": {"containers": [container]}}
        status, found = self.api.request("POST", f"/api/v1/namespaces/{NAMESPACES[0]}/pods?dryRun=All", body)
        return status == 201 and found["spec"]["schedulerName"] != "default-scheduler"

    def stop_podbridge(self, name: str = "podbridge", grace: float = 20) -> None:
        """End podbridge as Kubernetes would: SIGTERM, after ``grace`` seconds SIGKILL."""
        self.processes.stop([name], grace)
        self.processes.forget(name)

    def podbridge_port(self, what: str, name: str = "podbridge") -> int:
        """Port of a podbridge that was started: ``admission``, ``health`` or ``metrics``."""
        settings = yaml.safe_load((self.state / f"{name}.yaml").read_text())
        port = settings["admission"]["port"] if what == "admission" else settings["serving"][f"{what}Port"]
        return int(port)

    # --- for shells ---------------------------------------------------------------------------------------------------
    @property
    def env(self) -> dict[str, str]:
        """Variables that make tools and podbridge talk to this cluster."""
        result = {"PATH": f"{self.state / 'bin'}:{os.environ.get('PATH', '')}"}
        if self.options.kube:
            result |= {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self._kube.folder / "cache")}
        if self.options.slurm:
            result |= {"SLURM_REST_URL": self.slurm_rest_url, "SLURM_JWT_FILE": str(self.jwt_file)}
            result["PODBRIDGE_CONFIG"] = str(self.state / "podbridge.yaml")
        return result

    # --- inside -------------------------------------------------------------------------------------------------------
    @property
    def _kube(self) -> kube.KubeSetup:
        options = self.options
        return kube.KubeSetup(
            self.state / "kube",
            self._first_port,
            install.binaries(),
            controller_manager=options.kcm,
            kwok=options.kwok,
            audit=self.state / "audit.log" if options.audit else None,
            apiserver_args=options.apiserver_args,
        )

    @property
    def _slurm(self) -> SlurmSetup:
        options = self.options
        if options.slurm is None:
            raise ClusterError("this cluster has no Slurm")
        return SlurmSetup(
            options.slurm,
            self.state / "slurm",
            install.slurm_root(options.slurm),
            options.nodes,
            options.size,
            self._first_port + kube.PORTS + tools.PODBRIDGE_PORTS,
            options.slurm_conf,
        )

    def _commands(self) -> dict[str, list[str]]:
        """Command line of each daemon, in the order of starting."""
        kubernetes = self._kube.daemons() if self.options.kube else {}
        return {**kubernetes, **(self._slurm.daemons() if self.options.slurm else {})}

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
        self._first_port = free_block(kube.PORTS + tools.PODBRIDGE_PORTS + SLURM_PORTS + self.options.nodes)
        Record(self.options, self._first_port).write(self.state)
        if self.options.kube:
            self._kube.write()
        if self.options.slurm:
            self._slurm.write()
            self.jwt_file.touch(mode=0o600)
            self.jwt_file.write_text(self.token(30 * 86400))
            self._write_config("podbridge", {})
        enter = self._slurm.enter if self.options.slurm else None
        kubectl = install.binaries()["kubectl"] if self.options.kube else None
        tools.write(self.state, {key: value for key, value in self.env.items() if key != "PATH"}, kubectl, enter)

    def _launch(self) -> None:
        """Start all daemons at once, then wait for each and create nodes and namespaces."""
        for name, command in self._commands().items():
            self.processes.start(name, command)
        if self.options.kube:
            self.wait_daemon("etcd")
            self.wait_daemon("kube-apiserver")
            for name in NAMESPACES:
                self.add_namespace(name)
            self.kubectl("apply", "-f", str(places.CHECKOUT / "helm" / "rbac.yaml"))
            if self.options.kwok:
                for name in node_names(self.options.nodes):
                    self.api.ensure("/api/v1/nodes", kube.node_object(name, self.options.size))
        for name in self._commands():
            self.wait_daemon(name)

    def _answers(self, name: str) -> bool:
        """Whether a daemon does its work."""
        kubernetes = self.options.kube and name in self._kube.daemons()
        return self._kube.answers(name) if kubernetes else self._slurm.answers(name)

    def _end(self) -> None:
        """Stop everything that belongs to this state folder."""
        known: list[str] = []
        with contextlib.suppress(ClusterError):  # nothing is installed any more
            known = self.daemons
        podbridges = [name for name in self.processes.names() if name not in known]
        self.processes.stop(podbridges, grace=10)
        self.processes.stop(self.processes.names(), grace=0)  # nothing of theirs is kept: no need to ask
        kill_inside(self.state / "slurm", SEEN_AS)
        for name in self.processes.names():
            self.processes.forget(name)

    def _podbridge_env(self) -> dict[str, str]:
        variables = self.env
        if self.options.kube:
            variables["KUBECONFIG"] = str(self.podbridge_kubeconfig)
        return variables

    def _write_config(self, name: str, overrides: dict[str, Any]) -> dict[str, Any]:
        """Write the configuration of one podbridge; returns it."""
        port = self._first_port + kube.PORTS if name == "podbridge" else free_block(tools.PODBRIDGE_PORTS)
        settings = tools.merged(tools.podbridge_config(self.slurm_rest_url, port), overrides)
        (self.state / f"{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        return settings
