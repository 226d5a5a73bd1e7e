"""Semantic versions 2.0.0 (https://semver.org): read and compared. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_PART = rf"(?:{_NUMBER}|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_SEMVER = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_PART}(?:\.{_PART})*))?(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A version. Its build metadata is left out: they do not count in comparisons."""

    core: tuple[int, int, int]
    pre: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Semver:
        """Read a version; raises ``ValueError``."""
        match = _SEMVER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:80]!r} is not a semantic version such as 1.2.3")
        major, minor, patch, pre = match.groups()
        return cls((int(major), int(minor), int(patch)), tuple(pre.split(".")) if pre else ())

    def __lt__(self, other: Semver) -> bool:
        """Whether this version precedes ``other``; a version precedes its release while it has a pre-release part."""
        if self.core != other.core:
            return self.core < other.core
        if not self.pre or not other.pre:
            return bool(self.pre) and not other.pre
        return [_rank(part) for part in self.pre] < [_rank(part) for part in other.pre]


def _rank(part: str) -> tuple[int, int, str]:
    """Return the order of an identifier: numbers first, by value, then texts."""
    return (0, int(part), "") if part.isdigit() else (1, 0, part)
