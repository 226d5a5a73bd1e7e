"""The options in a list of words, as getopt_long(3) reads them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Option(NamedTuple):
    """An option: its name, its value, and its words. A word that is none has an empty name."""

    name: str
    value: str
    words: tuple[str, ...]


def read(
    words: Sequence[str], letters: Mapping[str, str] | None = None, valueless: Collection[str] = ()
) -> list[Option]:
    """Return the options of a list of words.

    The next word is the value of an option that has none with ``=``, unless it begins with ``-``. ``letters``: long
    names of options by their letters. ``valueless``: names of options without a value.
    """
    options: list[Option] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            options.append(Option("", "", (word,)))
            continue
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
        else:
            name, sign, value = (letters or {}).get(word[1], word[1]), word[2:], word[2:].removeprefix("=")
        if not sign and name not in valueless and left and not left[0].startswith("-"):
            value = left.pop(0)
            options.append(Option(name, value, (word, value)))
        else:
            options.append(Option(name, value, (word,)))
    return options


def without(options: Sequence[Option], names: Collection[str]) -> list[str]:
    """Return the words of all options but those with these names."""
    return [word for option in options if option.name not in names for word in option.words]
