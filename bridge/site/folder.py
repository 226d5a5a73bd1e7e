"""The site's folder and one job's folder: all that is kept at the site, besides what the batch system keeps.

``jobs/<uid>/`` appears complete or not at all (it is renamed into place), and goes in the same way. Files that are
replaced are written aside first. So whatever moment the process or the machine stops at, what is found is whole.
Beside the files of the job (``job.sh``, ``state/``, ``logs/``, ...) the submitter keeps in it:

``job.json``     what was asked for, and when the batch system was last asked
``job.id``       the batch system's id; not forced to disk, since the job is found by its name
``batch.json``   the last thing that the batch system said of it
``cancel.json``  that its end is wanted
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from bridge.errors import ConfigError
from bridge.site.batch.port import BatchJob
from bridge.wire.messages import UID_PATTERN

T = TypeVar("T")
_UID = re.compile(UID_PATTERN)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LOCKS = 64
LARGEST_STATE = 64 * 1024
"""Bytes of a state file that are read: a container may have written there."""
LARGEST_MESSAGE = 4096
GONE_KEPT = 86400.0
STAGING_KEPT = 3600.0


@dataclass(frozen=True, slots=True)
class Meta:
    """``job.json``: the request without its script. ``attempted_at``: when the batch system was last asked."""

    namespace: str
    name: str
    cpus: int
    memory: int
    gpus: int
    gpu_resource: str
    time_limit: float | None
    flags: tuple[str, ...]
    flavor: str
    grace: float
    submitted_at: float
    attempted_at: float
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Cancellation:
    """``cancel.json``: who asked for the end wants it after ``grace`` seconds from ``at``."""

    at: float
    grace: float
    forget: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """``batch.json``: what the batch system says, and when it was first heard to."""

    at: float
    job: BatchJob


_META, _HEARD, _CANCELLATION = TypeAdapter(Meta), TypeAdapter(Heard), TypeAdapter(Cancellation)


@dataclass(frozen=True, slots=True)
class Facts:
    """All that a job's folder says. ``pod`` and ``containers`` are the script's own records, not checked yet."""

    uid: str
    meta: Meta
    job_id: str = ""
    started: bool = False
    started_job: str = ""
    pod: dict[str, Any] | None = None
    containers: tuple[tuple[str, dict[str, Any]], ...] = ()
    messages: tuple[tuple[str, str], ...] = ()
    batch: BatchJob | None = None
    batch_at: float = 0.0
    """When the batch system was first heard to say so."""
    cancel: Cancellation | None = None

    @property
    def final(self) -> bool:
        """Whether the script wrote down its end."""
        return self.pod is not None and self.pod.get("phase") in ("Succeeded", "Failed")


class Folder:
    """The site's folder."""

    def __init__(self, path: Path, *, sync: bool = True) -> None:
        self.path = path
        self.sync = sync
        self.jobs = path / "jobs"
        self.changed = path / "changed"
        self.gone = path / "gone"
        self._staging = path / "staging"
        self._locks = path / "locks"

    def prepare(self) -> None:
        """Make what is missing; raises :class:`ConfigError` when others could read or write the folder."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
            if found.st_uid != os.geteuid():
                raise ConfigError(
                    f"folder {self.path} belongs to user {found.st_uid}, not to {os.geteuid()} who runs this",
                    hint="name a folder of your own in site.toml",
                )
            if stat.S_IMODE(found.st_mode) & 0o077:
                raise ConfigError(
                    f"folder {self.path} is open to others (mode {stat.S_IMODE(found.st_mode):04o}): it holds secrets",
                    hint=f"chmod 700 {self.path}",
                )
            for part in (self.jobs, self.changed, self.gone, self._staging, self._locks):
                part.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"folder {self.path} can't be used: {error.strerror}") from error

    def uids(self) -> list[str]:
        """List the jobs, in order."""
        return sorted(name for name in os.listdir(self.jobs) if _UID.fullmatch(name))

    def job(self, uid: str) -> JobFolder:
        """Give the folder of one job, whether it is there or not."""
        if not _UID.fullmatch(uid):
            raise ValueError(f"{uid!r} is no UID")
        return JobFolder(self, uid)

    @contextlib.contextmanager
    def locked(self, uid: str) -> Iterator[None]:
        """Hold a job's lock: against other threads and other submitters."""
        path = self._locks / f"{zlib.crc32(uid.encode()) % _LOCKS:02d}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def touch(self, uid: str) -> None:
        """Say that a job has changed, to the submitter on duty."""
        with contextlib.suppress(OSError):
            (self.changed / uid).touch(mode=0o600)

    def take_changed(self) -> list[str]:
        """Empty ``changed/``. A change that comes after this is told again."""
        names = [name for name in os.listdir(self.changed) if _UID.fullmatch(name)]
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.changed / name)
        return names

    # --- what is no more ----------------------------------------------------------------------------------------------
    def bury(self, uid: str) -> None:
        """Remember for a day that a job's end is known: a submit that comes late is refused."""
        (self.gone / uid).touch(mode=0o600)

    def is_gone(self, uid: str) -> bool:
        """Whether it was buried."""
        return (self.gone / uid).exists()

    def sweep(self, now: float) -> None:
        """Drop old markers, and what a killed process left half made."""
        for name in os.listdir(self.gone):
            with contextlib.suppress(OSError):
                if (self.gone / name).stat().st_mtime < now - GONE_KEPT:
                    os.unlink(self.gone / name)
        for name in os.listdir(self._staging):
            with contextlib.suppress(OSError):
                if (self._staging / name).stat().st_ctime < now - STAGING_KEPT:
                    _remove_tree(self._staging / name)

    # --- small files shared by several submitters ---------------------------------------------------------------------
    def note(self, name: str, content: dict[str, Any]) -> None:
        """Replace a small file of the submitter on duty."""
        write(self.path / name, json.dumps(content).encode())

    def noted(self, name: str) -> dict[str, Any] | None:
        """Read such a file."""
        return _json(self.path / name)

    # --- used by JobFolder --------------------------------------------------------------------------------------------
    def staged(self, uid: str) -> Path:
        """Name a folder that does not exist yet."""
        return self._staging / f"{uid}.{secrets.token_hex(4)}"


