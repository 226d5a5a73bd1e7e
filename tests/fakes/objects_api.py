"""A client of an API server that only stores objects: create, read, replace with a resource version, delete."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from bridge.errors import KubeConflictError, KubeNotFoundError, KubeUnavailableError


class FakeApi:
    """Objects by path. ``before_write`` runs once before the next write; creations under the path ``fail_at`` fail."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.writes: list[str] = []
        self.before_write: Callable[[], object] | None = None
        self.fail_at = ""

    def get(self, path: str, params: Any = None, *, metadata_only: bool = False) -> dict[str, Any]:
        if path not in self.objects:
            raise KubeNotFoundError(path, status=404)
        return copy.deepcopy(self.objects[path])

    def create(self, path: str, body: dict[str, Any], params: Any = None) -> dict[str, Any]:
        if self.fail_at and self.fail_at in path:
            raise KubeUnavailableError("down")
        if path.endswith("selfsubjectreviews"):
            return {"status": {"userInfo": {"username": "podbridge"}}}
        self._hook()
        path = f"{path}/{body['metadata']['name']}"
        if path in self.objects:
            raise KubeConflictError(path, status=409)
        return self._store(path, body)

    def replace(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self._hook()
        live = self.get(path)
        if body["metadata"].get("resourceVersion") != live["metadata"]["resourceVersion"]:
            raise KubeConflictError(path, status=409)
        return self._store(path, body)

    def delete(self, path: str, body: Any = None) -> dict[str, Any]:
        self.get(path)
        return self.objects.pop(path)

    def _store(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.writes.append(path)
        stored = copy.deepcopy(body)
        stored["metadata"]["resourceVersion"] = str(len(self.writes))
        self.objects[path] = stored
        return copy.deepcopy(stored)

    def _hook(self) -> None:
        if self.before_write is not None:
            hook, self.before_write = self.before_write, None
            hook()
