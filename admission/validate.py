"""What is refused about a pod, and what is warned about. Pure: permissions are named here and asked for elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from admission import field_policy, pods, pool_rules, unsupported
from bridge import names
from bridge.namespace_policies import NOTHING, NamespacePolicy
from bridge.script import check as script_check
from bridge.workload import annotations as job_annotations
from bridge.workload import pool_selection, resources, shortfall
from bridge.workload.resources import Resources

FINALIZER_PERMISSION = "finalizer"
"""Who may take podbridge's finalizer off a pod that holds a job: the last resort of an administrator."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration says about pods.

    ``trusted`` are the users that write podbridge's own label, annotation and finalizer: podbridge itself;
    ``partition`` is the partition of pods that name none; ``slurm`` says whether a Slurm is colocated.
    """

    scheduler: str
    trusted: frozenset[str] = frozenset()
    gres: Mapping[str, str] = field(default_factory=dict)
    exclusive: bool = False
    partition: str = ""
    slurm: bool = True


@dataclass(frozen=True, slots=True)
class Scope:
    """What holds for the pod's namespace: its annotation for pools, its policy, whether it is managed.

    ``name`` and ``annotations`` are the namespace's; ``annotations`` is empty if the pod asks for no pool.
    """

    pools: str | None = None
    policy: NamespacePolicy = NOTHING
    managed: bool = True
    name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


NO_SCOPE = Scope()


@dataclass(slots=True)
class Verdict:
    """The outcome: nothing in ``invalid`` and ``forbidden``, and every permission held, means yes.

    ``denials`` are values that the namespace's policy does not allow: each needs the permission of its key.
    """

    invalid: list[str] = field(default_factory=list)
    forbidden: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    permissions: list[str] = field(default_factory=list)
    denials: list[field_policy.Denial] = field(default_factory=list)


def create(
    pod: pods.Pod,
    user_name: str,
    rules: Rules,
    nodes: Sequence[Resources] = (),
    scope: Scope = NO_SCOPE,
) -> Verdict:
    """Judge a new pod; ``nodes`` holds what each managed node offers."""
    verdict = Verdict()
    if pods.is_mirror(pod, user_name):
        return verdict
    if pods.MIRROR_ANNOTATION in pods.annotations_of(pod):
        verdict.forbidden.append(
            f"metadata.annotations[{pods.MIRROR_ANNOTATION}]: is not allowed: only the kubelet of spec.nodeName sets "
            f"it, for a static pod; allowed: leave it out"
        )
    if user_name not in rules.trusted:
        verdict.forbidden += _reserved({"metadata": {}}, pod)
        if names.FINALIZER in _finalizers(pod):
            verdict.forbidden.append(f"metadata.finalizers: {names.FINALIZER!r} is not allowed: only podbridge sets it")
    if pods.scheduler_name(pod) != rules.scheduler:
        return verdict
    spec, annotations = pod["spec"], pods.annotations_of(pod)
    wrong = job_annotations.check(annotations)
    verdict.invalid += wrong
    verdict.permissions += job_annotations.needed_permissions(annotations)
    verdict.invalid += unsupported.requirements(spec)
    verdict.warnings += unsupported.preferences(spec)
    verdict.invalid += pool_rules.invalid(pod, scope.pools)
    verdict.forbidden += pool_rules.forbidden(pod, scope.pools)
    if not scope.managed and not scope.policy.may_name_scheduler:
        verdict.denials.append(field_policy.scheduler_denied(rules.scheduler))
    where = pool_selection.of(pod)
    if not rules.slurm and not where.remote:
        verdict.warnings.append(pool_selection.NO_POOL)
    if where.local:
        verdict.denials += field_policy.denied(annotations, scope.policy, rules.partition)
    if where.remote:
        problems = script_check.problems(pod)
        if where.local:
            verdict.warnings += [f"on a pool this pod would fail: {problem}" for problem in problems]
        else:
            verdict.invalid += problems
            verdict.warnings += pool_rules.secrets_refused(pod, where.named, scope.name, scope.annotations)
            return verdict
    asked = resources.pod_requests(spec)
    if not wrong:
        settings = job_annotations.read(annotations)
        verdict.invalid += shortfall.problems(settings, asked, rules.gres)
        if not settings.get(names.EXCLUSIVE, rules.exclusive):
            verdict.invalid += unsupported.unknown_resources(asked, rules.gres)
    verdict.warnings += unsupported.too_big(asked, nodes)
    return verdict


def update(old: pods.Pod, new: pods.Pod, user_name: str, rules: Rules, scope: Scope = NO_SCOPE) -> Verdict:
    """Judge a change: only what changes is looked at, so that an old fault never blocks another change."""
    verdict = Verdict()
    if user_name not in rules.trusted:
        verdict.forbidden += _reserved(old, new)
        held, wanted = names.FINALIZER in _finalizers(old), names.FINALIZER in _finalizers(new)
        if wanted and not held:
            verdict.forbidden.append(f"metadata.finalizers: {names.FINALIZER!r} is not allowed: only podbridge sets it")
        if held and not wanted and pods.job_id(old):
            verdict.permissions.append(FINALIZER_PERMISSION)
    if pods.scheduler_name(new) != rules.scheduler:
        return verdict
    if pool_selection.of(old) != pool_selection.of(new):  # tolerations may be added to a pod that waits
        verdict.forbidden += pool_rules.forbidden(new, scope.pools)
    before, after = _asked(old), _asked(new)
    changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
    if not changed:
        return verdict
    if names.POOLS in changed:
        verdict.invalid.append(
            f"annotation {names.POOLS}: can't be changed from {before.get(names.POOLS)!r} to "
            f"{after.get(names.POOLS)!r}: the pod's tolerations stay as they are; allowed: a new pod"
        )
        return verdict
    if job := pods.job_id(old):
        verdict.invalid += [
            f"annotation {key}: can't be changed from {before.get(key)!r} to {after.get(key)!r}: Slurm job {job} was "
            f"asked for without it, and jobs are not changed; allowed: a new pod"
            for key in changed
        ]
        return verdict
    wrong = job_annotations.check(after)
    verdict.invalid += wrong
    if not wrong:
        verdict.invalid += _too_little(new, rules)
    verdict.permissions += job_annotations.needed_permissions({key: after[key] for key in changed if key in after})
    if pool_selection.of(new).local:
        denials = field_policy.denied(after, scope.policy, rules.partition)
        verdict.denials += [denial for denial in denials if names.JOB_ANNOTATION_PREFIX + denial.key in changed]
    return verdict


def resize(old: pods.Pod, new: pods.Pod, rules: Rules) -> Verdict:
    """Judge an in-place change of size."""
    verdict = Verdict()
    job = pods.job_id(old)
    if job and pods.scheduler_name(old) == rules.scheduler:
        verdict.invalid.append(
            f"spec.containers[*].resources: can't be changed in place: Slurm job {job} holds the pod's size; allowed: "
            f"a new pod"
        )
    elif pods.scheduler_name(old) == rules.scheduler and not job_annotations.check(pods.annotations_of(new)):
        verdict.invalid += _too_little(new, rules)
    return verdict


def _too_little(pod: pods.Pod, rules: Rules) -> list[str]:
    if not pool_selection.of(pod).local:
        return []
    settings = job_annotations.read(pods.annotations_of(pod))
    return shortfall.problems(settings, resources.pod_requests(pod["spec"]), rules.gres)


def _reserved(old: pods.Pod, new: pods.Pod) -> list[str]:
    problems = []
    for where, key, before, after in (
        ("metadata.labels", names.JOB_ID_LABEL, pods.labels_of(old), pods.labels_of(new)),
        ("metadata.annotations", names.NODE_ANNOTATION, pods.annotations_of(old), pods.annotations_of(new)),
        ("metadata.annotations", names.SLURM_NODE_ANNOTATION, pods.annotations_of(old), pods.annotations_of(new)),
        ("metadata.annotations", names.REMOTE_JOB, pods.annotations_of(old), pods.annotations_of(new)),
    ):
        if before.get(key) == after.get(key):
            continue
        if key not in before:
            problems.append(f"{where}[{key}]: {after[key]!r} is not allowed: only podbridge sets it; allowed: none")
        else:
            now = f"be changed to {after[key]!r}" if key in after else "be removed"
            problems.append(
                f"{where}[{key}]: {before[key]!r} can't {now}: only podbridge does; allowed: {before[key]!r}"
            )
    return problems


def _finalizers(pod: pods.Pod) -> Sequence[str]:
    found: Sequence[str] = pod["metadata"].get("finalizers") or ()
    return found


def _asked(pod: pods.Pod) -> dict[str, str]:
    """Give what the user asks for in annotations."""
    prefix = names.JOB_ANNOTATION_PREFIX
    return {k: v for k, v in pods.annotations_of(pod).items() if k.startswith(prefix) or k == names.POOLS}