class JobFolder:
    """One job's folder."""

    def __init__(self, site: Folder, uid: str) -> None:
        self.site = site
        self.uid = uid
        self.path = site.jobs / uid

    def exists(self) -> bool:
        """Whether the job is kept here."""
        return self.path.is_dir()

    def create(self, script: str, meta: Meta) -> bool:
        """Make the folder, all of it at once; ``False``: it was there. The script makes its own folders in it."""
        site, staged = self.site, self.site.staged(self.uid)
        staged.mkdir(mode=0o700)
        _write_new(staged / "job.sh", script.encode(), sync=site.sync)
        _write_new(staged / "job.json", _dump(meta), sync=site.sync)
        if site.sync:
            _sync(staged)
        try:
            os.rename(staged, self.path)
        except OSError:
            if not self.exists():
                raise
            _remove_tree(staged)
            return False
        if site.sync:
            _sync(site.jobs)
        return True

    def remove(self) -> None:
        """Take the folder away, in one step."""
        staged = self.site.staged(self.uid)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, staged)
            _remove_tree(staged)

    def write_meta(self, meta: Meta) -> None:
        """Replace ``job.json``."""
        write(self.path / "job.json", _dump(meta), sync=self.site.sync)

    def write_id(self, job_id: str) -> None:
        """Write down the batch system's id."""
        write(self.path / "job.id", job_id.encode())

    def drop_id(self) -> None:
        """Drop the batch system's id and word: it has lost the job."""
        for name in ("job.id", "batch.json"):
            (self.path / name).unlink(missing_ok=True)

    def write_batch(self, job: BatchJob, at: float) -> None:
        """Write down what the batch system says, first heard ``at``."""
        write(self.path / "batch.json", _dump(Heard(at, job)))

    def write_cancel(self, cancel: Cancellation) -> None:
        """Write down that the end is wanted: this must survive."""
        write(self.path / "cancel.json", _dump(cancel), sync=self.site.sync)

    def ask_to_stop(self, grace: float, reason: str) -> None:
        """Ask the script to end; the first one who asks is heard, unless this one allows less time."""
        path = self.path / "control" / "stop"
        try:
            earlier = float(path.read_text().split()[0])
        except (OSError, ValueError, IndexError):
            earlier = None
        if earlier is None or grace < earlier:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write(path, f"{grace:g} {reason}\n".encode())

    def read(self) -> Facts | None:
        """Read all that the folder says; ``None``: there is no such job."""
        meta = self.meta()
        if meta is None:
            return None
        heard = _checked(_HEARD, self.path / "batch.json")
        started = (self.path / "started").is_dir()
        pod = _json(self.path / "state" / "pod.json") if started else None
        containers = tuple(self._containers()) if started else ()
        ended = [name for name, state in containers if state.get("state") == "terminated"]
        return Facts(
            uid=self.uid,
            meta=meta,
            job_id=_word(self.path / "job.id"),
            started=started,
            started_job=_word(self.path / "started" / "job") if started else "",
            pod=pod,
            containers=containers,
            messages=tuple((name, text) for name in ended if (text := self._message(name))),
            batch=heard.job if heard else None,
            batch_at=heard.at if heard else 0.0,
            cancel=_checked(_CANCELLATION, self.path / "cancel.json"),
        )

    def meta(self) -> Meta | None:
        """Read ``job.json``; ``None``: there is no such job."""
        return _checked(_META, self.path / "job.json")

    def _containers(self) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            files = sorted(os.listdir(self.path / "state"))
        except OSError:
            return
        for file in files:
            name, dot, kind = file.rpartition(".")
            if dot and kind == "json" and name != "pod" and _NAME.fullmatch(name):
                content = _json(self.path / "state" / file)
                if content is not None:
                    yield name, content

    def _message(self, container: str) -> str:
        content = read_some(self.path / "termination" / container, LARGEST_MESSAGE)
        return content.decode(errors="replace") if content else ""


