"""The pods or nodes of one page: filters, order and pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from urllib.parse import urlencode

from bridge.apps.view.node_view import NODE_STATES, NodeUse
from bridge.apps.view.pod_counts import Workload
from bridge.apps.view.pod_view import STATES, PodView

PAGE = 50
"""Pods or nodes on a page."""
Row = TypeVar("Row")
NODE, POOL = KINDS = ("node", "pool")
_EQUAL = ("namespace", "state", "reason", "node", "owner")
"""Filters for equal fields of a pod."""
TEXT = 253
"""Longest text of a filter: the longest name in Kubernetes."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of a request; an empty one selects all pods. ``number`` is the page, from 1 on."""

    namespace: str = ""
    state: str = ""
    reason: str = ""
    node: str = ""
    owner: str = ""
    text: str = ""
    number: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Filters:
        """Read the query of a URL; a value that is not allowed selects as an absent one."""
        return cls(
            namespace=query.get("namespace", "")[:TEXT],
            state=state if (state := query.get("state", "")) in STATES else "",
            reason=query.get("reason", "")[:TEXT],
            node=query.get("node", "")[:TEXT],
            owner=query.get("owner", "")[: 2 * TEXT],
            text=query.get("q", "").strip()[:TEXT],
            number=_number(query),
        )

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        return _url("/pods", {name: getattr(other, name) for name in _EQUAL} | {"q": other.text}, other.number)

    def selects(self, row: PodView) -> bool:
        """Whether the filters select the pod."""
        if any(getattr(self, name) not in ("", getattr(row, name)) for name in _EQUAL):
            return False
        return not self.text or self.text in row.name or self.text in row.owner or self.text == row.job


@dataclass(frozen=True, slots=True)
class WorkloadFilters:
    """The filters of a request for workloads; an empty one selects all. ``number`` is the page, from 1 on."""

    namespace: str = ""
    text: str = ""
    number: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> WorkloadFilters:
        """Read the query of a URL."""
        return cls(query.get("namespace", "")[:TEXT], query.get("q", "").strip()[:TEXT], _number(query))

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        return _url("/workloads", {"namespace": other.namespace, "q": other.text}, other.number)

    def selects(self, workload: Workload) -> bool:
        """Whether the filters select the workload."""
        return self.namespace in ("", workload.namespace) and self.text in workload.name


@dataclass(frozen=True, slots=True)
class NodeFilters:
    """The filters of a request for nodes; an empty one selects all. ``number`` is the page, from 1 on."""

    kind: str = ""
    state: str = ""
    text: str = ""
    number: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> NodeFilters:
        """Read the query of a URL; a value that is not allowed selects as an absent one."""
        return cls(
            kind=kind if (kind := query.get("kind", "")) in KINDS else "",
            state=state if (state := query.get("state", "")) in NODE_STATES else "",
            text=query.get("q", "").strip()[:TEXT],
            number=_number(query),
        )

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        return _url("/nodes", {"kind": other.kind, "state": other.state, "q": other.text}, other.number)

    def selects(self, use: NodeUse) -> bool:
        """Whether the filters select the node; ``kind`` is not one of them, because it selects the list."""
        return (not self.state or use.state == self.state) and self.text in use.name


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of the selected rows, and the number of all selected rows and pages."""

    rows: Sequence[Row]
    total: int
    number: int
    pages: int


def page(rows: Iterable[PodView], filters: Filters) -> Page[PodView]:
    """Return the page of the selected pods, the newest first."""
    chosen = [row for row in rows if filters.selects(row)]
    chosen.sort(key=lambda row: (-row.times.created, row.namespace, row.name))
    return _page(chosen, filters.number)


def workload_page(workloads: Iterable[Workload], filters: WorkloadFilters) -> Page[Workload]:
    """Return the page of the selected workloads, in their order."""
    return _page(list(filter(filters.selects, workloads)), filters.number)


def node_page(pools: Iterable[NodeUse], nodes: Iterable[NodeUse], filters: NodeFilters) -> Page[NodeUse]:
    """Return the page of the selected pools and nodes, sorted by name."""
    both = [*(pools if filters.kind != NODE else ()), *(nodes if filters.kind != POOL else ())]
    return _page(sorted(filter(filters.selects, both), key=lambda use: use.name), filters.number)


def _page(chosen: Sequence[Row], number: int) -> Page[Row]:
    pages = max(1, -(-len(chosen) // PAGE))
    number = min(number, pages)
    return Page(chosen[(number - 1) * PAGE : number * PAGE], len(chosen), number, pages)


def _number(query: Mapping[str, str]) -> int:
    number = query.get("page", "1")
    return max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else 1


def _url(path: str, pairs: Mapping[str, str], number: int) -> str:
    query = urlencode({key: value for key, value in pairs.items() if value} | ({"page": number} if number > 1 else {}))
    return f"{path}?{query}" if query else path
