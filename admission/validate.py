"""Validation of pods. Pure: the result names the required permissions, and the caller checks them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from admission import field_policy, object_size, pool_rules, raw_pods, refused_fields, size_policy
from admission.field_policy import Denial
from bridge import names
from bridge.config.hub import Config
from bridge.config.policies import NOTHING, NamespacePolicy
from bridge.script import check as script_check
from bridge.workload import annotations as job_annotations
from bridge.workload import groups, pool_selection, resources, services
from bridge.workload.annotations import JobSettings
from bridge.workload.devices import extended_claims
from bridge.workload.groups import InvalidGroupError
from bridge.workload.kinds.kind_table import check_gang
from bridge.workload.resources import Resources

FINALIZER_PERMISSION = "finalizer"
"""The permission to remove podbridge's finalizer from a pod that has a job."""
_REMOTE = (names.REMOTE_JOB, names.JOB_INTENT, names.PLACES)
"""Annotations of a pod that has, or may have, a job at a pool."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The pod's namespace: its annotation for pools, its policy, and whether it is managed.

    ``name`` and ``annotations`` belong to the namespace; ``annotations`` is empty if the pod requests no pool.
    """

    pools: str | None = None
    policy: NamespacePolicy = NOTHING
    managed: bool = True
    name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


NO_SCOPE = Scope()


@dataclass(slots=True)
class Verdict:
    """The result of validation.

    The pod is allowed if ``invalid`` and ``forbidden`` are empty and the user has all ``permissions`` and the
    permission of each of the ``denials``: values that the namespace's policy does not allow.
    """

    invalid: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    permissions: list[str] = field(default_factory=list)
    denials: list[Denial] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Request:
    """What a pod requests; without ``settings`` if its annotations have ``problems``."""

    pod: raw_pods.Pod
    annotations: Mapping[str, str]
    problems: list[str]
    settings: JobSettings
    resources: Resources

    @classmethod
    def of(cls, pod: raw_pods.Pod) -> _Request:
        annotations = raw_pods.annotations_of(pod)
        problems = job_annotations.check(annotations)
        settings = {} if problems else job_annotations.read(annotations)
        return cls(pod, annotations, problems, settings, resources.pod_requests(pod["spec"]))

    def shortfall(self, config: Config) -> list[str]:
        """List the requests that Slurm cannot satisfy."""
        return [] if self.problems else job_annotations.below_requests(self.settings, self.resources, config.gres)


def create(
    pod: raw_pods.Pod,
    user_name: str,
    config: Config,
    nodes: Sequence[Resources] = (),
    scope: Scope = NO_SCOPE,
    trusted: Collection[str] = (),
) -> Verdict:
    """Validate a new pod.

    ``nodes`` holds the allocatable resources of the managed nodes, ``trusted`` the users that may write podbridge's own
    label, annotations and finalizer.
    """
    verdict = Verdict()
    if raw_pods.is_mirror(pod, user_name):
        return verdict
    verdict.forbidden += refused_fields.reserved_on_create(pod, config.scheduler_name, trusted=user_name in trusted)
    if raw_pods.scheduler_name(pod) != config.scheduler_name:
        reason = raw_pods.annotations_of(pod).get(names.DEFAULT_SCHEDULER_REASON)
        if reason and scope.managed and raw_pods.scheduler_name(pod) == names.KUBE_DEFAULT_SCHEDULER:
            verdict.warnings.append(f"the pod stays with the default scheduler: {reason}")
        return verdict
    spec, request, allowed = pod["spec"], _Request.of(pod), pool_selection.of(pod)
    verdict.invalid += object_size.excess(pod)
    verdict.invalid += request.problems
    verdict.permissions += job_annotations.needed_permissions(request.annotations)
    selects = "Slurm selects the node" if allowed.local else "podbridge selects the pool"
    verdict.invalid += refused_fields.requirements(spec, selects) + refused_fields.excess(spec)
    verdict.warnings += refused_fields.preferences(spec, selects)
    verdict.invalid += pool_rules.invalid(pod, scope.pools)
    _check_exposure(verdict, pod, config, scope)
    _check_reach(verdict, pod, config, scope)
    verdict.forbidden += pool_rules.forbidden(pod, scope.pools)
    if not scope.managed and not scope.policy.may_name_scheduler:
        verdict.denials.append(field_policy.scheduler_denied(config.scheduler_name))
    verdict.invalid += refused_fields.devices(spec, config.device_classes, remote=allowed.remote)
    if not config.slurm_rest_api and not allowed.remote:
        verdict.warnings.append(pool_selection.NO_POOL)
    if allowed.local:
        _check_local(verdict, request, config, scope)
    if allowed.remote:
        problems = script_check.problems(pod)
        if not allowed.local:
            verdict.invalid += problems
            verdict.warnings += pool_rules.secrets_refused(pod, allowed.named, scope.name, scope.annotations)
            return verdict
        verdict.warnings += [f"the pod would fail on a pool: {problem}" for problem in problems]
    verdict.invalid += request.shortfall(config)
    if not request.problems and not request.settings.get(names.EXCLUSIVE, config.exclusive):
        verdict.invalid += refused_fields.unknown_resources(request.resources, config.gres)
    verdict.warnings += refused_fields.too_big(request.resources, nodes)
    return verdict


