"""The id of a site's directory, in its file ``id``: it distinguishes directories of the same pool."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from bridge.errors import ConfigError
from bridge.site.files import force, read_some, write_new

FILE = "id"
_ID = re.compile(rb"[0-9a-f]{16}")
_MOST = 4096


def of(folder: Path) -> str:
    """Return the id. The first submitter creates it, in one step."""
    path = folder / FILE
    if not path.exists():
        aside = folder / f".{FILE}.{secrets.token_hex(8)}"
        write_new(aside, secrets.token_hex(8).encode() + b"\n", sync=True)
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
        force(folder)
    content = (read_some(path, _MOST) or b"").strip()
    if not _ID.fullmatch(content):
        raise ConfigError(
            f"{path}: {content[:40]!r} is no id of a folder: it must be 16 digits of 0-9 and a-f",
            hint="Put the file back as it was, or use another folder.",
        )
    return content.decode()
