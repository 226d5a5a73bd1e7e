"""The decisions for the virtual node of each pool. Pure.

The node has the pool's name. If another node has this name, podbridge does not change it and does not use the pool.
Labels, taints and capacity come from the site's announcements, after validation. If a site is silent, its node is
NotReady, with the last announcement in the condition, and no pod ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge import names
from bridge.clock import parse_rfc3339, rfc3339
from bridge.core import isolation
from bridge.protocol.model.announcement import Announcement
from bridge.workload import pods, quantity
from controllers.virtual import announcement_validation, node_manifest
from controllers.virtual.announcement_validation import ValidAnnouncement
from controllers.virtual.node_manifest import Body, NodeSettings, PoolStatus

Node = Mapping[str, Any]

HEARTBEAT = 300.0
"""Seconds after which an unchanged status is written again, as in a kubelet."""
SETTLE = 5.0
"""Seconds for which the cache may lack the last write."""
LOOK_GONE = 60.0
"""Seconds between two checks whether the node of a silent pool can be deleted."""
PERIODS = 2.5
"""Periods of a site without an announcement after which it is silent."""
REWORD = 15.0
"""Minimum seconds between two reports that differ only in messages."""


@dataclass(frozen=True, slots=True)
class History:
    """The state that one decision passes to the next. It has entries only for the pools of the last view.

    ``checked`` maps a node to the monotonic time of the last :class:`Vanish`. ``collisions`` has the pools whose name
    belongs to a node that is not podbridge's; :class:`Collide` was decided once for each of them.
    """

    checked: Mapping[str, float] = field(default_factory=dict)
    collisions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Create:
    """Create the node."""

    name: str
    body: Body
    status: Body


@dataclass(frozen=True, slots=True)
class Describe:
    """Update labels, taints and the annotation that records those of the site (merge patch)."""

    node: Node
    patch: Body


@dataclass(frozen=True, slots=True)
class ReportStatus:
    """Write the status (strategic patch). ``news``: the Event, as reason, message and whether it is a warning."""

    node: Node
    patch: Body
    status: Body
    news: tuple[str, str, bool] | None


@dataclass(frozen=True, slots=True)
class Vanish:
    """Delete the node of a silent pool if it has been silent for long enough and no pod is bound to the node."""

    node: Node


@dataclass(frozen=True, slots=True)
class Collide:
    """Report that the pool has the name of a node that is not podbridge's."""

    node: Node


@dataclass(frozen=True, slots=True)
class Forget:
    """Remove a silent pool that has no node."""

    name: str


Action = Create | Describe | ReportStatus | Vanish | Collide | Forget


@dataclass(frozen=True, slots=True)
class NodesView:
    """All that a decision depends on.

    ``written`` maps a node to the status that was written last, without times, and the monotonic time of the write.
    ``since``: monotonic time from which this process has received messages.
    """

    pools: Sequence[PoolStatus]
    nodes: Mapping[str, Node]
    settings: NodeSettings
    written: Mapping[str, tuple[Body, float]]
    history: History
    link_problem: str
    since: float
    now: float
    time: float


def is_ours(node: Node, pool: str) -> bool:
    """Whether the node is the virtual node of that pool."""
    label: str | None = (node["metadata"].get("labels") or {}).get(names.POOL_LABEL)
    return label == pool


def decide(view: NodesView) -> tuple[list[Action], History]:
    """Return the actions, at most one for each pool, and the history for the next decision."""
    decided: dict[str, Action | None] = {}
    collisions: set[str] = set()
    for state in view.pools:
        try:
            if _collides(view, state):
                collisions.add(state.name)
            decided[state.name] = _decide_pool(view, state)
        except Exception as error:
            isolation.report("virtual-nodes", state.name, error)
            decided[state.name] = None
    checked = {name: at for name, at in view.history.checked.items() if name in decided}
    checked |= {name: view.now for name, action in decided.items() if isinstance(action, Vanish)}
    history = History(checked, frozenset(collisions))
    return [action for action in decided.values() if action is not None], history


