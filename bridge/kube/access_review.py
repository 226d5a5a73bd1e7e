"""Permission checks with SubjectAccessReviews."""

from __future__ import annotations

from typing import Any

from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import SUBJECT_ACCESS_REVIEWS


def allowed(
    client: KubeClient,
    user: dict[str, Any],
    *,
    verb: str,
    group: str,
    resource: str,
    subresource: str = "",
    namespace: str,
    name: str = "",
) -> bool:
    """Whether ``user`` (the ``userInfo`` of an admission review) may ``verb`` the resource in ``namespace``.

    The resource does not have to exist: the API server decides from roles only. Without a decision of the authorizer,
    the result is false. Raises ``Kube*`` errors.
    """
    attributes = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    spec: dict[str, Any] = {"resourceAttributes": {key: value for key, value in attributes.items() if value}}
    for source, target in (("username", "user"), ("uid", "uid"), ("groups", "groups"), ("extra", "extra")):
        if user.get(source):
            spec[target] = user[source]
    review = {"apiVersion": SUBJECT_ACCESS_REVIEWS.api_version, "kind": "SubjectAccessReview", "spec": spec}
    status = client.create(SUBJECT_ACCESS_REVIEWS.path(), review).get("status") or {}
    return status.get("allowed") is True and not status.get("denied")
