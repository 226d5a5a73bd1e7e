"""The checks of ``podbridge check`` for Kueue and MasterQueues."""

from __future__ import annotations

from collections.abc import Iterator

from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.errors import KubeForbiddenError
from bridge.kube.discovery import is_served
from bridge.kube.resources import MASTER_QUEUES

WHAT, GROUP = "Kueue", "kueue.x-k8s.io"


def kueue(session: CommandSession) -> Iterator[Finding]:
    """Check that Kueue and the CRD of MasterQueues are installed if they are enabled, and the MasterQueues."""
    groups = {group["name"]: group for group in session.kube.get("/apis").get("groups") or ()}
    enabled = session.config.queues.enabled
    if GROUP not in groups:
        if enabled:
            text = "not installed, but queues.enabled is true"
            yield Finding("FAIL", WHAT, text, "install Kueue, or set queues.enabled to false")
        else:
            yield Finding("ok", WHAT, "not installed")
        return
    version = groups[GROUP]["preferredVersion"]["version"]
    if not enabled:
        yield Finding("ok", WHAT, f"installed, {version}; MasterQueues are off (queues.enabled)")
        return
    if not is_served(session.kube, MASTER_QUEUES):
        fix = "kubectl apply -f config/crds.yaml; with Helm, helm upgrade"
        yield Finding("FAIL", WHAT, "queues.enabled is true, but the CRD masterqueues.vk.io does not exist", fix)
        return
    try:
        queues = session.kube.get(MASTER_QUEUES.path())["items"]
    except KubeForbiddenError:
        yield Finding("warn", WHAT, "this user may not list MasterQueues", "run it as an administrator")
        return
    yield Finding("ok", WHAT, f"installed, {version}; {len(queues)} MasterQueues")
    for queue in queues:
        name = queue["metadata"]["name"]
        conditions = {c["type"]: c for c in (queue.get("status") or {}).get("conditions") or ()}
        ready = conditions.get("Ready")
        if ready is None:
            fix = "check that podbridge controllers runs with queues.enabled"
            yield Finding("warn", WHAT, f"MasterQueue {name} has no status", fix)
        elif ready["status"] != "True":
            text = f"MasterQueue {name} is not Ready: {ready.get('reason')}: {ready.get('message', '')}"
            yield Finding("FAIL", WHAT, text, f"kubectl describe masterqueue {name}; see docs/admins/kueue.md")
