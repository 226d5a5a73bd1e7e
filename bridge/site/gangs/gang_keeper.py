"""Ends and removes the jobs of groups whose pods are over: no job and no directory is left behind."""

from __future__ import annotations

import enum
import logging
from collections.abc import Sequence

from bridge.clock import Clock
from bridge.core.isolation import isolated
from bridge.logs import kv
from bridge.site.jobs import job_status, member_record
from bridge.site.jobs.job_index import Entry, JobIndex, is_missing
from bridge.site.jobs.job_record import Cancellation, JobRecord
from bridge.site.jobs.site_folder import Folder

log = logging.getLogger(__name__)

CLOSING = 30.0
"""Seconds in which the launcher ends by itself once all pods of the group are gone."""
KEPT = 600.0
"""Seconds for which the directory of an incomplete group without pods is kept: a pod may just be submitted."""
OFFER_KEPT = 10.0
"""The same for a group that races: it often runs elsewhere before all its pods are here."""


class Step(enum.Enum):
    """What is due for the job of a group."""

    NONE = "nothing"
    END = "cancel it"
    FORGET = "cancel it, then remove its directory"
    REMOVE = "remove the directory of a job that was never submitted"


def due_step(gang: JobRecord, members: Sequence[Entry], now: float) -> Step:
    """Return what is due for the job of a group with these pods. Pure."""
    if not members:
        if gang.meta.attempts or gang.cancel is not None:
            return Step.NONE if gang.cancel is not None and gang.cancel.forget else Step.FORGET
        kept = KEPT if gang.meta.grant_wait is None else OFFER_KEPT
        return Step.REMOVE if now - gang.meta.attempted_at >= kept else Step.NONE
    # a pod of an incomplete group may be cancelled before the hub has submitted the others
    if gang.cancel is not None or gang.end_confirmed or not gang.meta.attempts:
        return Step.NONE
    if is_missing(gang):
        are_over = all(member.status.phase == "ended" or member.record.cancel is not None for member in members)
    else:
        # a launcher with its grant ends by itself
        has_begun = gang.started and not job_status.waits_for_grant(gang)
        are_over = not has_begun and all(member.status.phase == "ended" for member in members)
    return Step.END if are_over else Step.NONE


class GangKeeper:
    """Runs, in the leader, what is due for the jobs of groups."""

    def __init__(self, folder: Folder, index: JobIndex, clock: Clock) -> None:
        self._folder, self._index, self._clock = folder, index, clock

    def run(self) -> None:
        """Run what is due now."""
        for gang in tuple(self._index.gangs):
            with isolated("site", gang):
                self._look(gang)

    def _look(self, gang: str) -> None:
        entry = self._index.entries.get(gang)
        if entry is not None:  # else the submitter was killed before it notified the leader
            if due_step(entry.record, self._members(gang), self._clock.time()) is Step.NONE:
                return
            try:
                with self._folder.locked(gang, wait=False):
                    self._run(gang)
            except BlockingIOError:  # a pod is being submitted
                return
            except OSError as error:  # a full disk, or a job that spoils its directory; the next run repeats it
                log.warning("the job of a group is not ended yet", extra=kv(job=gang, why=error.strerror))
        self._index.refresh(gang)

    def _members(self, gang: str) -> list[Entry]:
        uids = tuple(self._index.gangs.get(gang, ()))
        return [self._index.entries[uid] for uid in uids if uid in self._index.entries]

    def _run(self, gang: str) -> None:
        """Run a step. The lock is held, so no pod is submitted meanwhile."""
        gang_folder = self._folder.job(gang)
        for uid in member_record.member_uids(gang_folder):  # submitted since the index was read
            if uid not in self._index.entries and self._folder.job(uid).exists():
                self._index.refresh(uid)
        entry = self._index.refresh(gang)
        if entry is None:
            return
        step, now = due_step(entry.record, self._members(gang), self._clock.time()), self._clock.time()
        if step is Step.REMOVE:
            gang_folder.remove()
        elif step is not Step.NONE:
            log.info("the pods of a group are over", extra=kv(job=gang, step=step.name))
            request = Cancellation(now, CLOSING if entry.record.started else 0, step is Step.FORGET)
            cancel = entry.record.cancel
            gang_folder.write_cancel(request if cancel is None else cancel.merged(request))
