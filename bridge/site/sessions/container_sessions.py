"""Commands in containers, and the streams of pods to Services: what must hold, and the words that start them."""

from __future__ import annotations

import contextlib
import math
import re
import secrets
import time
from collections.abc import Callable

from bridge.errors import SiteRefusedError
from bridge.protocol.model.sessions import CommandOptions
from bridge.protocol.nats.two_way import TwoWay
from bridge.site.batch.batch_interface import BatchSystem, Entrance
from bridge.site.config.site_config import SiteConfig
from bridge.site.files import atomic_files
from bridge.site.files.beneath import Below, unlink
from bridge.site.gangs import gang_request
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_record import JobRecord
from bridge.site.sessions import command_process

DRAIN = 10.0
"""Seconds in which a client receives the last output of a container to which it is attached."""
FAILED = 126
"""Exit code of a command whose own is not known."""


def open_session(
    job_folder: JobFolder, record: JobRecord, options: CommandOptions, batch: BatchSystem, config: SiteConfig
) -> Callable[[TwoWay], None]:
    """Return the function that runs the command. Raises SiteRefusedError if the container can't be entered."""
    if not config.limits.allow_exec:
        raise _refused("this site runs no commands in containers (limits.allow_exec is false)", "ExecNotAllowed")
    require_entrance(batch, record)
    if not _is_running(record, options.container):
        raise _refused(f"container {options.container!r} is not running", "NotRunning")
    if bool(options.command) is options.attach:
        raise _refused("command: required, but not to attach", "InvalidRequest")
    if any("\0" in word for word in options.command):
        raise _refused("command: no word may have the character NUL", "InvalidRequest")
    entrance = entrance_of(job_folder, record, batch, tty=options.tty)
    code_file = f"run/session.{secrets.token_hex(8)}" if entrance.reports_failures else ""
    kind, last = ("console", ["1" * options.stdin]) if options.attach else ("session", options.command)
    script = ["bash", str(job_folder.path / "job.sh"), kind, options.container, "tty" * options.tty, code_file, *last]
    ended_at = math.inf

    def is_over() -> bool:
        nonlocal ended_at
        current_record = job_folder.read()
        if current_record is None or not _is_running(current_record, options.container):
            ended_at = min(ended_at, time.monotonic())
        # what is attached ends by itself, with the last output
        return time.monotonic() - ended_at >= (DRAIN if options.attach else 0)

    def exit_code(code: int) -> int:
        if not code_file or code:
            return code
        path = Below(str(job_folder.path), code_file)
        recorded = atomic_files.read_line(path)
        with contextlib.suppress(OSError):
            unlink(path)
        return int(recorded) if re.fullmatch("[0-9]{1,3}", recorded) else FAILED

    def run(stream: TwoWay) -> None:
        try:
            command_process.run(
                [*entrance.words, *script],
                str(job_folder.path),
                entrance.environment,
                stream,
                stdin=options.stdin,
                tty=options.tty,
                is_over=is_over,
                exit_code=exit_code,
            )
        except BaseException:
            if code_file:
                # the batch system may have sent the command to its machine after its own client was ended
                with contextlib.suppress(OSError):
                    atomic_files.write(Below(str(job_folder.path), f"{code_file}.over"), b"")
            raise

    return run


def open_reach(
    job_folder: JobFolder, record: JobRecord, batch: BatchSystem, config: SiteConfig
) -> Callable[[TwoWay], None]:
    """Return the function that serves a pod's stream to Services. Raises SiteRefusedError if this is not possible."""
    if not config.limits.allow_reach:
        raise _refused("pods at this site reach no Services (limits.allow_reach is false)", "ReachNotAllowed")
    require_entrance(batch, record)
    if record.final or not (record.pod or {}).get("host"):
        raise _refused("the script of the job is not running", "NotRunning")
    entrance = entrance_of(job_folder, record, batch, tty=False)
    words = [*entrance.words, "bash", str(job_folder.path / "job.sh"), "reach"]

    def is_over() -> bool:
        current_record = job_folder.read()
        return current_record is None or current_record.final

    def run(stream: TwoWay) -> None:
        command_process.run(
            words,
            str(job_folder.path),
            entrance.environment,
            stream,
            stdin=True,
            tty=False,
            is_over=is_over,
            exit_code=lambda code: code,
        )

    return run


def require_entrance(batch: BatchSystem, record: JobRecord) -> None:
    """Raise SiteRefusedError if no program can start beside a job."""
    if not batch.enters or record.meta.adopted:
        what = "a job of another program" if record.meta.adopted else f"batch.kind {batch.kind}"
        raise _refused(f"{what}: podbridge can't enter its containers", "ExecNotSupported")


def entrance_of(job_folder: JobFolder, record: JobRecord, batch: BatchSystem, *, tty: bool) -> Entrance:
    """Return how a program starts beside a job. Raises BatchError."""
    host = str((record.pod or {}).get("host", ""))
    # the submitter's own id first: the script has written the other one
    job_id, component = record.job_id or record.started_job, _component(job_folder, record)
    return batch.entrance(job_id, host, job_folder.path, tty=tty, component=component)


def _component(job_folder: JobFolder, record: JobRecord) -> int | None:
    """Return the component of a pod in the job of its group; ``None``: the job has one."""
    place = record.meta.place
    gang = job_folder.site.job(place.gang).meta() if place is not None else None
    return None if place is None or gang is None else gang_request.component_of(gang, place.rank)


def _is_running(record: JobRecord, container: str) -> bool:
    return not record.final and dict(record.containers).get(container, {}).get("state") == "running"


def _refused(text: str, reason: str) -> SiteRefusedError:
    return SiteRefusedError(text, reason=reason)
