"""The manifest of a virtual node: labels, taints and status. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.clock import rfc3339
from bridge.protocol.model import architecture
from bridge.protocol.model.announcement import READY, Announcement, Readiness
from controllers.virtual import announcement_validation
from controllers.virtual.announcement_validation import ValidAnnouncement

Body = dict[str, Any]

ACCEPTED = "AnnouncementAccepted"
CONFIG = "BuildConfigAccepted"
MESSAGE = 1024


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The state of a pool in the hub."""

    name: str
    announce: Announcement | None = None
    """The last announcement; ``None`` before the first."""
    heard: float | None = None
    heard_at: str = ""
    """The monotonic time of the last announcement, and the same time as text."""
    bound: int | None = None
    """Number of pods bound to the node; ``None`` if it is not known."""
    remembered: int = 0
    """Number of known jobs, including those restored from a store."""
    folder: str = ""
    folder_problem: str = ""
    """Id of the site's folder of jobs, and the problem with it."""
    readiness: Readiness = READY
    """Whether the pool accepts submissions."""
    races: bool | None = None
    """Whether the site accepts places of pods that race; ``None``: this hub lets no pod race, or does not know."""
    gangs: bool = False
    """Whether the site runs the pods of a group as one job."""
    heterogeneous_gangs: bool = False
    """Whether these pods may request different resources."""
    flavor_limits: str | None = None
    """What a group may request there (:attr:`bridge.pools.pool_interface.Pool.flavor_limits`)."""
    reaches: bool = False
    """Whether the pods may reach Services."""
    expected_wait: float = 0.0
    """Seconds that a job probably waits at the site."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Values of the configuration. ``address`` and ``port`` are those of the kubelet API."""

    silent_after: float
    remove_after: float
    address: str
    port: int
    version: str


def labels(pool: str, valid: ValidAnnouncement, node_labels: Mapping[str, str]) -> dict[str, str]:
    """Return all labels for a node that has ``node_labels``. Labels of podbridge replace those of the site.

    A node of a site that announces no architecture keeps the one that it has; a new one gets that of the hub.
    """
    return {
        architecture.LABEL: node_labels.get(architecture.LABEL) or architecture.HERE,
        **valid.labels,
        "kubernetes.io/hostname": pool,
        "kubernetes.io/os": "linux",
        "kubernetes.io/role": "agent",
        # no load balancer sends traffic to the address of the hub; the second label is the older name
        "node.kubernetes.io/exclude-from-external-load-balancers": "true",
        "alpha.service-controller.kubernetes.io/exclude-balancer": "true",
        names.VIRTUAL_TYPE_LABEL: names.VIRTUAL_TYPE,
        names.POOL_LABEL: pool,
    }


def taints(pool: str, valid: ValidAnnouncement) -> list[Body]:
    """Return all taints: the two of podbridge, and those of the site."""
    return [
        {"key": names.VIRTUAL_TAINT, "value": "true", "effect": "NoSchedule"},
        {"key": names.POOL_TAINT, "value": pool, "effect": "NoSchedule"},
        *valid.taints,
    ]


def record(valid: ValidAnnouncement) -> str:
    """Return the labels and taints of the site in the form of the node's annotation."""
    return json.dumps(announcement_validation.as_json(valid), sort_keys=True, separators=(",", ":"))


