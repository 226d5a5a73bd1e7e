"""The record of a pod that runs in the job of its group: what the batch system reports follows from that job.

In the directory of the group's job, ``jobs/<gang>``:

``ranks/<rank>``         the pod that has the rank: lines with its UID, its host names, and its namespace and name
``ended/<rank>.<uid>``   the exit code of its script, and ``stopped`` if it ended because the job ends
``granted/<rank>.<uid>`` the ticket that the pod was granted; ``control/grant`` has it once all pods were
``control/kill-<uid>``   the request to kill its script; contains the rank

In the directory of the pod, the link ``started`` takes the place of the directory that its script makes first: the
script can't start any more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from bridge import job_ends
from bridge.protocol.model.requests import PlaceInJob
from bridge.site.batch.batch_interface import BatchJob
from bridge.site.files import atomic_files
from bridge.site.files.beneath import Below, make_folder, names, unlink
from bridge.site.jobs.job_record import JobRecord

GANG_INCOMPLETE = "GangIncomplete"
GANG_OVER = "GangOver"
_RETIRED = "cancelled"
_LONGEST_RANK_FILE = 16 * 1024
_FROM_OUTSIDE = frozenset({"", "Terminated", "Deleted"})
"""Reasons in the record of a group's job for which the batch system's reason is better."""


class Folder(Protocol):
    """What this module uses of a job's directory: :class:`bridge.site.jobs.job_folder.JobFolder`."""

    uid: str
    at: str

    def read(self) -> JobRecord | None:
        """Read the job."""


@dataclass(frozen=True, slots=True)
class GangView:
    """What the directory of the group's job tells of one pod.

    ``has_rank``: the rank file names it. ``exit_code``: of its script, once this has ended; ``stopped``: because the
    job of the group ends.
    ``retired``: its script can't start any more. ``granted``: the hub has granted the pod to the job.
    ``gang``: the part of the job's record that :func:`shared` returns.
    """

    gang: JobRecord | None
    has_rank: bool = False
    exit_code: int | None = None
    stopped: bool = False
    retired: bool = False
    granted: bool = False


def with_place(member: JobRecord, member_folder: Folder, gang_folder: Folder) -> JobRecord:
    """Return the record of a pod with the id and the batch job that follow from the job of its group."""
    if member.meta.place is None:
        return member
    stored_end = member.batch if member.end_confirmed else None
    if stored_end is not None and member.meta.grant_wait is None:
        return replace(member, job_id=stored_end.id)
    view = _read(member, member.meta.place, member_folder, gang_folder)
    if stored_end is not None:  # the job of the group still tells whether it is unused
        return replace(member, job_id=stored_end.id, launcher=_launcher(member, view))
    return derived(member, view)


def shared(gang: JobRecord) -> JobRecord:
    """Return the part of the record of a group's job that the records of its pods follow from. Pure.

    As long as it is the same, the pods need not be read again: the launcher's own start and end are no news for them.
    """
    batch = gang.batch
    if batch is not None:  # the machines are those of the group's job; the script of the pod tells its own
        batch = replace(batch, host="", started_at=None)
    job_id = gang.job_id or gang.started_job
    shown = JobRecord(gang.uid, gang.meta, job_id=job_id, batch=batch, batch_at=gang.batch_at)
    if gang.meta.grant_wait is not None:  # this script waits for the grants of the pods
        return replace(shown, started=gang.started, pod=gang.pod, grant=gang.grant)
    return replace(shown, pod=gang.pod) if _own_reason(gang) else shown


def derived(member: JobRecord, view: GangView) -> JobRecord:
    """Return the record of a pod for what the directory of the group's job tells. Pure.

    ``batch_at`` is 0 if its script has ended: the leader stores when it first read this.
    """
    gang = view.gang
    job_id = gang.job_id if gang is not None and view.has_rank else ""
    batch = _batch_job(member, view)
    at = 0.0 if gang is None or (view.exit_code is not None and not view.stopped) else gang.batch_at
    launcher = _launcher(member, view)
    ticket = (launcher.pod or {}).get("ticket") if launcher is not None and view.granted else ""
    return replace(
        member,
        launcher=launcher,
        grant=ticket if isinstance(ticket, str) else "",
        job_id=job_id or member.started_job,
        batch=None if batch is None else replace(batch, uid=member.uid, id=job_id),
        batch_at=0.0 if batch is None else at,
    )


def _launcher(member: JobRecord, view: GangView) -> JobRecord | None:
    """Return the record of the script that waits for the grant of a pod.

    A pod that can't start any more has had none, nor has a pod of an earlier job: only an unused one is replaced.
    """
    gang = view.gang
    if member.meta.grant_wait is None or gang is None:
        return None
    return replace(member, started=False, pod=None, grant="") if view.retired or _is_replaced(member, gang) else gang


def _is_replaced(member: JobRecord, gang: JobRecord) -> bool:
    """Return whether the job of the group that the pod was to run in has ended unused, and has a successor."""
    return member.meta.run != gang.meta.run


def _batch_job(member: JobRecord, view: GangView) -> BatchJob | None:
    gang = view.gang
    if view.retired or (gang is not None and _is_replaced(member, gang)):
        return _ended(job_ends.CANCELLED.site_reason)
    if view.exit_code is not None and not view.stopped:
        return _script_ended(member, view.exit_code)
    if gang is None or not (view.has_rank or member.started):
        return None
    if gang.batch is not None and gang.batch.phase == "ended":
        return _gang_ended(member, gang, gang.batch)
    if _own_reason(gang) and not member.started:
        return _gang_ended(member, gang, None)
    if gang.meta.attempts == 0 and gang.meta.gang is not None:
        # not how many are here: each further pod would be an event for all of them
        message = f"the site waits for all {gang.meta.gang.size} pods of the group"
        return BatchJob(id="", uid="", phase="queued", reason=GANG_INCOMPLETE, message=message)
    if gang.batch is None:
        return BatchJob(id="", uid="", phase="queued") if gang.job_id else None
    return gang.batch


