"""Slurm in sums, which the controllers publish in a ConfigMap: users and the web page have no token of Slurm. Pure.

Of the jobs of others, only sums are in it: no name of a job and no user.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from bridge import gres_text
from bridge.slurm import job_words, node_holders, states
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Job, Node, Snapshot
from bridge.slurm.node_holders import Holder
from bridge.slurm.states import Phase

PLAIN, COMPRESSED = "state.json", "state.json.gz"
"""The keys of the ConfigMap: one of ``data``, or one of ``binaryData``."""
MOST_PLAIN = 100_000
"""Bytes of the state up to which it is not compressed, so that ``kubectl get`` shows it."""
MOST_READ = 32 * 2**20
"""Bytes of a state that are decompressed at most: of 10,000 nodes, it has about 3 MB."""
REASON = 200
"""Characters of a node's reason."""
ALL_PODS = "pods of podbridge"
"""The name of what podbridge's jobs have of a node, all together."""
MOST_ORDERED = 500
"""Waiting jobs of a partition whose order is published."""
CONFIRM = 60.0
"""Seconds after which a state that has not changed is written again, with a new time."""
_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Amounts:
    """CPUs, MiB of memory, and devices by ``name`` or ``name:type`` as in Slurm's gres."""

    cpus: int = 0
    memory_mib: int = 0
    gres: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeSums:
    """A node of Slurm: what it has, what podbridge's jobs have of it, and what all other jobs have.

    ``reason`` is that of a drain. ``until`` is when the first time limit of podbridge's jobs there ends, in seconds
    since the epoch; 0: no job, or without a limit. The ends of other jobs are not read.
    """

    name: str
    states: tuple[str, ...] = ()
    reason: str = ""
    total: Amounts = field(default_factory=Amounts)
    podbridge: Amounts = field(default_factory=Amounts)
    others: Amounts = field(default_factory=Amounts)
    until: int = 0
    partitions: tuple[str, ...] = ()

    @property
    def closed(self) -> bool:
        """Whether Slurm gives the node to no job: it is drained, down or failing."""
        return states.is_drained(frozenset(self.states))


@dataclass(frozen=True, slots=True)
class PartitionSums:
    """The jobs of a partition. A job that waits in several partitions counts in each.

    ``waiting`` are podbridge's waiting jobs by Slurm's reason, and ``order`` the ids of the first of them in the order
    of their priorities; a held job has none. The partition with an empty name has the jobs of others
    that have not been read yet, and tasks of arrays.
    """

    name: str
    nodes: int = 0
    running: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    others_running: int = 0
    others_waiting: int = 0
    order: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterSums:
    """The state of Slurm ``at`` a time, in seconds since the epoch. After ``expires``, a newer one should exist."""

    at: float = field(default=0, compare=False)
    expires: float = field(default=0, compare=False)
    nodes: tuple[NodeSums, ...] = ()
    partitions: tuple[PartitionSums, ...] = ()


def of(snapshot: Snapshot, other_jobs: Mapping[tuple[str, Phase], int], now: float, period: float) -> ClusterSums:
    """Return the sums of a snapshot that was read at ``now``; ``period`` is the least time between two writes.

    ``other_jobs`` are those of :meth:`bridge.slurm.snapshot.Poller.other_jobs`.
    """
    jobs = [observed.job for observed in snapshot.jobs.values() if not observed.missing]
    holders = node_holders.by_node(jobs)
    nodes = tuple(_node(node, holders.get(name, ()), now) for name, node in sorted(snapshot.nodes.items()))
    sizes = {name: len(partition.nodes) for name, partition in snapshot.partitions.items()}
    return ClusterSums(now, now + 2 * max(CONFIRM, period) + period, nodes, _partitions(jobs, other_jobs, sizes))


def _node(node: Node, holders: Iterable[Holder], now: float) -> NodeSums:
    own, until = Counter[str](), 0.0
    cpus, memory = 0, 0.0
    for _, amount, end in holders:
        cpus, memory = cpus + amount.cpus, memory + amount.memory_mib
        own.update(dict(amount.gres or ()))
        if now < end < now + job_words.UNLIMITED:
            until = min(until or end, end)
    return NodeSums(
        node.name,
        tuple(sorted(node.states)),
        node.reason[:REASON] if states.is_drained(node.states) else "",
        Amounts(node.usable_cpus or node.cpus, node.memory_mib - node.reserved_mib, gres_text.counts(node.gres)),
        Amounts(cpus, int(memory), {kind: count for kind, count in sorted(own.items()) if count}),
        Amounts(
            max(0, node.held_cpus - cpus),
            max(0, node.held_mib - int(memory)),
            _without(gres_text.counts(node.held_gres), own),
        ),
        int(until),
        tuple(sorted(node.partitions)),
    )


