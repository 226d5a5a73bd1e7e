"""What the API server is and serves: the identity and version of the cluster, and the objects of optional resources.

A resource may not be served: an API version of another release, or a CRD that is absent. For such a resource, the API
server answers 404 with plain text. A proxy may do the same for any request, so this answer alone does not show that the
object does not exist. The list of the served resources does.
"""

from __future__ import annotations

from typing import Any

from bridge import names
from bridge.errors import KubeError, KubeNotFoundError, KubeUnavailableError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import NAMESPACES, Resource


def get_if_served(
    client: KubeClient, resource: Resource, namespace: str | None, name: str, *, metadata_only: bool = False
) -> dict[str, Any] | None:
    """Return an object; ``None`` if it does not exist or its resource is not served. Raises ``Kube*`` errors."""
    try:
        return client.get(resource.path(namespace, name), metadata_only=metadata_only)
    except KubeNotFoundError:
        return None
    except KubeUnavailableError as error:
        if error.status == 404 and not is_served(client, resource):
            return None
        raise


def list_if_served(client: KubeClient, resource: Resource) -> list[dict[str, Any]] | None:
    """Return all objects of a resource; ``None`` if it is not served. Raises ``Kube*`` errors."""
    try:
        items: list[dict[str, Any]] = client.get(resource.path())["items"]
    except KubeUnavailableError as error:
        if error.status == 404 and not is_served(client, resource):
            return None
        raise
    return items


def is_served(client: KubeClient, resource: Resource) -> bool:
    """Whether the API server serves the resource. Raises ``Kube*`` errors."""
    if resource.group:
        groups = client.get("/apis").get("groups") or ()
        served = {version["groupVersion"] for group in groups for version in group["versions"]}
        if resource.api_version not in served:
            return False
    root = "apis" if resource.group else "api"
    resources = client.get(f"/{root}/{resource.api_version}").get("resources") or ()
    return any(entry["name"] == resource.plural for entry in resources)


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
