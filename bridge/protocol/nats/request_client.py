"""The hub's side of the protocol: requests to one pool. All are idempotent by pod UID."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.errors import SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats import messages
from bridge.protocol.nats.envelope import GarbledError, pack, parse, parse_body
from bridge.protocol.nats.log_reader import LogReader
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.subjects import Subjects

M = TypeVar("M", bound=messages.Message)

SUBMIT_TIMEOUT = 60.0
CANCEL_TIMEOUT = 30.0
TIMEOUT = 10.0
SNAPSHOT_TIMEOUT = 30.0
PAGE = 500
TRIES = 6
"""Attempts while submitters with another folder refuse a request: the NATS server selects a submitter at random."""
_REASON = re.compile(r"[A-Z][A-Za-z0-9]{0,63}")
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a snapshot. ``unreadable``: UIDs of jobs whose state is invalid."""

    submitter: str
    sequence: int
    jobs: list[JobStatus]
    more: bool
    last: str
    unreadable: set[str] = field(default_factory=set)


class PoolClient:
    """Sends requests to one pool. Its methods are thread-safe, wait for the answer, and may raise SiteError.

    ``owner``: UID of this cluster. ``folder`` returns the id of the site's folder that requests concern. An answer from
    another folder is an error: its submitter does not know the jobs. Empty: any folder.
    """

    def __init__(
        self,
        link: Link,
        prefix: str,
        pool: str,
        owner: str,
        clock: Clock = SYSTEM_CLOCK,
        folder: Callable[[], str] = lambda: "",
    ) -> None:
        self._link, self._pool, self._owner, self._clock, self._folder = link, pool, owner, clock, folder
        self._subjects = Subjects(prefix, pool, owner)

    def submit(
        self, job: str, submit: messages.SubmitMessage, timeout: float = SUBMIT_TIMEOUT
    ) -> messages.SubmittedMessage:
        """Submit a job; return the existing one if the site has it already."""
        subject = self._subjects.submit(submit.namespace, submit.name, job)
        answer = self._parse(messages.SubmittedMessage, self._request(subject, job, submit, timeout))
        self._check(answer.status)
        return answer

    def cancel(self, job: str, cancel: messages.CancelMessage, timeout: float = CANCEL_TIMEOUT) -> messages.Status:
        """Cancel a job."""
        return self._status(self._request(self._subjects.cancel(job), job, cancel, timeout))

    def status(self, job: str, timeout: float = TIMEOUT) -> messages.Status:
        """Request the state of one job."""
        return self._status(self._request(self._subjects.status(job), job, None, timeout))

    def grant(self, job: str, grant: messages.Grant, timeout: float = TIMEOUT) -> messages.Status:
        """Let the waiting script of a job begin."""
        return self._status(self._request(self._subjects.grant(job), job, grant, timeout))

    def describe(self, timeout: float = TIMEOUT) -> messages.Description:
        """Request the announcement and the BuildConfig."""
        return self._parse(messages.Description, self._request(self._subjects.describe, "", None, timeout))

    def files(self, job: str, files: messages.Files, timeout: float = TIMEOUT) -> None:
        """Replace files in volumes of a job."""
        self._request(self._subjects.files(job), job, files, timeout)

    def snapshot(self, after: str = "", limit: int = PAGE, timeout: float = SNAPSHOT_TIMEOUT) -> Page:
        """Request a page of all jobs. A job with an invalid state does not make the page invalid."""
        body = self._request(self._subjects.snapshot, "", messages.Snapshot(after=after, limit=limit), timeout)
        try:
            message = parse_body(messages.SnapshotPage, body)
        except GarbledError:
            page = _parse_job_by_job(body)
        else:
            last_uid = message.jobs[-1].job if message.jobs else ""
            page = Page(message.submitter, message.sequence, message.jobs, message.more, last_uid)
        page.jobs[:] = [job for job in page.jobs if job.owner == self._owner]
        return page

    def logs(self, job: str, options: LogOptions, timeout: float = TIMEOUT) -> LogReader:
        """Request a log. The caller must close the reader."""
        stream = secrets.token_hex(16)
        # subscribed before the request: chunks may arrive before the answer
        reader = LogReader(self._link, self._subjects, stream)
        try:
            self._request(self._subjects.logs(job), job, messages.Logs.of(options, stream), timeout)
        except BaseException:
            reader.close()
            raise
        return reader

    def _request(self, subject: str, job: str, body: messages.Message | None, timeout: float) -> dict[str, object]:
        # read once: the hub may choose another folder while it waits for the answer
        folder = self._folder()
        request = messages.Request(
            pool=self._pool,
            owner=self._owner,
            folder=folder,
            job=job,
            deadline=self._clock.time() + timeout,
            body=body.model_dump(mode="json") if body else {},
        )
        data = pack(request)
        for _ in range(TRIES):
            try:
                reply = parse(messages.Reply, self._link.request(subject, data, timeout))
            except GarbledError as error:
                raise SiteUnknownOutcomeError(f"the answer of pool {self._pool} is invalid: {error}") from error
            if reply.error is None or reply.error.reason != messages.WRONG_FOLDER:
                break  # otherwise it was not carried out
        if (problem := reply.error) is not None:
            reason = problem.reason if _REASON.fullmatch(problem.reason) else "SiteRefused"
            message, hint = problem.message[:_LONGEST], problem.hint[:_LONGEST]
            raise SiteRefusedError(message, reason=reason, retryable=problem.retryable, hint=hint)
        if folder and reply.folder != folder:
            raise SiteUnknownOutcomeError(
                f"pool {self._pool}: the answer is from folder {reply.folder!r} instead of {folder}"
            )
        return reply.body

    def _status(self, body: object) -> messages.Status:
        answer = self._parse(messages.Status, body)
        if answer.status is not None:
            self._check(answer.status)
        return answer

    def _check(self, status: JobStatus) -> None:
        """Raise SiteRefusedError if the job belongs to another cluster."""
        if status.owner != self._owner:
            raise SiteRefusedError(
                f"job {status.job} at pool {self._pool} belongs to another cluster", reason="NotOwner"
            )

    def _parse(self, kind: type[M], body: object) -> M:
        try:
            return parse_body(kind, body)
        except GarbledError as error:
            raise SiteUnknownOutcomeError(f"the answer of pool {self._pool} is invalid: {error}") from error


def _parse_job_by_job(body: dict[str, object]) -> Page:
    """Parse a page job by job; raise SiteError if a UID is invalid, because the page then shows no job as gone."""
    entries = body.get("jobs")
    try:
        page = parse_body(messages.SnapshotPage, {**body, "jobs": []})
        jobs, unreadable, last_uid = [], set(), ""
        for entry in entries if isinstance(entries, list) else []:
            try:
                status = parse_body(messages.Status, {"status": entry}).status
                if status is None:
                    raise GarbledError("null instead of a job")
            except GarbledError:
                uid = entry.get("job") if isinstance(entry, dict) else None
                last_uid = parse_body(messages.Request, {"pool": "x", "owner": "x", "deadline": 0, "job": uid}).job
                if not last_uid:
                    raise
                unreadable.add(last_uid)
            else:
                jobs.append(status)
                last_uid = status.job
    except GarbledError as error:
        raise SiteError(f"the snapshot is invalid: {error}") from error
    return Page(page.submitter, page.sequence, jobs, page.more, last_uid, unreadable)
