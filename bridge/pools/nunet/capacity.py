"""The resources of a virtual node: those of the available peers of a group. Pure.

Podbridge's own rule, because the published example contradicts its input: only available peers count, and the amounts
are sums. A pod runs on one peer, so the largest amounts of a single peer are labels of the node.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from bridge.config.nunet import NunetGroupSection
from bridge.pools.nunet import gpus
from bridge.pools.nunet.peer import CPU, MEMORY, MHZ, Peer, Resources, mebibytes
from bridge.workload import quantity

_LARGEST = "nunet.io/largest-peer-"
_PUBLISHED = {CPU: ("nunet.cpu.cores", 1), MHZ: ("nunet.cpu.mhz", 1), MEMORY: ("nunet.ram.gb", 2**30)}


def members(peers: Iterable[Peer], groups: Sequence[NunetGroupSection], name: str) -> list[Peer]:
    """Return the peers of a group: a peer is in the first group that selects it."""
    return [peer for peer in peers if next((each.name for each in groups if _selects(each, peer)), None) == name]


def _selects(group: NunetGroupSection, peer: Peer) -> bool:
    kinds = peer.gpu_kinds or {"none"}
    return (not group.peers or peer.id in group.peers) and (
        not group.gpu_types
        or any(fnmatch.fnmatchcase(kind, text.lower()) for kind in kinds for text in group.gpu_types)
    )


def total(amounts: Iterable[Resources]) -> Resources:
    """Return the sum."""
    return sum(amounts, Resources())


def labels(amounts: Mapping[str, Resources]) -> dict[str, str]:
    """Return the labels of a virtual node with these peers: the largest single peer, and the type of GPU.

    A label has one value: ``gpu-type`` is the type with the most GPUs.
    """
    peers, counts = amounts.values(), total(amounts.values()).gpus
    node_labels = {
        "type": "virtual-kubelet",
        f"{_LARGEST}cpu": str(int(max((each.cpus for each in peers), default=0))),
        f"{_LARGEST}memory": mebibytes(max((each.memory for each in peers), default=0)),
        f"{_LARGEST}gpus": str(max((sum(each.gpus.values()) for each in peers), default=0)),
    }
    return node_labels | ({"gpu-type": max(sorted(counts), key=lambda kind: counts[kind])} if counts else {})


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
