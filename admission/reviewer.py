"""The answer to a review: the pure decisions, and the reads from the API server that they need."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence

from admission import field_policy, pool_rules, preview, raw_pods, templates, validate
from admission.group_reader import BARE, FoundGroup, GroupReader
from admission.mutate import annotates, mutate, needs_group, update
from admission.owner_annotations import OwnerAnnotations, Owners
from admission.permissions import Permissions
from admission.review import Json, Review, allow, deny
from admission.validate import Scope, Verdict
from bridge import names
from bridge.config import policies
from bridge.config.hub import Config, pools_only
from bridge.config.policies import NamespacePolicy
from bridge.errors import BridgeError
from bridge.kube import namespaces
from bridge.kube.namespaces import Namespace, Namespaces
from bridge.logs import kv
from bridge.telemetry import tracing
from bridge.workload import job_limits, pool_selection
from bridge.workload.annotations import Layers, with_sources
from bridge.workload.devices import extended_claims
from bridge.workload.groups import InvalidGroupError
from bridge.workload.resources import Resources

log = logging.getLogger(__name__)

RETRY_AFTER = 2
"""Seconds after which a client may retry a request that could not be reviewed."""

NodesView = Callable[[], Sequence[Resources]]
"""Returns the allocatable resources of the managed nodes; empty before the nodes are listed."""


MOST_PROBLEMS = 20
"""Number of problems that a message names."""
LONGEST_PROBLEM = 1024
"""Characters of one of them."""
MOST_TEMPLATES = 20
"""Templates of one object that are previewed: a JobSet of 10,000 replicated jobs would take seconds."""


def summary(problems: Sequence[str]) -> str:
    """Return the message about the problems of a pod; its length is limited, whatever is in the pod."""
    shown = [text if len(text) <= LONGEST_PROBLEM else f"{text[:LONGEST_PROBLEM]}..." for text in problems]
    if len(shown) == 1:
        return shown[0]
    remainder = f"; and {len(shown) - MOST_PROBLEMS} more" if len(shown) > MOST_PROBLEMS else ""
    return f"{len(shown)} problems: " + "; ".join(shown[:MOST_PROBLEMS]) + remainder


class Reviewer:
    """Answers the reviews of pods and namespaces.

    The argument ``selected`` of the methods is true if the API server's selector of managed namespaces has matched.
    A list of namespaces is checked again here. For a label selector the API server's result counts, because only the
    API server knows the current labels.
    """

    def __init__(
        self,
        config: Config,
        permissions: Permissions,
        owners: OwnerAnnotations,
        namespace_reader: Namespaces,
        groups: GroupReader,
        *,
        trusted: frozenset[str] = frozenset(),
        nodes: NodesView = tuple,
    ) -> None:
        self._config = config
        self._scheduler = config.scheduler_name
        self._namespaces = None if config.managed_namespace_selector else frozenset(config.managed_namespaces)
        self._trusted = trusted
        self._by_label = any(policy.namespace_selector is not None for policy in config.namespace_policies)
        self._permissions = permissions
        self._owners = owners
        self._namespace_reader = namespace_reader
        self._groups = groups
        self._nodes = nodes

    def mutate(self, review: Review, selected: bool) -> Json:
        """Answer a review of ``/mutate``. An error of the API server denies the request, with status 503 or 500."""
        if review.operation not in ("CREATE", "UPDATE") or review.subresource:
            return allow(review.uid)
        managed = self._managed(review, selected)
        pod = review.object
        if review.operation == "UPDATE":
            return allow(review.uid, update(review.old, pod, scheduler=self._scheduler))
        context, start = _new_context(review, pod) if tracing.tracer is not None else None, time.time()
        owners = Owners()
        namespace, policy, group = Namespace(), policies.NOTHING, BARE
        limits = expose_permitted = None
        try:
            if self._is_ours(pod, managed):
                # only here: an owner that changes after admission could bypass the check of the user's permissions
                owners = self._owners.find(pod, review.namespace)
                namespace = self._namespace_reader.get(review.namespace)
                group = self._group(review, owners, namespace)
                policy = self._policy(review, namespace)
                # only admission knows the author of the pod, who may have the permission to exceed the limits
                limits = self._job_limits(review, policy, group=group.value is not None)
                expose_permitted = self._expose_permitted(review, policy)
        except InvalidGroupError as error:
            annotations = {**owners.annotations, **raw_pods.annotations_of(pod)}
            (problem,) = with_sources([str(error)], annotations, owners.layers)
            return deny(review.uid, problem, code=422, reason="Invalid")
        except BridgeError as error:
            failure = "the pod's owners, its namespace or a permission of its user could not be read"
            return _not_reviewed(review, failure, error)
        inherited = {**pool_rules.inherited(namespace.annotations), **group.inherited, **owners.annotations}
        patch = mutate(
            pod,
            scheduler=self._scheduler,
            managed=managed,
            user_name=review.user_name,
            inherited=inherited,
            pools=namespace.pools,
            defaults=field_policy.defaults(policy, pod, inherited),
            pools_only=pools_only(self._config),
            default_nodes=self._config.default_scheduler_nodes,
            group=group.value,
            job_limits=limits,
            expose_permitted=expose_permitted,
            traceparent="" if context is None else context.text,
        )
        if context is not None and annotates(patch, names.TRACEPARENT):
            tracing.admitted(context, review.namespace, pod, start, time.time())
        return allow(review.uid, patch)

    def _group(self, review: Review, owners: Owners, namespace: Namespace) -> FoundGroup:
        pod, inherited, default_nodes = review.object, owners.annotations, self._config.default_scheduler_nodes
        only = pools_only(self._config)
        if not needs_group(
            pod, review.user_name, self._scheduler, inherited, namespace.pools, default_nodes, pools_only=only
        ):
            return BARE
        return self._groups.find(pod, review.namespace, inherited, namespace.annotations, owners.references)

    def validate(self, review: Review, selected: bool) -> Json:
        """Answer a review of ``/validate``. An error of the API server denies the request, with status 503 or 500."""
        pod = review.object if review.operation == "CREATE" else review.old
        managed = self._managed(review, selected)
        if not self._is_ours(pod, managed):
            return allow(review.uid)
        try:
            verdict = self._verdict(review, managed)
        except BridgeError as error:
            return _not_reviewed(review, "the pod's namespace could not be read", error)
        if verdict is None:
            return allow(review.uid)
        keys = [*verdict.permissions, *(denial.key for denial in verdict.denials)]
        try:
            missing = self._permissions.missing(review.user, keys, review.namespace)
        except BridgeError as error:
            return _not_reviewed(review, f"the permission for {', '.join(keys)} could not be checked", error)
        forbidden = verdict.forbidden + [_no_permission(review, key) for key in verdict.permissions if key in missing]
        forbidden += [_not_in_policy(review, denial) for denial in verdict.denials if denial.key in missing]
        problems = verdict.invalid + forbidden
        if not problems:
            return allow(review.uid, warnings=verdict.warnings)
        if review.operation == "CREATE" and any(problem.startswith("annotation ") for problem in problems):
            problems = with_sources(problems, raw_pods.annotations_of(pod), self._layers(pod, review.namespace))
        message = summary(problems)
        if forbidden:
            return deny(review.uid, message, warnings=verdict.warnings)
        return deny(review.uid, message, code=422, reason="Invalid", warnings=verdict.warnings)

    def _layers(self, pod: raw_pods.Pod, namespace: str) -> Layers:
        """Return the objects that a refused pod inherits annotations from, as far as they can be read."""
        layers: Layers = ()
        with contextlib.suppress(BridgeError):
            owners = self._owners.find(pod, namespace)
            layers = owners.layers
            layers += self._groups.find(pod, namespace, owners.annotations, {}, owners.references).layers
        return layers

    def warn(self, review: Review, selected: bool) -> Json:
        """Answer a review of a Job or its kin: warn of what admission will refuse in its pods. Denies nothing."""
        kind, name = str(review.object.get("kind") or ""), str(review.object["metadata"].get("name") or "")
        managed = self._managed(review, selected)
        warnings: list[str] = []
        try:
            namespace = self._namespace_reader.get(review.namespace)
            objects = templates.objects([review.object], review.namespace)
            pods = list(itertools.islice(templates.pods(objects), MOST_TEMPLATES))
        except (BridgeError, RecursionError) as error:
            log.debug("no warnings", extra=kv(namespace=review.namespace, kind=kind, error=error))
            return allow(review.uid)
        scope = Scope(
            namespace.pools, self._policy(review, namespace), managed, review.namespace, namespace.annotations
        )
        groups = GroupReader(templates.read_from(objects))
        for pod, inherited in pods:
            seen = preview.preview(pod, inherited, self._config, groups, scope)
            warnings += preview.warnings(kind, name, seen)
        return allow(review.uid, warnings=list(dict.fromkeys(warnings)))

    def validate_namespace(self, review: Review, selected: bool) -> Json:
        """Answer a review of a namespace: deny the annotation for pools in a namespace that is not managed."""
        namespace, name = namespaces.of(review.object), str(review.object["metadata"].get("name") or "")
        policy = policies.find(self._config.namespace_policies, name, namespace.labels)
        if selected or namespace.pools is None or policy.may_name_scheduler:
            return allow(review.uid)
        managed = "managedNamespaceSelector" if self._namespaces is None else ", ".join(sorted(self._namespaces))
        return deny(
            review.uid,
            f"metadata.annotations[{names.POOLS}]: {namespace.pools!r} is not allowed: namespace {name!r} is not "
            f"managed by podbridge, so its pods could not run on pools; allowed: in managed namespaces ({managed}) and "
            f"in namespaces whose policy in namespacePolicies has mayNameScheduler",
        )

    def _verdict(self, review: Review, managed: bool) -> Verdict | None:
        config, user = self._config, review.user_name
        if review.subresource == "resize":
            return validate.resize(review.old, review.object, config, self._scope(review, managed))
        if review.subresource == "ephemeralcontainers":
            return validate.ephemeral_containers(review.old, config)
        if review.subresource:
            return None
        if review.operation == "CREATE":
            scope = self._scope(review, managed, pool_selection.asks(review.object))
            return validate.create(review.object, user, config, self._nodes(), scope, self._trusted)
        if review.operation == "UPDATE":
            scope = self._scope(review, managed, pool_selection.of(review.old) != pool_selection.of(review.object))
            return validate.update(review.old, review.object, user, config, scope, self._trusted)
        return None

    def _scope(self, review: Review, managed: bool, pools_matter: bool = False) -> Scope:
        """Return the scope of the review. The namespace is read only if its labels or its annotations matter."""
        needed = self._by_label or pools_matter
        namespace = self._namespace_reader.get(review.namespace) if needed else Namespace()
        policy = self._policy(review, namespace)
        return Scope(namespace.pools, policy, managed, review.namespace, namespace.annotations)

    def _policy(self, review: Review, namespace: Namespace) -> NamespacePolicy:
        return policies.find(self._config.namespace_policies, review.namespace, namespace.labels, review.groups)

    def _job_limits(self, review: Review, policy: NamespacePolicy, *, group: bool) -> str | None:
        """Return the limits that the scheduler checks; ``None`` if there are none, or the user may exceed them all."""
        limits = job_limits.of_policy(policy.max, claims=extended_claims.wants_devices(review.object), group=group)
        keys = {name.removeprefix(names.JOB_ANNOTATION_PREFIX): name for name in limits}
        missing = self._permissions.missing(review.user, keys, review.namespace)
        return job_limits.encode({keys[key]: limits[keys[key]] for key in missing}) if missing else None

    def _expose_permitted(self, review: Review, policy: NamespacePolicy) -> str | None:
        """Return the record of the user's permission to expose a pod; ``None`` if there is none, or none is needed."""
        denials = field_policy.expose_denied(raw_pods.annotations_of(review.object), policy)
        keys = [denial.key for denial in denials]
        return None if not keys or self._permissions.missing(review.user, keys, review.namespace) else "true"

    def _managed(self, review: Review, selected: bool) -> bool:
        return selected and (self._namespaces is None or review.namespace in self._namespaces)

    def _is_ours(self, pod: raw_pods.Pod, managed: bool) -> bool:
        return bool(pod) and (managed or raw_pods.scheduler_name(pod) == self._scheduler)


