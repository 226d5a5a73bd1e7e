"""A client of an API server whose answers are a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bridge.errors import KubeNotFoundError, KubeUnavailableError

Object = dict[str, Any]


class KubeAnswers:
    """Answers reads from ``answers`` by path, with an object or by raising an error; records reads and writes.

    Attributes
    ----------
    default
        The answer for all other paths: 404 if it is ``None``.
    error
        The answer to each write; without it, a write is answered with its body.
    writes
        The verb, path and body of each write, also of those that ``error`` answered.
    options
        The further arguments of each write.
    """

    def __init__(
        self,
        answers: dict[str, Any] | None = None,
        *,
        default: Object | Exception | None = None,
        error: Exception | None = None,
    ) -> None:
        self.answers, self.default, self.error = dict(answers or {}), default, error
        self.reads: list[str] = []
        self.writes: list[tuple[str, str, Any]] = []
        self.options: list[Object] = []

    def fenced(self, _: object) -> KubeAnswers:
        return self

    hurried = fenced

    def get(self, path: str, params: Any = None, *, metadata_only: bool = False) -> Any:
        self.reads.append(path)
        answer = self.answers.get(path, self.default)
        if answer is None:
            raise KubeNotFoundError(f"GET {path}: NotFound", status=404)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def create(self, path: str, body: Object, params: Any = None) -> Any:
        return self._write("create", path, body, params=params)

    def patch(self, path: str, body: Object, *, kind: str = "merge", params: Any = None) -> Any:
        return self._write("patch", path, body, kind=kind, params=params)

    def delete(self, path: str, body: Object | None = None) -> Any:
        return self._write("delete", path, body)

    def _write(self, verb: str, path: str, body: Object | None, **options: Any) -> Any:
        self.writes.append((verb, path, body))
        self.options.append(options)
        if self.error is not None:
            raise self.error
        return body


def discovery(resources: Mapping[str, Iterable[str]]) -> Object:
    """Return the answers of discovery: the names of the resources by the version of their group."""
    found: Object = {"/apis": {"groups": [{"versions": [{"groupVersion": version} for version in resources]}]}}
    for version, plurals in resources.items():
        found[f"/apis/{version}"] = {"resources": [{"name": plural} for plural in plurals]}
    return found


def old_api_server(*, reachable: bool = True) -> KubeAnswers:
    """Return an API server before Kubernetes 1.34, which does not serve resource.k8s.io/v1, or a proxy without it.

    It answers each request with 404 in plain text, and serves core/v1 and apps/v1 only by its discovery.
    """
    plain = KubeUnavailableError("not served, or refused by a proxy (404)", status=404)
    return KubeAnswers(discovery({"apps/v1": ()}) if reachable else {}, default=plain)
