"""The options of a cluster, and their record in its state folder."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster import places, shards
from cluster.errors import ClusterError
from cluster.systems.slurm import Size

FILE = "cluster.json"


@dataclass(frozen=True)
class Options:
    """The options of a cluster."""

    slurm: str | None = places.DEFAULT_SLURM
    """Slurm's version; ``None``: no Slurm."""
    nodes: int = 4
    cpus: int = 128
    memory: int = 512_000
    """MiB of each node."""
    gpus: int = 8
    kube: bool = True
    kubernetes: str = field(default_factory=places.kubernetes)
    """Version of kube-apiserver and kube-controller-manager; the allowed ones are in ``places.KUBERNETES``."""
    kcm: bool = True
    kwok: bool = True
    real_node: bool = False
    """Whether a kubelet and containerd of this machine are ``node-0``, not kwok."""
    dra: bool = False
    """Whether a DRA driver publishes GPUs of the real node (see :mod:`cluster.systems.realnode`)."""
    helm: bool = False
    """Whether the cluster is prepared for podbridge in pods, on the real node (see :mod:`cluster.systems.helm`)."""
    audit: bool = False
    """Whether the API server writes ``audit.log``."""
    slurm_conf: list[str] = field(default_factory=list)
    """Lines for slurm.conf; they replace lines with the same key."""
    apiserver_args: list[str] = field(default_factory=list)
    pools: list[str] = field(default_factory=list)
    """Sites, reached over a nats-server; the allowed names are in ``pools.SITES``."""
    site_slurm: str = "24.11"
    """Slurm's version at ``slurm-site``."""
    site_nodes: int = 2
    """Number of nodes of each site with a Slurm."""
    site_readable: list[str] = field(default_factory=list)
    """Folders that the users of sites may read although a folder above them is closed."""
    nats_servers: int = 1
    """Number of NATS servers: three are a cluster, each on a host of its own, with a bucket for the hub."""
    interlink: bool = False
    """Whether interLink's programs are installed, for :mod:`cluster.systems.interlink`."""
    gangs: bool = False
    """Whether the controllers of JobSet, LeaderWorkerSet and scheduler-plugins run: :mod:`cluster.systems.gangs`."""
    kuberay: bool = False
    """Whether the operator of KubeRay runs, beside those of ``gangs`` (see :mod:`cluster.systems.kuberay`)."""
    kueue: bool = False
    """Whether Kueue, kube-scheduler and a node for it run (see :mod:`cluster.systems.kueue`)."""
    kueue_version: str = places.DEFAULT_KUEUE
    """Version of Kueue; the allowed ones are in ``places.KUEUE``."""
    schedulers: int = 1
    """Number of shards of podbridge, each with a part of the nodes (see :mod:`cluster.shards`)."""
    podbridge: dict[str, Any] = field(default_factory=dict)
    """Settings that are merged into the configuration of each podbridge of this cluster."""

    def __post_init__(self) -> None:
        """Convert tuples to lists, as in a record that is read, so that options compare equal; check the others."""
        for name in ("slurm_conf", "apiserver_args", "pools", "site_readable"):
            object.__setattr__(self, name, list(getattr(self, name)))
        if self.kubernetes not in places.KUBERNETES:
            known = ", ".join(places.KUBERNETES)
            raise ClusterError(f"option kubernetes: no version {self.kubernetes}; there are {known}")
        if self.kueue_version not in places.KUEUE:
            known = ", ".join(places.KUEUE)
            raise ClusterError(f"option kueue_version: no version {self.kueue_version}; there are {known}")
        if not 1 <= self.schedulers <= min(shards.MOST, max(1, self.nodes)):
            raise ClusterError(f"option schedulers: {self.schedulers}; allowed: 1 to {shards.MOST}, and at most a node")
        if self.helm and not (self.kube and self.kcm and self.slurm and self.real_node):
            raise ClusterError("option helm: needs kube, kcm, a Slurm and real_node, whose kubelet runs the pods")
        if self.dra and not self.real_node:
            raise ClusterError("option dra: needs real_node, whose kubelet calls the driver")
        if self.kuberay and not self.gangs:
            raise ClusterError("option kuberay: needs gangs, which has the PodGroup of its pods")
        for name in ("gangs", "kueue"):
            if getattr(self, name) and not (self.kube and self.kcm):
                raise ClusterError(f"option {name}: needs kube and kcm, which create the pods of Jobs and sets")

    @property
    def size(self) -> Size:
        """Size of every node."""
        return Size(self.cpus, self.memory, self.gpus)


@dataclass(frozen=True)
class Record:
    """A cluster that was started: its options and its first port."""

    options: Options
    first_port: int = 0
    complete: bool = False
    """Whether its start has finished."""

    @classmethod
    def read(cls, state: Path) -> Record | None:
        """Read the record of a state folder; ``None`` where there was no cluster.

        Options of another version of this module are left out. A record that cannot be read counts as an incomplete
        start with the default options, so that the processes of the folder can be stopped.
        """
        known = {option.name for option in dataclasses.fields(Options)}
        try:
            content = json.loads((state / FILE).read_text())
            options = Options(**{name: value for name, value in content["options"].items() if name in known})
            return cls(options, content["first_port"], content["complete"])
        except FileNotFoundError:
            return None
        except (ValueError, LookupError, TypeError, AttributeError, ClusterError):
            return cls(Options())

    def write(self, state: Path) -> None:
        """Write the record atomically."""
        aside = state / f"{FILE}.tmp"
        aside.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")
        aside.replace(state / FILE)