def _collides(view: NodesView, state: PoolStatus) -> bool:
    node = view.nodes.get(state.name)
    return node is not None and not is_ours(node, state.name)


def _decide_pool(view: NodesView, state: PoolStatus) -> Action | None:
    node = view.nodes.get(state.name)
    if node is not None and _collides(view, state):
        return Collide(node) if state.name not in view.history.collisions else None
    valid = announcement_validation.check(state.announce) if state.announce is not None else None
    if node is not None and valid is not None:
        valid = announcement_validation.claimable(valid, node)
    if node is None:
        if state.announce is None or valid is None:
            return None
        # an announcement from the store makes no node: nothing says that the pool still exists
        if not is_heard(view, state):
            return _forget(view, state)
        status = _status(view, state, valid)
        return Create(state.name, node_manifest.node(state, valid, status, view.time), status)
    if valid is not None:
        patch = _describe(node, state, valid)
        if patch is not None:
            return Describe(node, patch)
    if not is_heard(view, state) and not is_silent(view, state) and not state.folder_problem:
        return None  # this process has just started: the last report stands
    report = _report(view, node, _status(view, state, valid))
    return report or _vanish(view, node, state)


def is_silent(view: NodesView, state: PoolStatus) -> bool:
    """Whether no message of the site has arrived for too long."""
    if state.announce is None or state.heard is None:
        return view.now - view.since > view.settings.silent_after
    # an announcement from before the start of this process makes no site silent at once
    return view.now - max(state.heard, view.since) > patience(view.settings, state.announce)


def patience(settings: NodeSettings, announce: Announcement) -> float:
    """Return the seconds without an announcement after which the submitter is silent."""
    return max(settings.silent_after, PERIODS * min(announce.period, 120))


def is_heard(view: NodesView, state: PoolStatus) -> bool:
    """Whether this process itself has received an announcement, and the site is not silent."""
    return state.heard is not None and state.heard >= view.since and not is_silent(view, state)


def _status(view: NodesView, state: PoolStatus, valid: ValidAnnouncement | None) -> Body:
    silent = is_silent(view, state)
    return node_manifest.status(state, valid, view.settings, silent=silent, link_problem=view.link_problem)


# --- differences ------------------------------------------------------------------------------------------------------
def _describe(node: Node, state: PoolStatus, valid: ValidAnnouncement) -> Body | None:
    """Return the patch of metadata and taints, if one is needed. Labels and taints of others stay."""
    metadata, pool = node["metadata"], state.name
    node_annotations = metadata.get("annotations") or {}
    old_labels, old_taints = announcement_validation.recorded(node) or (set(), set())
    node_labels = metadata.get("labels") or {}
    desired_labels = node_manifest.labels(pool, valid, node_labels)
    labels: Body = {key: value for key, value in desired_labels.items() if node_labels.get(key) != value}
    labels |= {key: None for key in old_labels - desired_labels.keys() if key in node_labels}
    taints = list((node.get("spec") or {}).get("taints") or ())
    desired_taints = node_manifest.taints(pool, valid)
    replaced_taints = {f"{t['key']}:{t['effect']}" for t in desired_taints} | old_taints
    foreign_taints = [taint for taint in taints if f"{taint.get('key')}:{taint.get('effect')}" not in replaced_taints]
    new_taints = [*desired_taints, *foreign_taints]
    patch: Body = {}
    if labels:
        patch["labels"] = labels
    annotations = node_manifest.node_annotations(state, valid).items()
    if changed_annotations := {key: text for key, text in annotations if node_annotations.get(key) != text}:
        patch["annotations"] = changed_annotations
    spec = {} if _as_set(new_taints) == _as_set(taints) else {"spec": {"taints": new_taints}}
    if not patch and not spec:
        return None
    # the node controller writes taints too: with the version, a concurrent patch fails instead of undoing that
    identity = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    return {"metadata": {**identity, **patch}, **spec}


