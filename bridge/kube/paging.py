"""Lists in pages. Users make objects as large as etcd stores them, so a page is limited by its bytes, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bridge.errors import KubeTooLargeError
from bridge.kube.kube_client import KubeClient, Params

PAGE = 500
"""Objects of a page, at most."""


def pages(
    kube: KubeClient, path: str, params: Params | None = None, *, metadata_only: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the pages of a list. A page that is too large is requested again with fewer objects.

    Raises ``Kube*`` errors.
    """
    limit, token = PAGE, ""
    while True:
        query: dict[str, str | int | bool] = {**(params or {}), "limit": limit}
        if token:
            query["continue"] = token
        try:
            page = kube.get(path, query, metadata_only=metadata_only)
        except KubeTooLargeError:
            if limit == 1:
                raise
            limit = max(1, limit // 4)
            continue
        yield page
        token = (page.get("metadata") or {}).get("continue") or ""
        if not token:
            return
        limit = min(PAGE, 2 * limit)
