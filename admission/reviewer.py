"""From a review to its answer: the pure decisions, and the two questions that need the API server."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from admission import field_policy, pods, validate
from admission.mutate import mutate, update
from admission.owner_annotations import OwnerAnnotations
from admission.permissions import Permissions
from admission.review import Json, Review, allow, deny
from admission.validate import Rules, Scope, Verdict
from bridge import names, namespace_policies
from bridge.config import Config
from bridge.errors import BridgeError
from bridge.kube import namespaces
from bridge.kube.namespaces import Namespace, Namespaces
from bridge.logs import kv
from bridge.workload import pool_selection
from bridge.workload.resources import Resources

log = logging.getLogger(__name__)

RETRY_AFTER = 2
"""Seconds until a request that could not be judged may be tried again."""

NodesView = Callable[[], Sequence[Resources]]
"""What each managed node offers; empty as long as nobody knows."""


class Reviewer:
    """What admission does with pods, as configured.

    ``selected`` in its methods tells whether the API server found the namespace by the selector of managed namespaces.
    With a list of namespaces that is checked here again; with a label selector the API server's word is taken: it
    alone knows the labels as they are at this moment.
    """

    def __init__(
        self,
        config: Config,
        permissions: Permissions,
        owners: OwnerAnnotations,
        known: Namespaces,
        *,
        trusted: frozenset[str] = frozenset(),
        nodes: NodesView = tuple,
    ) -> None:
        self._scheduler = config.scheduler_name
        self._namespaces = None if config.managed_namespace_selector else frozenset(config.managed_namespaces)
        self._rules = Rules(
            config.scheduler_name,
            trusted,
            config.gres,
            config.exclusive,
            config.partition,
            slurm=bool(config.slurm_rest_api),
        )
        self._policies = config.namespace_policies
        self._pools_only = not config.slurm_rest_api and config.pools.other_pods == "default-scheduler"
        self._by_label = any(policy.namespace_selector is not None for policy in self._policies)
        self._permissions = permissions
        self._owners = owners
        self._namespaces_say = known
        self._nodes = nodes

    def mutate(self, review: Review, selected: bool) -> Json:
        """Answer a review of ``/mutate``."""
        if review.operation not in ("CREATE", "UPDATE") or review.subresource:
            return allow(review.uid)
        managed = self._managed(review, selected)
        pod = review.object
        if review.operation == "UPDATE":
            return allow(review.uid, update(review.old, pod, scheduler=self._scheduler))
        inherited: dict[str, str] = {}
        namespace = Namespace()
        try:
            if self._ours(pod, managed):
                inherited = self._owners.annotations(pod, review.namespace)
                namespace = self._namespaces_say.get(review.namespace)
        except BridgeError as error:
            return _unjudged(review, "the pod's owners or its namespace could not be read", error)
        patch = mutate(
            pod,
            scheduler=self._scheduler,
            managed=managed,
            user_name=review.user_name,
            inherited=inherited,
            pools=namespace.pools,
            defaults=field_policy.defaults(namespace_policies.find(self._policies, review.namespace, namespace.labels)),
            pools_only=self._pools_only,
        )
        return allow(review.uid, patch)

    def validate(self, review: Review, selected: bool) -> Json:
        """Answer a review of ``/validate``."""
        pod = review.object if review.operation == "CREATE" else review.old
        managed = self._managed(review, selected)
        if not self._ours(pod, managed):
            return allow(review.uid)
        try:
            verdict = self._verdict(review, managed)
        except BridgeError as error:
            return _unjudged(review, "the pod's namespace could not be read", error)
        if verdict is None:
            return allow(review.uid)
        keys = [*verdict.permissions, *(denial.key for denial in verdict.denials)]
        try:
            missing = self._permissions.missing(review.user, keys, review.namespace)
        except BridgeError as error:
            return _unjudged(review, f"the permission for {', '.join(keys)} could not be checked", error)
        forbidden = verdict.forbidden + [_no_permission(review, key) for key in verdict.permissions if key in missing]
        forbidden += [_not_in_policy(review, denial) for denial in verdict.denials if denial.key in missing]
        problems = verdict.invalid + forbidden
        if not problems:
            return allow(review.uid, warnings=verdict.warnings)
        message = problems[0] if len(problems) == 1 else f"{len(problems)} problems: " + "; ".join(problems)
        if forbidden:
            return deny(review.uid, message, warnings=verdict.warnings)
        return deny(review.uid, message, code=422, reason="Invalid", warnings=verdict.warnings)

    def validate_namespace(self, review: Review, selected: bool) -> Json:
        """Answer a review of a namespace: one that is not managed must not open pools to pods that nobody looks at."""
        namespace, name = namespaces.of(review.object), str(review.object["metadata"].get("name") or "")
        policy = namespace_policies.find(self._policies, name, namespace.labels)
        if selected or namespace.pools is None or policy.may_name_scheduler:
            return allow(review.uid)
        managed = "managedNamespaceSelector" if self._namespaces is None else ", ".join(sorted(self._namespaces))
        return deny(
            review.uid,
            f"metadata.annotations[{names.POOLS}]: {namespace.pools!r} is not allowed: namespace {name!r} is not "
            f"managed by podbridge, so its pods would not go to pools; allowed: in managed namespaces ({managed}), and "
            f"where a policy in namespacePolicies has mayNameScheduler",
        )

    def _verdict(self, review: Review, managed: bool) -> Verdict | None:
        if review.subresource == "resize":
            return validate.resize(review.old, review.object, self._rules)
        if review.subresource:
            return None
        if review.operation == "CREATE":
            scope = self._scope(review, managed, pool_selection.asks(review.object))
            return validate.create(review.object, review.user_name, self._rules, self._nodes(), scope)
        if review.operation == "UPDATE":
            scope = self._scope(review, managed, pool_selection.of(review.old) != pool_selection.of(review.object))
            return validate.update(review.old, review.object, review.user_name, self._rules, scope)
        return None

    def _scope(self, review: Review, managed: bool, pools_matter: bool = False) -> Scope:
        """Gather what holds for the namespace; it is read only where its labels or its annotation matter."""
        matters = self._by_label or pools_matter
        namespace = self._namespaces_say.get(review.namespace) if matters else Namespace()
        policy = namespace_policies.find(self._policies, review.namespace, namespace.labels)
        return Scope(namespace.pools, policy, managed, review.namespace, namespace.annotations)

    def _managed(self, review: Review, selected: bool) -> bool:
        return selected and (self._namespaces is None or review.namespace in self._namespaces)

    def _ours(self, pod: pods.Pod, managed: bool) -> bool:
        return bool(pod) and (managed or pods.scheduler_name(pod) == self._scheduler)


def _needs(review: Review, key: str) -> str:
    resource = f"{names.PERMISSION_RESOURCE}.{names.PERMISSION_GROUP}/{key}"
    return (
        f"user {review.user_name!r} needs the permission {names.PERMISSION_VERB!r} on {resource} in namespace "
        f"{review.namespace!r}"
    )


def _not_in_policy(review: Review, denial: field_policy.Denial) -> str:
    return (
        f"{denial.problem}; allowed in namespace {review.namespace!r}: {denial.allowed}; for more, an administrator "
        f"changes namespacePolicies in podbridge's configuration, or {_needs(review, denial.key)}"
    )


def _no_permission(review: Review, key: str) -> str:
    needs = _needs(review, key)
    if key == validate.FINALIZER_PERMISSION:
        return f"metadata.finalizers: {names.FINALIZER!r} can't be removed while a job holds the pod's room: {needs}"
    annotation = names.JOB_ANNOTATION_PREFIX + key
    value = pods.annotations_of(review.object).get(annotation)
    return f"annotation {annotation}: {value!r} is not allowed: {needs}"


def _unjudged(review: Review, what: str, error: BridgeError) -> Json:
    """Refuse what can't be judged: what is let through once can't be taken back."""
    log.warning("review refused for now", extra=kv(namespace=review.namespace, why=what, error=error))
    return deny(
        review.uid,
        f"{what}: {error}; try again" if error.retryable else f"{what}: {error}",
        code=503 if error.retryable else 500,
        reason="ServiceUnavailable" if error.retryable else "InternalError",
        retry_after=RETRY_AFTER if error.retryable else 0,
    )