# --- files ------------------------------------------------------------------------------------------------------------
def write(path: Path, content: bytes, *, mode: int = 0o600, sync: bool = False) -> None:
    """Replace a file: readers see the old content or the new one."""
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    _write_new(aside, content, mode=mode, sync=sync)
    os.replace(aside, path)
    if sync:
        _sync(path.parent)


def read_some(path: Path, most: int) -> bytes | None:
    """Read the first bytes of a plain file; ``None``: it is not there, or is something else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        try:
            return file.read(most)
        except OSError:  # a shared folder's stale handle
            return None


def _write_new(path: Path, content: bytes, *, mode: int = 0o600, sync: bool) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        if mode & 0o077:  # os.open has taken the umask away from it
            os.fchmod(descriptor, mode)
        file.write(content)
        if sync:
            file.flush()
            os.fsync(descriptor)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _dump(record: Any) -> bytes:
    return json.dumps(asdict(record)).encode()


def _checked(kind: TypeAdapter[T], path: Path) -> T | None:
    """Read a file of the submitter; one that a job has meddled with is as good as none."""
    content = read_some(path, LARGEST_STATE)
    if not content:
        return None
    try:
        return kind.validate_json(content)
    except ValidationError:
        return None


def _json(path: Path) -> dict[str, Any] | None:
    content = read_some(path, LARGEST_STATE)
    if not content:
        return None
    try:
        found = json.loads(content)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _word(path: Path) -> str:
    content = read_some(path, 256)
    return content.decode(errors="replace").strip() if content else ""


def _remove_tree(path: Path) -> None:
    """Remove a tree, read-only folders in it too; what can't be removed stays for the next sweep."""

    def open_up(function: Any, name: str, _: Any) -> None:
        with contextlib.suppress(OSError):
            os.chmod(os.path.dirname(name), 0o700)
            if os.path.isdir(name) and not os.path.islink(name):
                os.chmod(name, 0o700)
            function(name)

    shutil.rmtree(path, onerror=open_up)
