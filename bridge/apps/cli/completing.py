"""Completion of the names of pods, jobs, nodes, pools and queues; nothing if the API server does not answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.kinds import ObjectName
from bridge.kube.resources import NAMESPACES
from bridge.workload import pool_selection

LIMIT = 200
"""Most names that are offered."""
PATIENCE = 2.0
"""Seconds that a completion waits for an answer: the shell does nothing else meanwhile."""
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def names(kind: str) -> Completer:
    """Return a function that completes the name of an object; an empty ``kind``: that of the argument KIND."""
    return _completer(lambda params: _records(kind or params["kind"][0], params))


def namespace_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--namespace``, which completes the names of namespaces."""
    name, complete = ObjectName(optional=True), _completer(_namespaces)
    return click.option("-n", "--namespace", type=name, metavar="TEXT", shell_complete=complete, help=help_text)


def _completer(read: Callable[[dict[str, Any]], list[tuple[str, str]]]) -> Completer:
    """Return a function that completes what ``read`` returns for the parameters: names with descriptions."""

    def complete(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            items = read(context.params)
        except Exception:
            return []  # a shell shows no message, and completion must not fail
        return [CompletionItem(name, help=text or None) for name, text in items if name.startswith(incomplete)][:LIMIT]

    return complete


def _namespaces(params: dict[str, Any]) -> list[tuple[str, str]]:
    items = _session(params).kube.get(NAMESPACES.path(), metadata_only=True)["items"]
    return [(item["metadata"]["name"], "") for item in items]


def _session(params: dict[str, Any]) -> Any:
    from bridge.apps.cli.session import CommandSession

    session = CommandSession(ConnectionOptions(params.get("config"), params.get("kubeconfig"), params.get("context")))
    session.hurry(PATIENCE)
    return session


def _records(kind: str, params: dict[str, Any]) -> list[tuple[str, str]]:
    session = _session(params)
    if kind == "pod":
        pods = session.pods(params.get("namespace") or session.namespace)
        return [(pod["metadata"]["name"], str((pod.get("status") or {}).get("phase", ""))) for pod in pods]
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
