"""The submitter's answers to requests of the hub.

Any submitter of a pool answers from the job directories, so all of them answer alike. Each request is idempotent by
UID. Errors are :class:`bridge.errors.BridgeError`; :mod:`bridge.protocol.nats.request_server` turns them into replies.

A job belongs to the cluster that submitted it, its owner. No other cluster sees it or changes it. An adopted job
belongs to the first cluster that requests it by its UID, which only the cluster of its pod knows; until then no
snapshot contains it.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial

from bridge.clock import Clock
from bridge.errors import BatchError, BatchUnknownOutcomeError, SiteRefusedError
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats import messages
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, FILES, GRANT, SNAPSHOT, STATUS, SUBMIT, USAGE
from bridge.protocol.nats.two_way import TwoWay
from bridge.site.arrays.array_submission import ArraySubmission, runs_arrays
from bridge.site.batch.batch_interface import BatchSystem
from bridge.site.batch_requests import BatchList, BatchSubmission
from bridge.site.config.site_config import SiteConfig
from bridge.site.container_usage import UsageReader
from bridge.site.gangs.gathering import Gatherer
from bridge.site.jobs import job_script, job_status, request_limits, sent_files
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_record import Cancellation, JobRecord, Meta
from bridge.site.jobs.ownership import OwnedJobs, adopted, request_end
from bridge.site.jobs.site_folder import Folder
from bridge.site.logs.log_reader import read_log, send_log
from bridge.site.sessions import container_sessions
from bridge.site.sessions.port_sessions import PortSessions
from bridge.site.watcher import SEQUENCE, Watcher
from bridge.telemetry import tracing

log = logging.getLogger(__name__)

ANNOUNCE = "announce.json"
BUILDCONFIG = "buildconfig.json"


class Submitter:
    """Answers the requests of :mod:`bridge.protocol.nats.request_table`.

    ``config`` returns the current configuration. ``wait`` waits for some seconds and returns whether the process stops.
    ``wake`` makes the leader query the batch system, or run actions, soon.
    """

    def __init__(
        self,
        folder: Folder,
        batch: BatchSystem,
        watcher: Watcher,
        config: Callable[[], SiteConfig],
        clock: Clock,
        *,
        lag: float,
        settle: float,
        batch_list: BatchList,
        wait: Callable[[float], bool],
        wake: Callable[[], None],
    ) -> None:
        self._folder, self._batch, self._watcher, self._config, self._clock = folder, batch, watcher, config, clock
        self._lag, self._wait, self._wake, self._batch_list = lag, wait, wake, batch_list
        self._owned = OwnedJobs(folder, watcher.index)
        self._usage, self._ports = UsageReader(folder.path, clock, wait), PortSessions()
        self._submission = BatchSubmission(folder, batch, config, clock, settle)
        self._gatherer = Gatherer(folder, batch, self._submission, batch_list, config, clock, lag)
        self.arrays = ArraySubmission(folder, batch, self._submission, watcher.index, clock, settle)

    # --- submit -------------------------------------------------------------------------------------------------------
    @SUBMIT.handler
    def submit(self, owner: str, job: str, body: messages.SubmitMessage) -> messages.SubmittedMessage:
        """Run a job, once."""
        if body.place is not None:
            existed = self._gatherer.submit(owner, job, body, body.place)
            self._notify_leader(body.place.gang)
            return self._submitted(job, existed=existed)
        job_folder, aside_folder = self._folder.job(job), self._folder.set_aside(job)
        new_record: JobRecord | None = None
        with self._folder.locked(job):
            existed = job_folder.exists()
            record = job_folder.read() if existed else None
            if record is not None:
                record = adopted(job_folder, record, owner)
            unused_record = None
            if record is not None and job_status.is_replaceable(record, body.grant_wait, self._clock.time(), self._lag):
                unused_record, record = record, None
            if record is None or not (record.job_id or record.started):
                self._folder.refuse_forgotten(job, owner)
            if record is not None:
                if not record.meta.array:  # else the leader submits it
                    self._submission.find_or_submit(record)
            else:
                script = job_script.whole(body.script, self._config())
                replaced = self._submission.replaced_ids(unused_record or aside_folder.read())
                meta = request_limits.admitted(owner, body, self._config(), self._clock.time())
                meta = replace(meta, replaced=replaced)
                if meta.array:
                    may_be_array = runs_arrays(self._batch, self._config())
                    meta = replace(meta, attempts=0) if may_be_array else replace(meta, array="")
                if existed and unused_record is None:
                    job_folder.remove_unfinished()
                # an empty folder proves nothing: it may have been replaced while the pod's batch job runs
                self._batch_list.refuse_foreign(job, self._folder, replaced)
                if unused_record is not None:
                    job_folder.set_aside(aside_folder)
                job_folder.create(script, meta)
                new_record = self._first_submit(job, meta)
                # last: a refused submission removes the new directory, and the ids of the earlier jobs with it
                aside_folder.remove()
        return self._submitted(job, new_record, existed=record is not None)

    def _submitted(self, job: str, new_record: JobRecord | None = None, *, existed: bool) -> messages.SubmittedMessage:
        status = self._current_status(job, new_record)
        if status is None:
            raise SiteRefusedError("the job was forgotten while it was submitted", reason="Forgotten")
        return messages.SubmittedMessage(status=status, existed=existed)

    def _first_submit(self, job: str, meta: Meta) -> JobRecord | None:
        """Submit a job whose directory was just created; remove the directory if the batch system refuses the job.

        Return its record; ``None`` if the script has started, so that the directory must be read. The leader submits a
        job that may be one of an array.
        """
        job_folder = self._folder.job(job)
        try:
            self._folder.refuse_forgotten(job, meta.owner)  # a cancellation that found no directory a moment ago
            if meta.array:
                return JobRecord(job, meta, found_at=self._folder.since)
            start = self._clock.time()
            job_id = self._batch.submit(self._submission.request(job, meta))
            job_folder.write_id(job_id)
            if tracing.tracer is not None:
                self._trace(job, meta, job_id, start)
        except BatchUnknownOutcomeError:
            # the directory stays: the job may exist, and the leader finds it by its name
            self._notify_leader(job)
            raise
        except (BatchError, SiteRefusedError):
            # a cancellation during the submission must refuse the hub's next attempt: its file goes with the directory
            cancel = record.cancel if (record := job_folder.read()) is not None else None
            if cancel is not None and not cancel.withdrawn:
                self._folder.mark_forgotten(job, meta.owner)
            job_folder.remove()
            self._notify_leader(job)
            raise
        return None if job_folder.begun() else JobRecord(job, meta, job_id, found_at=self._folder.since)

    def _trace(self, job: str, meta: Meta, job_id: str, start: float) -> None:
        identity = (meta.namespace, meta.name, job)
        tracing.submitted_at_site(tracing.current(), self._config().pool, identity, job_id, start, self._clock.time())

    def _notify_leader(self, job: str, new_record: JobRecord | None = None) -> JobStatus | None:
        """Notify the leader of a change and return the status of the job; ``new_record``: the record of a new one."""
        if not self._watcher.is_leader:
            self._folder.touch(job)
            record = new_record or self._folder.job(job).read()
            return None if record is None else self._status(record)
        entry = self._watcher.index.refresh(job, new_record)
        if self._batch.eager or self._watcher.index.pending_cancellations:
            self._wake()
        return None if entry is None else entry.status

    def _current_status(self, job: str, new_record: JobRecord | None = None) -> JobStatus | None:
        """Notify the leader and return the status of the job; ``None`` only if there is no directory of the job."""
        status = self._notify_leader(job, new_record)
        if status is None:
            self._folder.job(job).raise_if_unreadable()
        return status

    def resubmit(self, job: str) -> None:
        """Submit a job again whose last submission got no answer; raises :class:`BatchError`."""
        record = self._folder.job(job).read()
        if record is not None and (record.meta.place is not None or record.meta.gang is not None):
            self._gatherer.resubmit(record)
            return
        if record is not None and record.meta.array:
            self.arrays.resubmit(record)
            return
        with self._folder.locked(job):
            record = self._folder.job(job).read()
            if record is not None:
                self._submission.find_or_submit(record)

    # --- cancel and status --------------------------------------------------------------------------------------------
    @CANCEL.handler
    def cancel(self, owner: str, job: str, body: messages.CancelMessage) -> messages.Status:
        """Cancel a job: notify its script at once; the leader does the rest."""
        job_folder = self._folder.job(job)
        record = self._owned.read(job_folder, owner)
        if body.withdrawn:
            return self._withdraw(job_folder, record, body)
        if record is None:
            self._folder.mark_forgotten(job, owner)
            # again: a submission makes its directory before it checks the marker, so at least one sees the other
            record = self._owned.read(job_folder, owner)
        if record is not None:
            with contextlib.suppress(FileNotFoundError):  # the leader is removing it
                self._request_end(job_folder, record, body)
        return messages.Status(status=self._current_status(job))

    def _withdraw(
        self, job_folder: JobFolder, record: JobRecord | None, body: messages.CancelMessage
    ) -> messages.Status:
        """Cancel a job that has no grant. The lock keeps a grant from being written meanwhile."""
        if record is not None:
            place = record.meta.place
            # the grant of a group is complete under the lock of its job
            uids = (job_folder.uid,) if place is None else (job_folder.uid, place.gang)
            with self._folder.locked(*uids), contextlib.suppress(FileNotFoundError):
                record = job_folder.read()
                if record is not None and job_status.has_no_grant(record):
                    self._request_end(job_folder, record, body)
        return messages.Status(status=self._current_status(job_folder.uid))

    def _request_end(self, job_folder: JobFolder, record: JobRecord, body: messages.CancelMessage) -> None:
        request_end(job_folder, record, Cancellation(self._clock.time(), body.grace, body.forget, body.withdrawn))

    @GRANT.handler
    def grant(self, owner: str, job: str, body: messages.Grant) -> messages.Status:
        """Let the script with this ticket begin, if it still waits for its grant.

        Its pod fails if it is killed with a grant on disk, and gets another job if it is killed without one.
        """
        job_folder = self._folder.job(job)
        record = self._owned.read(job_folder, owner)
        if record is not None and record.meta.place is not None:
            if self._gatherer.grant(job, record.meta.place, body.ticket):
                self._notify_leader(record.meta.place.gang)
        elif record is not None:
            with self._folder.locked(job), contextlib.suppress(FileNotFoundError):
                record = job_folder.read()
                if record is not None and job_status.asks(record) == body.ticket:
                    job_folder.write_grant(body.ticket)
        return messages.Status(status=self._current_status(job))

    @STATUS.handler
    def status(self, owner: str, job: str, _body: messages.Empty) -> messages.Status:
        """Return the status of one job.

        The leader reads the job again: the submitter that accepted it may have died before it notified the leader.
        """
        self._owned.read(self._folder.job(job), owner)
        return messages.Status(status=self._current_status(job))

    def _status(self, record: JobRecord) -> JobStatus:
        return job_status.status(record, self._clock.time(), self._lag)

    @SNAPSHOT.handler
    def snapshot(self, owner: str, _job: str, body: messages.Snapshot) -> messages.SnapshotPage:
        """Return a page of all jobs of an owner."""
        if self._watcher.is_leader:
            sequence, jobs, more = self._watcher.index.page(owner, body.after, body.limit)
            return messages.SnapshotPage(submitter=self._watcher.name, sequence=sequence, jobs=tuple(jobs), more=more)
        noted = self._folder.noted(SEQUENCE)  # read first: what is read later is newer
        if noted is None:
            raise SiteRefusedError("no submitter is the leader yet", reason="NotReady", retryable=True)
        records = (self._folder.job(uid).read() for uid in self._folder.uids() if uid > body.after)
        owned_records = (record for record in records if record is not None and record.meta.owner == owner)
        jobs = [self._status(record) for record in itertools.islice(owned_records, body.limit + 1)]
        return messages.SnapshotPage(
            submitter=str(noted.get("submitter", "")),
            sequence=int((noted.get("sequences") or {}).get(owner, 0)),
            jobs=tuple(jobs[: body.limit]),
            more=len(jobs) > body.limit,
        )

    @DESCRIBE.handler
    def describe(self, _owner: str, _job: str, _body: messages.Empty) -> messages.Description:
        """Return the last announcement of the leader."""
        announce, config = self._folder.noted(ANNOUNCE), self._folder.noted(BUILDCONFIG)
        if announce is None or config is None:
            raise SiteRefusedError("no submitter is the leader yet", reason="NotReady", retryable=True)
        noted = self._folder.noted(SEQUENCE) or {}
        if self._watcher.is_leader:
            noted = {"submitter": self._watcher.name, "sequences": self._watcher.index.sequences}
        return messages.Description(
            announce=messages.Announce.model_validate({**announce, **noted}),
            buildconfig=messages.BuildConfigMessage.model_validate(config),
        )

    # --- files and logs -----------------------------------------------------------------------------------------------
    @FILES.handler
    def files(self, owner: str, job: str, body: messages.Files) -> messages.Empty:
        """Replace and remove files of a job's volumes."""
        job_folder, record = self._owned.existing(job, owner)
        # afterwards, the job no longer reads them, and its secrets were removed
        if not record.final and not record.end_confirmed:
            sent_files.replace(job_folder.path, body)
        return messages.Empty()

    @USAGE.handler
    def usage(self, owner: str, _job: str, body: messages.UsageRequest) -> messages.UsageAnswer:
        """Return the use of CPU and memory of an owner's running jobs."""
        paths = [(uid, str(self._folder.job(uid).path)) for uid in body.jobs if self._runs_for(owner, uid)]
        try:
            return messages.UsageAnswer(jobs=tuple(self._usage.read(paths)))
        except OSError as error:
            text = f"the use of CPU and memory can't be requested: {error.strerror}"
            raise SiteRefusedError(text, reason="UsageNotAvailable", retryable=True) from error

    def _runs_for(self, owner: str, uid: str) -> bool:
        entry = self._watcher.index.entries.get(uid) if self._watcher.is_leader else None
        record = entry.record if entry is not None else self._folder.job(uid).read()
        return record is not None and record.meta.owner == owner and record.started and not record.final

    def exec(self, owner: str, job: str, body: messages.Exec) -> Callable[[TwoWay], None]:
        """Return the function that runs a command in a container of a running job."""
        job_folder, record = self._owned.existing(job, owner)
        return container_sessions.open_session(job_folder, record, body, self._batch, self._config())

    def connect(self, owner: str, job: str, body: messages.Connect) -> Callable[[TwoWay], None]:
        """Return the function that connects to a port of a running job."""
        job_folder, record = self._owned.existing(job, owner)
        return self._ports.open(job_folder, record, body.port, self._batch, self._config())

    def reach(self, owner: str, job: str, _body: messages.Reach) -> Callable[[TwoWay], None]:
        """Return the function that passes on the connections of a running job to Services."""
        job_folder, record = self._owned.existing(job, owner)
        return container_sessions.open_reach(job_folder, record, self._batch, self._config())

    def logs(self, owner: str, job: str, body: messages.Logs) -> Callable[[TwoWay], None]:
        """Return the function that sends a log in pieces: see :func:`bridge.site.logs.log_reader.read_log`."""
        return partial(send_log, self.log(owner, job, body, self._wait))

    def log(
        self, owner: str, job: str, options: LogOptions, wait: Callable[[float], bool]
    ) -> Generator[bytes, None, None]:
        """Return the pieces of a log. ``wait`` waits for some seconds and returns whether to stop."""
        job_folder, record = self._owned.existing(job, owner)

        def has_ended() -> bool:
            current_record = job_folder.read()
            return current_record is None or job_status.is_over(current_record, self._clock.time(), self._lag)

        return read_log(job_folder.path, options, record, has_ended, wait, self._clock)
