"""What kind of pod it is: pure questions about one raw pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge import names

Pod = Mapping[str, Any]

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
DAEMON_CONTROLLERS = frozenset(
    {"system:serviceaccount:kube-system:daemon-set-controller", "system:kube-controller-manager"}
)
"""Who makes the pods of daemon sets: its own service account, or the controller manager where it uses none."""


def is_mirror(pod: Pod, user_name: str) -> bool:
    """Whether a kubelet reports a static pod of its own node, which runs already: nothing can be changed about it.

    The annotation alone proves nothing: the API server lets anybody write it on a new pod.
    """
    node = pod["spec"].get("nodeName")
    return MIRROR_ANNOTATION in annotations_of(pod) and bool(node) and user_name == f"system:node:{node}"


def controller(pod: Pod) -> Mapping[str, Any] | None:
    """Give the reference to the owner that controls the object, if there is one."""
    for reference in pod["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            return dict(reference)
    return None


def is_daemon(pod: Pod, user_name: str) -> bool:
    """Whether a daemon set made the pod. The owner alone proves nothing: anybody may write it."""
    owner = controller(pod)
    return owner is not None and owner.get("kind") == "DaemonSet" and user_name in DAEMON_CONTROLLERS


def scheduler_name(pod: Pod) -> str:
    """Give the scheduler that the pod names; the default one when it names none."""
    return str(pod["spec"].get("schedulerName") or names.KUBE_DEFAULT_SCHEDULER)


def annotations_of(pod: Pod) -> Mapping[str, str]:
    """Give the annotations."""
    found: Mapping[str, str] = pod["metadata"].get("annotations") or {}
    return found


def labels_of(pod: Pod) -> Mapping[str, str]:
    """Give the labels."""
    found: Mapping[str, str] = pod["metadata"].get("labels") or {}
    return found


def job_id(pod: Pod) -> str:
    """Give the Slurm job that holds the pod's room, or the empty string."""
    return labels_of(pod).get(names.JOB_ID_LABEL, "")