def _new_context(review: Review, pod: raw_pods.Pod) -> tracing.Context | None:
    """Return a new trace context; ``None`` for a pod that has one, of its user or of an earlier review."""
    has_context = tracing.parse(raw_pods.annotations_of(pod).get(names.TRACEPARENT)) is not None
    return None if has_context or review.dry_run else tracing.new_context()


def _required_permission(review: Review, key: str) -> str:
    resource = f"{names.PERMISSION_RESOURCE}.{names.PERMISSION_GROUP}/{key}"
    return (
        f"user {review.user_name!r} needs the permission {names.PERMISSION_VERB!r} on {resource} in namespace "
        f"{review.namespace!r}"
    )


def _not_in_policy(review: Review, denial: field_policy.Denial) -> str:
    return (
        f"{denial.problem}; allowed in namespace {review.namespace!r}: {denial.allowed}; to use it, an administrator "
        f"changes namespacePolicies in podbridge's configuration, or {_required_permission(review, denial.key)}"
    )


def _no_permission(review: Review, key: str) -> str:
    needs = _required_permission(review, key)
    if key == validate.FINALIZER_PERMISSION:
        return f"metadata.finalizers: {names.FINALIZER!r} cannot be removed while the pod has a Slurm job: {needs}"
    annotation = names.JOB_ANNOTATION_PREFIX + key
    value = raw_pods.annotations_of(review.object).get(annotation)
    return f"annotation {annotation}: {value!r} is not allowed: {needs}"


def _not_reviewed(review: Review, failure: str, error: BridgeError) -> Json:
    """Deny a request that could not be reviewed: an admission cannot be revoked."""
    extra = kv(namespace=review.namespace, why=failure, error=error)
    log.warning("request denied: it could not be reviewed", extra=extra)
    return deny(
        review.uid,
        f"{failure}: {error}; try again" if error.retryable else f"{failure}: {error}",
        code=503 if error.retryable else 500,
        reason="ServiceUnavailable" if error.retryable else "InternalError",
        retry_after=RETRY_AFTER if error.retryable else 0,
    )
