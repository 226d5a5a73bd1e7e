"""Completion of the names of pods, jobs, nodes, pools and queues; nothing if the API server does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

LIMIT = 200
"""Most names that are offered."""
PATIENCE = 2.0
"""Seconds that a completion waits for an answer: the shell does nothing else meanwhile."""
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names(kind: str) -> Completer:
    """Return a function that completes the name of an object; an empty ``kind``: that of the argument KIND."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = _records(kind or context.params["kind"][0], context.params)
        except Exception:
            return []  # a shell shows no message, and completion must not fail
        return [CompletionItem(name, help=text) for name, text in found if name.startswith(incomplete)][:LIMIT]

    return complete


def namespaces(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a namespace."""
    try:
        from bridge.kube.resources import NAMESPACES

        items = _session(context.params).kube.get(NAMESPACES.path(), metadata_only=True)["items"]
    except Exception:
        return []
    found = [item["metadata"]["name"] for item in items]
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:LIMIT]


def _session(params: dict[str, Any]) -> Any:
    from bridge.apps.cli.connection_options import ConnectionOptions
    from bridge.apps.cli.session import CommandSession

    session = CommandSession(ConnectionOptions(params.get("config"), params.get("kubeconfig"), params.get("context")))
    session.hurry(PATIENCE)
    return session


def _records(kind: str, params: dict[str, Any]) -> list[tuple[str, str]]:
    from bridge.workload import pool_selection

    session = _session(params)
    if kind == "pod":
        found = session.pods(params.get("namespace") or session.namespace)
        return [(pod["metadata"]["name"], str((pod.get("status") or {}).get("phase", ""))) for pod in found]
    if kind == "job":
        return [(str(job.job_id), "+".join(sorted(job.states))) for job in session.jobs]
    if kind in ("node", "pool"):
        chosen = [node for node in session.nodes() if pool_selection.is_virtual(node) == (kind == "pool")]
        return [(node["metadata"]["name"], "") for node in chosen]
    if kind == "queue":
        from bridge.apps.cli.queues import master_queues, record

        queues = [record(queue, {}) for queue in master_queues(session)]
        return [(str(queue["queue"]), str(queue["reason"])) for queue in queues]
    return []