def _ended(reason: str, message: str = "", code: int | None = None, *, by_itself: bool = False) -> BatchJob:
    return BatchJob("", "", "ended", reason, message, exit_code=code, by_itself=by_itself)


def _script_ended(member: JobRecord, code: int) -> BatchJob:
    if code > 128 and not member.final:
        return _ended(job_ends.KILLED.site_reason, f"the script was terminated by signal {code - 128}", code)
    return _ended("", "", code, by_itself=True)


def _gang_ended(member: JobRecord, gang: JobRecord, batch: BatchJob | None) -> BatchJob:
    """Return the end of a pod that ended because the job of its group ended."""
    is_from_outside = batch is not None and not batch.by_itself
    reason = _own_reason(gang)
    # srun ends with a component of a heterogeneous job
    if reason and not (is_from_outside and reason == job_ends.KILLED.site_reason):
        return _ended(reason, str((gang.pod or {}).get("message") or ""))
    if batch is not None and is_from_outside:
        return batch
    if not member.started:
        return _ended(GANG_OVER, "the job of the group ended before the pod was started")
    return _ended("", batch.message if batch is not None else "", by_itself=True)


def _own_reason(gang: JobRecord) -> str:
    """Return why the launcher has ended the job; empty: it has not, or something outside has."""
    reason = (gang.pod or {}).get("reason") if gang.final else ""
    return reason if isinstance(reason, str) and reason not in _FROM_OUTSIDE else ""


# --- files ------------------------------------------------------------------------------------------------------------
def _read(member: JobRecord, place: PlaceInJob, member_folder: Folder, gang_folder: Folder) -> GangView:
    gang = gang_folder.read()
    if gang is None:
        return GangView(None, retired=_is_retired(member_folder.at))
    has_rank = rank_uid(gang_folder, place.rank) == member.uid
    name, code, cause = f"{place.rank}.{member.uid}", None, ""
    if name in names(Below(gang_folder.at, "ended")):
        word, _, cause = atomic_files.read_line(Below(gang_folder.at, f"ended/{name}")).partition(" ")
        code = int(word) if word.isascii() and word.isdigit() and len(word) < 4 else 1
    granted = member.meta.grant_wait is not None and name in granted_names(gang_folder)
    return GangView(shared(gang), has_rank, code, cause == "stopped", _is_retired(member_folder.at), granted)


def ranks(gang_folder: Folder) -> list[int]:
    """Return the ranks that have, or had, a pod; before the job is submitted, one that is over may lose its rank."""
    return [int(name) for name in names(Below(gang_folder.at, "ranks")) if name.isdecimal()]


def rank_uid(gang_folder: Folder, rank: int) -> str:
    """Return the UID of the pod that has, or had, a rank; empty: none."""
    content = atomic_files.read_some(Below(gang_folder.at, f"ranks/{rank}"), _LONGEST_RANK_FILE)
    return (content or b"").partition(b"\n")[0].decode("ascii", "replace")


def member_uids(gang_folder: Folder) -> Iterator[str]:
    """Return the UIDs of the pods that have, or had, the ranks."""
    return filter(None, (rank_uid(gang_folder, rank) for rank in ranks(gang_folder)))


def take_rank(gang_folder: Folder, member_uid: str, place: PlaceInJob, pod: str, *, sync: bool) -> None:
    """Give a rank to a pod; ``pod``: its namespace and name."""
    make_folder(Below(gang_folder.at, "ranks"), None)
    content = f"{member_uid}\n{' '.join(place.names)}\n{pod}\n"
    atomic_files.write(Below(gang_folder.at, f"ranks/{place.rank}"), content.encode(), sync=sync)


def drop_rank(gang_folder: Folder, rank: int) -> None:
    """Take its rank from a pod that is over before the job was submitted."""
    with contextlib.suppress(FileNotFoundError):
        unlink(Below(gang_folder.at, f"ranks/{rank}"))


def granted_names(gang_folder: Folder) -> set[str]:
    """Return ``<rank>.<uid>`` of the pods that the hub has granted to the job."""
    return {*names(Below(gang_folder.at, "granted"))}


def write_granted(gang_folder: Folder, member_uid: str, rank: int, ticket: str, *, sync: bool) -> None:
    """Record that the hub has granted a pod to the job whose script has this ticket."""
    make_folder(Below(gang_folder.at, "granted"), None)
    atomic_files.write(Below(gang_folder.at, f"granted/{rank}.{member_uid}"), f"{ticket}\n".encode(), sync=sync)


def drop_granted(gang_folder: Folder, member_uid: str, rank: int) -> None:
    """Remove the grant of a pod that is submitted again."""
    with contextlib.suppress(FileNotFoundError):
        unlink(Below(gang_folder.at, f"granted/{rank}.{member_uid}"))


def retire(member_folder: Folder) -> bool:
    """Prevent the start of a pod's script; return ``False`` if it has started. Raise FileNotFoundError: no such pod."""
    with contextlib.suppress(FileExistsError):
        os.symlink(_RETIRED, f"{member_folder.at}/started")
    return _is_retired(member_folder.at)


def kill(gang_folder: Folder, member_uid: str, rank: int) -> None:
    """Request that the script of a pod is killed."""
    with contextlib.suppress(FileNotFoundError):
        make_folder(Below(gang_folder.at, "control"), None)
        atomic_files.write(Below(gang_folder.at, f"control/kill-{member_uid}"), f"{rank}\n".encode())


def _is_retired(at: str) -> bool:
    return os.path.islink(f"{at}/started")
