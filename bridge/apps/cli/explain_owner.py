"""``podbridge explain job|jobset|leaderworkerset|podgroup|trainjob|raycluster``: an object that makes pods."""

from __future__ import annotations

from typing import Any

from bridge.apps.cli import explain_places, queues
from bridge.apps.cli.session import CommandSession
from bridge.apps.view import owner_view, pod_view, wait_reasons
from bridge.apps.view.owner_view import OwnerKind, OwnerView
from bridge.errors import BridgeError
from bridge.kube.discovery import get_if_served
from bridge.kube.resources import POD_EVENTS, PODS

SHOWN = 20
"""Pods, failures and refusals that the report names."""


def kind_of(word: str) -> OwnerKind | None:
    """Return the kind of owners that ``word`` names."""
    return next((kind for kind in owner_view.KINDS if kind.word == word), None)


def describe(session: CommandSession, kind: OwnerKind, namespace: str, name: str) -> dict[str, Any]:
    """Return the report on an owner: its progress, why its pods wait or are missing, how they ended, the next step."""
    found = (get_if_served(session.kube, resource, namespace, name) for resource in kind.resources)
    manifest = next((each for each in found if each is not None), None)
    if manifest is None:
        raise BridgeError(
            f"{kind.title} {name} does not exist in namespace {namespace}",
            hint="select another namespace with -n; podbridge get workloads lists those that have pods",
        )
    listed = session.listed(PODS.path(namespace), labelSelector=f"{kind.label}={name}")
    views = sorted(map(pod_view.of, listed), key=lambda view: (view.times.created, view.name))
    events = session.attempt("Events", lambda: _events(session, kind, namespace, name)) or []
    view = owner_view.of(kind, manifest, views, events)
    name_of_oldest = view.oldest_waiting.name if view.oldest_waiting is not None else ""
    oldest = next((pod for pod in listed if pod["metadata"]["name"] == name_of_oldest), None)
    gated = view.suspended or any(each.reason == wait_reasons.GATED for each in views)
    queued = queues.awaited(session, namespace, {manifest["metadata"]["uid"]}) if gated else None
    return {
        "summary": view.summary + (f": Kueue has no quota for it: {queued[1]}" if queued else ""),
        "progress": {**({"pods": view.size} if view.size is not None else {}), **view.counts},
        "refused": view.refusals[:SHOWN],
        "waiting": [f"{each.count} {each.name}: {each.text}" for each in view.reasons],
        "places": explain_places.of(session, oldest) if oldest is not None else [],
        "failed": view.failures[:SHOWN],
        "ended_by_podbridge": view.ends[:SHOWN],
        "pods": _lines(views),
        "not_read": session.gaps,
        "next": _next(kind, view, namespace, name, queued[0] if queued else ""),
    }


def _events(session: CommandSession, kind: OwnerKind, namespace: str, name: str) -> list[dict[str, Any]]:
    """List the Events about the owner and about the objects that create its pods, with their ``note``."""
    result = []
    for involved in dict.fromkeys((kind.title, kind.controller or kind.title)):
        only = f",involvedObject.name={name}" if involved == kind.title else ""
        listed = session.listed(POD_EVENTS.path(namespace), fieldSelector=f"involvedObject.kind={involved}{only}")
        result += [{**each, "note": each.get("message")} for each in listed if owner_view.concerns(kind, name, each)]
    return result


def _lines(views: list[pod_view.PodView]) -> list[str]:
    """Return a line for each of the first pods, those that have not ended first."""
    ordered = sorted(views, key=lambda view: not view.open)
    lines = []
    for view in ordered[:SHOWN]:
        place = f" on {view.node}" if view.node and view.open else ""
        job = f", job {view.job}" if view.job else ""
        reason = f": {view.reason}" if view.reason else ""
        lines.append(f"{view.name}: {view.state}{place}{job}{reason}")
    return [*lines, *([f"and {len(ordered) - SHOWN} more"] if len(ordered) > SHOWN else ())]


def _next(kind: OwnerKind, view: OwnerView, namespace: str, name: str, workload: str) -> str:
    """Return the next step; ``workload`` is Kueue's Workload that waits for quota, empty without one."""
    if workload:
        return f"kubectl describe workload {workload} -n {namespace}"
    if view.refusals and not view.counts["running"]:
        return f"kubectl delete {kind.word} {name} -n {namespace}, correct its pod template, and create it again"
    if view.oldest_waiting is not None:
        return f"podbridge explain pod {view.oldest_waiting.name} -n {namespace}"
    if view.suspended:
        return f'kubectl patch {kind.word} {name} -n {namespace} --type=merge -p \'{{"spec":{{"suspend":false}}}}\''
    if not view.failed:
        return ""
    has_run = next((failed.name for failed in view.failed if failed.times.started is not None), "")
    if has_run:
        return f"kubectl logs -n {namespace} {has_run} --all-containers"
    return f"podbridge explain pod {view.failed[0].name} -n {namespace}"
