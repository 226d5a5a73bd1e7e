"""The lists of the page: their filters from the URL, their order and their pages. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from bridge.apps.view.node_map import CELL_STATES, Cell
from bridge.apps.view.node_view import KINDS, NODE_STATES, NodeUse
from bridge.apps.view.pod_counts import Workload
from bridge.apps.view.pod_view import STATES, WAITING, PodView
from bridge.apps.view.queue_view import QueuedPod

PAGE = 50
"""Rows of a page."""
MAP_PAGE = 1000
"""Nodes on a page of the map."""
TEXT = 512
"""Longest text of a filter: above the longest name of a workload with its kind."""
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Filter(Generic[Row]):
    """``selects(row, value)`` is asked for a value that is not empty; ``values`` are all that are allowed, if any."""

    selects: Callable[[Row, str], bool]
    values: Collection[str] = ()

    def read(self, text: str) -> str:
        """Return the value of a text; empty if it is not allowed."""
        return text[:TEXT] if not self.values or text in self.values else ""


def _equal(name: str, values: Collection[str] = ()) -> Filter[Any]:
    return Filter(lambda row, value: bool(getattr(row, name) == value), values)


_NAME: Filter[Any] = Filter(lambda row, text: text.strip() in row.name)


@dataclass(frozen=True, slots=True)
class Table(Generic[Row]):
    """A list. ``filters`` are the parameters of its URL, and ``columns`` the values by which users sort it.

    ``order`` is the order of rows by default; ``None``: that in which they are given.
    """

    path: str
    filters: Mapping[str, Filter[Row]]
    columns: Mapping[str, Callable[[Row], Any]] = field(default_factory=dict)
    order: Callable[[Row], Any] | None = None
    size: int = PAGE

    def chosen(self, query: Mapping[str, str]) -> Selection[Row]:
        """Read the query of a URL; a value that is not allowed counts as an absent one."""
        sort, number = query.get("sort", ""), query.get("page", "")
        return Selection(
            self,
            {name: each.read(query.get(name, "")) for name, each in self.filters.items()},
            sort if sort.removeprefix("-") in self.columns else "",
            max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else 1,
        )


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """One page of the selected rows, and the number of all selected rows and pages."""

    rows: Sequence[Row]
    total: int
    number: int
    pages: int


@dataclass(frozen=True, slots=True)
class Selection(Generic[Row]):
    """What a URL selects of a table; templates read the value of a filter by its name.

    ``sort`` is a column, with ``-`` before it for the descending order, or empty. ``number`` is the page, from 1 on.
    """

    table: Table[Row]
    values: Mapping[str, str]
    sort: str = ""
    number: int = 1

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def url(self, *, sort: str | None = None, number: int = 1, **changes: str) -> str:
        """Return the path and the query of these filters with ``changes``."""
        query = {**self.values, **changes, "sort": self.sort if sort is None else sort}
        pairs = {name: value for name, value in query.items() if value} | ({"page": str(number)} if number > 1 else {})
        return self.table.path + (f"?{urlencode(pairs)}" if pairs else "")

    def direction(self, column: str) -> str:
        """Return the value of ``aria-sort`` of a column."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort, "none")

    def sort_url(self, column: str) -> str:
        """Return the URL that sorts by a column, by the other direction if the table is sorted by it."""
        return self.url(sort=f"-{column}" if self.sort == column else column)

    def selects(self, row: Row) -> bool:
        """Whether the filters select a row."""
        return all(not value or self.table.filters[name].selects(row, value) for name, value in self.values.items())

    def page(self, rows: Iterable[Row]) -> Page[Row]:
        """Return the page of the selected rows; rows with equal values in the column keep the default order."""
        chosen, size = list(filter(self.selects, rows)), self.table.size
        if self.table.order is not None:
            chosen.sort(key=self.table.order)
        if self.sort:
            chosen.sort(key=self.table.columns[self.sort.removeprefix("-")], reverse=self.sort.startswith("-"))
        pages = max(1, -(-len(chosen) // size))
        number = min(self.number, pages)
        return Page(chosen[(number - 1) * size : number * size], len(chosen), number, pages)


PODS: Table[PodView] = Table(
    "/pods",
    {
        "namespace": _equal("namespace"),
        "state": _equal("state", STATES),
        **{name: _equal(name) for name in ("reason", "node", "owner")},
        "q": Filter(lambda row, text: (text := text.strip()) in row.name or text in row.owner or text == row.job),
    },
    {
        "name": lambda row: (row.namespace, row.name),
        "state": lambda row: (STATES.index(row.state), row.reason),
        "node": lambda row: (row.node, row.job),
        "created": lambda row: row.times.created,
    },
    lambda row: (-row.times.created, row.namespace, row.name),
)
WORKLOADS: Table[Workload] = Table(
    "/workloads",
    {"namespace": _equal("namespace"), "q": _NAME},
    {
        "name": lambda each: (each.namespace, each.name),
        "pods": lambda each: each.total,
        "waiting": lambda each: each.counts[WAITING],
        "created": lambda each: each.created,
    },
)
NODES: Table[NodeUse] = Table(
    "/nodes",
    {"kind": _equal("kind", KINDS), "state": _equal("state", NODE_STATES), "q": _NAME},
    {
        "name": lambda use: use.name,
        "state": lambda use: (NODE_STATES.index(use.state), use.name),
        "use": lambda use: use.share,
    },
    lambda use: use.name,
)
MAP: Table[Cell] = Table(
    "/map",
    {
        "state": _equal("state", CELL_STATES),
        "partition": Filter(lambda cell, name: name in cell.partitions),
        "q": _NAME,
        "node": Filter(lambda *_: True),  # the cell whose amounts are listed
    },
    size=MAP_PAGE,
)
QUEUE: Table[QueuedPod] = Table(
    "/queue",
    {
        "namespace": Filter(lambda each, name: each.pod.namespace == name),
        "place": Filter(lambda each, name: name in each.place.split(",")),
        "reason": _equal("reason"),
    },
    {
        "name": lambda each: (each.pod.namespace, each.pod.name),
        "place": lambda each: (each.place, each.reason),
        "position": lambda each: each.position or (math.inf,),
        "start": lambda each: each.start if each.start is not None else math.inf,
        "created": lambda each: each.pod.times.created,
    },
    lambda each: (each.pod.times.created, each.pod.namespace, each.pod.name),
)