def _conditions(state: PoolStatus, valid: ValidAnnouncement | None, silent: bool, link_problem: str) -> list[Body]:
    announce = state.announce
    summary = _summary(announce)
    if silent:
        last_heard = f"last heard {state.heard_at}" if state.heard_at else "not heard since podbridge started"
        link = f"; {link_problem}" if link_problem else ""
        last = f"; last announcement: {summary}" if summary else ""
        jobs = f"; jobs remembered there: {state.remembered}" if state.remembered else ""
        ready = ("False", "SiteSilent", f"{last_heard}{link}{jobs}{last}")
        connected = ("False", "NatsDisconnected" if link else "SiteSilent", f"{last_heard}{link}")
    elif announce is not None and announce.leaving:
        ready = connected = ("False", "SiteLeft", f"the submitter has stopped; {summary}")
    else:
        connected = ("True", "SiteHeard", "podbridge receives messages from the site")
        problem = announce.problem if announce is not None else ""
        problem = problem or state.readiness.problem
        ready = ("False", "SiteProblem", problem) if problem else ("True", "SiteReady", summary)
    if state.folder_problem:
        ready = ("False", "SiteProblem", state.folder_problem)
    problems = "; ".join(valid.problems) if valid is not None else ""
    accepted = ("False", "ValuesLeftOut", problems) if problems else ("True", "AllAccepted", "")
    not_monitored = ("False", "NotKnownHere", "the site's batch system monitors its machines")
    # Ready is the first: virtual_node_decide takes the Event from it
    rows = {"Ready": ready, names.POOL_CONNECTED: connected}
    if valid is not None:
        rows[ACCEPTED] = accepted
        config_problem = state.readiness.problem
        if config_problem:
            rows[CONFIG] = ("False", state.readiness.reason, config_problem)
        elif announce is not None and announce.version:  # podbridge's submitter publishes a BuildConfig
            rows[CONFIG] = ("True", "BuildConfigUsable", "")
    rows |= dict.fromkeys(("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"), not_monitored)
    return [
        {"type": kind, "status": condition_status, "reason": reason, "message": message[:MESSAGE]}
        for kind, (condition_status, reason, message) in rows.items()
    ]


def _summary(announce: Announcement | None) -> str:
    if announce is None:
        return ""
    parts = [announce.batch, announce.runtime, announce.version and f"podbridge {announce.version}", announce.problem]
    return ", ".join(part for part in parts if part)


def status(
    state: PoolStatus, valid: ValidAnnouncement | None, settings: NodeSettings, *, silent: bool, link_problem: str
) -> Body:
    """Return the status without times. Values that no announcement has given are absent."""
    result: Body = {
        "conditions": _conditions(state, valid, silent, link_problem),
        # without Hostname: the API server would prefer it, and resolve the pool's name with DNS
        "addresses": [{"type": "InternalIP", "address": settings.address}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": settings.port}},
    }
    if valid is not None and state.announce is not None:
        result["capacity"] = result["allocatable"] = valid.capacity
        result["nodeInfo"] = {
            "architecture": valid.labels.get(architecture.LABEL, architecture.HERE),
            "operatingSystem": "linux",
            "osImage": state.announce.batch[:MESSAGE],
            "containerRuntimeVersion": state.announce.runtime[:MESSAGE],
            "kubeletVersion": settings.version,
            "kubeProxyVersion": "",
            "kernelVersion": "",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        }
    return result


def node_annotations(state: PoolStatus, valid: ValidAnnouncement) -> dict[str, str | None]:
    """Return podbridge's annotations of the node; ``None``: it has none with this name."""
    folder = {names.SITE_FOLDER: state.folder} if state.folder else {}
    races = {} if state.races is None else {names.RACE_ALLOWED: _flag(state.races)}
    gangs = {
        names.GANGS_ALLOWED: _flag(state.gangs),
        names.HETEROGENEOUS_GANGS_ALLOWED: _flag(state.heterogeneous_gangs),
        names.REACH_ALLOWED: _flag(state.reaches),
    }
    limits = {} if state.flavor_limits is None else {names.FLAVOR_LIMITS: state.flavor_limits or None}
    return {
        names.SITE_ANNOUNCED: record(valid),
        names.EXPECTED_WAIT: f"{state.expected_wait:.0f}",
        names.METRICS_PATH_ANNOTATION: f"{names.METRICS_PATH}/{state.name}",
        **folder,
        **races,
        **gangs,
        **limits,
    }


def _flag(value: bool) -> str:
    return "true" if value else "false"


def node(state: PoolStatus, valid: ValidAnnouncement, desired_status: Body, time: float) -> Body:
    """Return the complete Node for its creation."""
    now, pool = rfc3339(time), state.name
    conditions = [{**c, "lastHeartbeatTime": now, "lastTransitionTime": now} for c in desired_status["conditions"]]
    annotations = {name: text for name, text in node_annotations(state, valid).items() if text is not None}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": pool, "labels": labels(pool, valid, {}), "annotations": annotations},
        "spec": {"taints": taints(pool, valid), "providerID": f"podbridge:///{pool}"},
        "status": {**desired_status, "conditions": conditions},
    }
