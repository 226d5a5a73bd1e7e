"""The site's directory and the directories of jobs: the only state of a site beside that of its batch system.

The first file in ``jobs/<uid>/`` is ``job.sh``, whose checksum shows whether it is complete. Files are replaced, and
the directory is removed, in one step. So at any moment at which the process or the machine may stop, each file is
complete or recognizably incomplete. Beside the files of the job (``job.sh``, ``state/``, ``logs/``, ...) the submitter
writes:

the second line of ``job.sh``: a comment with a checksum and the request, so that one fsync is sufficient
``job.json``     the request, and the time of the last submission, if there was more than one
``job.id``       the batch system's id; written without fsync, because the job is found by its name
``batch.json``   the last status from the batch system
``cancel.json``  the cancellation request
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bridge.errors import ConfigError
from bridge.poolapi.identifiers import UID_PATTERN
from bridge.script.runtimes import table as runtimes
from bridge.site import folder_id, job_request
from bridge.site.batch.port import BatchJob
from bridge.site.files import (
    force,
    make_folder,
    other_owner,
    put,
    read_json,
    read_line,
    read_some,
    read_valid,
    read_word,
    remove_tree,
    validated,
    write,
    write_new,
)
from bridge.site.job_record import BatchObservation, Cancellation, JobRecord, Meta

_UID = re.compile(UID_PATTERN)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LOCKS = 64
LARGEST_STATE = 64 * 1024
"""Bytes of a state file that are read; a container may have written to it."""
LARGEST_MESSAGE = 4096
GONE_KEPT = 86400.0
STAGING_KEPT = 3600.0
SECRETS = ("volumes", "run/fuse", "run/pre-exec", *runtimes.SECRETS)
"""Paths with data of the pod; a script that ends by itself removes them, and truncates ``job.sh``."""

_META, _OBSERVATION, _CANCELLATION = TypeAdapter(Meta), TypeAdapter(BatchObservation), TypeAdapter(Cancellation)


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
        self._staging = path / "staging"
        self._locks = path / "locks"
        self._mark, self._count = secrets.token_hex(4), itertools.count()

    def prepare(self) -> None:
        """Create what is missing; raises :class:`ConfigError` if other users could read or write the directory."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
            if found.st_uid != os.geteuid():
                raise ConfigError(
                    f"folder {self.path} belongs to user {found.st_uid}, not to {os.geteuid()} who runs this",
                    hint="name a folder of your own in site.toml",
                )
            if stat.S_IMODE(found.st_mode) & 0o066:  # jobs of other users pass through (bridge.site.batch.job_user)
                raise ConfigError(
                    f"folder {self.path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}): it holds secrets",
                    hint=f"chmod 700 {self.path}",
                )
            for part in (self.jobs, self.changed, self.gone, self._staging, self._locks):
                part.mkdir(mode=0o700, exist_ok=True)
            self.id = folder_id.of(self.path)
        except OSError as error:
            raise ConfigError(f"folder {self.path} can't be used: {error.strerror}") from error

    def uids(self) -> list[str]:
        """List the jobs, in order."""
        return sorted(name for name in os.listdir(self.jobs) if _UID.fullmatch(name))

    def job(self, uid: str) -> JobFolder:
        """Return the directory of one job, whether it exists or not."""
        if not _UID.fullmatch(uid):
            raise ValueError(f"{uid!r} is no UID")
        return JobFolder(self, uid)

    @contextlib.contextmanager
    def locked(self, uid: str, *, wait: bool = True) -> Iterator[None]:
        """Hold a job's lock. Raises BlockingIOError if it is held elsewhere and ``wait`` is false."""
        path = f"{self._locks}/{zlib.crc32(uid.encode()) % _LOCKS:02d}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(lock)

    def touch(self, uid: str) -> None:
        """Notify the leader that a job has changed."""
        with contextlib.suppress(OSError):
            (self.changed / uid).touch(mode=0o600)

    def take_changed(self) -> list[str]:
        """Remove and return the notifications; a later change creates a new one."""
        names = [name for name in os.listdir(self.changed) if _UID.fullmatch(name)]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.changed / name)
        return names

    # --- removed jobs -------------------------------------------------------------------------------------------------
    def mark_forgotten(self, uid: str, owner: str) -> None:
        """Remember for a day that an owner has read a job's end: a late submission of that owner is refused."""
        (self.gone / f"{uid}.{owner}").touch(mode=0o600)

    def is_forgotten(self, uid: str, owner: str) -> bool:
        """Return whether that owner has read the job's end."""
        return os.path.exists(f"{self.gone}/{uid}.{owner}")

    def all_forgotten(self) -> set[str]:
        """Return the UIDs of all jobs whose end an owner has read."""
        return {name.partition(".")[0] for name in os.listdir(self.gone)}

    def sweep(self, now: float) -> None:
        """Remove old markers, and directories that a killed process had begun to remove."""
        for name in os.listdir(self.gone):
            with contextlib.suppress(OSError):
                if (self.gone / name).stat().st_mtime < now - GONE_KEPT:
                    os.unlink(self.gone / name)
        for name in os.listdir(self._staging):
            with contextlib.suppress(OSError):
                if (self._staging / name).stat().st_ctime < now - STAGING_KEPT:
                    remove_tree(self._staging / name)

    # --- small files shared by several submitters ---------------------------------------------------------------------
    def note(self, name: str, content: dict[str, Any]) -> None:
        """Replace a small file of the leader."""
        write(self.path / name, json.dumps(content).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        """Read such a file."""
        return read_json(f"{self.path}/{name}", LARGEST_STATE)

    # --- used by JobFolder --------------------------------------------------------------------------------------------
    def staged(self, uid: str) -> str:
        """Return the path of a directory that does not exist yet."""
        return f"{self._staging}/{uid}.{self._mark}{next(self._count)}"


class JobFolder:
    """The directory of one job."""

    def __init__(self, site: Folder, uid: str) -> None:
        self.site = site
        self.uid = uid
        self._at = f"{site.jobs}/{uid}"

    @property
    def path(self) -> Path:
        """The path, whether it exists or not."""
        return Path(self._at)

    def exists(self) -> bool:
        """Return whether the directory exists, or can't be read."""
        try:
            os.stat(self._at)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        return True

    def begun(self) -> bool:
        """Return whether its script has started."""
        return os.path.isdir(f"{self._at}/started")

    def create(self, script: str, meta: Meta) -> None:
        """Create the directory. The caller holds the job's lock; the script creates its own directories in it.

        The fsync of the file also writes what was created before it, its directory and all names: the journals of ext4,
        XFS and Btrfs are written in order, ext4 without a journal writes them with the file, and servers of NFS store
        names at once.
        """
        os.mkdir(self._at, 0o700)
        try:
            content = job_request.put_in(script, _META.dump_json(meta))
            write_new(f"{self._at}/job.sh", content, sync=self.site.sync)
        except OSError:
            self.remove()
            raise

    def unfinished(self) -> bool:
        """Return whether the script is incomplete or missing, as after a crash. ``False`` if it can't be read."""
        if self.begun() or os.path.exists(f"{self._at}/job.id"):
            return False
        try:
            with open(f"{self._at}/job.sh", "rb") as file:
                return not job_request.is_whole(file.read())
        except OSError as error:
            return isinstance(error, FileNotFoundError)

    def remove(self) -> None:
        """Remove the directory, in one step."""
        staged = self.site.staged(self.uid)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._at, staged)
            remove_tree(staged)

    def drop_secrets(self) -> None:
        """Remove the secrets of a job that has ended, and all of its script but the request."""
        for name in SECRETS:
            if os.path.exists(f"{self._at}/{name}"):
                remove_tree(f"{self._at}/{name}")
        for path in itertools.chain.from_iterable(
            self.path.glob(f"run/*.{kind}") for kind in ("env", "env.more", "rc")
        ):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            left = job_request.alone(Path(f"{self._at}/job.sh").read_bytes())
            if left is not None:
                write(f"{self._at}/job.sh", left, sync=self.site.sync)

    def write_meta(self, meta: Meta) -> None:
        """Replace ``job.json``."""
        write(f"{self._at}/job.json", _META.dump_json(meta), sync=self.site.sync)

    def write_id(self, job_id: str) -> None:
        """Write the batch system's id; an incomplete one is ignored, and the job is found by its name."""
        put(f"{self._at}/job.id", job_id.encode() + b"\n")

    def drop_id(self) -> None:
        """Remove the batch system's id and status: it has lost the job."""
        for name in ("job.id", "batch.json"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{self._at}/{name}")

    def write_batch(self, job: BatchJob, at: float) -> None:
        """Write the status from the batch system, which it first reported ``at``."""
        put(f"{self._at}/batch.json", _OBSERVATION.dump_json(BatchObservation(at, job)))

    def write_cancel(self, cancel: Cancellation) -> None:
        """Write the cancellation request, with fsync: it must survive a crash."""
        write(f"{self._at}/cancel.json", _CANCELLATION.dump_json(cancel), sync=self.site.sync)

    def ask_to_stop(self, grace: float, reason: str) -> None:
        """Request that the script ends; ignored after an earlier request, unless it allows less time."""
        path = self.path / "control" / "stop"
        try:
            earlier = float(path.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            earlier = None
        if earlier is None or grace < earlier:
            make_folder(path.parent, owner := other_owner(self._at))
            write(path, f"{grace:g} {reason}\n".encode(), owner=owner)

    def write_grant(self, ticket: str) -> None:
        """Let the script with this ticket begin, with fsync: the hub is told afterwards."""
        path = self.path / "control" / "grant"
        make_folder(path.parent, owner := other_owner(self._at))
        write(path, f"{ticket}\n".encode(), sync=self.site.sync, owner=owner)

    def read(self) -> JobRecord | None:
        """Read the job; ``None``: there is no such job.

        A job is reported only if its script is complete and on disk: its submitter may have died before the fsync.
        """
        meta = self.meta()
        if meta is None:
            return None
        job_id, started = read_line(f"{self._at}/job.id"), self.begun()
        job_id = "" if job_id in meta.replaced else job_id
        if not (job_id or started):
            if self.unfinished():
                return None
            if self.site.sync:
                with contextlib.suppress(FileNotFoundError):
                    force(f"{self._at}/job.sh")
        heard = read_valid(_OBSERVATION, f"{self._at}/batch.json", LARGEST_STATE)
        if heard is not None and heard.job.id in meta.replaced:
            heard = None  # the watcher wrote it while the directory was replaced
        pod = read_json(f"{self._at}/state/pod.json", LARGEST_STATE) if started else None
        containers = tuple(self._containers()) if started else ()
        ended = [name for name, state in containers if state.get("state") == "terminated"]
        return JobRecord(
            uid=self.uid,
            meta=meta,
            job_id=job_id,
            started=started,
            started_job=read_word(f"{self._at}/started/job") if started else "",
            pod=pod,
            containers=containers,
            messages=tuple((name, text) for name in ended if (text := self._message(name))),
            batch=heard.job if heard else None,
            batch_at=heard.at if heard else 0.0,
            cancel=read_valid(_CANCELLATION, f"{self._at}/cancel.json", LARGEST_STATE),
            grant=read_line(f"{self._at}/control/grant") if meta.grant_wait is not None else "",
            found_at=self.site.since,
        )

    def meta(self) -> Meta | None:
        """Read the request; ``None``: there is no such job."""
        found = read_valid(_META, f"{self._at}/job.json", LARGEST_STATE)
        if found is None and (request := job_request.read(f"{self._at}/job.sh", LARGEST_STATE)) is not None:
            return validated(_META, request)
        return found

    def _containers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            files = sorted(os.listdir(f"{self._at}/state"))
        except OSError:
            return
        for file in files:
            name, dot, kind = file.rpartition(".")
            if dot and kind == "json" and name != "pod" and _NAME.fullmatch(name):
                content = read_json(f"{self._at}/state/{file}", LARGEST_STATE)
                if content is not None:
                    yield name, content

    def _message(self, container: str) -> str:
        content = read_some(f"{self._at}/termination/{container}", LARGEST_MESSAGE)
        return content.decode(errors="replace") if content else ""
