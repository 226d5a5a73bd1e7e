"""The streams of pods' connections to Services: what must hold, and the words that start them."""

from __future__ import annotations

from collections.abc import Callable

from bridge.errors import SiteRefusedError
from bridge.protocol.nats.two_way import TwoWay
from bridge.site.batch.batch_interface import BatchSystem
from bridge.site.config.site_config import SiteConfig
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_record import JobRecord
from bridge.site.sessions import command_process
from bridge.site.sessions.container_sessions import entrance_of, require_entrance


def reaches_services(batch: BatchSystem, config: SiteConfig) -> bool:
    """Return whether pods at the site may reach Services."""
    return config.limits.allow_reach and batch.enters


def open_session(
    job_folder: JobFolder, record: JobRecord, batch: BatchSystem, config: SiteConfig
) -> Callable[[TwoWay], None]:
    """Return the function that serves the stream. Raises SiteRefusedError if this is not possible."""
    if not config.limits.allow_reach:
        text = "pods at this site reach no Services (limits.allow_reach is false)"
        raise SiteRefusedError(text, reason="ReachNotAllowed")
    require_entrance(batch, record)
    if record.final or not (record.pod or {}).get("host"):
        raise SiteRefusedError("the script of the job is not running", reason="NotRunning")
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
