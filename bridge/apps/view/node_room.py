"""Whether a waiting pod fits on each node: never, not now, or now; who holds what it needs, and until when. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from bridge import clock, gres_text
from bridge.apps.view.records import Usage
from bridge.core.grouping import grouped
from bridge.slurm import job_words, states
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Node
from bridge.slurm.node_holders import Holder
from bridge.workload import eligibility, quantity, resources, tolerations
from bridge.workload.eligibility import NodeView
from bridge.workload.quantity import MIB

SHOWN = 6
"""Nodes that are named for each answer; the others are counted."""
HOLDERS = 3
"""Jobs that are named as holders of a node, the largest first."""
FITS, POSSIBLE, BUSY, NEVER = ANSWERS = ("fits now", "may fit", "no room now", "never fits")

UNKNOWN = "Kubernetes would accept it; what is free in Slurm is not known here"


@dataclass(frozen=True, slots=True)
class Room:
    """A node's answer to a pod: one of ``ANSWERS``, and the reason. ``POSSIBLE``: Slurm's room is not known."""

    node: str
    answer: str
    text: str


@dataclass(frozen=True, slots=True)
class SlurmSide:
    """What Slurm knows: nodes by name, who holds them, and what the pod's job asks for on one node and where."""

    nodes: Mapping[str, Node]
    holders: Mapping[str, Sequence[Holder]] = field(default_factory=dict)
    asks: Allotment | None = None
    partitions: frozenset[str] = frozenset()


def rooms(
    spec: Mapping[str, Any],
    requests: resources.Resources,
    views: Iterable[NodeView],
    slurm: SlurmSide | None,
    now: float,
    volumes: Callable[[NodeView], str] = lambda _: "",
) -> list[Room]:
    """Return the answers of the nodes. ``slurm``: ``None`` if it is not known; else nodes without it are left out.

    ``requests`` are those of the pod on a node; ``volumes`` returns why its volumes exclude a node.
    """
    asks = slurm.asks if slurm is not None and slurm.asks is not None else _least(requests)
    answers, covers = list[Room](), tolerations.remembered(spec.get("tolerations") or ())
    for view in views:
        other = slurm.nodes.get(view.slurm_name) if slurm is not None else None
        if slurm is not None and other is None:
            continue
        awake = eligibility.once_up(view) if other is not None and states.is_asleep(other.states) else view
        why = eligibility.refusal(spec, requests, awake, covers)
        never, busy = (why, "") if why and not eligibility.may_pass(why) else (volumes(view), why)
        if other is None or slurm is None:
            answers.append(_answer(view.name, never, busy, POSSIBLE, UNKNOWN))
            continue
        never = never or _never(other, asks, slurm.partitions)
        # podbridge cordons a node that Slurm has drained: Slurm's reason says more
        busy = _drain(other) or busy or _shortage(other, asks, slurm.holders.get(other.name, ()), now)
        answers.append(_answer(view.name, never, busy, FITS, _free(other)))
    return answers


def rooms_in_slurm(requests: resources.Resources, slurm: SlurmSide, now: float) -> list[Room]:
    """Return the answers of Slurm's nodes alone: their labels and taints in Kubernetes are not known."""
    asks = slurm.asks or _least(requests)
    return [
        _answer(
            node.name,
            _never(node, asks, slurm.partitions),
            _drain(node) or _shortage(node, asks, slurm.holders.get(node.name, ()), now),
            POSSIBLE,
            f"{_free(node)}; its labels and taints are not known here",
        )
        for node in slurm.nodes.values()
    ]


def _answer(node: str, never: str, busy: str, otherwise: str, text: str) -> Room:
    if never:
        return Room(node, NEVER, never)
    return Room(node, BUSY, busy) if busy else Room(node, otherwise, text)


def lines(answers: Sequence[Room]) -> list[str]:
    """Return the answers as lines: those that fit first, nodes with the same answer together."""
    result = []
    for answer in ANSWERS:
        same = grouped((room.text, room.node) for room in answers if room.answer == answer)
        texts = sorted(same, key=lambda text: -len(same[text])) if answer == NEVER else list(same)
        for text in texts[:SHOWN]:
            names = same[text]
            more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
            result.append(f"{', '.join(names[:SHOWN])}{more}: {answer}{f': {text}' if text else ''}")
        if rest := sum(len(same[text]) for text in texts[SHOWN:]):
            result.append(f"{rest} more nodes: {answer}")
    return result


def _least(requests: resources.Resources) -> Allotment:
    """Return what the job of the requests will ask for at least: Slurm adds its defaults."""
    memory = quantity.mebibytes(requests.get("memory", Decimal(0)))
    return Allotment(max(1, quantity.whole(requests.get("cpu", Decimal(0)))), memory)


def _never(node: Node, asks: Allotment, partitions: frozenset[str]) -> str:
    if partitions and partitions.isdisjoint(node.partitions):
        return f"not in partition {','.join(sorted(partitions))}"
    return " and ".join(f"the job asks for {want}, the node has {whole}" for want, _, whole in _short(node, asks, {}))


