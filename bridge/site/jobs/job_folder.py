"""The directory of one job.

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
import logging
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from bridge.errors import SiteRefusedError
from bridge.logs import kv
from bridge.names import DNS_LABEL
from bridge.script.runtimes import runtime_table as runtimes
from bridge.site.batch.batch_interface import BatchJob
from bridge.site.files import atomic_files
from bridge.site.files.beneath import Below, exists, make_folder, names, open_folder, read_present, read_within
from bridge.site.files.removal import remove_tree
from bridge.site.jobs import job_script, member_record
from bridge.site.jobs.job_record import BatchObservation, Cancellation, JobRecord, Meta

log = logging.getLogger(__name__)

_NAME = re.compile(DNS_LABEL)
# a job can write any text where its id is read, which must be no option of a command and no list of jobs
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.+@:\[\]-]*")
LARGEST_STATE = 64 * 1024
"""Bytes of a state file that are read; a container may have written to it."""
LARGEST_FILE = 40 * 2**20
"""Bytes of ``job.sh`` that are read: the largest script with its library and its request."""
LARGEST_REQUEST = 2**20
"""Bytes of a request that are read. A new one has half of them at most: ids of replaced jobs are added to it."""
LARGEST_MESSAGE = 4096
LONGEST_GRACE = 2**31 - 1
"""Seconds; the script computes in hundredths with 64 bits."""
SECRETS = ("volumes", "run/fuse", "run/pre-exec", *runtimes.SECRETS)
"""Paths with data of the pod; a script that ends by itself removes them, and truncates ``job.sh``."""

_META, _OBSERVATION, _CANCELLATION = TypeAdapter(Meta), TypeAdapter(BatchObservation), TypeAdapter(Cancellation)


class SiteFolder(Protocol):
    """What the directory of a job uses of the site's: :class:`bridge.site.jobs.site_folder.Folder`."""

    sync: bool
    since: float

    def staged(self, uid: str) -> str:
        """Return the path of a directory that does not exist yet."""

    def job(self, uid: str) -> JobFolder:
        """Return the directory of a job."""


