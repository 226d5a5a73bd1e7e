"""A store in memory that can be down."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bridge.pools.store.synchronizer import StoreError


class FakeStore:
    def __init__(self, content: Mapping[str, Mapping[str, bytes]] | None = None) -> None:
        self.content: dict[str, dict[str, bytes]] = {kind: dict(values) for kind, values in (content or {}).items()}
        self.down = ""
        self.asked: list[str] = []
        self.closed = 0

    def load(self, kind: str) -> dict[str, bytes]:
        self._ask("load")
        return dict(self.content.get(kind, {}))

    def put(self, kind: str, values: Mapping[str, bytes]) -> None:
        self._ask("put")
        self.content.setdefault(kind, {}).update(values)

    def delete(self, kind: str, keys: Collection[str]) -> None:
        self._ask("delete")
        for key in keys:
            self.content.get(kind, {}).pop(key, None)

    def close(self) -> None:
        self.closed += 1

    def _ask(self, what: str) -> None:
        self.asked.append(what)
        if self.down:
            raise StoreError(self.down, hint="start it")
