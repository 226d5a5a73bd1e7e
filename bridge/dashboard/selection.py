"""The pods of one page: filters, order and pages. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlencode

from bridge.dashboard.rows import STATES, PodRow

PAGE = 50
"""Pods on a page."""
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
        number = query.get("page", "1")
        return cls(
            namespace=query.get("namespace", "")[:TEXT],
            state=state if (state := query.get("state", "")) in STATES else "",
            reason=query.get("reason", "")[:TEXT],
            node=query.get("node", "")[:TEXT],
            owner=query.get("owner", "")[: 2 * TEXT],
            text=query.get("q", "").strip()[:TEXT],
            number=max(1, int(number)) if number.isascii() and number.isdigit() and len(number) < 7 else 1,
        )

    def url(self, **changes: str | int) -> str:
        """Return the path and the query of the page with these filters, changed by ``changes``."""
        other = replace(self, **{"number": 1, **changes})  # type: ignore[arg-type]
        pairs = {
            "namespace": other.namespace,
            "state": other.state,
            "reason": other.reason,
            "node": other.node,
            "owner": other.owner,
            "q": other.text,
            "page": str(other.number) if other.number > 1 else "",
        }
        query = urlencode({key: value for key, value in pairs.items() if value})
        return f"/pods?{query}" if query else "/pods"

    def selects(self, row: PodRow) -> bool:
        """Whether the filters select the pod."""
        return (
            (not self.namespace or row.namespace == self.namespace)
            and (not self.state or row.state == self.state)
            and (not self.reason or row.reason == self.reason)
            and (not self.node or row.node == self.node)
            and (not self.owner or row.owner == self.owner)
            and (not self.text or self.text in row.name or self.text in row.owner or self.text == row.job)
        )


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the selected pods, and the number of all selected pods and pages."""

    rows: Sequence[PodRow]
    total: int
    number: int
    pages: int


def page(rows: Iterable[PodRow], filters: Filters) -> Page:
    """Return the page of the selected pods, the newest first."""
    chosen = [row for row in rows if filters.selects(row)]
    chosen.sort(key=lambda row: (-row.times.created, row.namespace, row.name))
    pages = max(1, -(-len(chosen) // PAGE))
    number = min(filters.number, pages)
    return Page(chosen[(number - 1) * PAGE : number * PAGE], len(chosen), number, pages)
