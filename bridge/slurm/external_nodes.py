"""External nodes: nodes of Slurm without slurmd, created through the API (v0.0.44 and later).

Observed with slurmctld 26.05.5:

- ``POST new/node`` takes one line in the format of slurm.conf. slurm.conf must set ``MaxNodeCount``.
- The gres of several types are joined by ``+`` in ``GresConf``. Gres that are not in ``GresTypes`` are ignored.
- A name that exists is refused (2168), the deletion of a node with jobs too (2016), that of a slurmd node (2028).
- slurmctld resolves the address when it starts a job on the node, and blocks for 10 s if it cannot: so the address is
  127.0.0.1. It never connects to it.
- A change of the features of a node does not change its partitions: the node must be created again.
- Features are stored with the node, in one step with its creation. They hold podbridge's mark (:func:`mark`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import astuple, dataclass

from bridge.gres_text import KIND
from bridge.slurm.models import Node

ADDRESS = "127.0.0.1"
_UID = 36
"""Characters of a UID; the name of the installation follows it (:func:`bridge.kube.cluster.owner`)."""
MARK_PREFIX = "podbridge-"
ALREADY_EXISTS = 2168
"""Slurm's error number for the creation of a node whose name exists."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
FEATURE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]{0,252}")
TOPOLOGY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:,/-]{0,1023}")
_GRES = re.compile(rf"{KIND}:[1-9][0-9]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class ExternalNode:
    """An external node: ``memory_mib`` in MiB, ``gres`` as ``name[:type]:count``, ``topology`` as in slurm.conf.

    Raises ``ValueError`` for a value that Slurm would read as another one: the values are parts of one line.
    """

    name: str
    cpus: int
    memory_mib: int
    gres: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    topology: str = ""

    def __post_init__(self) -> None:
        """Check every value."""
        problems = [
            *([] if NAME.fullmatch(self.name) else [f"name {self.name!r}"]),
            *([] if self.cpus > 0 else [f"CPUs {self.cpus}"]),
            *([] if self.memory_mib > 0 else [f"memory {self.memory_mib} MiB"]),
            *(f"gres {item!r}" for item in self.gres if not _GRES.fullmatch(item)),
            *(f"feature {item!r}" for item in self.features if not FEATURE.fullmatch(item)),
            *([f"topology {self.topology!r}"] if self.topology and not TOPOLOGY.fullmatch(self.topology) else []),
        ]
        if problems:
            raise ValueError("not possible in Slurm: " + ", ".join(problems))


def conf_line(node: ExternalNode, cluster: str) -> str:
    """Return the line for ``POST new/node``, with podbridge's mark.

    ``cluster`` is the owner (:func:`bridge.kube.cluster.owner`).
    """
    words = [
        f"NodeName={node.name} NodeAddr={ADDRESS} State=External",
        f"CPUs={node.cpus} Sockets=1 CoresPerSocket={node.cpus} ThreadsPerCore=1 RealMemory={node.memory_mib}",
        # in the same request as the node: no kill leaves a node without its mark
        f"Feature={','.join([*node.features, mark(node, cluster)])}",
    ]
    if node.gres:
        words.append(f"Gres={','.join(node.gres)} GresConf={'+'.join(map(_gres_conf, node.gres))}")
    if node.topology:
        words.append(f"Topology={node.topology}")
    return " ".join(words)


def mark(node: ExternalNode, cluster: str) -> str:
    """Return the feature by which podbridge recognizes the node: the installation and a hash of all values."""
    values = hashlib.sha256(json.dumps(astuple(node)).encode()).hexdigest()[:8]
    return f"{owner_mark(cluster)}-{values}"


def is_owned(node: Node, cluster: str) -> bool:
    """Whether this installation has created the node."""
    owner = owner_mark(cluster)
    return "EXTERNAL" in node.states and any(feature.rpartition("-")[0] == owner for feature in node.features)


def is_current(slurm_node: Node, node: ExternalNode, cluster: str) -> bool:
    """Whether the node in Slurm was created with the same values."""
    return mark(node, cluster) in slurm_node.features


def is_idle(node: Node) -> bool:
    """Whether the node has no job, also none that is completing."""
    return "IDLE" in node.states and node.states.isdisjoint({"ALLOCATED", "MIXED", "COMPLETING"})


def owner_mark(cluster: str) -> str:
    """Return the name of the installation ``cluster`` in Slurm."""
    uid, installation = cluster[:_UID], cluster[_UID:].lstrip("-")
    return f"{MARK_PREFIX}{uid.partition('-')[0]}{f'.{installation}' if installation else ''}"


def _gres_conf(item: str) -> str:
    name, *kind, count = item.split(":")
    return ",".join([f"count={count}", *(f"type={type_}" for type_ in kind), f"name={name}"])
