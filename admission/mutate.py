"""What is changed about a pod. Pure and idempotent: applied to its own result it changes nothing.

Of a new pod all of this is changed; of a pod that has no node yet, the tolerations alone, when an update lets it go to
pools (Kueue adds a flavor's tolerations to a gated pod). Kubernetes lets tolerations be added at any time, and of an
existing one it lets ``tolerationSeconds`` be changed.

- *Scheduler*: in a managed namespace the default scheduler gives way to ours; another one is respected.
- *Toleration*: our pods, and no others, tolerate the taint of the nodes that Slurm rules.
- *Node*: nobody but a daemon set or a kubelet chooses one: it would go round Slurm (and round every other scheduler).
- *Pools*: a pod whose annotation, or whose namespace, asks for pools tolerates their virtual nodes; and, as the pods of
  a daemon set do, for ever that its node is not ready: a site that is silent for an hour loses no pod.
- *Annotations*: what the pod's owners say about the job is copied to the pod, where the pod says nothing itself. So it
  is checked here, with the pod's own, against the permissions of who makes the pod, and can't change after that.
- *Defaults*: where Slurm may get the pod, the defaults of the namespace's policy are copied likewise.

Pods of daemon sets are left alone: they are the node's furniture (logs, network, monitoring), one per node from the
moment it is there, and would each need a job of their own, on one node, for ever. One that names our scheduler itself
is treated as any other. Mirror pods are left alone: they run already, and a changed one would be made again for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from admission import pods
from bridge import names
from bridge.workload import eligibility, pool_selection

Operation = dict[str, Any]

DEFAULT_EVICTION_SECONDS = 300
_LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_PATIENCE = [{"key": key, "operator": "Exists", "effect": "NoExecute"} for key in _LOST]
_DEFAULT_EVICTIONS = [{**entry, "tolerationSeconds": DEFAULT_EVICTION_SECONDS} for entry in _PATIENCE]
_ANY_VALUE = "\0"


def mutate(
    pod: pods.Pod,
    *,
    scheduler: str,
    managed: bool,
    user_name: str = "",
    inherited: Mapping[str, str] | None = None,
    pools: str | None = None,
    defaults: Mapping[str, str] | None = None,
    pools_only: bool = False,
) -> list[Operation]:
    """Return the JSON patch for a new pod.

    ``scheduler`` is our name, ``managed`` says whether the namespace is ours, ``inherited`` holds the job annotations
    of the pod's owners, ``pools`` the namespace's annotation, ``defaults`` the annotations that its policy sets;
    with ``pools_only``, a pod that asks for no pool stays with the default scheduler.
    """
    if pods.is_mirror(pod, user_name) or not (managed or pods.scheduler_name(pod) == scheduler):
        return []
    patch: list[Operation] = []
    spec = pod["spec"]
    daemon = pods.is_daemon(pod, user_name)
    named = pods.scheduler_name(pod)
    more = dict(inherited or {})
    if pools is not None:
        more[names.POOLS] = pools
    if pools_only and named == names.KUBE_DEFAULT_SCHEDULER and not _may_be_remote(pod, more):
        return []
    if named == names.KUBE_DEFAULT_SCHEDULER and not daemon:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
        named = scheduler
    if spec.get("nodeName") and not daemon:
        patch.append({"op": "remove", "path": "/spec/nodeName"})
    if named == scheduler:
        if _may_be_local(pod, more):
            more = {**(defaults or {}), **more}
        patch += _tolerate(pod, scheduler, more)
        patch += _annotate(pod, more)
    return patch


def update(old: pods.Pod, new: pods.Pod, *, scheduler: str) -> list[Operation]:
    """Return the JSON patch for a changed pod: tolerations for the pools that the change lets it go to."""
    if (
        pods.scheduler_name(new) != scheduler
        or new["spec"].get("nodeName")
        or pool_selection.of(old) == pool_selection.of(new)
    ):
        return []
    return _tolerate(new, scheduler, {})


def _may_be_local(pod: pods.Pod, inherited: Mapping[str, str]) -> bool:
    """Whether Slurm may get the pod, once it has the tolerations that its annotation means."""
    text = pods.annotations_of(pod).get(names.POOLS, inherited.get(names.POOLS))
    if text is None:
        return pool_selection.of(pod).local
    with suppress(ValueError):
        return names.LOCAL_POOL in pool_selection.parse(text)
    return False  # refused right after, by the check


def _may_be_remote(pod: pods.Pod, inherited: Mapping[str, str]) -> bool:
    """Whether a pool may get the pod; so it counts also where the annotation can't be read: the check refuses it."""
    text = pods.annotations_of(pod).get(names.POOLS, inherited.get(names.POOLS))
    return pool_selection.of(pod).remote if text is None else text.strip() != names.LOCAL_POOL


def _tolerate(pod: pods.Pod, scheduler: str, inherited: Mapping[str, str]) -> list[Operation]:
    before = list(pod["spec"].get("tolerations") or ())
    after = [*before]
    text = pods.annotations_of(pod).get(names.POOLS, inherited.get(names.POOLS))
    named: tuple[str, ...] = ()
    if text is not None:
        with suppress(ValueError):  # refused right after, by the check
            named = pool_selection.parse(text)
    wanted = pool_selection.tolerations(named)
    if not wanted and pool_selection.of(pod).remote:
        wanted = [pool_selection.VIRTUAL_TOLERATION]  # Kueue names the pool alone
    if wanted:
        after = [entry for entry in after if not _is_default_eviction(entry)]
        wanted = [*wanted, *_PATIENCE]
    if not wanted or names.LOCAL_POOL in named:
        wanted.append(
            {"operator": "Equal", "key": names.MANAGED_TAINT, "value": scheduler, "effect": "NoExecute"},
        )
    # one that holds for some seconds only does not do: the pod would be evicted after them
    lasting = [entry for entry in after if entry.get("tolerationSeconds") is None]
    after += [entry for entry in wanted if not eligibility.tolerates(lasting, _taint(entry))]
    return [] if after == before else [{"op": "add", "path": "/spec/tolerations", "value": after}]


def _taint(toleration: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the taint that a toleration is for; one for any value can only be covered by its like."""
    value = toleration.get("value", "") if toleration["operator"] == "Equal" else _ANY_VALUE
    return {"key": toleration["key"], "value": value, "effect": toleration["effect"]}


def _is_default_eviction(entry: Mapping[str, Any]) -> bool:
    """Whether it is what the API server gives every pod: five minutes on a node that is lost."""
    return entry in _DEFAULT_EVICTIONS


def _annotate(pod: pods.Pod, inherited: Mapping[str, str]) -> list[Operation]:
    own = pods.annotations_of(pod)
    missing = {key: value for key, value in sorted(inherited.items()) if key not in own}
    if not missing:
        return []
    if not own:
        return [{"op": "add", "path": "/metadata/annotations", "value": missing}]
    return [
        {"op": "add", "path": "/metadata/annotations/" + key.replace("~", "~0").replace("/", "~1"), "value": value}
        for key, value in missing.items()
    ]
