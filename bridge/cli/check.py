"""``podbridge check``: checks connections, permissions, versions, clocks and certificates."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict

from admission.webhook_registration import is_managed
from bridge import names, namespace_policies
from bridge.cli import check_installations, check_pools, output
from bridge.cli.connection import ConnectionOptions
from bridge.cli.findings import Finding
from bridge.cli.session import CommandSession
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
    ("", "persistentvolumeclaims", "", ("list", "watch", "patch")),
    ("", "persistentvolumes", "", ("list", "watch", "patch")),
    ("storage.k8s.io", "storageclasses", "", ("list", "watch")),
    ("events.k8s.io", "events", "", ("create", "patch")),
    ("authorization.k8s.io", "subjectaccessreviews", "", ("create",)),
)


def run(connection: ConnectionOptions, form: str) -> int:
    """Print the findings; return the exit status, 1 if a check has failed."""
    found = list(findings(connection))
    columns = ["result", "what", "found", "fix"]
    output.show([asdict(finding) for finding in found], columns, form, no_headers=False, nothing="")
    return 1 if any(finding.result == "FAIL" for finding in found) else 0


def findings(connection: ConnectionOptions) -> Iterator[Finding]:
    """Run all checks. A check that raises :class:`BridgeError` yields a finding with result ``FAIL``."""
    try:
        session = CommandSession(connection)
    except BridgeError as error:
        yield Finding("FAIL", "configuration", str(error), error.hint or "see podbridge config schema")
        return
    yield Finding("ok", "configuration", str(connection.config or "defaults"))
    steps: list[tuple[str, Callable[[CommandSession], Iterator[Finding]]]] = [
        ("Kubernetes API", _kubernetes),
        ("permissions", _permissions),
        ("managed namespaces", _namespaces),
        ("webhook", _webhook),
        ("other installations", check_installations.collisions),
        ("leases", _leases),
        *([("Slurm token", _token), ("Slurm", _slurm), ("nodes", _nodes)] if session.config.slurm_rest_api else []),
        ("NATS", check_pools.nats),
        ("interLink", check_pools.interlink),
        ("pools", check_pools.pools),
    ]
    for what, step in steps:
        try:
            yield from step(session)
        except BridgeError as error:
            yield Finding("FAIL", what, str(error), error.hint or "check that it runs and that its address is correct")


def _kubernetes(session: CommandSession) -> Iterator[Finding]:
    before = time.time()
    version = session.kube.get("/version")
    yield Finding("ok", "Kubernetes API", f"{session.kube.server} {version.get('gitVersion')}")
    lag = time.time() - before
    if lag > 1:
        yield Finding("warn", "Kubernetes API", f"answered after {lag:.1f} s", "check the load of the API server")


def _permissions(session: CommandSession) -> Iterator[Finding]:
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
            "this user lacks: " + ", ".join(missing),
            "required only for podbridge's own service accounts: see docs/install.md",
        )
    else:
        yield Finding("ok", "permissions", "all permissions that podbridge needs")


def _namespaces(session: CommandSession) -> Iterator[Finding]:
    yield from _pools_without_effect(session)
    if session.config.managed_namespace_selector is not None:
        yield Finding("ok", "managed namespaces", "selected by managedNamespaceSelector")
        return
    for name in session.config.managed_namespaces:
        try:
            session.kube.get(NAMESPACES.path(name=name))
            yield Finding("ok", "managed namespaces", name)
        except KubeNotFoundError:
            yield Finding("warn", "managed namespaces", f"{name} does not exist", f"kubectl create namespace {name}")


def _pools_without_effect(session: CommandSession) -> Iterator[Finding]:
    """Find unmanaged namespaces with the annotation for pools. The webhook refuses new ones, but not existing ones."""
    config = session.config
    try:
        found = session.kube.get(NAMESPACES.path())["items"]
    except KubeForbiddenError:
        return  # podbridge's own accounts may get a namespace, but not list them
    for namespace in found:
        name, labels = namespace["metadata"]["name"], namespace["metadata"].get("labels") or {}
        opened = names.POOLS in (namespace["metadata"].get("annotations") or {})
        named = namespace_policies.find(config.namespace_policies, name, labels).may_name_scheduler
        if opened and not named and not is_managed(config, name, labels):
            yield Finding(
                "warn",
                "managed namespaces",
                f"{name} has the annotation {names.POOLS}, but is not managed: its pods cannot run on pools",
                f"add it to the managed namespaces, or run: kubectl annotate namespace {name} {names.POOLS}-",
            )


def _configuration(session: CommandSession) -> str:
    return f"{session.config.admission.webhook_name}-mutate"


def _webhook(session: CommandSession) -> Iterator[Finding]:
    try:
        registered = session.kube.get(MUTATING_WEBHOOKS.path(name=_configuration(session)))
    except KubeNotFoundError:
        yield Finding("FAIL", "webhook", "not registered: new pods are not processed", "start podbridge admission")
        return
    if not registered.get("webhooks"):  # as helm/rbac.yaml creates it
        yield Finding("FAIL", "webhook", "not registered: new pods are not processed", "start podbridge admission")
        return
    bundle = base64.b64decode(registered["webhooks"][0]["clientConfig"].get("caBundle") or "")
    if not bundle:
        yield Finding("warn", "webhook", "registered without a CA bundle", "restart podbridge admission")
        return
    days = (expires(bundle) - time.time()) / 86400
    result = "ok" if days > 7 else "warn" if days > 0 else "FAIL"
    yield Finding(
        result, "webhook", f"registered; its CA expires in {days:.0f} days", "" if days > 7 else "renew the certificate"
    )


def _leases(session: CommandSession) -> Iterator[Finding]:
    for part in ("scheduler", "controllers"):
        name = names.lease(part, session.config.installation)
        try:
            spec = session.kube.get(LEASES.path(session.config.leader_election.namespace, name)).get("spec") or {}
        except KubeNotFoundError:
            spec = {}
        if "renewTime" not in spec:
            yield Finding("warn", part, "has never run in this cluster", f"start podbridge {part}")
            continue
        holder, renewed = spec.get("holderIdentity"), parse_rfc3339(spec["renewTime"])
        silent = time.time() - renewed
        if not holder:
            yield Finding("warn", part, "no process holds its lease", f"start podbridge {part}")
        elif silent > spec.get("leaseDurationSeconds", 15):
            yield Finding("FAIL", part, f"{holder} has not renewed its lease for {silent:.0f} s", "check its log")
        elif silent < -5:
            yield Finding(
                "warn", "clocks", f"the clock of {holder} is {-silent:.0f} s ahead of the local clock", "run NTP"
            )
        else:
            yield Finding("ok", part, f"leader: {holder}")


def _token(session: CommandSession) -> Iterator[Finding]:
    source = jwt_source(session.config)
    if source is None:
        yield Finding(
            "FAIL", "Slurm token", "not configured", "set SLURM_JWT_FILE or slurm.jwtFile; scontrol token creates one"
        )
        return
    left = session.slurm.token_expires_in()
    if left is None:
        yield Finding("ok", "Slurm token", "has no expiry time")
    elif left <= 0:
        yield Finding(
            "FAIL", "Slurm token", f"expired {-left / 60:.0f} minutes ago", "write a new token to the same file"
        )
    else:
        yield Finding("ok" if left > 3600 else "warn", "Slurm token", f"expires in {left / 3600:.1f} hours")


def _slurm(session: CommandSession) -> Iterator[Finding]:
    version = session.slurm.version
    session.slurm.ping()
    yield Finding("ok", "Slurm", f"{session.config.slurm_rest_api} Slurm {session.slurm.slurm_release}, {version.name}")
    for text in version.missing():
        yield Finding("warn", "Slurm", f"not supported: {text}")
    known = {partition.name: partition for partition in session.slurm.partitions()}
    wanted = session.config.partition
    if missing := sorted({*session.config.partitions, *([wanted] if wanted else ())} - set(known)):
        fix = f"one of: {', '.join(sorted(known))}"
        yield Finding("FAIL", "Slurm partition", f"{', '.join(missing)} does not exist", fix)
    elif not wanted and not version.default_partition:
        yield Finding("ok", "Slurm partition", "Slurm's default")
    elif not wanted and not any(partition.default for partition in known.values()):
        yield Finding("FAIL", "Slurm partition", "no partition is the default", "set partition in the configuration")
    else:
        yield Finding("ok", "Slurm partition", wanted or next(p.name for p in known.values() if p.default))


def _nodes(session: CommandSession) -> Iterator[Finding]:
    yield from check_installations.taken_nodes(session)
    nodes = session.nodes()
    shared = [node for node in nodes if slurm_name(node) in session.slurm_nodes]
    result = "ok" if shared else "FAIL"
    fix = (
        ""
        if shared
        else "use the same names, or set the label slinky.slurm.net/slurm-nodename=NAME on the Kubernetes node"
    )
    yield Finding(result, "nodes", f"{len(shared)} of {len(nodes)} Kubernetes nodes are Slurm nodes too", fix)
