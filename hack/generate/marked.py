"""Files of which only a part is generated: the part between two marks."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- begin: hack/generate.sh -->\n", "<!-- end: hack/generate.sh -->\n"


def between(file: Path, part: str) -> str:
    """Return the content of a file with the current part; raise ValueError if the file has no marks."""
    before, begin, rest = file.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{file.relative_to(ROOT)} has no mark {BEGIN.strip()} or {END.strip()}")
    return before + begin + part + end + after
