"""The specification of a MasterQueue, read from its object; errors name field, value and what is allowed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from bridge.errors import BridgeError
from bridge.workload import node_ownership
from bridge.workload.quantity import parse
from controllers.queues.manifests import LARGEST

Object = Mapping[str, Any]

STOP_POLICIES = {
    "None": "None",
    "Hold": "Hold",
    "HoldAndDrain": "HoldAndDrain",
    "Stop": "Hold",
    "StopAndHold": "HoldAndDrain",
}
"""Stop policy of a manifest -> Kueue's name; the last two are the spelling of older manifests."""
IGNORED = ("natsConnector", "natsSubject", "virtualNode")
"""Fields of ``natsFlavor`` of older manifests without a meaning: podbridge knows the pools and their nodes."""
KINDS = ("poolFlavor", "natsFlavor", "slurmFlavor", "localFlavor")
_WEEK = 7 * 86400
LONGEST_NAME = 253
"""Kubernetes' limit of the name of an object, in characters."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
TEMPLATE = ("cohort", "flavorFungibility", "preemption", "queueingStrategy", "namespaceSelector")
"""Fields of ``spec.template`` that a ClusterQueue gets unchanged."""
Quantities = Mapping[str, Fraction]
Nodes = Literal["slurm", "local", ""]
_NODES: Mapping[str, Nodes] = {"slurmFlavor": "slurm", "localFlavor": "local"}
MOST_LABELS = 8
"""Limit of a ResourceFlavor."""
LONGEST_EXPRESSION = 256
"""Longest ``poolRegExp``, in characters."""


class SpecificationError(BridgeError):
    """A MasterQueue cannot be used."""

    reason = "Invalid"


@dataclass(frozen=True, slots=True)
class Lending:
    """A ClusterQueue that may borrow a flavor; ``limit`` per resource, none for the others."""

    queue: str
    limit: Quantities


@dataclass(frozen=True, slots=True)
class Flavor:
    """One entry of ``spec.flavors``."""

    name: str
    """Name in the MasterQueue."""
    cap: Quantities
    """Upper limit of the quota per resource, for each pool."""
    share: Fraction
    """Part of the offer that becomes quota, from 0 to 1."""
    pools: tuple[str, ...]
    pattern: re.Pattern[str] | None
    """The pools by name in order of preference, or a regular expression; neither for a flavor of nodes."""
    patience: float
    """Seconds of silence after which a pool is held; 0: when its node is not ready."""
    lending: tuple[Lending, ...]
    """Queues that may borrow this flavor."""
    nodes: Nodes = ""
    """``slurm``: the nodes of the Slurm beside the kubelets; ``local``: those of kube-scheduler; empty: no nodes."""
    labels: Mapping[str, str] | None = None
    """Labels of these nodes; ``None``: the flavor is a ResourceFlavor of the administrator."""
    evict_after: float | None = None
    """Seconds of silence after which the workloads of a pool are evicted; ``None``: they are not."""


@dataclass(frozen=True, slots=True)
class Specification:
    """A MasterQueue that can be used; ``ignored`` names fields without a meaning."""

    flavors: tuple[Flavor, ...]
    template: Mapping[str, Any]
    """Fields of ``spec.template`` that the ClusterQueue gets, by their names in v1beta1."""
    stop_policy: str
    when_silent: str
    """Stop policy while no flavor has an offer."""
    ignored: tuple[str, ...]
    local_queues: tuple[tuple[str, str], ...]
    """Namespace and name of each LocalQueue."""


def read(queue: Object) -> Specification:
    """Read a MasterQueue. Raises :class:`SpecificationError`."""
    spec = queue.get("spec") or {}
    template = spec.get("template") or {}
    entries = _entries("spec.flavors", spec.get("flavors"))
    flavors = tuple(_flavor(f"spec.flavors[{number}]", entry) for number, entry in enumerate(entries))
    queue_name = queue["metadata"]["name"]
    _check(flavors, queue_name, template)
    ignored = sorted(
        {f"natsFlavor.{key}" for entry in entries for key in IGNORED if key in (entry.get("natsFlavor") or {})}
    )
    return Specification(
        flavors,
        {key: template[key] for key in TEMPLATE if key in template},
        _policy("spec.template.stopPolicy", template.get("stopPolicy", "None")),
        _policy("spec.whenSilent", spec.get("whenSilent", "Hold")),
        tuple(ignored),
        _local_queues(_entries("spec.localQueues", spec.get("localQueues")), queue_name),
    )


def _check(flavors: Sequence[Flavor], queue_name: str, template: Object) -> None:
    for number, flavor in enumerate(flavors):
        written = flavor.labels is not None or not flavor.nodes
        for name in [f"{queue_name}-{flavor.name}-{pool}" for pool in flavor.pools] or [f"{queue_name}-{flavor.name}"]:
            if written and len(name) > LONGEST_NAME:
                raise SpecificationError(
                    f"spec.flavors[{number}].name: the ResourceFlavor would have the name {name!r}; "
                    f"allowed: at most {LONGEST_NAME} characters"
                )
        _check_once(f"spec.flavors[{number}].canLendTo: queue", (lending.queue for lending in flavor.lending))
    _check_once("spec.flavors: name", (flavor.name for flavor in flavors))
    lending = [lending for flavor in flavors for lending in flavor.lending]
    if lending and not template.get("cohort"):
        raise SpecificationError("spec.template.cohort: is missing; queues of canLendTo borrow within a cohort")
    if any(each.queue == queue_name for each in lending):
        raise SpecificationError(f"spec.flavors: canLendTo names {queue_name!r}, the queue of this MasterQueue itself")


def _check_once(path: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise SpecificationError(f"{path} {name!r} occurs more than once; allowed: once")


def _entries(path: str, value: Any) -> list[Object]:
    if not isinstance(value or [], list) or not all(isinstance(entry, dict) for entry in value or ()):
        raise SpecificationError(f"{path}: {value!r} is not allowed; allowed: a list of mappings")
    return value or []


def _local_queues(entries: Sequence[Object], queue_name: str) -> tuple[tuple[str, str], ...]:
    queues = []
    for number, entry in enumerate(entries):
        path = f"spec.localQueues[{number}]"
        item = (
            _name(f"{path}.namespace", entry.get("namespace")),
            _name(f"{path}.name", entry.get("name", queue_name)),
        )
        if item in queues:
            raise SpecificationError(f"{path}: LocalQueue {'/'.join(item)} occurs more than once; allowed: once")
        queues.append(item)
    return tuple(queues)


def _flavor(path: str, entry: Object) -> Flavor:
    name = _name(f"{path}.name", entry.get("name"))
    kinds = [kind for kind in KINDS if kind in entry]
    if len(kinds) != 1:
        raise SpecificationError(f"{path}: has {' and '.join(kinds) or 'no kind'}; allowed: one of {', '.join(KINDS)}")
    (kind,) = kinds
    body = entry[kind] or {}
    body_path = f"{path}.{kind}"
    nodes = _NODES.get(kind, "")
    labels = _labels(f"{body_path}.nodeLabels", body.get("nodeLabels", {} if kind == "slurmFlavor" else None))
    if nodes == "slurm" and "partition" in body:
        labels = _labels(f"{body_path}.nodeLabels", {**(labels or {}), **_partition(body_path, body["partition"])})
    pools, pattern, patience = ((), None, 0.0) if nodes else _selection(body_path, body)
    share = entry.get("share", 100)
    # not isinstance: true of a manifest is an int in Python
    if type(share) is not int or not 0 <= share <= 100:
        raise SpecificationError(f"{path}.share: {share!r} is not allowed; allowed: a percentage from 0 to 100")
    lending = tuple(
        Lending(
            _name(f"{path}.canLendTo[{number}].queue", item.get("queue")),
            _quantities(f"{path}.canLendTo[{number}].lendingLimit", item.get("lendingLimit")),
        )
        for number, item in enumerate(_entries(f"{path}.canLendTo", entry.get("canLendTo")))
    )
    cap = _quantities(f"{path}.nominalQuota", entry.get("nominalQuota"))
    if nodes and labels is None and not cap:
        raise SpecificationError(f"{path}: needs nominalQuota or {kind}.nodeLabels; it has no other quota")
    evict_after = None if nodes else _evict_after(body_path, body)
    return Flavor(name, cap, Fraction(share, 100), pools, pattern, patience, lending, nodes, labels, evict_after)


def _evict_after(path: str, body: Object) -> float | None:
    value = body.get("evictAfter")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _WEEK):
        raise SpecificationError(f"{path}.evictAfter: {value!r} is not allowed; allowed: 1 to {_WEEK} seconds")
    return None if value is None else float(value)


def _partition(path: str, value: object) -> dict[str, str]:
    try:
        return node_ownership.partition_label(value if isinstance(value, str) else repr(value))
    except ValueError as error:
        raise SpecificationError(f"{path}.partition: {error}") from error


def _labels(path: str, values: object) -> dict[str, str] | None:
    if values is None:
        return None
    if not isinstance(values, Mapping) or not all(isinstance(value, str) for value in values.values()):
        raise SpecificationError(f"{path}: {values!r} is not allowed; allowed: values by label")
    if len(values) > MOST_LABELS:
        raise SpecificationError(f"{path}: {len(values)} labels are not allowed; allowed: at most {MOST_LABELS}")
    for key, value in values.items():
        prefix, slash, word = str(key).rpartition("/")
        if not _WORD.fullmatch(word) or (slash and not _is_name(prefix)):
            raise SpecificationError(f"{path}: {key!r} is not allowed; allowed: names of labels, as example.com/rack")
        if value and not _WORD.fullmatch(value):
            raise SpecificationError(
                f"{path}.{key}: {value!r} is not allowed; allowed: at most 63 letters, digits, '-', '_' and '.', "
                f"which begin and end with a letter or digit"
            )
    return dict(values)


def _selection(path: str, body: Object) -> tuple[tuple[str, ...], re.Pattern[str] | None, float]:
    pools, expression = body.get("pools"), body.get("poolRegExp")
    if bool(pools) == bool(expression):
        raise SpecificationError(f"{path}: needs pools or poolRegExp, and not both")
    timeout = body.get("poolTimeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 <= timeout <= 86400:
        raise SpecificationError(f"{path}.poolTimeout: {timeout!r} is not allowed; allowed: 0 to 86400 seconds")
    if pools:
        if not isinstance(pools, list):
            raise SpecificationError(f"{path}.pools: {pools!r} is not allowed; allowed: a list of pools")
        names = tuple(_name(f"{path}.pools", pool) for pool in pools)
        if len(set(names)) < len(names):
            raise SpecificationError(f"{path}.pools: {', '.join(names)} is not allowed; allowed: each pool once")
        return names, None, float(timeout)
    if (length := len(str(expression))) > LONGEST_EXPRESSION:
        raise SpecificationError(
            f"{path}.poolRegExp: {length} characters are not allowed; allowed: at most {LONGEST_EXPRESSION}"
        )
    try:
        return (), re.compile(str(expression)), float(timeout)
    except (re.error, OverflowError, RecursionError) as error:
        raise SpecificationError(f"{path}.poolRegExp: {expression!r} is no regular expression: {error}") from error


def _name(path: str, value: object) -> str:
    if not isinstance(value, str) or not _is_name(value):
        raise SpecificationError(
            f"{path}: {value!r} is not allowed; allowed: a name of an object: lower case letters, digits, '-' and '.'"
        )
    return value


def _is_name(text: str) -> bool:
    return len(text) <= LONGEST_NAME and _NAME.fullmatch(text) is not None


def _quantities(path: str, values: object) -> dict[str, Fraction]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise SpecificationError(f"{path}: {values!r} is not allowed; allowed: quantities by resource")
    amounts = {}
    for resource, value in values.items():
        try:
            amounts[resource] = Fraction(parse(str(value)))
        except ValueError as error:
            raise SpecificationError(f"{path}.{resource}: {value!r} is no quantity") from error
        if not 0 <= amounts[resource] <= LARGEST:
            raise SpecificationError(f"{path}.{resource}: {value!r} is not allowed; allowed: 0 to {LARGEST}")
    return amounts


def _policy(path: str, value: object) -> str:
    if not isinstance(value, str) or value not in STOP_POLICIES:
        raise SpecificationError(f"{path}: {value!r} is not allowed; allowed: {', '.join(STOP_POLICIES)}")
    return STOP_POLICIES[value]
