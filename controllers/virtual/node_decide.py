"""What to do for the virtual node of each pool: pure.

The node carries the pool's name. A node of that name which is not podbridge's own is never touched, and its pool never
used. Labels, taints and capacity come from the site's announcements, checked; a site that is silent makes its node
NotReady, with the last words in the condition, and ends nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge import names
from bridge.clock import parse_rfc3339, rfc3339
from bridge.poolapi.announcement import Announcement
from bridge.workload import quantity
from controllers.virtual import announcement_validation, node_manifest
from controllers.virtual.announcement_validation import ValidAnnouncement
from controllers.virtual.node_manifest import Body, Settings, State

Node = Mapping[str, Any]

HEARTBEAT = 300.0
"""Seconds after which an unchanged status is written again, as kubelets do."""
SETTLE = 5.0
"""Seconds after a write within which the cache may not show it yet."""
LOOK_GONE = 60.0
"""Seconds between two looks whether a silent pool's node can go."""
PERIODS = 2.5
"""Announcements of a slow site that may be missing before it counts as silent."""
REWORD = 15.0
"""Seconds at least between two reports that differ in their words alone."""


@dataclass(frozen=True, slots=True)
class History:
    """What a decision needs to know of the decisions before it. It has entries only for the pools of the last view.

    ``checked`` maps a node to the monotonic time of the last :class:`Vanish`. ``collisions`` has the pools whose name
    belongs to a node that is not podbridge's; :class:`Collide` was decided once for each of them.
    """

    checked: Mapping[str, float] = field(default_factory=dict)
    collisions: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Create:
    """Make the node."""

    name: str
    body: Body
    status: Body


@dataclass(frozen=True, slots=True)
class Describe:
    """Bring labels, taints and the record of what is the site's into step (merge patch)."""

    node: Node
    patch: Body


@dataclass(frozen=True, slots=True)
class Report:
    """Write the status (strategic patch); ``news`` is an Event: reason, message, whether it is a warning."""

    node: Node
    patch: Body
    status: Body
    news: tuple[str, str, bool] | None


@dataclass(frozen=True, slots=True)
class Vanish:
    """Look whether the silent pool's node may go: long enough, and without any pod."""

    node: Node


@dataclass(frozen=True, slots=True)
class Collide:
    """Tell that a pool has the name of a node that is not podbridge's."""

    node: Node


@dataclass(frozen=True, slots=True)
class Forget:
    """Know nothing of a pool any more: it is silent, and has no node."""

    name: str


Action = Create | Describe | Report | Vanish | Collide | Forget


@dataclass(frozen=True, slots=True)
class NodesView:
    """All that a decision depends on.

    ``written`` maps a node to the status that was written last, without times, and the monotonic time of the write.
    ``since``: monotonic time from which this process has received messages.
    """

    pools: Sequence[State]
    nodes: Mapping[str, Node]
    settings: Settings
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
    decided = {state.name: _one(view, state) for state in view.pools}
    checked = {name: at for name, at in view.history.checked.items() if name in decided}
    checked |= {name: view.now for name, action in decided.items() if isinstance(action, Vanish)}
    history = History(checked, frozenset(state.name for state in view.pools if _collides(view, state)))
    return [action for action in decided.values() if action is not None], history


def _collides(view: NodesView, state: State) -> bool:
    node = view.nodes.get(state.name)
    return node is not None and not is_ours(node, state.name)


def _one(view: NodesView, state: State) -> Action | None:
    node = view.nodes.get(state.name)
    if node is not None and _collides(view, state):
        return Collide(node) if state.name not in view.history.collisions else None
    valid = announcement_validation.check(state.announce) if state.announce is not None else None
    if node is None:
        if state.announce is None or valid is None:
            return None
        if not is_heard(view, state):
            return _forget(view, state)
        status = _status(view, state, valid)
        return Create(state.name, node_manifest.node(state, valid, status, view.time), status)
    if valid is not None:
        patch = _describe(node, state, valid)
        if patch is not None:
            return Describe(node, patch)
    if not is_heard(view, state) and not is_silent(view, state) and not state.folder_problem:
        return None  # this process has just begun to listen: what the node says stands
    report = _report(view, node, _status(view, state, valid))
    return report or _vanish(view, node, state)


def is_silent(view: NodesView, state: State) -> bool:
    """Whether the site has said nothing for too long."""
    if state.announce is None or state.heard is None:
        return view.now - view.since > view.settings.silent_after
    # what is remembered from before this process was not missed by it
    return view.now - max(state.heard, view.since) > patience(view.settings, state.announce)


def patience(settings: Settings, announce: Announcement) -> float:
    """Return the seconds after an announcement at which its submitter counts as silent."""
    return max(settings.silent_after, PERIODS * min(announce.period, 120))


def is_heard(view: NodesView, state: State) -> bool:
    """Whether this process itself has heard the site, and not too long ago."""
    return state.heard is not None and state.heard >= view.since and not is_silent(view, state)


def _status(view: NodesView, state: State, valid: ValidAnnouncement | None) -> Body:
    silent = is_silent(view, state)
    return node_manifest.status(state, valid, view.settings, silent=silent, link_problem=view.link_problem)


