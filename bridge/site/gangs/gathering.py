"""Accepts the pods of a group, and submits the one job of the group once the site has all of them.

The lock of the group's job is held from the first check to the end. A submitter that is killed in between has written,
in this order: the directory of the group's job; that of the pod; the rank file; the number of the attempt to submit the
job; its id. The hub repeats its request, and the leader what is missing: each step is done only if it was not done.

A job whose pods need a grant waits until each of them was granted, or was submitted without that need: such a pod is
bound to this pool. If it ends without its grant, the next submission of one of its pods makes the next job, and the
others are unused until they are submitted, too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace

from bridge.clock import Clock
from bridge.errors import BatchError, BatchUnknownOutcomeError, SiteRefusedError
from bridge.logs import kv
from bridge.protocol.model.requests import PlaceInJob
from bridge.protocol.nats.messages import SubmitMessage
from bridge.script import flavor_limits
from bridge.site.batch.batch_interface import BatchJob, BatchSystem
from bridge.site.batch_requests import BatchList, BatchSubmission
from bridge.site.config.site_config import SiteConfig
from bridge.site.files.beneath import Below, names
from bridge.site.gangs import gang_request, launcher
from bridge.site.jobs import job_script, job_status, member_record, request_limits
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_record import JobRecord, Meta
from bridge.site.jobs.ownership import adopted
from bridge.site.jobs.site_folder import Folder

log = logging.getLogger(__name__)

OVER = member_record.GANG_OVER


def runs_groups(batch: BatchSystem, config: SiteConfig) -> bool:
    """Return whether the site runs a group of pods as one job: the flags of interLink's rules size a job of one pod."""
    return batch.gangs and not config.limits.by_interlink