class JobFolder:
    """The directory of one job."""

    def __init__(self, site: SiteFolder, uid: str, at: str) -> None:
        self.site = site
        self.uid = uid
        self.at = at

    @property
    def path(self) -> Path:
        """The path, whether it exists or not."""
        return Path(self.at)

    def exists(self) -> bool:
        """Return whether the directory exists, or can't be read."""
        try:
            os.stat(self.at)
        except OSError as error:
            return not isinstance(error, FileNotFoundError)
        return True

    def begun(self) -> bool:
        """Return whether its script has started."""
        try:
            return stat.S_ISDIR(os.lstat(f"{self.at}/started").st_mode)
        except OSError:
            return False

    def is_cancelled(self) -> bool:
        """Return whether its cancellation was requested."""
        return exists(self._below("cancel.json"))

    def create(self, script: str, meta: Meta) -> None:
        """Create the directory. The caller holds the job's lock; the script creates its own directories in it.

        The fsync of the file also writes what was created before it, its directory and all names: the journals of ext4,
        XFS and Btrfs are written in order, ext4 without a journal writes them with the file, and servers of NFS store
        names at once.
        """
        content = job_script.put_request_in(script, _request(meta))
        os.mkdir(self.at, 0o700)
        try:
            atomic_files.write_new(self._below("job.sh"), content, sync=self.site.sync)
        except OSError:
            self.remove()
            raise

    def rewrite(self, script: str, meta: Meta) -> None:
        """Replace script and request of a job that was never submitted."""
        content = job_script.put_request_in(script, _request(meta))
        atomic_files.write(self._below("job.sh"), content, sync=self.site.sync)

    def unfinished(self) -> bool:
        """Return whether the script is incomplete or missing, as after a crash. ``False`` if it can't be read."""
        if self.begun() or exists(self._below("job.id")):
            return False
        try:
            return not job_script.is_complete(atomic_files.read_all(self._below("job.sh"), LARGEST_FILE))
        except OSError as error:
            return isinstance(error, FileNotFoundError)

    def raise_if_unreadable(self) -> None:
        """Raise SiteRefusedError if the directory exists but cannot be read: the job may be running.

        An incomplete directory, as a crash leaves it, is no job.
        """
        if not self.unfinished():
            raise SiteRefusedError(
                "the job directory exists but cannot be read; the job may be running",
                reason="Unreadable",
                retryable=True,
                hint=f"The site's administrator should look at jobs/{self.uid} in the submitter's folder.",
            )

    def remove_unfinished(self) -> None:
        """Remove what a submitter that was killed before its fsync has left: no hub was told of this job.

        Raise SiteRefusedError if the directory cannot be read.
        """
        self.raise_if_unreadable()
        self.remove()

    def remove(self) -> None:
        """Remove the directory, in one step."""
        staged = self.site.staged(self.uid)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.at, staged)
            remove_tree(staged)

    def set_aside(self, aside: JobFolder) -> None:
        """Rename the directory in one step: a submitter that is killed now must not lose the ids of its jobs."""
        aside.remove()  # its ids are in this directory too
        os.rename(self.at, aside.path)

    def drop_secrets(self) -> None:
        """Remove the secrets of a job that has ended, and all of its script but the request."""
        for name in SECRETS:
            remove_tree(self._below(name))
        for name in names(self._below("run")):
            if name.endswith((".env", ".env.more", ".rc")):
                remove_tree(self._below(f"run/{name}"))
        with contextlib.suppress(OSError):
            script_without_secrets = job_script.request_alone(
                atomic_files.read_all(self._below("job.sh"), LARGEST_FILE)
            )
            if script_without_secrets is not None:
                atomic_files.write(self._below("job.sh"), script_without_secrets, sync=self.site.sync)

    def write_meta(self, meta: Meta, *, sync: bool = True) -> None:
        """Replace ``job.json``; ``sync``: with fsync, unless the site has none."""
        atomic_files.write(self._below("job.json"), _META.dump_json(meta), sync=sync and self.site.sync)

    def write_id(self, job_id: str) -> None:
        """Write the batch system's id; an incomplete one is ignored, and the job is found by its name."""
        atomic_files.put(self._below("job.id"), job_id.encode() + b"\n")

    def drop_id(self) -> None:
        """Remove the batch system's id and status: it has lost the job."""
        for name in ("job.id", "batch.json"):
            remove_tree(self._below(name))

    def write_batch(self, job: BatchJob, at: float, run: int | None = None) -> None:
        """Write the status from the batch system, which it first reported ``at``; ``run``: see BatchObservation."""
        atomic_files.put(self._below("batch.json"), _OBSERVATION.dump_json(BatchObservation(at, job, run)))

    def write_cancel(self, cancel: Cancellation) -> None:
        """Write the cancellation request, with fsync: it must survive a crash."""
        atomic_files.write(self._below("cancel.json"), _CANCELLATION.dump_json(cancel), sync=self.site.sync)

    def ask_to_stop(self, grace: float, reason: str) -> None:
        """Request that the script ends; ignored after an earlier request, unless it allows less time.

        If the file can't be written, the leader cancels the batch job after the grace period: the job's user can change
        its directory. Raise FileNotFoundError if there is no job.
        """
        path = self._below("control/stop")
        try:
            earlier = float(atomic_files.read_word(path).split()[0])
        except (ValueError, IndexError):
            earlier = None
        if earlier is None or grace < earlier:
            try:
                make_folder(self._below("control"), owner := atomic_files.other_owner(self.at))
                # whole seconds: the script reads the digits at the beginning, and of 1e+06 only the 1
                atomic_files.write(path, f"{math.ceil(min(grace, LONGEST_GRACE))} {reason}\n".encode(), owner=owner)
            except FileNotFoundError:
                raise
            except OSError as error:
                log.warning("the script is not asked to end", extra=kv(job=self.uid, why=error.strerror))

    def write_grant(self, ticket: str) -> None:
        """Let the script with this ticket begin, with fsync: the answer to the hub follows it."""
        make_folder(self._below("control"), owner := atomic_files.other_owner(self.at))
        atomic_files.write(self._below("control/grant"), f"{ticket}\n".encode(), sync=self.site.sync, owner=owner)

    def read(self) -> JobRecord | None:
        """Read the job; ``None``: there is no such job.

        A job is reported only if its script is complete and on disk: its submitter may have died before the fsync.
        """
        record = read_present(self.at, self._read, None)  # also None: it is being removed, or can't be read now
        if record is None or record.meta.place is None:
            return record
        return member_record.with_place(record, self, self.site.job(record.meta.place.gang))

    def _read(self, at: int) -> JobRecord | None:
        meta = _meta(at)
        if meta is None:
            return None
        if meta.grant_wait is not None:
            self._look_again()
        job_id, started_job = _id(atomic_files.read_line(Below(at, "job.id"))), _started_job(at)
        started = started_job is not None
        job_id = "" if job_id in meta.replaced else job_id
        if not (job_id or started):
            if self.unfinished():
                return None
            if self.site.sync and not _is_on_disk(at):
                return None
        observation = atomic_files.read_valid(_OBSERVATION, Below(at, "batch.json"), LARGEST_STATE)
        if observation and (observation.job.id in meta.replaced or observation.run not in (None, meta.run)):
            observation = None  # the watcher wrote it while the directory was replaced
        pod, containers = read_within(Below(at, "state"), _states, (None, ()), open_folder) if started else (None, ())
        ended_runs = [name for name, state in containers if state.get("ended")]
        ended_runs += [f"{name}.previous" for name, state in containers if state.get("last")]
        return JobRecord(
            uid=self.uid,
            meta=meta,
            job_id=job_id,
            started=started,
            started_job=started_job or "",
            pod=pod,
            containers=containers,
            messages=_messages(at, ended_runs) if ended_runs else (),
            batch=observation.job if observation else None,
            batch_at=observation.at if observation else 0.0,
            cancel=atomic_files.read_valid(_CANCELLATION, Below(at, "cancel.json"), LARGEST_STATE),
            grant=atomic_files.read_line(Below(at, "control/grant")) if meta.grant_wait is not None else "",
            found_at=self.site.since,
        )

    def _look_again(self) -> None:
        """List what the script writes: the hub has ``grant_wait`` seconds to learn that it asks.

        With its default options, NFS remembers for half a minute that a name is absent; when a directory is opened, it
        asks the server whether the directory has changed.
        """
        for path in (self.at, self._below("state")):
            names(path)

    def meta(self) -> Meta | None:
        """Read the request; ``None``: there is no such job."""
        return _meta(self.at)

    def _below(self, name: str) -> Below:
        return Below(self.at, name)