def _without(held: Mapping[str, int], own: Mapping[str, int]) -> dict[str, int]:
    """Return the held devices without those of podbridge's jobs, which may not know their types."""
    left, result = dict(own), {}
    for kind, count in held.items():
        for name in (kind, kind.partition(":")[0]):
            taken = min(count, left.get(name, 0))
            count -= taken
            left[name] = left.get(name, 0) - taken
        if count:
            result[kind] = count
    return result


def _partitions(
    jobs: Iterable[Job], other_jobs: Mapping[tuple[str, Phase], int], sizes: Mapping[str, int]
) -> tuple[PartitionSums, ...]:
    waiting: dict[str, Counter[str]] = {}
    ranks: dict[str, list[tuple[int, int]]] = {}
    running, others = Counter[str](), Counter[tuple[str, Phase]]()
    for job in jobs:
        for name in job.partition.split(","):
            if states.is_pending(job.states):
                waiting.setdefault(name, Counter())[job.reason] += 1
                if job.priority:
                    ranks.setdefault(name, []).append((-job.priority, job.job_id))
            elif states.is_allocated(job.states):
                running[name] += 1
    for (names, phase), count in other_jobs.items():
        if phase in (Phase.PENDING, Phase.ALLOCATED):
            for name in names.split(","):
                others[name, phase] += count
    return tuple(
        PartitionSums(
            name,
            sizes.get(name, 0),
            running[name],
            dict(sorted(waiting.get(name, {}).items())),
            others[name, Phase.ALLOCATED],
            others[name, Phase.PENDING],
            tuple(job_id for _, job_id in heapq.nsmallest(MOST_ORDERED, ranks.get(name, ()))),
        )
        for name in sorted({*sizes, *waiting, *running, *(name for name, _ in others)})
    )


def as_nodes(sums: ClusterSums) -> dict[str, Node]:
    """Return the nodes by name, as far as the sums know them: without features."""
    return {
        each.name: Node(
            each.name,
            frozenset(each.states),
            each.reason,
            each.total.cpus,
            each.total.memory_mib,
            _gres(each.total.gres),
            each.partitions,
            held_cpus=each.podbridge.cpus + each.others.cpus,
            held_mib=each.podbridge.memory_mib + each.others.memory_mib,
            held_gres=_gres(Counter(each.podbridge.gres) + Counter(each.others.gres)),
        )
        for each in sums.nodes
    }


def as_holders(sums: ClusterSums) -> dict[str, list[Holder]]:
    """Return by node what podbridge's jobs have there, all together, and when the first of them ends."""
    return {
        each.name: [Holder(ALL_PODS, _allotment(each.podbridge), each.until)]
        for each in sums.nodes
        if each.podbridge != Amounts() or each.until
    }


def _allotment(amounts: Amounts) -> Allotment:
    return Allotment(amounts.cpus, amounts.memory_mib, tuple(amounts.gres.items()))


def _gres(counts: Mapping[str, int]) -> str:
    return ",".join(f"{kind}:{count}" for kind, count in counts.items())


@cache
def _adapter() -> TypeAdapter[ClusterSums]:
    return TypeAdapter(ClusterSums)


def to_config_map(sums: ClusterSums) -> dict[str, dict[str, str | None]]:
    """Return the merge patch of the ConfigMap."""
    text = _adapter().dump_json(sums, exclude_defaults=True)
    if len(text) <= MOST_PLAIN:
        return {"data": {PLAIN: text.decode()}, "binaryData": {COMPRESSED: None}}
    packer = zlib.compressobj(wbits=_GZIP)
    packed = base64.b64encode(packer.compress(text) + packer.flush()).decode()
    return {"data": {PLAIN: None}, "binaryData": {COMPRESSED: packed}}


def from_config_map(config_map: Mapping[str, Any]) -> ClusterSums | None:
    """Return the sums of a ConfigMap, ``None`` if it has none yet; raises ``ValueError``."""
    packed = (config_map.get("binaryData") or {}).get(COMPRESSED)
    text: str | bytes | None = (config_map.get("data") or {}).get(PLAIN)
    if packed is not None:
        try:
            unpacker = zlib.decompressobj(_GZIP)
            text = unpacker.decompress(base64.b64decode(packed, validate=True), MOST_READ)
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"{COMPRESSED} cannot be unpacked: {error}") from error
        if unpacker.unconsumed_tail:
            raise ValueError(f"{COMPRESSED} has more than {MOST_READ} bytes")
    return None if text is None else _adapter().validate_json(text)