class Gatherer:
    """Accepts pods with a place. ``lag``: see :func:`bridge.site.jobs.job_status.status`."""

    def __init__(
        self,
        folder: Folder,
        batch: BatchSystem,
        submission: BatchSubmission,
        batch_list: BatchList,
        config: Callable[[], SiteConfig],
        clock: Clock,
        lag: float,
    ) -> None:
        self._folder, self._batch, self._submission, self._batch_list = folder, batch, submission, batch_list
        self._config, self._clock, self._lag = config, clock, lag

    def submit(self, owner: str, job: str, body: SubmitMessage, place: PlaceInJob) -> bool:
        """Accept a pod, once; return whether it was here already. Raises :class:`SiteRefusedError`."""
        job_folder, gang_folder = self._folder.job(job), self._folder.job(place.gang)
        with self._folder.locked(job, place.gang):
            self._restore(gang_folder)
            record = job_folder.read()
            if record is not None:
                record = adopted(job_folder, record, owner)
            now = self._clock.time()
            is_unused = record is not None and job_status.is_replaceable(record, body.grant_wait, now, self._lag)
            if is_unused:
                record = None
            if record is None or not record.started:
                self._folder.refuse_forgotten(job, owner)
            if record is None:
                self._accept(owner, job_folder, gang_folder, body, place, is_unused=is_unused)
                try:
                    self._folder.refuse_forgotten(job, owner)  # a cancellation that found no directory a moment ago
                except SiteRefusedError:
                    job_folder.remove()
                    raise
                self._join(job_folder, gang_folder, place, f"{body.namespace}/{body.name}")
            elif record.cancel is None and not record.job_id and not record.started:
                self._repeat(record, job_folder, gang_folder)
            self._gather(gang_folder)
        return record is not None

    def resubmit(self, record: JobRecord) -> None:
        """Do what a killed submitter left to do for a pod, or for the job of a group. Raises :class:`BatchError`."""
        gang = record.uid if record.meta.place is None else record.meta.place.gang
        job_folder, gang_folder = self._folder.job(record.uid), self._folder.job(gang)
        with self._folder.locked(record.uid, gang):
            self._restore(gang_folder)
            current_record = job_folder.read()
            if current_record is None or current_record.cancel is not None:
                return
            if current_record.meta.place is not None:
                self._repeat(current_record, job_folder, gang_folder)
            self._gather(gang_folder)

    def grant(self, job: str, place: PlaceInJob, ticket: str) -> bool:
        """Grant a pod to the job whose script asks with this ticket; return whether that was the last of its pods."""
        job_folder, gang_folder = self._folder.job(job), self._folder.job(place.gang)
        with self._folder.locked(job, place.gang), contextlib.suppress(FileNotFoundError):
            record = job_folder.read()
            if record is None or job_status.asks(record) != ticket:
                return False
            # the grant of the job first: after a kill, the hub need not repeat that of this pod
            is_complete = self._complete_grant(gang_folder, job)
            member_record.write_granted(gang_folder, job, place.rank, ticket, sync=self._folder.sync)
            return is_complete
        return False

    def _complete_grant(self, gang_folder: JobFolder, granted: str = "") -> bool:
        """Let the job of a group begin if it waits and each of its pods was granted; ``granted``: one that is now."""
        gang = gang_folder.read()
        ticket = "" if gang is None else job_status.asks(gang)
        if gang is None or gang.meta.gang is None or not ticket:
            return False
        granted_names = member_record.granted_names(gang_folder)
        for rank in range(gang.meta.gang.size):
            uid = member_record.rank_uid(gang_folder, rank)
            record = self._folder.job(uid).read() if uid else None
            if record is None or record.cancel is not None or record.meta.run != gang.meta.run:
                return False
            is_granted = uid == granted or record.meta.grant_wait is None or f"{rank}.{uid}" in granted_names
            if record.meta.place is None or record.meta.place.gang != gang.uid or not is_granted:
                return False
        gang_folder.write_grant(ticket)
        return True

    # --- one pod ------------------------------------------------------------------------------------------------------
    def _accept(
        self,
        owner: str,
        job_folder: JobFolder,
        gang_folder: JobFolder,
        body: SubmitMessage,
        place: PlaceInJob,
        *,
        is_unused: bool,
    ) -> None:
        """Create the directory of a pod, in place of an unused one, and before it that of the group's job."""
        config = self._config()
        self._check_supported(body, place, config)
        script = job_script.whole(body.script, config)
        meta = request_limits.admitted(owner, body, config, self._clock.time())
        if job_folder.exists() and not is_unused:
            job_folder.remove_unfinished()
        run = self._require_gang(gang_folder, job_folder.uid, meta, place)
        self._require_free_rank(gang_folder, job_folder.uid, place)
        if is_unused:
            job_folder.remove()
        member_record.drop_granted(gang_folder, job_folder.uid, place.rank)
        job_folder.create(script, replace(meta, run=run))

    def _check_supported(self, body: SubmitMessage, place: PlaceInJob, config: SiteConfig) -> None:
        if not runs_groups(self._batch, config):
            raise SiteRefusedError(
                f"batch.kind {self._batch.kind}: this site does not run a group of pods as one job; allowed: pods that"
                " are in no group",
                reason="GangsNotSupported",
            )
        if place.mpi != "none" and place.mpi not in (ways := self._batch.mpi_ways()):
            raise SiteRefusedError(
                f"mpi {place.mpi!r}: the batch system of this site ({self._batch.kind}) does not start MPI jobs in this"
                f" way; allowed: {', '.join(ways)}",
                reason="MpiNotSupported",
            )
        if place.rank >= place.size:
            raise SiteRefusedError(f"place: rank {place.rank}; allowed: 0 to {place.size - 1}", reason="InvalidRequest")

    def _require_gang(self, gang_folder: JobFolder, job: str, meta: Meta, place: PlaceInJob) -> int:
        """Create the directory of the group's job, or check that the pod fits into the job; return its run."""
        wanted = gang_request.of_one(meta, place)
        record, aside_folder = gang_folder.read(), self._folder.set_aside(gang_folder.uid)
        if record is not None and (record.meta.gang is None or record.meta.gang.owner != meta.owner):
            raise SiteRefusedError(
                f"place: job {gang_folder.uid} is not the job of a group of this cluster", reason="NotOwner"
            )
        if record is not None and job_status.is_unused(record, self._clock.time(), self._lag):
            if record.cancel is not None and record.cancel.forget:
                raise _over(gang_folder.uid, retryable=True)  # the leader is about to remove this directory
            gang_folder.set_aside(aside_folder)
            record = None
        if record is None:
            return self._create_gang(gang_folder, aside_folder, wanted)
        if record.final or record.cancel is not None or record.end_confirmed:
            raise _over(gang_folder.uid, retryable=job_status.has_no_grant(record))
        refusal = self._misfit(gang_folder.uid, record.meta, wanted, place.rank)
        if refusal is None:
            return record.meta.run
        if record.meta.attempts or self._has_others(gang_folder, job):
            raise refusal
        # only pods that are over have requested something else
        wanted = replace(wanted, run=record.meta.run, replaced=record.meta.replaced)
        gang_folder.rewrite(self._script(gang_folder.uid, wanted), wanted)
        return wanted.run

    def _misfit(self, gang: str, present: Meta, wanted: Meta, rank: int) -> SiteRefusedError | None:
        """Return why a pod, for which a job would be ``wanted``, cannot have a rank of the present one."""
        if wanted.grant_wait is not None and present.grant_wait is None:
            return SiteRefusedError(
                f"grant_wait {wanted.grant_wait:g}: job {gang} of the group waits for no grant; allowed: none, of a pod"
                " that is bound to this pool",
                reason="GangIsBound",
                retryable=True,
            )
        differences = gang_request.differences(wanted, present, rank, heterogeneous=self._batch.heterogeneous)
        for name, value, other in differences:
            return SiteRefusedError(
                f"{name} {value!r}: the pods of a group must be equal at this site; allowed: {other!r}, as of the pods"
                " that are here",
                reason="GangDiffers",
            )
        return None

    def _has_others(self, gang_folder: JobFolder, job: str) -> bool:
        """Return whether another pod has a rank, and is neither cancelled nor gone."""
        others = (self._folder.job(uid) for uid in member_record.member_uids(gang_folder) if uid != job)
        return any(folder.exists() and not folder.is_cancelled() for folder in others)

    def _create_gang(self, gang_folder: JobFolder, aside_folder: JobFolder, wanted: Meta) -> int:
        """Create the directory of the group's job; ``aside_folder``: that of its last job, if that ended unused."""
        uid = gang_folder.uid
        unused_ids = self._folder.unused_ids(uid)
        if unused_ids is None and self._folder.is_forgotten(uid, ""):
            raise _over(uid)
        unused_record = aside_folder.read()
        replaced = (*(unused_ids or ()), *self._submission.replaced_ids(unused_record))
        run = unused_record.meta.run + 1 if unused_record is not None else 0
        if gang_folder.exists():
            gang_folder.remove_unfinished()
        self._batch_list.refuse_foreign(uid, self._folder, replaced)
        meta = replace(wanted, run=run, replaced=replaced)
        gang_folder.create(self._script(uid, meta), meta)
        aside_folder.remove()
        if unused_ids is not None:
            self._folder.unmark_unused(uid)
        return run

    def _script(self, gang: str, meta: Meta) -> str:
        request = self._submission.request(gang, meta)
        starter = self._batch.gang_starter(request, meta.gang.mpi if meta.gang is not None else "none")
        one_machine = self._batch.one_machine
        return launcher.script(request.components, starter, meta.grant_wait, one_machine=one_machine)

    def _require_free_rank(self, gang_folder: JobFolder, job: str, place: PlaceInJob) -> None:
        uid = member_record.rank_uid(gang_folder, place.rank)
        if uid in ("", job):
            return
        other_folder = self._folder.job(uid)
        other = other_folder.read()
        if other is None and other_folder.exists():
            other_folder.raise_if_unreadable()
        if other is not None and not job_status.is_over(other, self._clock.time(), self._lag):
            raise SiteRefusedError(
                f"rank {place.rank} of the group: pod {other.meta.namespace}/{other.meta.name} ({uid}) has it;"
                " allowed: a rank whose pod is over",
                reason="RankTaken",
                retryable=True,
            )

    def _repeat(self, record: JobRecord, job_folder: JobFolder, gang_folder: JobFolder) -> None:
        """Give a pod its rank if the submitter that created its directory was killed before."""
        place = record.meta.place
        if place is None or member_record.rank_uid(gang_folder, place.rank) == record.uid:
            return
        if self._require_gang(gang_folder, record.uid, record.meta, place) != record.meta.run:
            return  # its job is unused: the hub submits it again
        self._require_free_rank(gang_folder, record.uid, place)
        self._join(job_folder, gang_folder, place, f"{record.meta.namespace}/{record.meta.name}")

    def _join(self, job_folder: JobFolder, gang_folder: JobFolder, place: PlaceInJob, pod: str) -> None:
        member_record.take_rank(gang_folder, job_folder.uid, place, pod, sync=self._folder.sync)
        # the launcher creates "closed" before it looks for the last time
        if "closed" in names(Below(gang_folder.at, ".")) and member_record.retire(job_folder):
            job_folder.remove()
            raise _over(gang_folder.uid)

    def _restore(self, gang_folder: JobFolder) -> None:
        """Take back the directory of an unused job, if the submitter that was replacing it was killed."""
        aside_folder = self._folder.set_aside(gang_folder.uid)
        if aside_folder.exists() and gang_folder.read() is None:
            if gang_folder.exists():
                gang_folder.remove_unfinished()
            aside_folder.set_aside(gang_folder)

    # --- the job of the group -----------------------------------------------------------------------------------------
    def _gather(self, gang_folder: JobFolder) -> None:
        """Submit the job of the group if it has all pods. A refusal, by the site's limits too, is their end."""
        record = gang_folder.read()
        if record is None or record.meta.gang is None or len(member_record.ranks(gang_folder)) < record.meta.gang.size:
            return
        self._complete_grant(gang_folder)
        if not record.meta.attempts and not record.end_confirmed:
            requests = self._requests(gang_folder)
            if len(requests) < record.meta.gang.size:
                return
            if refusal := flavor_limits.group_refusal(requests, self._config()):
                self._end(gang_folder, request_limits.OVER_LIMIT, refusal)
                return
            if self._batch.heterogeneous:
                try:
                    record = self._with_components(gang_folder, record, requests)
                except SiteRefusedError as error:  # too many components
                    self._end(gang_folder, error.reason, str(error))
                    return
        try:
            self._submission.find_or_submit(record)
        except BatchUnknownOutcomeError as error:
            log.warning("submit without an answer", extra=kv(job=gang_folder.uid, why=error))
        except BatchError as error:
            if error.retryable:
                log.warning("submit refused", extra=kv(job=gang_folder.uid, why=error))
                gang_folder.write_meta(record.meta)  # there is no job: the leader need not look for it
                return
            request = self._submission.request(gang_folder.uid, record.meta)
            self._end(gang_folder, error.reason, f"{error}; {gang_request.description(record.meta, request)}")

    def _end(self, gang_folder: JobFolder, reason: str, message: str) -> None:
        """Record the end of a job that the batch system does not have: it is that of the pods."""
        log.warning("submit refused", extra=kv(job=gang_folder.uid, why=message))
        gang_folder.write_batch(BatchJob("", gang_folder.uid, "ended", reason, message), self._clock.time())

    def _requests(self, gang_folder: JobFolder) -> list[Meta]:
        """Return the requests of the pods by rank; a pod that is cancelled or gone loses its rank to its successor."""
        requests = list[Meta]()
        for rank in sorted(member_record.ranks(gang_folder)):
            folder = self._folder.job(member_record.rank_uid(gang_folder, rank))
            if folder.is_cancelled() or not folder.exists():
                member_record.drop_rank(gang_folder, rank)
            elif (meta := folder.meta()) is not None:  # else it can't be read now
                requests.append(meta)
        return requests

    def _with_components(self, gang_folder: JobFolder, record: JobRecord, requests: list[Meta]) -> JobRecord:
        """Rewrite the job of a complete group if its pods request different resources."""
        config = self._config()
        meta = gang_request.of_all(record.meta, requests, lambda flavor: config.most_seconds(config.flavor(flavor)))
        if meta != record.meta:
            gang_folder.rewrite(self._script(gang_folder.uid, meta), meta)
        return replace(record, meta=meta)


def _over(gang: str, *, retryable: bool = False) -> SiteRefusedError:
    return SiteRefusedError(f"job {gang} of the group is over; allowed: a new job", reason=OVER, retryable=retryable)
