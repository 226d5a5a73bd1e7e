"""May this user do that: the API server's own answer."""

from __future__ import annotations

from typing import Any

from bridge.kube.client import KubeClient
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
    """Ask whether ``user`` (the ``userInfo`` of an admission review) may ``verb`` that resource in ``namespace``.

    The resource needn't exist: a SubjectAccessReview is decided from roles alone. Raises ``Kube*`` errors; "no" where
    the authorizer could not decide.
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
    for theirs, ours in (("username", "user"), ("uid", "uid"), ("groups", "groups"), ("extra", "extra")):
        if user.get(theirs):
            spec[ours] = user[theirs]
    review = {"apiVersion": SUBJECT_ACCESS_REVIEWS.api_version, "kind": "SubjectAccessReview", "spec": spec}
    status = client.create(SUBJECT_ACCESS_REVIEWS.path(), review).get("status") or {}
    return status.get("allowed") is True and not status.get("denied")
