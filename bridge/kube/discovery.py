"""Objects of resources that the API server may not serve: an API version of another release, or a CRD that is absent.

For such a resource, the API server answers 404 with plain text. A proxy may do the same for any request, so this answer
alone does not show that the object does not exist. The list of the served resources does.
"""

from __future__ import annotations

from typing import Any

from bridge.errors import KubeNotFoundError, KubeUnavailableError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import Resource


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