def _drain(node: Node) -> str:
    """Return why Slurm gives the node to no job, whatever it asks for; empty if it does."""
    reason = f": {node.reason}" if node.reason else ""
    return f"{'+'.join(sorted(node.states))} in Slurm{reason}" if states.is_drained(node.states) else ""


def _free(node: Node) -> str:
    memory = job_words.memory(max(0, node.memory_mib - node.reserved_mib - node.held_mib))
    return f"free: {_cpus(node) - node.held_cpus} of {_cpus(node)} CPUs, {memory} of memory"


def _shortage(node: Node, asks: Allotment, holders: Sequence[Holder], now: float) -> str:
    """Return what the job lacks on the node now, until when, and who holds it; empty if it has room."""
    held = {"cpu": float(node.held_cpus), "memory": float(node.held_mib), **gres_text.counts(node.held_gres)}
    short = _short(node, asks, held)
    if not short:
        return ""
    free = ", ".join(f"{have} of {whole} free" for _, have, whole in short)
    ends = [end for _, _, end in holders if now < end < now + job_words.UNLIMITED]
    until = f" until {_minute(min(ends))}" if ends else ""
    return f"{free}{until}{_held_by(node, holders)}"


def _short(node: Node, asks: Allotment, held: Mapping[str, float]) -> list[tuple[str, str, str]]:
    """Return of each resource that is too little for the job: what it asks for, what is free, what the node has."""
    result = []
    cpus, memory = _cpus(node), node.memory_mib - node.reserved_mib
    if asks.cpus > cpus - held.get("cpu", 0):
        result.append((_count(asks.cpus), f"{cpus - held.get('cpu', 0):.0f}", _count(cpus)))
    if asks.memory_mib > memory - held.get("memory", 0):
        free = job_words.memory(max(0.0, memory - held.get("memory", 0)))
        result.append((job_words.memory(asks.memory_mib), free, f"{job_words.memory(memory)} of memory"))
    devices = gres_text.counts(node.gres)
    for name, count in asks.gres or ():
        whole = _matching(devices, name)
        free_devices = whole - _matching(held, name)
        if count > free_devices:
            result.append((f"{name}:{count}", f"{free_devices:.0f}", f"{whole:.0f} {name}"))
    return result


def _count(cpus: float) -> str:
    return f"{cpus:.0f} CPU{'s' if cpus != 1 else ''}"


def _cpus(node: Node) -> int:
    return node.usable_cpus or node.cpus


def _matching(counts: Mapping[str, float], name: str) -> float:
    return sum(count for kind, count in counts.items() if kind == name or kind.startswith(f"{name}:"))


def held_of(node: Node) -> dict[str, Usage]:
    """Return the CPUs and the bytes of memory that the jobs of all users hold on a node, and those that it has."""
    memory = Usage(used=node.held_mib * MIB, total=max(0, node.memory_mib - node.reserved_mib) * MIB)
    return {"cpu": Usage(used=node.held_cpus, total=_cpus(node)), "memory": memory}


def held(node: Node, holders: Sequence[Holder], now: float) -> list[str]:
    """Return what is free on a node, and a line for each pod or group that holds a part of it, the largest first."""
    lines = [_free(node)]
    for name, amount, end in sorted(holders, key=lambda holder: -holder[1].cpus):
        if name:
            until = f" until {_minute(end)}" if now < end < now + job_words.UNLIMITED else ""
            lines.append(f"{name}: {job_words.amounts(amount)}{until}")
    others = _others(node, [amount for name, amount, _ in holders if name])
    return lines + ([f"other jobs of Slurm: {others}"] if others else [])


def _minute(end: float) -> str:
    return clock.rfc3339(end)[:16] + "Z"


def _others(node: Node, own: Sequence[Allotment]) -> str:
    """Return what no pod holds: that of other jobs, whatever their number; empty if it is nothing."""
    cpus = node.held_cpus - sum(amount.cpus for amount in own)
    memory = node.held_mib - sum(amount.memory_mib for amount in own)
    return job_words.amounts(Allotment(cpus, max(0.0, memory))) if cpus > 0 else ""


def _held_by(node: Node, holders: Sequence[Holder]) -> str:
    """Return who holds the node, as the end of a sentence."""
    own = sorted(((name, amount) for name, amount, _ in holders if name), key=lambda item: -item[1].cpus)
    parts = [f"{job_words.amounts(amount)} by {name}" for name, amount in own[:HOLDERS]]
    if len(own) > HOLDERS:
        left = [amount for _, amount in own[HOLDERS:]]
        rest = Allotment(sum(each.cpus for each in left), sum(each.memory_mib for each in left))
        parts.append(f"{job_words.amounts(rest)} by {len(own) - HOLDERS} more pods")
    if others := _others(node, [amount for _, amount in own]):
        parts.append(f"{others} by other jobs of Slurm")
    return f"; held: {', '.join(parts)}" if parts else ""