def _request(meta: Meta) -> bytes:
    """Return a new request as JSON; raises SiteRefusedError if it could not be read again."""
    request = _META.dump_json(meta)
    if len(request) > LARGEST_REQUEST // 2:
        text = f"the request, with the flags of users, has {len(request)} bytes; allowed: {LARGEST_REQUEST // 2}"
        raise SiteRefusedError(text, reason="RequestTooLarge")
    return request


def _meta(at: str | int) -> Meta | None:
    meta = atomic_files.read_valid(_META, Below(at, "job.json"), LARGEST_REQUEST)
    if meta is None and (request := job_script.read_request(Below(at, "job.sh"), LARGEST_REQUEST)) is not None:
        return atomic_files.validated(_META, request)
    return meta


def _is_on_disk(at: int) -> bool:
    """Write the script to disk now; return whether it is there."""
    try:
        atomic_files.force(Below(at, "job.sh"))
    except OSError as error:
        return isinstance(error, FileNotFoundError)
    return True


def _id(text: str) -> str:
    """Return an id of the batch system; empty: a job has changed it, and is found by its name."""
    return text if _ID.fullmatch(text) else ""


def _states(folder: int) -> tuple[dict[str, Any] | None, tuple[tuple[str, dict[str, Any]], ...]]:
    """Read the script's records of the pod, then those of the containers, which are complete if the pod has ended."""
    pod = atomic_files.read_json(Below(folder, "pod.json"), LARGEST_STATE)
    return pod, tuple(_containers(folder))


def _containers(folder: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted(os.listdir(folder)):
        name, dot, kind = file.rpartition(".")
        if dot and kind == "json" and name != "pod" and _NAME.fullmatch(name):
            content = atomic_files.read_json(Below(folder, file), LARGEST_STATE)
            if content is not None:
                yield name, content


def _started_job(at: int) -> str | None:
    """Return the id of the batch job whose script has started, empty if it is unknown; ``None``: none has."""
    return read_within(Below(at, "started"), lambda folder: _id(atomic_files.read_word(Below(folder, "job"))), None)


def _messages(at: int, ended: list[str]) -> tuple[tuple[str, str], ...]:
    """Return the termination messages that are there, by the names of runs that have ended."""

    def read(folder: int) -> tuple[tuple[str, str], ...]:
        contents = ((name, atomic_files.read_some(Below(folder, name), LARGEST_MESSAGE)) for name in ended)
        return tuple((name, content.decode(errors="replace")) for name, content in contents if content)

    return read_within(Below(at, "termination"), read, ())
