"""The results of a decision: the actions for Kueue's objects, and the status of a MasterQueue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from bridge import names
from bridge.clock import rfc3339
from controllers.queues.specification import Flavor

Object = dict[str, Any]
READY, OFFERING, IGNORED = "Ready", "Offering", "FieldsIgnored"


@dataclass(frozen=True, slots=True)
class FlavorState:
    """The state of a flavor."""

    name: str
    """Name in ``spec.flavors``."""
    flavor: str
    """The ResourceFlavor."""
    pool: str
    """Its pool; empty for a local flavor."""
    state: str
    """``Offered``: it has quota. ``Held``: it has none for now. ``Missing``: there is no pool or ResourceFlavor.
    ``Conflict``: the ResourceFlavor has another owner. ``Leaving``: the pool is gone, workloads are not. ``Excess``:
    the queue has as many flavors as Kueue allows."""
    reason: str
    """Why it is not ``Offered``."""


def invalid(message: str) -> Object:
    """Return the status of a MasterQueue that cannot be used; its objects stay as they are."""
    return {"conditions": [_condition(READY, False, "Invalid", message)]}


def conflict(objects: Sequence[str]) -> str:
    """Return the message about objects that have another owner."""
    return f"{', '.join(objects)} exists and does not belong to this MasterQueue: delete or rename it"


def no_offer(flavor: Flavor) -> str:
    """Return why the nodes of a flavor offer nothing."""
    return "no node is ready" if flavor.nodes == "slurm" else "no node is ready and without taints"


def no_node(flavor: Flavor, *, tainted: bool) -> str:
    """Return why a flavor of nodes has none."""
    if flavor.nodes == "slurm" and not tainted:
        return "slurmFlavor needs nodes.taint: true in the configuration: the nodes of Slurm are those with the taint"
    if any(key.startswith(names.PARTITION_LABEL_PREFIX) for key in flavor.labels or ()):
        return "no node has the label of the partition: set nodes.partitionLabels in the configuration"
    return "no node has the labels" if flavor.labels else "there is no such node"


def deleting(objects: Sequence[str]) -> str:
    """Return the message about queues that somebody has deleted."""
    return (
        f"{', '.join(objects)} is being deleted: Kueue admits nothing there, and a ClusterQueue stays while workloads "
        "use it; podbridge then creates it again"
    )


def usable(
    states: Sequence[FlavorState], ignored: Sequence[str], omitted: Sequence[str], reason: str, problem: str
) -> Object:
    """Return the status of a MasterQueue that can be used.

    ``omitted`` names resources that exceed Kueue's limits; ``problem`` says what keeps the objects from being in step,
    and is empty with the reason ``InStep``.
    """
    offered = sum(state.state == "Offered" for state in states)
    share = f"{offered} of {len(states)}"
    others = f" and {len(omitted) - 5} others" if omitted[5:] else ""
    omitted_names = ", ".join(name[:100] for name in omitted[:5]) + others
    limits = "at most 64 resources, and 512 quotas of all its flavors: use another MasterQueue"
    without = f"; without {omitted_names}: a queue of Kueue has {limits}" if omitted else ""
    conditions = [
        _condition(READY, not problem, reason, problem or f"ClusterQueues and ResourceFlavors are in step{without}"),
        _condition(OFFERING, offered > 0, "Offered" if offered else "NoOffer", f"{share} flavors are offered"),
    ]
    if ignored:
        text = f"{', '.join(ignored)}: podbridge knows the pools and their virtual nodes; the values have no effect"
        conditions.append(_condition(IGNORED, True, "NoMeaning", text))
    flavors = [{key: v for key, v in asdict(state).items() if v or key in ("name", "state")} for state in states]
    return {"conditions": conditions, "offered": share, "flavors": flavors}


def dated(status: Object, queue: Object, now: float) -> Object:
    """Return the status with generation and times; a condition keeps its time until its status changes."""
    before = {c["type"]: c for c in (queue.get("status") or {}).get("conditions") or ()}
    generation = queue["metadata"].get("generation", 0)
    conditions = []
    for condition in status["conditions"]:
        old = before.get(condition["type"], {})
        same = old.get("status") == condition["status"]
        since = old.get("lastTransitionTime") if same else None
        conditions.append({**condition, "observedGeneration": generation, "lastTransitionTime": since or rfc3339(now)})
    return {**status, "conditions": conditions, "observedGeneration": generation}


def _condition(kind: str, true: bool, reason: str, message: str) -> Object:
    return {"type": kind, "status": "True" if true else "False", "reason": reason, "message": message}


Kind = Literal["ResourceFlavor", "ClusterQueue", "LocalQueue"]


@dataclass(frozen=True, slots=True)
class Apply:
    """Write an object by server-side apply; ``observed_uid`` is that of the object, empty if there is none."""

    owner: Object
    body: Object
    observed_uid: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object that belongs to a MasterQueue, and that nothing uses."""

    owner: Object
    kind: Kind
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict the workloads of a flavor, whose pool is silent; ``message`` is for users."""

    owner: Object
    flavor: str
    message: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write the status of a MasterQueue."""

    queue: Object
    status: Object


Action = Apply | Delete | Evict | SetStatus
