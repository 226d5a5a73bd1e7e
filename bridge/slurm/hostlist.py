"""Slurm's hostlists: ``node-[00-03,7]`` to names, and back.

The grammar is that of ``scontrol show hostnames``: names separated by commas, any number of brackets in a name, ranges
padded with zeros like their first number. Slurm accepts no text after the last bracket; :func:`expand` accepts it, and
:func:`compress` never writes it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from bridge.errors import SlurmError

LIMIT = 1_000_000
"""Largest number of names in one expression."""

_RANGE = re.compile(r"(\d+)(?:-(\d+))?", re.ASCII)
_END_NUMBER = re.compile(r"(.*?)(\d+)", re.DOTALL | re.ASCII)
_LONGEST_NUMBER = 18


def expand(text: str) -> tuple[str, ...]:
    """Return the names of a hostlist in its order; raises :class:`SlurmError` if ``text`` is not a hostlist."""
    names: list[str] = []
    for expression in _split(text):
        names.extend(_expand_one(expression, LIMIT - len(names)))
    return tuple(names)


def compress(names: Iterable[str]) -> str:
    """Return names as a short hostlist: sorted, each once. The number at the end of a name becomes the range."""
    plain: set[str] = set()
    groups: dict[tuple[str, int], set[int]] = {}
    for name in names:
        match = _END_NUMBER.fullmatch(name)
        if match and len(match[2]) <= _LONGEST_NUMBER:
            # 7 and 10 share a range, 07 and 10 do too, but 7 and 07 do not; width 0 means no leading zeros
            width = len(match[2]) if match[2].startswith("0") and match[2] != "0" else 0
            groups.setdefault((match[1], width), set()).add(int(match[2]))
        elif name:
            plain.add(name)
    for (head, width), numbers in groups.items():
        if width:  # 10 goes into the range of 07
            unpadded = groups.get((head, 0), set())
            fitting = {number for number in unpadded if len(str(number)) == width}
            numbers |= fitting
            unpadded -= fitting
    parts = sorted(plain)
    for (head, width), numbers in sorted(groups.items()):
        if numbers:
            spans = ",".join(_spans(sorted(numbers), width))
            parts.append(head + (spans if len(numbers) == 1 else f"[{spans}]"))
    return ",".join(parts)


@lru_cache(maxsize=64)  # waiting pods have few different sets of excluded nodes, of thousands of names each
def compressed(names: tuple[str, ...]) -> str:
    """Return :func:`compress` of a tuple that many jobs share."""
    return compress(names)


def _spans(numbers: list[int], width: int) -> Iterator[str]:
    for _, group in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        first, last = f"{run[0]:0{width}d}", f"{run[-1]:0{width}d}"
        yield first if len(run) == 1 else f"{first}-{last}"


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    depth, begin = 0, 0
    for position, letter in enumerate(text):
        if letter == "[":
            depth += 1
        elif letter == "]":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[begin:position].strip()
            begin = position + 1
        if depth not in (0, 1):
            raise SlurmError(f"not a hostlist: brackets don't match: {text[:200]}")
    if depth:
        raise SlurmError(f"not a hostlist: brackets don't match: {text[:200]}")
    yield text[begin:].strip()


def _expand_one(expression: str, room: int) -> Iterator[str]:
    if not expression:
        return iter(())
    parts: list[list[str]] = []
    count = 1
    for index, piece in enumerate(re.split(r"\[([^\]]*)\]", expression)):
        choices = list(itertools.islice(_ranges(piece, room), room + 1)) if index % 2 else [piece]
        count *= len(choices)
        if count > room:
            raise SlurmError(f"hostlist stands for more than {LIMIT} names: {expression[:200]}")
        parts.append(choices)
    return ("".join(choice) for choice in itertools.product(*parts))


def _ranges(text: str, room: int) -> Iterator[str]:
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if not match:
            raise SlurmError(f"not a hostlist: {item[:50]!r} is not a number or a range")
        first, last = match[1], match[2] or match[1]
        if max(len(first), len(last)) > _LONGEST_NUMBER or int(last) < int(first):
            raise SlurmError(f"not a hostlist: {item[:50]!r} is not a range")
        if int(last) - int(first) >= room:
            raise SlurmError(f"hostlist stands for more than {LIMIT} names: [{text[:200]}]")
        for number in range(int(first), int(last) + 1):
            yield f"{number:0{len(first)}d}"
