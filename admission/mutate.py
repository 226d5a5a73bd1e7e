"""What is changed about a new pod. Pure and idempotent: applied to its own result it changes nothing.

Only new pods are changed: of what is written here, an existing pod takes none.

- *Scheduler*: in a managed namespace the default scheduler gives way to ours; another one is respected.
- *Toleration*: our pods, and no others, tolerate the taint of the nodes that Slurm rules.
- *Node*: nobody but a daemon set or a kubelet chooses one: it would go round Slurm (and round every other scheduler).
- *Annotations*: what the pod's owners say about the job is copied to the pod, where the pod says nothing itself. So it
  is checked here, with the pod's own, against the permissions of who makes the pod, and can't change after that.

Pods of daemon sets are left alone: they are the node's furniture (logs, network, monitoring), one per node from the
moment it is there, and would each need a job of their own, on one node, for ever. One that names our scheduler itself
is treated as any other. Mirror pods are left alone: they run already, and a changed one would be made again for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from admission import pods
from bridge import names
from bridge.workload import eligibility

Operation = dict[str, Any]


def mutate(
    pod: pods.Pod, *, scheduler: str, managed: bool, user_name: str = "", inherited: Mapping[str, str] | None = None
) -> list[Operation]:
    """Give the JSON patch for a new pod.

    ``scheduler`` is our name, ``managed`` says whether the namespace is ours, ``inherited`` holds the job annotations
    of the pod's owners.
    """
    if pods.is_mirror(pod) or not (managed or pods.scheduler_name(pod) == scheduler):
        return []
    patch: list[Operation] = []
    spec = pod["spec"]
    daemon = pods.is_daemon(pod, user_name)
    named = pods.scheduler_name(pod)
    if named == names.KUBE_DEFAULT_SCHEDULER and not daemon:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
        named = scheduler
    if spec.get("nodeName") and not daemon:
        patch.append({"op": "remove", "path": "/spec/nodeName"})
    if named == scheduler:
        patch += _tolerate(spec, scheduler)
        patch += _annotate(pod, inherited or {})
    return patch


def _tolerate(spec: Mapping[str, Any], scheduler: str) -> list[Operation]:
    taint = {"key": names.MANAGED_TAINT, "value": scheduler, "effect": "NoExecute"}
    tolerations = spec.get("tolerations") or []
    # one that holds for some seconds only does not do: the pod would be evicted after them
    if eligibility.tolerates([t for t in tolerations if t.get("tolerationSeconds") is None], taint):
        return []
    toleration = {"operator": "Equal", **taint}
    if tolerations:
        return [{"op": "add", "path": "/spec/tolerations/-", "value": toleration}]
    return [{"op": "add", "path": "/spec/tolerations", "value": [toleration]}]


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