def _check_exposure(verdict: Verdict, pod: raw_pods.Pod, config: Config, scope: Scope) -> None:
    """Check the exposed ports of a pod."""
    if not services.is_exposed(pod):
        return
    try:
        services.exposed_ports(pod)
    except ValueError as error:
        verdict.invalid.append(str(error))
    verdict.denials += field_policy.expose_denied(raw_pods.annotations_of(pod), scope.policy)
    if not config.pools.expose.ports and not pool_selection.of(pod).local:
        verdict.warnings.append(f"annotation {names.EXPOSE} has no effect: pools.expose.ports is not configured")


def _check_reach(verdict: Verdict, pod: raw_pods.Pod, config: Config, scope: Scope) -> None:
    """Check the Services that a pod reaches."""
    if not services.is_reaching(pod):
        return
    try:
        targets = services.reached(pod)
    except ValueError as error:
        verdict.invalid.append(str(error))
        return
    verdict.forbidden += field_policy.reach_forbidden(targets, pod["metadata"].get("namespace") or "", scope.policy)
    if not config.pools.reach and not pool_selection.of(pod).local:
        verdict.warnings.append(f"annotation {names.REACH} has no effect: pools.reach is not configured")


def _check_local(verdict: Verdict, request: _Request, config: Config, scope: Scope) -> None:
    """Check a new pod that may run on the colocated Slurm."""
    spec, annotations = request.pod["spec"], request.annotations
    verdict.warnings += refused_fields.long_grace(spec, config.max_grace_period)
    may_get_all_memory = config.slurm_rest_api and config.defaults.memory_per_cpu is None and not config.exclusive
    if may_get_all_memory and not request.settings.get(names.MEM_PER_NODE):
        verdict.warnings += refused_fields.no_memory(request.resources)
    verdict.invalid += _group_problems(annotations)
    verdict.invalid += field_policy.impossible(annotations, config.partitions)
    verdict.denials += field_policy.denied(annotations, scope.policy, config.partition)
    _select_partition(verdict, spec, config, scope)
    verdict.denials += _too_large(request, config, scope)


def _too_large(request: _Request, config: Config, scope: Scope) -> list[Denial]:
    """List what exceeds the maxima of the namespace's policy."""
    pod, limits = request.pod, scope.policy.max
    by_class = extended_claims.by_class(pod["spec"], config.device_classes)
    return size_policy.denied(pod, request.settings, request.resources, limits, config.gres, by_class, config.exclusive)


def _grown(old: raw_pods.Pod, new: raw_pods.Pod, config: Config, scope: Scope) -> list[Denial]:
    """List what exceeds the maxima in a changed pod, and did not before."""
    before, after = (_too_large(_Request.of(pod), config, scope) for pod in (old, new))
    return [denial for denial in after if denial not in before]


def _select_partition(verdict: Verdict, spec: Mapping[str, Any], config: Config, scope: Scope) -> None:
    """Check the partitions that the node selector names."""
    verdict.invalid += field_policy.selector_impossible(spec, config.partitions)
    if not any(denial.key == field_policy.PARTITION for denial in verdict.denials):
        verdict.denials += field_policy.selector_denied(spec, scope.policy, config.partition)


def _group_problems(annotations: Mapping[str, str]) -> list[str]:
    """List the invalid annotations about the pod's group."""
    problems = []
    checks: list[Callable[[], object]] = [lambda: groups.together(annotations)]
    if names.GANG in annotations:
        checks.append(lambda: check_gang(annotations[names.GANG], "the pod"))
    if names.GROUP in annotations:
        checks.append(lambda: groups.decode(annotations[names.GROUP], ""))
    for check in checks:
        try:
            check()
        except InvalidGroupError as error:
            problems.append(str(error))
    return problems


