"""The patch for a pod. Pure and idempotent: a patched pod needs no further patch.

``docs/reference/admission.md`` lists the changes. A new pod gets all of them. A pod without a node gets only
tolerations, if an update lets it run on pools (Kueue adds a flavor's tolerations to a gated pod): Kubernetes allows new
tolerations at any time, and changes of ``tolerationSeconds`` of existing ones.

Pods of daemon sets are not changed: they run on each node as long as the node exists, and each would need a job of its
own without a time limit. Mirror pods are not changed: they run already, and the kubelet would create a changed one
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from admission import raw_pods
from bridge import names
from bridge.workload import pods as pod_fields
from bridge.workload import pool_selection, tolerations

Operation = dict[str, Any]

DEFAULT_EVICTION_SECONDS = 300
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NOT_READY_TOLERATIONS = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _LOST]
_DEFAULT_EVICTIONS = [{**entry, "tolerationSeconds": DEFAULT_EVICTION_SECONDS} for entry in _NOT_READY_TOLERATIONS]
"""Tolerations that the API server adds to every pod: five minutes on a lost node."""
_ANY_VALUE = "\0"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
OWN_ANNOTATIONS = (
    names.NODE_ANNOTATION,
    names.SLURM_NODE_ANNOTATION,
    names.JOB_ID_ANNOTATION,
    names.JOB_START_ANNOTATION,
    names.REMOTE_JOB,
    names.JOB_INTENT,
    names.PLACES,
    names.GRANT,
    names.PLACE_IN_JOB,
    names.SHAPES_IN_JOB,
)
"""The annotations of a pod that only podbridge sets, after its creation."""
CREATION_ANNOTATIONS = (names.GROUP, names.JOB_LIMITS, names.EXPOSE_PERMITTED)
"""The annotations that only admission sets, when the pod is created."""


def mutate(
    pod: raw_pods.Pod,
    *,
    scheduler: str,
    managed: bool,
    user_name: str = "",
    inherited: Mapping[str, str] | None = None,
    pools: str | None = None,
    defaults: Mapping[str, str] | None = None,
    pools_only: bool = False,
    default_nodes: Mapping[str, str] | None = None,
    group: str | None = None,
    job_limits: str | None = None,
    expose_permitted: str | None = None,
    traceparent: str = "",
) -> list[Operation]:
    """Return the JSON patch for a new pod that ``user_name`` creates; ``managed``: its namespace is managed.

    ``inherited`` are job annotations of the pod's owners, ``pools`` is the namespace's annotation for pools,
    ``defaults`` are annotations that the namespace's policy sets. With ``pools_only``, a pod that requests no pool
    stays with the default scheduler; so does a pod that selects one of ``default_nodes``, the labels of its nodes.
    ``group`` (the pod's group), ``job_limits`` (the limits of the policy that the scheduler checks) and
    ``expose_permitted`` replace the pod's own values; ``None`` removes them. ``traceparent`` is the pod's new trace
    context; empty: it keeps its own, or has none.
    """
    if raw_pods.is_mirror(pod, user_name) or not (managed or raw_pods.scheduler_name(pod) == scheduler):
        return []
    pod_scheduler = raw_pods.scheduler_name(pod)
    annotations = {**(inherited or {}), **({} if pools is None else {names.POOLS: pools})}
    patch: list[Operation] = []
    if not raw_pods.is_daemon(pod, user_name):
        if reason := _default_scheduler_reason(pod, annotations, pools_only, default_nodes or {}):
            pod_annotations = raw_pods.annotations_of(pod)
            return _set_annotations(pod_annotations, {names.DEFAULT_SCHEDULER_REASON: reason})
        if pod_scheduler == names.KUBE_DEFAULT_SCHEDULER:
            patch.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
            pod_scheduler = scheduler
        patch += _require_node(pod)
    if pod_scheduler == scheduler:
        may_be_local = _may_be_local(pod, annotations)
        if may_be_local:
            annotations = {**(defaults or {}), **annotations}
        patch += _hold(pod, hold=may_be_local and not _may_be_remote(pod, annotations))
        patch += _remove_own_marks(pod)
        patch += _tolerate(pod, scheduler, annotations)
        exact = {
            names.GROUP: group,
            names.JOB_LIMITS: job_limits if may_be_local else None,
            names.EXPOSE_PERMITTED: expose_permitted,
        }
        patch += _annotate(pod, annotations, exact, traceparent)
    return patch


def _default_scheduler_reason(
    pod: raw_pods.Pod, inherited: Mapping[str, str], pools_only: bool, default_nodes: Mapping[str, str]
) -> str:
    """Return why a pod stays with the default scheduler; empty if it does not, or names another scheduler."""
    if raw_pods.scheduler_name(pod) != names.KUBE_DEFAULT_SCHEDULER:
        return ""
    if label := selects_default_nodes(pod, default_nodes):
        return f"its node selector has {label}, a label of defaultSchedulerNodes"
    if pools_only and not _may_be_remote(pod, inherited):
        return "it requests no pool, and no Slurm is configured beside the kubelets (slurmRestApi is empty)"
    return ""


def selects_default_nodes(pod: raw_pods.Pod, default_nodes: Mapping[str, str]) -> str:
    """Return the label of nodes of the default scheduler in the pod's node selector, as ``key=value``; else empty."""
    selector = pod["spec"].get("nodeSelector") or {}
    return next((f"{key}={value}" for key, value in default_nodes.items() if selector.get(key) == value), "")


def needs_group(
    pod: raw_pods.Pod,
    user_name: str,
    scheduler: str,
    inherited: Mapping[str, str],
    pools: str | None,
    default_nodes: Mapping[str, str],
    *,
    pools_only: bool,
) -> bool:
    """Whether :func:`mutate` needs the group of the pod: podbridge schedules it, and it is not of a daemon set."""
    name = raw_pods.scheduler_name(pod)
    is_ours = name == scheduler or (name == names.KUBE_DEFAULT_SCHEDULER and not raw_pods.is_daemon(pod, user_name))
    if not is_ours or selects_default_nodes(pod, default_nodes) or raw_pods.is_mirror(pod, user_name):
        return False
    return not pools_only or _may_be_remote(pod, {**inherited, **({} if pools is None else {names.POOLS: pools})})


def update(old: raw_pods.Pod, new: raw_pods.Pod, *, scheduler: str) -> list[Operation]:
    """Return the JSON patch for an updated pod: tolerations for the pools that the update allows."""
    if (
        raw_pods.scheduler_name(new) != scheduler
        or new["spec"].get("nodeName")
        or pool_selection.of(old) == pool_selection.of(new)
    ):
        return []
    return _tolerate(new, scheduler, {})


def _may_be_local(pod: raw_pods.Pod, inherited: Mapping[str, str]) -> bool:
    """Whether the pod may run on Slurm once it has the tolerations of its annotation."""
    text = raw_pods.annotations_of(pod).get(names.POOLS, inherited.get(names.POOLS))
    if text is None:
        return pool_selection.of(pod).local
    with suppress(ValueError):
        return names.LOCAL_POOL in pool_selection.parse(text)
    return False  # validation refuses the pod


def _may_be_remote(pod: raw_pods.Pod, inherited: Mapping[str, str]) -> bool:
    """Whether the pod may run on a pool. True for an invalid annotation, so that validation refuses the pod."""
    text = raw_pods.annotations_of(pod).get(names.POOLS, inherited.get(names.POOLS))
    return pool_selection.of(pod).remote if text is None else text.strip() != names.LOCAL_POOL


def _hold(pod: raw_pods.Pod, *, hold: bool) -> list[Operation]:
    """Set the finalizer on a pod that cannot run on a pool: there, the pool alone decides when the pod may go."""
    before = pod["metadata"].get("finalizers") or []
    after = [name for name in before if name not in (names.FINALIZER, names.POOL_FINALIZER)]
    after += [names.FINALIZER] if hold else []
    if set(after) == set(before):
        return []
    return [{"op": "add", "path": "/metadata/finalizers", "value": after}]


def _require_node(pod: raw_pods.Pod) -> list[Operation]:
    """Replace ``spec.nodeName`` by a required node affinity for this node."""
    spec, annotations = pod["spec"], raw_pods.annotations_of(pod)
    node = spec.get("nodeName")
    if not node:
        return []
    # no scheduler handles a pod that is created with a node: its kubelet would start it without a job
    patch: list[Operation] = [{"op": "remove", "path": "/spec/nodeName"}]
    pool = annotations.get(names.REMOTE_JOB, "").partition("/")[0] or pod_fields.intent(pod)[0]
    # the exported YAML of an earlier pod: podbridge selected this node, not the user
    if node in (annotations.get(names.NODE_ANNOTATION), pool):
        return patch
    affinity = spec.get("affinity") or {}
    of_nodes = affinity.get("nodeAffinity") or {}
    required = of_nodes.get(_REQUIRED) or {}
    this_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [  # one of the terms must match, and each expression of it
        {**term, "matchFields": [*(term.get("matchFields") or ()), this_node]}
        for term in required.get("nodeSelectorTerms") or [{}]
    ]
    of_nodes = {**of_nodes, _REQUIRED: {**required, "nodeSelectorTerms": terms}}
    return [*patch, {"op": "add", "path": "/spec/affinity", "value": {**affinity, "nodeAffinity": of_nodes}}]


def _remove_own_marks(pod: raw_pods.Pod) -> list[Operation]:
    """Remove what only podbridge sets: ``kubectl replace --force`` creates a pod from the exported one."""
    paths = [_annotation_path(key) for key in OWN_ANNOTATIONS if key in raw_pods.annotations_of(pod)]
    if names.JOB_ID_LABEL in raw_pods.labels_of(pod):
        paths.append(_path("labels", names.JOB_ID_LABEL))
    return [{"op": "remove", "path": path} for path in paths]


def _tolerate(pod: raw_pods.Pod, scheduler: str, inherited: Mapping[str, str]) -> list[Operation]:
    before = list(pod["spec"].get("tolerations") or ())
    after = [*before]
    text = raw_pods.annotations_of(pod).get(names.POOLS, inherited.get(names.POOLS))
    pool_names: tuple[str, ...] = ()
    if text is not None:
        with suppress(ValueError):  # validation refuses the pod
            pool_names = pool_selection.parse(text)
    desired = pool_selection.tolerations(pool_names)
    if not desired and pool_selection.of(pod).remote:
        desired = [pool_selection.VIRTUAL_TOLERATION]  # Kueue adds only the toleration of the pool
    if desired:
        after = [entry for entry in after if entry not in _DEFAULT_EVICTIONS]
        # otherwise Kubernetes evicts the pod after five minutes in which its site is silent
        desired = [*desired, *_NOT_READY_TOLERATIONS]
    managed = pod_fields.managed_toleration(scheduler)
    if (not desired or names.LOCAL_POOL in pool_names) and not tolerations.tolerates_forever(after, managed):
        after.insert(0, managed)
    # a toleration with tolerationSeconds is not enough: the pod would be evicted after that time
    lasting = [entry for entry in after if entry.get("tolerationSeconds") is None]
    after += [entry for entry in desired if not tolerations.tolerates(lasting, _taint(entry))]
    return [] if after == before else [{"op": "add", "path": "/spec/tolerations", "value": after}]


def _taint(toleration: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a taint that the toleration tolerates; for the operator Exists, with a value that no other matches."""
    value = toleration.get("value", "") if toleration["operator"] == "Equal" else _ANY_VALUE
    return {"key": toleration["key"], "value": value, "effect": toleration["effect"]}


def annotates(patch: Iterable[Operation], name: str) -> bool:
    """Whether a patch sets this annotation."""
    whole = "/metadata/annotations"
    return any(
        operation["op"] == "add"
        and (operation["path"] == _annotation_path(name) or (operation["path"] == whole and name in operation["value"]))
        for operation in patch
    )


def _annotate(
    pod: raw_pods.Pod, inherited: Mapping[str, str], exact: Mapping[str, str | None], traceparent: str
) -> list[Operation]:
    """Add annotations that the pod lacks, and set or remove (``None``) those of ``exact``."""
    pod_annotations = raw_pods.annotations_of(pod)
    desired = {key: value for key, value in sorted(inherited.items()) if key not in pod_annotations}
    desired |= {key: value for key, value in exact.items() if value is not None}
    if traceparent:
        desired[names.TRACEPARENT] = traceparent
    removed = [key for key, value in exact.items() if value is None and key in pod_annotations]
    return [
        *_set_annotations(pod_annotations, desired),
        *({"op": "remove", "path": _annotation_path(key)} for key in removed),
    ]


def _set_annotations(pod_annotations: Mapping[str, str], desired: Mapping[str, str]) -> list[Operation]:
    """Return the patch that sets annotations of a pod that has ``pod_annotations``."""
    changed = {key: value for key, value in desired.items() if pod_annotations.get(key) != value}
    if changed and not pod_annotations:
        return [{"op": "add", "path": "/metadata/annotations", "value": changed}]
    return [{"op": "add", "path": _annotation_path(key), "value": value} for key, value in changed.items()]


def _annotation_path(key: str) -> str:
    return _path("annotations", key)


def _path(section: str, key: str) -> str:
    return f"/metadata/{section}/" + key.replace("~", "~0").replace("/", "~1")
