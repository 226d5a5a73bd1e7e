"""The id of a site's directory, in its file ``id``, and the name of its pool, in its file ``pool``.

The id distinguishes directories of the same pool. The name prevents two pools with the same directory.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from pathlib import Path

from bridge.errors import ConfigError
from bridge.site.files.atomic_files import force, read_some, write_new

FILE = "id"
POOL = "pool"
_ID = re.compile(rb"[0-9a-f]{16}")
_MOST = 4096


def of(folder: Path) -> str:
    """Return the id. The first submitter creates it, in one step."""
    path = folder / FILE
    content = _created_once(path, secrets.token_hex(8))
    if not _ID.fullmatch(content):
        raise ConfigError(
            f"{path}: {content[:40]!r} is no id of a folder: it must be 16 digits of 0-9 and a-f",
            hint="Put the file back as it was, or use another folder.",
        )
    return content.decode()


def check_pool(folder: Path, pool: str) -> None:
    """Raise :class:`ConfigError` if the directory contains the jobs of another pool. The first submitter sets it."""
    path = folder / POOL
    recorded_pool = _created_once(path, pool).decode(errors="replace")
    if recorded_pool != pool:
        raise ConfigError(
            f'pool = "{pool}" and folder = "{folder}": this folder belongs to pool {recorded_pool!r}, see {path}',
            hint="Set another folder in site.toml. To rename the pool, end its pods, stop its submitters, and remove"
            f" {path}.",
        )


def _created_once(path: Path, content: str) -> bytes:
    """Return the content of a file; create it in one step if it does not exist."""
    if not path.exists():
        aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        write_new(aside, content.encode() + b"\n", sync=True)
        # link(2) fails if the name exists, unlike rename(2): of two first submitters, both read one id
        with contextlib.suppress(FileExistsError):
            os.link(aside, path)
        aside.unlink()
        force(path.parent)
    return (read_some(path, _MOST) or b"").strip()
