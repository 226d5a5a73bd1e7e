"""Texts and lists that count how they are used: a bound on the work of a function, without a clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Count:
    """A number that the objects of a test share."""

    def __init__(self) -> None:
        self.value = 0


class Text(str):
    """A text that counts the comparisons with others, and how often it is hashed."""

    count: Count

    def __new__(cls, text: str, count: Count) -> Text:
        self = super().__new__(cls, text)
        self.count = count
        return self

    def __eq__(self, other: object) -> bool:
        self.count.value += 1
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        self.count.value += 1
        return str.__hash__(self)


class Items(list[T], Generic[T]):
    """A list that counts the elements that are taken from it."""

    def __init__(self, items: list[T], count: Count) -> None:
        super().__init__(items)
        self.count = count

    def __iter__(self) -> Iterator[T]:
        for item in super().__iter__():
            self.count.value += 1
            yield item


class Object(dict[str, Any]):
    """An object that counts the comparisons with others."""

    def __init__(self, fields: dict[str, Any], count: Count) -> None:
        super().__init__(fields)
        self.count = count

    def __eq__(self, other: object) -> bool:
        self.count.value += 1
        return dict.__eq__(self, other)

    __hash__ = None  # type: ignore[assignment]