# --- what is different ------------------------------------------------------------------------------------------------
def _describe(node: Node, state: State, valid: ValidAnnouncement) -> Body | None:
    """Build the patch of metadata and taints, if one is needed: what others put on the node stays."""
    metadata, pool = node["metadata"], state.name
    told = metadata.get("annotations") or {}
    before = told.get(names.SITE_ANNOUNCED, "")
    old_labels, old_taints = _recorded(before)
    has, wanted_labels = metadata.get("labels") or {}, node_manifest.labels(pool, valid)
    labels: Body = {key: value for key, value in wanted_labels.items() if has.get(key) != value}
    labels |= {key: None for key in old_labels - wanted_labels.keys() if key in has}
    taints = list((node.get("spec") or {}).get("taints") or ())
    ours = node_manifest.taints(pool, valid)
    mine = {f"{t['key']}:{t['effect']}" for t in ours} | old_taints
    kept = [taint for taint in taints if f"{taint.get('key')}:{taint.get('effect')}" not in mine]
    new = [*ours, *kept]
    patch: Body = {}
    if labels:
        patch["labels"] = labels
    if noted := {
        key: text for key, text in node_manifest.node_annotations(state, valid).items() if told.get(key) != text
    }:
        patch["annotations"] = noted
    spec = {} if _as_set(new) == _as_set(taints) else {"spec": {"taints": new}}
    if not patch and not spec:
        return None
    # the node controller writes taints too: the version makes this one fail rather than undo that
    identity = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    return {"metadata": {**identity, **patch}, **spec}


def _recorded(text: str) -> tuple[set[str], set[str]]:
    try:
        data = json.loads(text or "{}")
        return announcement_validation.from_json(data)
    except (ValueError, TypeError, AttributeError):
        return set(), set()


def _as_set(taints: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    return {(t.get("key", ""), t.get("value") or "", t.get("effect", "")) for t in taints}


def _report(view: NodesView, node: Node, status: Body) -> Report | None:
    name = node["metadata"]["name"]
    written, at = view.written.get(name, (None, float("-inf")))
    age = view.now - at
    changed_by_others = age > SETTLE and _differs(node, status)
    if written is not None and not changed_by_others:
        pause = HEARTBEAT if written == status else REWORD if _silently(written) == _silently(status) else 0.0
        if age < pause:
            return None
    now = rfc3339(view.time)
    cached = {c.get("type"): c for c in (node.get("status") or {}).get("conditions") or ()}
    conditions = []
    for condition in status["conditions"]:
        entry = {**condition, "lastHeartbeatTime": now}
        if cached.get(condition["type"], {}).get("status") != condition["status"]:
            entry["lastTransitionTime"] = now
        conditions.append(entry)
    body: Body = {**status, "conditions": conditions, "addresses": [*status["addresses"], {"$patch": "replace"}]}
    for kind in ("capacity", "allocatable"):
        if kind in body:
            body[kind] = {"$patch": "replace", **body[kind]}
    # a write that an earlier leader sent off before it was stopped may arrive after ours: the version makes it fail
    identity = {key: node["metadata"][key] for key in ("uid", "resourceVersion")}
    return Report(node, {"metadata": identity, "status": body}, status, _news(cached, status))


def _silently(status: Body) -> Body:
    """Give a status without its words."""
    return {**status, "conditions": [(c["type"], c["status"], c["reason"]) for c in status["conditions"]]}


def _news(cached: Mapping[str, Mapping[str, Any]], status: Body) -> tuple[str, str, bool] | None:
    before = cached.get("Ready", {})
    ready = status["conditions"][0]
    if not before or (before.get("status"), before.get("reason")) == (ready["status"], ready["reason"]):
        return None
    return ready["reason"], ready["message"], ready["status"] != "True"


def _differs(node: Node, status: Body) -> bool:
    """Whether the node's status was changed by somebody else."""
    found = node.get("status") or {}
    cached = {c.get("type"): (c.get("status"), c.get("reason")) for c in found.get("conditions") or ()}
    if any(cached.get(c["type"]) != (c["status"], c["reason"]) for c in status["conditions"]):
        return True
    return any(
        kind in status and _quantities(found.get(kind)) != _quantities(status[kind])
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


def _vanish(view: NodesView, node: Node, state: State) -> Action | None:
    name = state.name
    if (
        state.bound != 0
        or state.remembered
        or not (is_silent(view, state) or (state.announce is not None and state.announce.leaving))
    ):
        return None
    pause = min(LOOK_GONE, view.settings.remove_after)
    return Vanish(node) if view.now - view.history.checked.get(name, float("-inf")) >= pause else None


def _forget(view: NodesView, state: State) -> Action | None:
    """Forget a pool whose node is gone: deleted by podbridge, or by an administrator who gives the site up."""
    heard = max(state.heard or view.since, view.since)
    return Forget(state.name) if state.bound == 0 and view.now - heard > view.settings.remove_after else None


def may_vanish(node: Node, remove_after: float, time: float) -> bool:
    """Whether the node (as the API server has it now) has been without its site for ``remove_after`` seconds."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == node_manifest.CONNECTED and condition.get("status") == "False":
            return bool(time - parse_rfc3339(condition["lastTransitionTime"]) >= remove_after)
    return False
