"""Writes the files of a site. A file that exists is kept, or replaced if the user says so."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ConfigError
from bridge.site.files import atomic_files

WRITTEN, KEPT, REPLACED, PLANNED = "written", "kept", "replaced", "would write"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of a site and what was done with it: one of the words above."""

    path: Path
    action: str


def read_authority(file: Path) -> str:
    """Return the CA certificates in a file; raises :class:`ConfigError` if there are none."""
    allowed = f"--ca-file: {file} is not allowed; allowed: CA certificates (PEM)"
    try:
        text = file.read_text("utf-8")
        if "PRIVATE KEY" in text:
            raise ConfigError(f"{allowed} without a private key")
        ssl.create_default_context(cafile=file)
    except (ValueError, ssl.SSLError) as error:
        raise ConfigError(allowed) from error
    except OSError as error:
        raise ConfigError(f"--ca-file: cannot read {file}: {error.strerror}") from error
    return text


def make_directory(path: Path) -> None:
    """Create a private directory; raises :class:`ConfigError`."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from error


def write(
    path: Path, text: str, *, force: bool, dry_run: bool, keep_old: bool = False, mode: int = 0o600
) -> WrittenFile:
    """Write a file, by default for its owner alone. An existing one is kept, unless ``force``.

    ``keep_old``: keep what is replaced as ``NAME.old``. Raises :class:`ConfigError` if it cannot be written.
    """
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a directory")
    exists = path.is_symlink() or path.exists()
    if exists and not force:
        return WrittenFile(path, KEPT)
    if dry_run:
        return WrittenFile(path, PLANNED)
    make_directory(path.parent)
    try:
        if exists and keep_old:
            path.replace(path.with_name(f"{path.name}.old"))
        atomic_files.write(path, text.encode(), mode=mode)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return WrittenFile(path, REPLACED if exists else WRITTEN)
