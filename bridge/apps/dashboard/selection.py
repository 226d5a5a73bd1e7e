"""The rows of one page: filters, order and pages. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from bridge.apps.view.node_map import CELL_STATES, Cell
from bridge.apps.view.node_view import NODE_STATES, NodeUse
from bridge.apps.view.pod_counts import Workload
from bridge.apps.view.pod_view import STATES, WAITING, PodView
from bridge.apps.view.queue_view import QueuedPod

PAGE = 50
"""Pods or nodes on a page."""
MAP_PAGE = 1000
"""Nodes on a page of the map."""
Row = TypeVar("Row")
NODE, POOL = KINDS = ("node", "pool")
_EQUAL = ("namespace", "state", "reason", "node", "owner")
"""Filters for equal fields of a pod."""
_QUEUE_EQUAL = ("namespace", "place", "reason")
TEXT = 253
"""Longest text of a filter: the longest name in Kubernetes."""


Keys = Mapping[str, Callable[[Any], Any]]
"""The columns by which a table can be sorted, and the value of a row there."""
_NAME: Callable[[PodView], Any] = lambda row: (row.namespace, row.name)  # noqa: E731
POD_KEYS: Keys = {
    "name": _NAME,
    "state": lambda row: (STATES.index(row.state), row.reason),
    "node": lambda row: (row.node, row.job),
    "created": lambda row: row.times.created,
}
WORKLOAD_KEYS: Keys = {
    "name": lambda each: (each.namespace, each.name),
    "pods": lambda each: each.total,
    "waiting": lambda each: each.counts[WAITING],
    "created": lambda each: each.created,
}
NODE_KEYS: Keys = {
    "name": lambda use: use.name,
    "state": lambda use: (NODE_STATES.index(use.state), use.name),
    "use": lambda use: use.share,
}
QUEUE_KEYS: Keys = {
    "name": lambda each: _NAME(each.pod),
    "place": lambda each: (each.place, each.reason),
    "position": lambda each: each.position or math.inf,
    "start": lambda each: each.start if each.start is not None else math.inf,
    "created": lambda each: each.pod.times.created,
}


class Sortable(ABC):
    """Filters with an order: ``sort`` is a column, with ``-`` before it for the descending order, or empty."""

    __slots__ = ()
    sort: str

    @abstractmethod
    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""

    def direction(self, column: str) -> str:
        """Return the value of ``aria-sort`` of a column."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "none")

    def sort_url(self, column: str) -> str:
        """Return the URL that sorts by a column, by the other direction if the table is sorted by it."""
        return self.url(sort=f"-{column}" if self.sort == column else column)


@dataclass(frozen=True, slots=True)
class Filters(Sortable):
    """The filters of a request; an empty one selects all pods. ``number`` is the page, from 1 on."""

    namespace: str = ""
    state: str = ""
    reason: str = ""
    node: str = ""
    owner: str = ""
    text: str = ""
    number: int = 1
    sort: str = ""

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
            sort=_sort(query, POD_KEYS),
        )

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        return _url(
            "/pods",
            {name: getattr(other, name) for name in _EQUAL} | {"q": other.text, "sort": other.sort},
            other.number,
        )

    def selects(self, row: PodView) -> bool:
        """Whether the filters select the pod."""
        if any(getattr(self, name) not in ("", getattr(row, name)) for name in _EQUAL):
            return False
        return not self.text or self.text in row.name or self.text in row.owner or self.text == row.job


@dataclass(frozen=True, slots=True)
class WorkloadFilters(Sortable):
    """The filters of a request for workloads; an empty one selects all. ``number`` is the page, from 1 on."""

    namespace: str = ""
    text: str = ""
    number: int = 1
    sort: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> WorkloadFilters:
        """Read the query of a URL."""
        sort = _sort(query, WORKLOAD_KEYS)
        return cls(query.get("namespace", "")[:TEXT], query.get("q", "").strip()[:TEXT], _number(query), sort)

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        return _url("/workloads", {"namespace": other.namespace, "q": other.text, "sort": other.sort}, other.number)

    def selects(self, workload: Workload) -> bool:
        """Whether the filters select the workload."""
        return self.namespace in ("", workload.namespace) and self.text in workload.name


@dataclass(frozen=True, slots=True)
class NodeFilters(Sortable):
    """The filters of a request for nodes; an empty one selects all. ``number`` is the page, from 1 on."""

    kind: str = ""
    state: str = ""
    text: str = ""
    number: int = 1
    sort: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> NodeFilters:
        """Read the query of a URL; a value that is not allowed selects as an absent one."""
        return cls(
            kind=kind if (kind := query.get("kind", "")) in KINDS else "",
            state=state if (state := query.get("state", "")) in NODE_STATES else "",
            text=query.get("q", "").strip()[:TEXT],
            number=_number(query),
            sort=_sort(query, NODE_KEYS),
        )

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        pairs = {"kind": other.kind, "state": other.state, "q": other.text, "sort": other.sort}
        return _url("/nodes", pairs, other.number)

    def selects(self, use: NodeUse) -> bool:
        """Whether the filters select the node; ``kind`` is not one of them, because it selects the list."""
        return (not self.state or use.state == self.state) and self.text in use.name


