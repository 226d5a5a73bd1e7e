"""The rows of one page: filters, order and pages. Pure."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(ABC):
    """The filters of a request for one page of a list, as its URL has them. ``number`` is the page, from 1 on.

    ``sort`` is a column, with ``-`` before it for the descending order, or empty; the map has none.
    """

    path: ClassVar[str]
    """The path of the page."""
    number: int = 1
    sort: str = ""

    @abstractmethod
    def pairs(self) -> dict[str, str]:
        """Return the query of the filters, without page and order; an empty value is left out of the URL."""

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        return _url(self.path, other.pairs() | {"sort": other.sort}, other.number)

    def direction(self, column: str) -> str:
        """Return the value of ``aria-sort`` of a column."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "none")

    def sort_url(self, column: str) -> str:
        """Return the URL that sorts by a column, by the other direction if the table is sorted by it."""
        return self.url(sort=f"-{column}" if self.sort == column else column)


@dataclass(frozen=True, slots=True)
class Filters(Selection):
    """The filters of a request; an empty one selects all pods."""

    path: ClassVar[str] = "/pods"
    namespace: str = ""
    state: str = ""
    reason: str = ""
    node: str = ""
    owner: str = ""
    text: str = ""

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

    def pairs(self) -> dict[str, str]:
        """Return the query of the filters."""
        return {name: getattr(self, name) for name in _EQUAL} | {"q": self.text}

    def selects(self, row: PodView) -> bool:
        """Whether the filters select the pod."""
        if any(getattr(self, name) not in ("", getattr(row, name)) for name in _EQUAL):
            return False
        return not self.text or self.text in row.name or self.text in row.owner or self.text == row.job


@dataclass(frozen=True, slots=True)
class WorkloadFilters(Selection):
    """The filters of a request for workloads; an empty one selects all."""

    path: ClassVar[str] = "/workloads"
    namespace: str = ""
    text: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> WorkloadFilters:
        """Read the query of a URL."""
        return cls(
            namespace=query.get("namespace", "")[:TEXT],
            text=query.get("q", "").strip()[:TEXT],
            number=_number(query),
            sort=_sort(query, WORKLOAD_KEYS),
        )

    def pairs(self) -> dict[str, str]:
        """Return the query of the filters."""
        return {"namespace": self.namespace, "q": self.text}

    def selects(self, workload: Workload) -> bool:
        """Whether the filters select the workload."""
        return self.namespace in ("", workload.namespace) and self.text in workload.name


@dataclass(frozen=True, slots=True)
class NodeFilters(Selection):
    """The filters of a request for nodes; an empty one selects all."""

    path: ClassVar[str] = "/nodes"
    kind: str = ""
    state: str = ""
    text: str = ""

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

    def pairs(self) -> dict[str, str]:
        """Return the query of the filters."""
        return {"kind": self.kind, "state": self.state, "q": self.text}

    def selects(self, use: NodeUse) -> bool:
        """Whether the filters select the node; ``kind`` is not one of them, because it selects the list."""
        return (not self.state or use.state == self.state) and self.text in use.name


@dataclass(frozen=True, slots=True)
class MapFilters(Selection):
    """The filters of a request for the map; an empty one selects all. ``node`` is the cell whose amounts are listed."""

    path: ClassVar[str] = "/map"
    state: str = ""
    partition: str = ""
    text: str = ""
    node: str = ""

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

    def pairs(self) -> dict[str, str]:
        """Return the query of the filters."""
        return {"state": self.state, "partition": self.partition, "q": self.text, "node": self.node}

    def selects(self, cell: Cell) -> bool:
        """Whether the filters select the cell."""
        return (
            self.state in ("", cell.state)
            and (not self.partition or self.partition in cell.partitions)
            and self.text in cell.name
        )


@dataclass(frozen=True, slots=True)
class QueueFilters(Selection):
    """The filters of a request for waiting pods; an empty one selects all. ``place`` is a partition or a pool."""

    path: ClassVar[str] = "/queue"
    namespace: str = ""
    place: str = ""
    reason: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> QueueFilters:
        """Read the query of a URL."""
        namespace, place, reason = (query.get(name, "")[:TEXT] for name in _QUEUE_EQUAL)
        return cls(namespace, place, reason, number=_number(query), sort=_sort(query, QUEUE_KEYS))

    def pairs(self) -> dict[str, str]:
        """Return the query of the filters."""
        return {name: getattr(self, name) for name in _QUEUE_EQUAL}

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
