"""Properties of one raw pod. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names

Pod = Mapping[str, Any]

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
DAEMON_CONTROLLERS = frozenset(
    {"system:serviceaccount:kube-system:daemon-set-controller", "system:kube-controller-manager"}
)
"""Users that create the pods of daemon sets: the controller's service account, or the controller manager itself."""


def is_mirror(pod: Pod, user_name: str) -> bool:
    """Whether the kubelet of the pod's node creates it as the mirror of a static pod, which runs already.

    The annotation alone is no proof: any user may set it on a new pod.
    """
    node = pod["spec"].get("nodeName")
    return MIRROR_ANNOTATION in annotations_of(pod) and bool(node) and user_name == f"system:node:{node}"


def controller(pod: Pod) -> Mapping[str, Any] | None:
    """Return the reference to the controlling owner; ``None`` without one."""
    for reference in pod["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None


def is_daemon(pod: Pod, user_name: str) -> bool:
    """Whether a daemon set's controller creates the pod. The owner reference alone is no proof: any user may set it."""
    owner = controller(pod)
    return owner is not None and owner.get("kind") == "DaemonSet" and user_name in DAEMON_CONTROLLERS


def scheduler_name(pod: Pod) -> str:
    """Return the name of the pod's scheduler; the default scheduler if it names none."""
    return str(pod["spec"].get("schedulerName") or names.KUBE_DEFAULT_SCHEDULER)


def annotations_of(pod: Pod) -> Mapping[str, str]:
    """Return the annotations."""
    annotations: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return annotations


def labels_of(pod: Pod) -> Mapping[str, str]:
    """Return the labels."""
    labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return labels


def job_id(pod: Pod) -> str:
    """Return the id of the pod's Slurm job; empty without one."""
    return annotations_of(pod).get(names.JOB_ID_ANNOTATION) or labels_of(pod).get(names.JOB_ID_LABEL, "")
