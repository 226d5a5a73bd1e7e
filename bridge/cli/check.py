"""``podbridge check``: connections, permissions, versions, clocks, certificates; what is wrong and how to mend it."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from admission.registration import is_managed
from bridge import names, policies
from bridge.cli import check_pools, output
from bridge.cli.findings import Finding
from bridge.cli.main import Where
from bridge.cli.session import Session
from bridge.clock import parse_rfc3339
from bridge.config import jwt_source
from bridge.errors import BridgeError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.resources import LEASES, MUTATING_WEBHOOKS, NAMESPACES, SELF_SUBJECT_ACCESS_REVIEWS
from bridge.serving.certificates import expires
from bridge.workload.eligibility import slurm_name

NEEDED = (
    ("", "pods", "", ("get", "list", "watch", "patch", "delete")),
    ("", "pods", "binding", ("create",)),
    ("", "pods", "status", ("patch",)),
    ("", "nodes", "", ("get", "list", "watch", "patch")),
    ("", "namespaces", "", ("get",)),
    ("events.k8s.io", "events", "", ("create", "patch")),
    ("authorization.k8s.io", "subjectaccessreviews", "", ("create",)),
)


def run(where: Where, form: str) -> int:
    """Print the report; 1 when something must be mended."""
    findings = list(look(where))
    columns = ["result", "what", "found", "mend"]
    output.show([asdict(f) for f in findings], columns, form, no_headers=False, nothing="")
    return 1 if any(finding.result == "FAIL" for finding in findings) else 0


def look(where: Where) -> Iterator[Finding]:
    """Look at one thing after the other; a thing that can't be looked at is a finding too."""
    try:
        session = Session(where)
    except BridgeError as error:
        yield Finding("FAIL", "configuration", str(error), error.hint or "see podbridge config schema")
        return
    yield Finding("ok", "configuration", str(where.config or "defaults"))
    steps: list[tuple[str, Callable[[Session], Iterator[Finding]]]] = [
        ("Kubernetes API", _kubernetes),
        ("permissions", _permissions),
        ("managed namespaces", _namespaces),
        ("webhook", _webhook),
        ("leases", _leases),
        *([("Slurm token", _token), ("Slurm", _slurm), ("nodes", _nodes)] if session.config.slurm_rest_api else []),
        ("NATS", check_pools.nats),
        ("pools", check_pools.pools),
    ]
    for what, step in steps:
        try:
            yield from step(session)
        except BridgeError as error:
            yield Finding("FAIL", what, str(error), error.hint or "is it running, and is its address right?")


def _kubernetes(session: Session) -> Iterator[Finding]:
    before = time.time()
    version = session.kube.get("/version")
    yield Finding("ok", "Kubernetes API", f"{session.kube.server} {version.get('gitVersion')}")
    lag = time.time() - before
    if lag > 1:
        yield Finding("warn", "Kubernetes API", f"took {lag:.1f} s to answer", "look at its load")


def _permissions(session: Session) -> Iterator[Finding]:
    missing = []
    for group, resource, sub, verbs in NEEDED:
        for verb in verbs:
            attributes = {"group": group, "resource": resource, "subresource": sub, "verb": verb}
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes},
            }
            answer = session.kube.create(SELF_SUBJECT_ACCESS_REVIEWS.path(), review)
            if not (answer.get("status") or {}).get("allowed"):
                missing.append(f"{verb} {resource}{'/' + sub if sub else ''}")
    if missing:
        yield Finding(
            "warn",
            "permissions",
            "this user may not: " + ", ".join(missing),
            "matters only where this is podbridge's own account: see docs/install.md",
        )
    else:
        yield Finding("ok", "permissions", "all that podbridge needs")


def _namespaces(session: Session) -> Iterator[Finding]:
    yield from _pools_without_effect(session)
    if session.config.managed_namespace_selector is not None:
        yield Finding("ok", "managed namespaces", "by selector")
        return
    for name in session.config.managed_namespaces:
        try:
            session.kube.get(NAMESPACES.path(name=name))
            yield Finding("ok", "managed namespaces", name)
        except KubeNotFoundError:
            yield Finding("warn", "managed namespaces", f"{name} does not exist", f"kubectl create namespace {name}")


def _pools_without_effect(session: Session) -> Iterator[Finding]:
    """Find namespaces that opened pools before they ceased to be managed; later ones are refused by the webhook."""
    config = session.config
    try:
        found = session.kube.get(NAMESPACES.path())["items"]
    except KubeForbiddenError:
        return  # podbridge itself gets namespaces by name alone
    for namespace in found:
        name, labels = namespace["metadata"]["name"], namespace["metadata"].get("labels") or {}
        opened = names.POOLS in (namespace["metadata"].get("annotations") or {})
        named = policies.find(config.namespace_policies, name, labels).may_name_scheduler
        if opened and not named and not is_managed(config, name, labels):
            yield Finding(
                "warn",
                "managed namespaces",
                f"{name} has the annotation {names.POOLS}, but is not managed: its pods do not go to pools",
                f"manage it, or kubectl annotate namespace {name} {names.POOLS}-",
            )


