"""The site's directory: with the directories of its jobs, the only state of a site beside that of its batch system."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import logging
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bridge.errors import ConfigError, SiteRefusedError
from bridge.logs import kv
from bridge.protocol.model.identifiers import UID_PATTERN
from bridge.site.batch import array_files
from bridge.site.files.atomic_files import force, read_json, read_some, write, write_new
from bridge.site.files.removal import remove_tree
from bridge.site.jobs.job_folder import LARGEST_STATE, JobFolder

log = logging.getLogger(__name__)

_UID = re.compile(UID_PATTERN)
_ID = re.compile(rb"[0-9a-f]{16}")
_LONGEST = 4096
_LOCKS = 64
_LARGEST_NOTE = 2**23
"""Bytes of a file of the leader: twice the largest BuildConfig."""
GONE_KEPT = 86400.0
STAGING_KEPT = 3600.0
REPLACED = ".replaced"
"""Suffix of a directory in ``staging``: of a job that ended unused, until the batch system has its successor."""


class Folder:
    """The site's directory; ``since``: start of this process, in seconds since 1970."""

    def __init__(self, path: Path, *, sync: bool = True, since: float = 0.0) -> None:
        self.path = path
        self.id = ""
        """Distinguishes this directory from others; :meth:`prepare` reads it, or creates it."""
        self.sync = sync
        self.since = since
        self.jobs = path / "jobs"
        self.changed = path / "changed"
        self.gone = path / "gone"
        self._arrays = path / array_files.FOLDER
        self._staging = path / "staging"
        self._locks = path / "locks"
        self._mark, self._count = secrets.token_hex(4), itertools.count()

    def prepare(self, pool: str = "") -> None:
        """Create what is missing.

        Raises :class:`ConfigError` if other users could read or write the directory, or if it belongs to another pool
        than ``pool``; empty: do not check it.
        """
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder_stat = self.path.stat()
            if folder_stat.st_uid != os.geteuid():
                raise ConfigError(
                    f"folder {self.path} belongs to user {folder_stat.st_uid}, not to {os.geteuid()} who runs this",
                    hint="name a folder of your own in site.toml",
                )
            # jobs of other users pass through (bridge.site.batch.batch_user)
            if stat.S_IMODE(folder_stat.st_mode) & 0o066:
                raise ConfigError(
                    f"folder {self.path} is open to others (mode {stat.S_IMODE(folder_stat.st_mode):04o}): it holds "
                    "secrets",
                    hint=f"chmod 700 {self.path}",
                )
            for part in (self.jobs, self.changed, self.gone, self._arrays, self._staging, self._locks):
                part.mkdir(mode=0o700, exist_ok=True)
            self.id = _id_of(self.path)
            if pool:
                _check_pool(self.path, pool)
        except OSError as error:
            raise ConfigError(f"folder {self.path} can't be used: {error.strerror}") from error

    def uids(self) -> list[str]:
        """List the jobs, in order."""
        return sorted(name for name in os.listdir(self.jobs) if _UID.fullmatch(name))

    def job(self, uid: str) -> JobFolder:
        """Return the directory of one job, whether it exists or not."""
        if not _UID.fullmatch(uid):
            raise ValueError(f"{uid!r} is no UID")
        return JobFolder(self, uid, f"{self.jobs}/{uid}")

    @contextlib.contextmanager
    def locked(self, *uids: str, wait: bool = True) -> Iterator[None]:
        """Hold the locks of jobs. Raises BlockingIOError if one is held elsewhere and ``wait`` is false."""
        with contextlib.ExitStack() as held:
            # in order, so that two processes never wait for each other; two jobs may share a lock
            for number in sorted({zlib.crc32(uid.encode()) % _LOCKS for uid in uids}):
                path = f"{self._locks}/{number:02d}"
                lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                held.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield

    def touch(self, uid: str) -> None:
        """Notify the leader that a job has changed."""
        with contextlib.suppress(OSError):  # it is there already; users of jobs can make links in this directory
            write_new(f"{self.changed}/{uid}", b"")

    def take_changed(self) -> list[str]:
        """Remove and return the notifications; a later change creates a new one."""
        changed: list[str] = []
        for name in os.listdir(self.changed):
            if not _UID.fullmatch(name):
                continue
            try:
                os.unlink(self.changed / name)
            except IsADirectoryError:  # a job made it; it notifies of nothing
                continue
            except FileNotFoundError:
                pass
            changed.append(name)
        return changed

    # --- removed jobs -------------------------------------------------------------------------------------------------
    def mark_forgotten(self, uid: str, owner: str) -> None:
        """Remember for a day that an owner has read a job's end: a late submission of that owner is refused."""
        (self.gone / f"{uid}.{owner}").touch(mode=0o600)

    def mark_unused(self, gang: str, ids: Iterable[str]) -> None:
        """Remember for a day that the job of a group was forgotten, and had no grant: its pods may come again.

        ``ids``: its batch jobs, which the batch system may still list.
        """
        write(self.gone / f"{gang}.", json.dumps({"ids": [*ids]}).encode())

    def unused_ids(self, gang: str) -> tuple[str, ...] | None:
        """Return the batch jobs of such a job; ``None``: it is not known, or may have run."""
        content = read_json(f"{self.gone}/{gang}.", LARGEST_STATE)
        return None if content is None else tuple(map(str, content.get("ids") or ()))

    def unmark_unused(self, gang: str) -> None:
        """Forget such a job: its successor knows its batch jobs."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self.gone}/{gang}.")

    def is_forgotten(self, uid: str, owner: str) -> bool:
        """Return whether that owner has read the job's end."""
        return os.path.exists(f"{self.gone}/{uid}.{owner}")

    def refuse_forgotten(self, uid: str, owner: str) -> None:
        """Raise :class:`SiteRefusedError` if that owner has read the job's end."""
        if self.is_forgotten(uid, owner):
            raise SiteRefusedError("the job was cancelled, or has ended and was forgotten", reason="Forgotten")

    def all_forgotten(self) -> set[str]:
        """Return the UIDs of all jobs whose end an owner has read."""
        return {name.partition(".")[0] for name in os.listdir(self.gone)}

    def sweep(self, now: float) -> None:
        """Remove old markers, arrays without pods, and directories that a killed process had begun to remove."""
        files = array_files.ArrayFiles(self.path)
        for written_at, array in files.written():
            if written_at < now - GONE_KEPT and not any(self.job(uid).exists() for uid in files.uids(array)):
                files.remove(array)
        for name in os.listdir(self.gone):
            with contextlib.suppress(OSError):
                if (self.gone / name).stat().st_mtime < now - GONE_KEPT:
                    os.unlink(self.gone / name)
        for name in os.listdir(self._staging):
            with contextlib.suppress(OSError):
                kept = GONE_KEPT if name.endswith(REPLACED) else STAGING_KEPT
                # ctime: the rename to staging sets it; mtime is that of the last change in it
                if (self._staging / name).stat().st_ctime < now - kept:
                    remove_tree(self._staging / name)

    # --- small files shared by several submitters ---------------------------------------------------------------------
    def note(self, name: str, content: dict[str, Any]) -> None:
        """Replace a small file of the leader."""
        write(self.path / name, json.dumps(content).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        """Read a small file that the leader wrote with :meth:`note`."""
        return read_json(f"{self.path}/{name}", _LARGEST_NOTE)

    # --- used by JobFolder --------------------------------------------------------------------------------------------
    def staged(self, uid: str) -> str:
        """Return the path of a directory that does not exist yet."""
        return f"{self._staging}/{uid}.{self._mark}{next(self._count)}"

    def set_aside(self, uid: str) -> JobFolder:
        """Return the directory of the job that is being replaced, whether it exists or not."""
        return JobFolder(self, uid, f"{self._staging}/{uid}{REPLACED}")


def _id_of(folder: Path) -> str:
    """Return the id, which distinguishes directories of the same pool. The first submitter creates it, in one step."""
    path = folder / "id"
    content = _created_once(path, secrets.token_hex(8))
    if not _ID.fullmatch(content):
        raise ConfigError(
            f"{path}: {content[:40]!r} is no id of a folder: it must be 16 digits of 0-9 and a-f",
            hint="Put the file back as it was, or use another folder.",
        )
    return content.decode()


def _check_pool(folder: Path, pool: str) -> None:
    """Raise :class:`ConfigError` if the directory contains the jobs of another pool. The first submitter sets it."""
    path = folder / "pool"
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
    return (read_some(path, _LONGEST) or b"").strip()


class FolderProblems:
    """The last error of each step that needs the folder: a problem of the site, since a restart frees no full disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_step: dict[str, str] = {}

    @property
    def first(self) -> str:
        """An error of the last use of the folder, for example a full disk; empty: there is none."""
        return next(iter(self._by_step.values()), "")

    @contextlib.contextmanager
    def noted(self, step: str) -> Iterator[None]:
        """Run a step; an error of the folder ends the step, and is noted until the step succeeds."""
        problem = ""
        try:
            yield
        except OSError as error:
            problem = f"folder {self._path}: {error.strerror}"
        if problem and self._by_step.get(step) != problem:
            log.warning("the folder can't be used", extra=kv(step=step, why=problem))
        elif step in self._by_step and not problem:
            log.info("the folder can be used again", extra=kv(step=step))
        if problem:
            self._by_step[step] = problem
        else:
            self._by_step.pop(step, None)
