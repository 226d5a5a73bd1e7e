"""The parts of one cluster: Kubernetes, Slurm, sites and nats-server."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cluster import places, shards, tools
from cluster.errors import ClusterError
from cluster.options import Options, Record
from cluster.podbridges import Podbridges
from cluster.pools import Pools
from cluster.processes import Processes, run
from cluster.systems import debian, gangs, install, kube, kuberay, kueue, realnode, slurm, trainer
from cluster.systems.controllers import ControllerSetup
from cluster.systems.job_controller import JobController
from cluster.systems.nats import NatsSetup
from cluster.systems.realnode import RealNode
from cluster.systems.sites import Site
from cluster.systems.slurm import SlurmSetup, make_token
from cluster.views import SEEN_AS

MANIFESTS = (
    "rbac.yaml",
    "rbac-run.yaml",
    "rbac-users.yaml",
    "rbac-pools.yaml",
    "rbac-queues.yaml",
    "rbac-race.yaml",
    "policies.yaml",
    "crds.yaml",
)
"""The files of ``config/`` that are applied."""


class Parts:
    """The parts of the cluster in the folder ``state``. All methods raise :class:`ClusterError`."""

    def __init__(
        self, state: Path | str, slurm: str | None = places.DEFAULT_SLURM, nodes: int = 4, **more: Any
    ) -> None:
        """Describe the cluster; ``more`` are the other fields of :class:`Options`."""
        self.state = Path(state).absolute()
        self.options = Options(slurm=slurm, nodes=nodes, **more)
        self.processes = Processes(self.state / "run", self.state / "logs")
        record = Record.read(self.state)
        self._first_port = record.first_port if record else 0

    # --- Kubernetes ---------------------------------------------------------------------------------------------------
    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self._kube.kubeconfig("admin")

    @property
    def podbridge_kubeconfig(self) -> Path:
        """Kubeconfig of ``podbridge run``, with the permissions of all parts."""
        return self.part_kubeconfig("run")

    def part_kubeconfig(self, command: str, installation: str = "podbridge") -> Path:
        """Return the kubeconfig of the service account of ``podbridge <command>``: ``run``, ``admission``, ..."""
        return self._kube.kubeconfig(kube.account(command, installation))

    def user_kubeconfig(self, name: str, groups: Sequence[str] = ()) -> Path:
        """Write a kubeconfig with a client certificate for another user."""
        safe = "".join(letter if letter.isalnum() else "-" for letter in name)
        return self._kube.user_kubeconfig(f"user-{safe}", name, groups)

    @property
    def api(self) -> kube.Api:
        """Plain calls as the administrator: ``cluster.api("GET", "/api/v1/nodes")``."""
        return kube.Api(self._kube)

    def kubectl(self, *args: str, input: str | None = None, check: bool = True) -> str:
        """Run kubectl as the administrator; return its output."""
        own = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self._kube.folder / 'cache'}")
        return run([str(install.binaries()["kubectl"]), *own, *args], input, check)

    def add_namespace(self, name: str, annotations: dict[str, str] | None = None) -> None:
        """Create a namespace in which pods can be created at once."""
        for path, body in kube.namespace_objects(name, annotations):
            self.api.ensure(path, body)

    def apply_manifests(self) -> None:
        """Apply the manifests of ``config/`` that an administrator applies before podbridge starts."""
        self.kubectl("apply", *(f"--filename={places.CHECKOUT / 'config' / name}" for name in MANIFESTS))

    def add_installation(self, name: str) -> None:
        """Create the objects and the accounts of another podbridge, as docs/admins/several-schedulers.md tells to."""
        manifests = "---\n".join((places.CHECKOUT / "config" / file).read_text() for file in MANIFESTS)
        self.kubectl("apply", "--filename=-", input=manifests.replace("podbridge", name))
        self._kube.write_accounts(name)

    def open_to_pools(self, namespace: str) -> None:
        """Let the controllers, also in ``podbridge run``, send a namespace's ConfigMaps and Secrets to any pool."""
        self.kubectl("annotate", "--overwrite", "namespace", namespace, "bridge.vk.io/pool-secrets=*")
        accounts = [f"--account={kube.ACCOUNTS[command]}" for command in ("controllers", "run")]
        self.kubectl("apply", "-f", "-", input=run([*tools.PODBRIDGE, "rbac", "pools", namespace, *accounts]))

    def audit_events(self) -> list[dict[str, Any]]:
        """Read the audit log: one event for each request that was answered (needs ``audit=True``)."""
        lines = (self.state / "audit.log").read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def kube_port(self) -> int:
        """Port of kube-apiserver."""
        return self._kube.port

    # --- Slurm --------------------------------------------------------------------------------------------------------
    @property
    def rest_port(self) -> int:
        """Port of slurmrestd."""
        return self._slurm.rest_port

    @property
    def slurm_rest_url(self) -> str:
        """URL of slurmrestd; empty if there is no Slurm."""
        return f"http://127.0.0.1:{self._slurm.rest_port}" if self.options.slurm else ""

    @property
    def jwt_file(self) -> Path:
        """File of a token of SlurmUser, valid for a month."""
        return self.state / "slurm.jwt"

    def token(self, lifetime: float = 3600, user: str = "slurm") -> str:
        """Make a token for ``user``, valid for ``lifetime`` seconds."""
        return make_token(self.jwt_key, user, lifetime)

    @property
    def jwt_key(self) -> bytes:
        """The key with which Slurm checks tokens."""
        return (self._slurm.folder / "etc" / "jwt_hs256.key").read_bytes()

    def run_slurm(self, *argv: str, input: str | None = None, check: bool = True) -> str:
        """Run a tool of this Slurm (``squeue``, ``sbatch``, ...) as root; return its output.

        Its working directory, and that of jobs which it submits, is ``<state>/slurm/jobs``.
        """
        return run([str(self._slurm.enter), "env", f"--chdir={SEEN_AS}/jobs", *argv], input, check)

    # --- the real node ------------------------------------------------------------------------------------------------
    @property
    def real_node(self) -> RealNode:
        """The node whose kubelet and containers are real (needs ``real_node=True``)."""
        if not self.options.real_node:
            raise ClusterError("this cluster has no real node")
        return RealNode(
            self.state / realnode.FOLDER,
            self._first_port + self._local_ports - realnode.PORTS,
            self._kube.kubeconfig("kubelet"),
            self._kube.folder / "ca.crt",
            install.binaries(install.KUBELET)["kubelet"],
            install.binaries(install.DRA_DRIVER)["dra-driver"] if self.options.dra else None,
            self._kube.kubeconfig(realnode.DRA_DRIVER) if self.options.dra else None,
        )

    # --- sites --------------------------------------------------------------------------------------------------------
    @property
    def sites(self) -> dict[str, Site]:
        """The sites by name; the pool of a site has the same name."""
        return self._pools.sites

    @property
    def nats(self) -> NatsSetup:
        """nats-server: its URLs, the seeds of hub and sites, its monitoring."""
        return self._pools.nats

    def site_slurm(self, site: str, *argv: str, input: str | None = None, check: bool = True) -> str:
        """Run a tool of a site's batch system as root, where jobs run; return its output."""
        return self._pools.site(site).run_root(*argv, input=input, check=check)

    # --- for shells ---------------------------------------------------------------------------------------------------
    @property
    def env(self) -> dict[str, str]:
        """Environment variables with which tools and podbridge use this cluster."""
        result = {"PATH": f"{self.state / 'bin'}:{os.environ.get('PATH', '')}"}
        if self.options.kube:
            result |= {"KUBECONFIG": str(self.kubeconfig), "KUBECACHEDIR": str(self._kube.folder / "cache")}
        if self.options.slurm:
            result |= {"SLURM_REST_URL": self.slurm_rest_url, "SLURM_JWT_FILE": str(self.jwt_file)}
        if self.options.slurm or self.options.pools:
            result["PODBRIDGE_CONFIG"] = str(self.state / "podbridge.yaml")
        return result

    # --- inside -------------------------------------------------------------------------------------------------------
    @property
    def _kube(self) -> kube.KubeSetup:
        options = self.options
        return kube.KubeSetup(
            self.state / "kube",
            self._first_port,
            install.control_plane(options.kubernetes),
            controller_manager=options.kcm,
            kwok=options.kwok,
            scheduler=options.kueue or options.helm,
            address=realnode.address() if options.helm else "",
            audit=self.state / "audit.log" if options.audit else None,
            controller_manager_args=gangs.gates(options.kubernetes) if options.gangs else [],
            scheduler_args=gangs.gates(options.kubernetes) if options.gangs else [],
            apiserver_args=[
                *(gangs.apiserver_args(options.kubernetes) if options.gangs else ()),
                *options.apiserver_args,
            ],
        )

    def _job_controller(
        self, setup: type[JobController], port: int, module: install.GoModule, manifests: Path
    ) -> JobController:
        (binary,) = install.binaries(module.packages).values()
        return setup(self.state / setup.user, port, binary, manifests, self._kube.kubeconfig(setup.user))

    @property
    def _controllers(self) -> list[ControllerSetup]:
        """The controllers beside the control plane; their ports are the last but those of the real node."""
        options = self.options
        port = self._first_port + self._local_ports - (realnode.PORTS if options.real_node else 0)
        result: list[ControllerSetup] = []
        if options.gangs:
            port -= gangs.PORTS
            result.append(
                gangs.GangSetup(
                    self.state / "gangs",
                    port,
                    install.binaries(install.GANGS.packages),
                    install.gang_manifests_folder(),
                    self._kube.kubeconfig(gangs.GangSetup.user),
                )
            )
            port -= trainer.PORTS
            trainer_folder = install.trainer_manifests_folder()
            result.append(self._job_controller(trainer.TrainerSetup, port, install.TRAINER, trainer_folder))
        if options.kuberay:
            port -= kuberay.PORTS
            kuberay_folder = install.kuberay_manifests_folder()
            result.append(self._job_controller(kuberay.KubeRaySetup, port, install.KUBERAY, kuberay_folder))
        if options.kueue:
            port -= kueue.PORTS
            result.append(
                kueue.KueueSetup(
                    self.state / "kueue",
                    port,
                    install.kueue_binary(options.kueue_version),
                    install.kueue_manifests_folder(options.kueue_version),
                    self._kube.kubeconfig(kueue.KueueSetup.user),
                    options.gangs,
                )
            )
        return result

    @property
    def _slurm(self) -> SlurmSetup:
        options = self.options
        if options.slurm is None:
            raise ClusterError("this cluster has no Slurm")
        return SlurmSetup(
            options.slurm,
            self.state / "slurm",
            debian.slurm_root(options.slurm),
            options.nodes,
            options.size,
            self._first_port + kube.PORTS + tools.PODBRIDGE_PORTS,
            [*options.slurm_conf, *shards.partitions(options.schedulers, options.nodes)],
            rest_address=realnode.address() if options.helm else "",
            first=self._real_size() if options.real_node else None,
        )

    def _real_size(self) -> slurm.Size:
        """Return the real node's size in Slurm.

        With ``helm``, Slurm allocates it to more pods than there are CPUs: each pod has a job of at least one CPU.
        """
        size = realnode.size(self.options.dra)
        return dataclasses.replace(size, cpus=realnode.MAX_PODS) if self.options.helm else size

    @property
    def _pools(self) -> Pools:
        options = self.options
        port = self._first_port + self._local_ports
        readable = [Path(folder) for folder in options.site_readable]
        return Pools(
            self.state, port, options.pools, options.site_slurm, options.site_nodes, options.nats_servers, readable
        )

    @property
    def _podbridges(self) -> Podbridges:
        port = self._first_port + kube.PORTS
        settings = tools.merged(kueue.SETTINGS if self.options.kueue else {}, self.options.podbridge)
        if self.options.schedulers > 1:
            settings = tools.merged(shards.settings(1), settings)
        return Podbridges(self.state, self.processes, self._pools, port, lambda: self.slurm_rest_url, settings)

    @property
    def _local_ports(self) -> int:
        ports = kube.PORTS + tools.PODBRIDGE_PORTS + slurm.PORTS + self.options.nodes
        ports += gangs.PORTS + trainer.PORTS if self.options.gangs else 0
        ports += kuberay.PORTS if self.options.kuberay else 0
        ports += kueue.PORTS if self.options.kueue else 0
        return ports + (realnode.PORTS if self.options.real_node else 0)

    def _podbridge_env(self, command: str, installation: str) -> dict[str, str]:
        variables = self.env
        if self.options.kube:
            variables["KUBECONFIG"] = str(self.part_kubeconfig(command, installation))
        return variables