def _webhook(session: Session) -> Iterator[Finding]:
    try:
        registered = session.kube.get(MUTATING_WEBHOOKS.path(name="podbridge-mutate"))
    except KubeNotFoundError:
        yield Finding("FAIL", "webhook", "not registered: new pods are not admitted", "run podbridge admission")
        return
    if not registered.get("webhooks"):  # as helm/rbac.yaml creates it
        yield Finding("FAIL", "webhook", "not registered: new pods are not admitted", "run podbridge admission")
        return
    bundle = base64.b64decode(registered["webhooks"][0]["clientConfig"].get("caBundle") or "")
    if not bundle:
        yield Finding("warn", "webhook", "registered without a CA bundle", "restart podbridge admission")
        return
    days = (expires(bundle) - time.time()) / 86400
    result = "ok" if days > 7 else "warn" if days > 0 else "FAIL"
    yield Finding(result, "webhook", f"registered; its CA is good for {days:.0f} days", "" if days > 7 else "renew it")


def _leases(session: Session) -> Iterator[Finding]:
    for part in ("scheduler", "controllers"):
        name = f"podbridge-{part}"
        try:
            spec = session.kube.get(LEASES.path(session.config.leader_election.namespace, name)).get("spec") or {}
        except KubeNotFoundError:
            spec = {}
        if "renewTime" not in spec:
            yield Finding("warn", part, "has never run here", f"podbridge {part}")
            continue
        holder, renewed = spec.get("holderIdentity"), parse_rfc3339(spec["renewTime"])
        silent = time.time() - renewed
        if not holder:
            yield Finding("warn", part, "nobody runs it", f"podbridge {part}")
        elif silent > spec.get("leaseDurationSeconds", 15):
            yield Finding("FAIL", part, f"{holder} has been silent for {silent:.0f} s", "look at its logs")
        elif silent < -5:
            yield Finding("warn", "clocks", f"{holder}'s clock is {-silent:.0f} s ahead of this one", "run NTP")
        else:
            yield Finding("ok", part, f"led by {holder}")


def _token(session: Session) -> Iterator[Finding]:
    source = jwt_source(session.config)
    if source is None:
        yield Finding("FAIL", "Slurm token", "there is none", "set SLURM_JWT_FILE or slurm.jwtFile (scontrol token)")
        return
    left = session.slurm.token_expires_in()
    if left is None:
        yield Finding("ok", "Slurm token", "does not say when it ends")
    elif left <= 0:
        yield Finding(
            "FAIL", "Slurm token", f"ended {-left / 60:.0f} minutes ago", "write a new one into the same file"
        )
    else:
        yield Finding("ok" if left > 3600 else "warn", "Slurm token", f"good for {left / 3600:.1f} hours")


def _slurm(session: Session) -> Iterator[Finding]:
    version = session.slurm.version
    session.slurm.ping()
    yield Finding("ok", "Slurm", f"{session.config.slurm_rest_api} Slurm {session.slurm.slurm_release}, {version.name}")
    for text in version.missing():
        yield Finding(
            "warn", "Slurm", f"can't {text}" if not text.startswith(("external", "admin", "jobs")) else f"no {text}"
        )
    names = {partition.name: partition for partition in session.slurm.partitions()}
    wanted = session.config.partition
    if wanted and wanted not in names:
        yield Finding("FAIL", "Slurm partition", f"{wanted} does not exist", f"one of: {', '.join(sorted(names))}")
    elif not wanted and not version.default_partition:
        yield Finding("ok", "Slurm partition", "Slurm's default")
    elif not wanted and not any(partition.default for partition in names.values()):
        yield Finding("FAIL", "Slurm partition", "none is the default", "set partition in the configuration")
    else:
        yield Finding("ok", "Slurm partition", wanted or next(p.name for p in names.values() if p.default))


def _nodes(session: Session) -> Iterator[Finding]:
    nodes = session.nodes()
    shared = [node for node in nodes if slurm_name(node) in session.slurm_nodes]
    result = "ok" if shared else "FAIL"
    mend = "" if shared else "name them alike, or label the Kubernetes node slinky.slurm.net/slurm-nodename=NAME"
    yield Finding(result, "nodes", f"{len(shared)} of {len(nodes)} Kubernetes nodes are Slurm's too", mend)
