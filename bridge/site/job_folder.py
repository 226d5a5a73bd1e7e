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
import itertools
import logging
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from bridge.errors import SiteRefusedError
from bridge.logs import kv
from bridge.script.runtimes import table as runtimes
from bridge.site import job_request
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

log = logging.getLogger(__name__)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LARGEST_STATE = 64 * 1024
"""Bytes of a state file that are read; a container may have written to it."""
LARGEST_MESSAGE = 4096
LONGEST_GRACE = 2**31 - 1
"""Seconds; the script computes in hundredths with 64 bits."""
SECRETS = ("volumes", "run/fuse", "run/pre-exec", *runtimes.SECRETS)
"""Paths with data of the pod; a script that ends by itself removes them, and truncates ``job.sh``."""

_META, _OBSERVATION, _CANCELLATION = TypeAdapter(Meta), TypeAdapter(BatchObservation), TypeAdapter(Cancellation)


class SiteFolder(Protocol):
    """What the directory of a job uses of the site's: :class:`bridge.site.folder.Folder`."""

    sync: bool
    since: float

    def staged(self, uid: str) -> str:
        """Return the path of a directory that does not exist yet."""


class JobFolder:
    """The directory of one job."""

    def __init__(self, site: SiteFolder, uid: str, at: str) -> None:
        self.site = site
        self.uid = uid
        self._at = at

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

    def remove(self) -> None:
        """Remove the directory, in one step."""
        staged = self.site.staged(self.uid)
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._at, staged)
            remove_tree(staged)

    def set_aside(self, aside: JobFolder) -> None:
        """Rename the directory in one step: a submitter that is killed now must not lose the ids of its jobs."""
        aside.remove()  # its ids are in this directory too
        os.rename(self._at, aside.path)

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
        """Request that the script ends; ignored after an earlier request, unless it allows less time.

        If the file can't be written, the leader cancels the batch job after the grace period: the job's user can change
        its directory. Raise FileNotFoundError if there is no job.
        """
        path = self.path / "control" / "stop"
        try:
            earlier = float(read_word(path).split()[0])
        except (ValueError, IndexError):
            earlier = None
        if earlier is None or grace < earlier:
            try:
                make_folder(path.parent, owner := other_owner(self._at))
                write(path, f"{math.ceil(min(grace, LONGEST_GRACE))} {reason}\n".encode(), owner=owner)
            except FileNotFoundError:
                raise
            except OSError as error:
                log.warning("the script is not asked to end", extra=kv(job=self.uid, why=error.strerror))

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
        if meta.grant_wait is not None:
            self._look_again()
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
        told = [name for name, state in containers if state.get("ended")]
        told += [f"{name}.previous" for name, state in containers if state.get("last")]
        return JobRecord(
            uid=self.uid,
            meta=meta,
            job_id=job_id,
            started=started,
            started_job=read_word(f"{self._at}/started/job") if started else "",
            pod=pod,
            containers=containers,
            messages=tuple((name, text) for name in told if (text := self._message(name))),
            batch=heard.job if heard else None,
            batch_at=heard.at if heard else 0.0,
            cancel=read_valid(_CANCELLATION, f"{self._at}/cancel.json", LARGEST_STATE),
            grant=read_line(f"{self._at}/control/grant") if meta.grant_wait is not None else "",
            found_at=self.site.since,
        )

    def _look_again(self) -> None:
        """List what the script writes: the hub has ``grant_wait`` seconds to learn that it asks.

        With its default options, NFS remembers for half a minute that a name is absent; when a directory is opened, it
        asks the server whether the directory has changed.
        """
        for path in (self._at, f"{self._at}/state"):
            with contextlib.suppress(OSError):
                os.listdir(path)

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

    def _message(self, name: str) -> str:
        content = read_some(f"{self._at}/termination/{name}", LARGEST_MESSAGE)
        return content.decode(errors="replace") if content else ""
