"""Facts about the whole cluster: its identity and its version."""

from __future__ import annotations

from bridge import names
from bridge.errors import KubeError
from bridge.kube.client import KubeClient
from bridge.kube.resources import NAMESPACES


def cluster_id(kube: KubeClient) -> str:
    """Return the UID of the namespace kube-system, which identifies the cluster in Slurm and at sites.

    Raises ``Kube*`` errors.
    """
    return str(kube.get(NAMESPACES.path(name="kube-system"))["metadata"]["uid"])


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
