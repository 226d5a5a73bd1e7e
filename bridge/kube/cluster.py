"""Facts about the whole cluster: its identity and its version."""

from __future__ import annotations

from bridge import names
from bridge.errors import KubeError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import NAMESPACES


def cluster_id(kube: KubeClient, installation: str) -> str:
    """Return the owner of an installation's jobs, which identifies it in Slurm and at sites.

    It is the UID of the namespace kube-system, for an installation with another name than ``podbridge`` followed by
    ``-`` and the name: two installations of one cluster may share one Slurm. Raises ``Kube*`` errors.
    """
    return owner(str(kube.get(NAMESPACES.path(name="kube-system"))["metadata"]["uid"]), installation)


def owner(uid: str, installation: str) -> str:
    """Return the owner of an installation's jobs; ``uid`` is that of kube-system (36 characters)."""
    return uid if installation == names.COMPONENT else f"{uid}-{installation}"


def node_version(kube: KubeClient) -> str:
    """Return the kubelet version of virtual nodes: the API server's version with ``-podbridge`` appended.

    Kubernetes compares the versions of nodes with that of the API server. If the API server refuses the request, the
    result is ``v0.0.0-podbridge``. Raises retryable ``Kube*`` errors.
    """
    try:
        return f"{kube.get('/version').get('gitVersion', 'v0.0.0')}-{names.COMPONENT}"
    except KubeError as error:
        if error.retryable:
            raise
        return f"v0.0.0-{names.COMPONENT}"