def _as_set(taints: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    return {(t.get("key", ""), t.get("value") or "", t.get("effect", "")) for t in taints}


def _report(view: NodesView, node: Node, status: Body) -> ReportStatus | None:
    name = node["metadata"]["name"]
    written, at = view.written.get(name, (None, float("-inf")))
    age = view.now - at
    changed_by_others = age > SETTLE and _differs(node, status)
    if written is not None and not changed_by_others:
        is_reworded = _without_messages(written) == _without_messages(status)
        if age < (HEARTBEAT if written == status else REWORD if is_reworded else 0.0):
            return None
    now = rfc3339(view.time)
    cached = {c.get("type"): c for c in (node.get("status") or {}).get("conditions") or ()}
    conditions = []
    for condition in status["conditions"]:
        entry = {**condition, "lastHeartbeatTime": now}
        if cached.get(condition["type"], {}).get("status") != condition["status"]:
            entry["lastTransitionTime"] = now
        conditions.append(entry)
    # a strategic patch merges addresses by type and resources by name: without the directive, former ones would stay
    body: Body = {**status, "conditions": conditions, "addresses": [*status["addresses"], {"$patch": "replace"}]}
    for kind in ("capacity", "allocatable"):
        if kind in body:
            body[kind] = {"$patch": "replace", **body[kind]}
    # a late write of a former leader must not overwrite this one: with the version, it fails
    identity = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
    return ReportStatus(node, {"metadata": identity, "status": body}, status, _event(cached, status))


def _without_messages(status: Body) -> Body:
    return {**status, "conditions": [(c["type"], c["status"], c["reason"]) for c in status["conditions"]]}


def _event(cached: Mapping[str, Mapping[str, Any]], status: Body) -> tuple[str, str, bool] | None:
    before = cached.get("Ready", {})
    ready = status["conditions"][0]
    if not before or (before.get("status"), before.get("reason")) == (ready["status"], ready["reason"]):
        return None
    return ready["reason"], ready["message"], ready["status"] != "True"


def _differs(node: Node, status: Body) -> bool:
    """Whether another client has changed the node's status."""
    node_status = node.get("status") or {}
    cached = {c.get("type"): (c.get("status"), c.get("reason")) for c in node_status.get("conditions") or ()}
    if any(cached.get(c["type"]) != (c["status"], c["reason"]) for c in status["conditions"]):
        return True
    return any(
        kind in status and _quantities(node_status.get(kind)) != _quantities(status[kind])
        for kind in ("capacity", "allocatable")
    )


def _quantities(pairs: Mapping[str, Any] | None) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, text in (pairs or {}).items():
        try:
            result[name] = quantity.parse(text)
        except ValueError:
            result[name] = text
    return result


def _vanish(view: NodesView, node: Node, state: PoolStatus) -> Action | None:
    # None, too: as long as the cache of the pool is not complete, pods may be bound there
    if state.bound != 0 or state.remembered:
        return None
    has_left = state.announce is not None and state.announce.leaving
    pause = min(LOOK_GONE, view.settings.remove_after)
    is_due = view.now - view.history.checked.get(state.name, float("-inf")) >= pause
    return Vanish(node) if is_due and (has_left or is_silent(view, state)) else None


def _forget(view: NodesView, state: PoolStatus) -> Action | None:
    """Return the removal of a silent pool without a node, which podbridge or an administrator has deleted."""
    heard = max(state.heard or view.since, view.since)
    return Forget(state.name) if state.bound == 0 and view.now - heard > view.settings.remove_after else None


def may_vanish(node: Node, remove_after: float, time: float) -> bool:
    """Whether the site of this node (fresh from the API server) has been silent for ``remove_after`` seconds."""
    connected = pods.condition(node, names.POOL_CONNECTED)
    return connected.get("status") == "False" and time - parse_rfc3339(connected["lastTransitionTime"]) >= remove_after
