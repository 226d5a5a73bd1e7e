"""The checks of ``podbridge check`` for admission: the registration, a call by the API server, and the policies."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

from admission.webhook_registration import is_managed
from bridge import names
from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.errors import KubeError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.resources import ADMISSION_POLICIES, MUTATING_WEBHOOKS, NAMESPACES, PODS
from bridge.serving.certificates import authorities

WHAT = "webhook"
START = "start podbridge admission"
POLICIES = ("guarded-nodes", "node-names", "own-pods", "own-nodes", "own-volumes", "own-webhooks")
"""Names of the shipped admission policies, after the name of the installation."""


def webhook(session: CommandSession) -> Iterator[Finding]:
    """Check the registration and its CA, then let the API server call the webhook for a pod that is not created."""
    try:
        name = f"{session.config.admission.webhook_name}-mutate"
        registered = session.kube.get(MUTATING_WEBHOOKS.path(name=name))
    except KubeNotFoundError:
        registered = {}
    if not registered.get("webhooks"):  # as config/rbac.yaml creates it
        yield Finding("FAIL", WHAT, "not registered: new pods are not processed", START)
        return
    bundle = base64.b64decode(registered["webhooks"][0]["clientConfig"].get("caBundle") or "")
    if not bundle:
        yield Finding("warn", WHAT, "registered without a CA bundle", "restart podbridge admission")
        return
    # an older authority stays in the bundle until it expires
    last = max((cert.not_valid_after_utc.timestamp() for cert in authorities(bundle)), default=0.0)
    days = (last - time.time()) / 86400
    result = "ok" if days > 7 else "warn" if days > 0 else "FAIL"
    fix = "" if days > 7 else "renew the certificate, and restart podbridge admission"
    yield Finding(result, WHAT, f"registered; its CA expires in {days:.0f} days", fix)
    yield _call(session)


def _call(session: CommandSession) -> Finding:
    namespace = _managed(session)
    if namespace is None:
        return Finding("warn", WHAT, "not called: no managed namespace exists", "create a managed namespace")
    try:
        pod = session.kube.create(PODS.path(namespace), _pod(), {"dryRun": "All"})
    except KubeError as error:
        if "failed calling webhook" in str(error):
            fix = (
                "check that podbridge admission runs, and that the API server reaches it: admission.url or the "
                "Service, network policies, and the certificate"
            )
            return Finding("FAIL", WHAT, f"the API server cannot call it: {error}", fix)
        if isinstance(error, KubeForbiddenError):
            fix = "run it as a user that may create pods; other admission plugins may refuse the pod, too"
            return Finding("warn", WHAT, f"not called: {error}", fix)
        raise
    scheduler = pod["spec"].get("schedulerName")
    reason = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.DEFAULT_SCHEDULER_REASON)
    if scheduler != session.config.scheduler_name and reason and not session.config.slurm_rest_api:
        return Finding("ok", WHAT, f"a pod in {namespace} that requests no pool keeps {scheduler}: {reason}")
    if scheduler != session.config.scheduler_name:
        fix = f"check that namespace {namespace} is in the configuration of the running podbridge admission"
        return Finding("FAIL", WHAT, f"a pod in {namespace} keeps the scheduler {scheduler}", fix)
    return Finding("ok", WHAT, f"a pod in {namespace} gets the scheduler {scheduler}")


def _managed(session: CommandSession) -> str | None:
    """Return a managed namespace that exists."""
    config = session.config
    if config.managed_namespace_selector is None:
        for name in config.managed_namespaces:
            try:
                session.kube.get(NAMESPACES.path(name=name))
            except KubeNotFoundError:
                continue
            return name
        return None
    metadata = session.namespaces
    return next((m["name"] for m in metadata if is_managed(config, m["name"], m.get("labels") or {})), None)


def _pod() -> dict[str, Any]:
    """Return a pod that the Pod Security Standard "restricted" allows."""
    security = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "main", "image": "podbridge.invalid/check", "securityContext": security}
    return {"metadata": {"generateName": "podbridge-check-"}, "spec": {"containers": [container]}}


def policies(session: CommandSession) -> Iterator[Finding]:
    """Find the shipped admission policies, which protect nodes from users and limit podbridge's own accounts."""
    existing = {item["metadata"]["name"] for item in session.listed(ADMISSION_POLICIES.path())}
    shipped = {f"{session.config.installation}-{name}" for name in POLICIES}
    if missing := sorted(shipped - existing):
        fix = "helm upgrade, or kubectl apply -f config/policies.yaml; see docs/admins/security.md"
        yield Finding("warn", "policies", f"missing: {', '.join(missing)}", fix)
    else:
        yield Finding("ok", "policies", f"{len(shipped)} admission policies exist")
