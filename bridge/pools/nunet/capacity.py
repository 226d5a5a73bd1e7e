"""The resources of a virtual node: those of the available peers of a group. Pure.

Podbridge's own rule, because the published example contradicts its input: only available peers count, and the amounts
are sums. A pod runs on one peer, so the largest amounts of a single peer are labels of the node.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bridge.pools.nunet import gpus
from bridge.pools.nunet.peer import CPU, MEMORY, MHZ, Peer, Resources, mebibytes
from bridge.workload import quantity

GPU_TYPE = "gpu-type"
TYPE, VIRTUAL = "type", "virtual-kubelet"
_LARGEST = "nunet.io/largest-peer-"
_PUBLISHED = {CPU: ("nunet.cpu.cores", 1), MHZ: ("nunet.cpu.mhz", 1), MEMORY: ("nunet.ram.gb", 2**30)}


@dataclass(frozen=True, slots=True)
class Group:
    """The peers of one virtual node. An empty field selects all peers.

    ``gpu_types``: patterns such as ``nvidia.rtx.*``; ``none`` selects peers without a GPU.
    """

    gpu_types: tuple[str, ...] = ()
    peers: frozenset[str] = frozenset()
    localities: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()

    def selects(self, peer: Peer) -> bool:
        """Whether the peer is in the group."""
        kinds = {str(gpu.kind) for gpu in peer.gpus} or {"none"}
        return (
            (not self.gpu_types or any(fnmatch.fnmatchcase(kind, text) for kind in kinds for text in self.gpu_types))
            and (not self.peers or peer.id in self.peers)
            and (not self.localities or bool(self.localities & peer.localities))
            and (not self.channels or bool(self.channels & peer.channels))
        )


def members(peers: Iterable[Peer], groups: Sequence[Group], index: int) -> list[Peer]:
    """Return the peers of a group: a peer is in the first group that selects it."""
    group_peers = []
    for peer in peers:
        first_group = next((number for number, group in enumerate(groups) if group.selects(peer)), None)
        if first_group == index:
            group_peers.append(peer)
    return group_peers


def total(amounts: Iterable[Resources]) -> Resources:
    """Return the sum."""
    return sum(amounts, Resources(disk=0))


def labels(amounts: Mapping[str, Resources]) -> dict[str, str]:
    """Return the labels of a virtual node with these peers: the largest single peer, and the type of GPU.

    A label has one value: ``gpu-type`` is the type with the most GPUs.
    """
    node_labels = {TYPE: VIRTUAL, f"{_LARGEST}cpu": "0", f"{_LARGEST}memory": "0Mi", f"{_LARGEST}gpus": "0"}
    if amounts:
        node_labels[f"{_LARGEST}cpu"] = str(int(max(resources.cpus for resources in amounts.values())))
        node_labels[f"{_LARGEST}memory"] = mebibytes(max(resources.memory for resources in amounts.values()))
        node_labels[f"{_LARGEST}gpus"] = str(max(sum(resources.gpus.values()) for resources in amounts.values()))
    counts: Counter[str] = Counter()
    for resources in amounts.values():
        counts.update(resources.gpus)
    if counts:
        node_labels[GPU_TYPE] = max(sorted(counts), key=lambda kind: counts[kind])
    return node_labels


def flat(quantities: Mapping[str, str]) -> dict[str, int]:
    """Return the answer of a plugin's ``GET /resources``: whole numbers, with the names that NuNet published.

    Resources without such a name are left out. ``nunet.ram.gb`` is in GiB, as its name says; the published example has
    MB.
    """
    amounts: dict[str, int] = {}
    for name, text in sorted(quantities.items()):
        kind = gpus.kind_in(name) if name.startswith(f"{gpus.DOMAIN}/gpu.") else None
        published = _PUBLISHED.get(name) if kind is None else (f"nunet.gpu.{kind}", 1)
        if published is not None and (count := int(quantity.parse(text)) // published[1]) >= 0:
            amounts[published[0]] = count
    return amounts