def update(
    old: raw_pods.Pod,
    new: raw_pods.Pod,
    user_name: str,
    config: Config,
    scope: Scope = NO_SCOPE,
    trusted: Collection[str] = (),
) -> Verdict:
    """Validate an update. Only changed fields are checked, so that an earlier error does not block other changes."""
    verdict = Verdict()
    if user_name not in trusted:
        verdict.forbidden += refused_fields.reserved_on_update(old, new)
        if refused_fields.needs_permission(old, new):
            verdict.permissions.append(FINALIZER_PERMISSION)
    if raw_pods.scheduler_name(new) != config.scheduler_name:
        return verdict
    verdict.invalid += _grown_too_large(old, new)
    if pool_selection.of(old) != pool_selection.of(new):  # Kubernetes allows new tolerations on a pod without a node
        verdict.forbidden += pool_rules.forbidden(new, scope.pools)
    # Kubernetes allows another node affinity, and a larger node selector, of a pod with scheduling gates
    if old["spec"].get("affinity") != new["spec"].get("affinity"):
        verdict.invalid += refused_fields.excess(new["spec"])
    if pool_selection.of(new).local and old["spec"].get("nodeSelector") != new["spec"].get("nodeSelector"):
        _select_partition(verdict, new["spec"], config, scope)
    if raw_pods.annotations_of(old).get(names.EXPOSE) != raw_pods.annotations_of(new).get(names.EXPOSE):
        _check_exposure(verdict, new, config, scope)
        if verdict.denials and names.EXPOSE_PERMITTED not in raw_pods.annotations_of(new):
            problem = "the permission counts when a pod is created; allowed: a new pod"
            verdict.invalid.append(f"annotation {names.EXPOSE}: {problem}")
    if raw_pods.annotations_of(old).get(names.REACH) != raw_pods.annotations_of(new).get(names.REACH):
        _check_reach(verdict, new, config, scope)
    before, after = _requested(old), _requested(new)
    changed = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    if fixed := _fixed(changed, raw_pods.job_id(old)):
        verdict.invalid += [
            f"annotation {key}: cannot be changed from {before.get(key)!r} to {after.get(key)!r}: {reason}; "
            f"allowed: a new pod"
            for key, reason in fixed.items()
        ]
    elif changed:
        _check_changes(verdict, old, new, changed, config, scope)
    return verdict


def _grown_too_large(old: raw_pods.Pod, new: raw_pods.Pod) -> list[str]:
    """Return the problem of a pod that is too large, and was not before."""
    problems = object_size.excess(new)
    return problems if problems and not object_size.excess(old) else []


def _fixed(changed: Collection[str], job: str) -> dict[str, str]:
    """Return the changed annotations that must stay as they are, with the reason."""
    if of_group := [key for key in (names.GANG, names.MEMBERS_PER_NODE) if key in changed]:
        return dict.fromkeys(of_group, "the pod's group is determined when the pod is created")
    if names.POOLS in changed:
        return {names.POOLS: "the pod's tolerations would not change"}
    return dict.fromkeys(changed if job else (), f"podbridge does not change Slurm job {job}")


def _check_changes(
    verdict: Verdict, old: raw_pods.Pod, new: raw_pods.Pod, changed: Collection[str], config: Config, scope: Scope
) -> None:
    """Check a pod whose ``changed`` annotations for Slurm may change."""
    request = _Request.of(new)
    annotations = request.annotations
    verdict.invalid += request.problems
    verdict.permissions += job_annotations.needed_permissions(annotations.keys() & changed)
    if pool_selection.of(new).local:
        verdict.invalid += request.shortfall(config) + field_policy.impossible(annotations, config.partitions)
        denials = field_policy.denied(annotations, scope.policy, config.partition)
        verdict.denials += [denial for denial in denials if names.JOB_ANNOTATION_PREFIX + denial.key in changed]
        verdict.denials += _grown(old, new, config, scope)


def resize(old: raw_pods.Pod, new: raw_pods.Pod, config: Config, scope: Scope = NO_SCOPE) -> Verdict:
    """Validate an in-place resize."""
    verdict = Verdict()
    if raw_pods.scheduler_name(old) != config.scheduler_name:
        return verdict
    job = raw_pods.job_id(old)
    if remote := _remote_key(old):
        verdict.invalid.append(
            f"spec.containers[*].resources: cannot be changed in place: a job at a pool has the pod's original size "
            f"(annotation {remote}: {raw_pods.annotations_of(old)[remote]!r}); allowed: a new pod"
        )
    elif job:
        verdict.invalid.append(
            f"spec.containers[*].resources: cannot be changed in place: Slurm job {job} has the pod's original "
            f"size; allowed: a new pod"
        )
    elif pool_selection.of(new).local and not (request := _Request.of(new)).problems:
        verdict.invalid += request.shortfall(config)
        verdict.denials += _grown(old, new, config, scope)
    return verdict


def ephemeral_containers(old: raw_pods.Pod, config: Config) -> Verdict:
    """Validate the addition of ephemeral containers (``kubectl debug``): a job at a pool cannot get any."""
    verdict = Verdict()
    if raw_pods.scheduler_name(old) == config.scheduler_name and (_remote_key(old) or not pool_selection.of(old).local):
        verdict.invalid.append(
            "spec.ephemeralContainers: cannot be added to a pod on a pool, whose containers run at the site; allowed: "
            "kubectl exec in one of its containers"
        )
    return verdict


def _remote_key(pod: raw_pods.Pod) -> str | None:
    """Return the annotation of a job that the pod has, or may have, at a pool."""
    return next((key for key in _REMOTE if raw_pods.annotations_of(pod).get(key)), None)


def _requested(pod: raw_pods.Pod) -> dict[str, str]:
    """Return the annotations for Slurm, for groups and for pools."""
    annotations = raw_pods.annotations_of(pod)
    return {k: v for k, v in annotations.items() if job_annotations.is_inherited(k) or k == names.POOLS}