@dataclass(frozen=True, slots=True)
class MapFilters:
    """The filters of a request for the map; an empty one selects all. ``node`` is the cell whose amounts are listed."""

    state: str = ""
    partition: str = ""
    text: str = ""
    node: str = ""
    number: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> MapFilters:
        """Read the query of a URL; a value that is not allowed selects as an absent one."""
        return cls(
            state=state if (state := query.get("state", "")) in CELL_STATES else "",
            partition=query.get("partition", "")[:TEXT],
            text=query.get("q", "").strip()[:TEXT],
            node=query.get("node", "")[:TEXT],
            number=_number(query),
        )

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        pairs = {"state": other.state, "partition": other.partition, "q": other.text, "node": other.node}
        return _url("/map", pairs, other.number)

    def selects(self, cell: Cell) -> bool:
        """Whether the filters select the cell."""
        return (
            self.state in ("", cell.state)
            and (not self.partition or self.partition in cell.partitions)
            and self.text in cell.name
        )


@dataclass(frozen=True, slots=True)
class QueueFilters(Sortable):
    """The filters of a request for waiting pods; an empty one selects all. ``place`` is a partition or a pool."""

    namespace: str = ""
    place: str = ""
    reason: str = ""
    number: int = 1
    sort: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> QueueFilters:
        """Read the query of a URL."""
        namespace, place, reason = (query.get(name, "")[:TEXT] for name in _QUEUE_EQUAL)
        return cls(namespace, place, reason, _number(query), _sort(query, QUEUE_KEYS))

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        return _url("/queue", {name: getattr(other, name) for name in (*_QUEUE_EQUAL, "sort")}, other.number)

    def selects(self, each: QueuedPod) -> bool:
        """Whether the filters select the pod."""
        return (
            self.namespace in ("", each.pod.namespace)
            and self.reason in ("", each.reason)
            and (not self.place or self.place in each.place.split(","))
        )


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of the selected rows, and the number of all selected rows and pages."""

    rows: Sequence[Row]
    total: int
    number: int
    pages: int


def page(rows: Iterable[PodView], filters: Filters) -> Page[PodView]:
    """Return the page of the selected pods, the newest first by default."""
    chosen = [row for row in rows if filters.selects(row)]
    chosen.sort(key=lambda row: (-row.times.created, row.namespace, row.name))
    return _page(_sorted(chosen, filters.sort, POD_KEYS), filters.number)


def workload_page(workloads: Iterable[Workload], filters: WorkloadFilters) -> Page[Workload]:
    """Return the page of the selected workloads, by default in their order."""
    return _page(_sorted(list(filter(filters.selects, workloads)), filters.sort, WORKLOAD_KEYS), filters.number)


def node_page(pools: Iterable[NodeUse], nodes: Iterable[NodeUse], filters: NodeFilters) -> Page[NodeUse]:
    """Return the page of the selected pools and nodes, by default sorted by name."""
    both = [*(pools if filters.kind != NODE else ()), *(nodes if filters.kind != POOL else ())]
    chosen = sorted(filter(filters.selects, both), key=lambda use: use.name)
    return _page(_sorted(chosen, filters.sort, NODE_KEYS), filters.number)


def queue_page(waiting: Iterable[QueuedPod], filters: QueueFilters) -> Page[QueuedPod]:
    """Return the page of the selected waiting pods, by default the one that waits longest first."""
    chosen = sorted(filter(filters.selects, waiting), key=lambda each: (each.pod.times.created, _NAME(each.pod)))
    return _page(_sorted(chosen, filters.sort, QUEUE_KEYS), filters.number)


def cell_page(cells: Iterable[Cell], filters: MapFilters) -> Page[Cell]:
    """Return the page of the selected cells, in their order."""
    return _page(list(filter(filters.selects, cells)), filters.number, MAP_PAGE)


def _page(chosen: Sequence[Row], number: int, size: int = PAGE) -> Page[Row]:
    pages = max(1, -(-len(chosen) // size))
    number = min(number, pages)
    return Page(chosen[(number - 1) * size : number * size], len(chosen), number, pages)


def _number(query: Mapping[str, str]) -> int:
    number = query.get("page", "1")
    return max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else 1


def _sort(query: Mapping[str, str], keys: Keys) -> str:
    sort = query.get("sort", "")
    return sort if sort.removeprefix("-") in keys else ""


def _sorted(rows: list[Row], sort: str, keys: Keys) -> list[Row]:
    """Return the rows in the order of a column; rows with equal values there keep their order."""
    return sorted(rows, key=keys[sort.removeprefix("-")], reverse=sort.startswith("-")) if sort else rows


def _url(path: str, pairs: Mapping[str, str], number: int) -> str:
    query = urlencode({key: value for key, value in pairs.items() if value} | ({"page": number} if number > 1 else {}))
    return f"{path}?{query}" if query else path
