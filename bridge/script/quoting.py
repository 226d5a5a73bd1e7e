"""Words for bash: whatever a user wrote comes out as data, never as code.

A text may hold :data:`ADDRESS`, which stands for the machine's IP address: it is known only where the job runs. The
mark begins with NUL, which no text from a pod may hold (:func:`clean`), so that nobody can forge it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from shlex import quote, split

from bridge.errors import ScriptError

ADDRESS = "\x00address\x00"
_ADDRESS_WORD = '"$ADDRESS"'
MOST = 2**25
"""Characters of variables and arguments, and bytes of files, of all containers and volumes of a pod together."""


class Allowance:
    """What is left of :data:`MOST`: a small pod may name a variable or a ConfigMap of 1 MiB thousands of times."""

    def __init__(self) -> None:
        self._left = MOST

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left."""
        return self._left < 0

    def take(self, size: int, field_path: str) -> None:
        """Take a number of characters or bytes; raises ``ScriptError`` if less is left."""
        self._left -= size
        if self.is_spent:
            raise ScriptError(
                f"{field_path}: with it, the variables, arguments and files of the pod are too large; allowed: at most "
                f"{MOST >> 20} MiB, each counted wherever it is used"
            )


def clean(text: str, field_path: str) -> str:
    """Return the text; raises ``ScriptError`` for characters that no argument can contain (NUL, lone surrogates)."""
    if "\x00" in text:
        raise ScriptError(f"{field_path}: a NUL character is not allowed; allowed: any other character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ScriptError(f"{field_path}: the text is not valid Unicode; allowed: any Unicode text") from error
    return text


def word(text: str) -> str:
    """Return one word, quoted."""
    if ADDRESS in text:
        return _ADDRESS_WORD.join(quote(part) if part else "" for part in text.split(ADDRESS))
    return quote(text)


def words(texts: Iterable[str]) -> str:
    """Return words, quoted, with spaces between them."""
    return " ".join([word(text) for text in texts])


def array(name: str, texts: Iterable[str]) -> str:
    """Return the assignment of an array; ``name`` is not quoted."""
    return f"{name}=({words(texts)})"


def encoded(data: bytes) -> str:
    """Return base64 in lines of 76 characters, for a heredoc; ends with a line break unless empty."""
    return base64.encodebytes(data).decode()


def split_annotation(annotations: Mapping[str, str], key: str) -> list[str]:
    """Return the words of an annotation, split as by a shell; empty without the annotation. Raises ``ScriptError``."""
    try:
        return split(annotations.get(key, ""))
    except ValueError as error:
        raise ScriptError(f"annotation {key}: {error}") from error
