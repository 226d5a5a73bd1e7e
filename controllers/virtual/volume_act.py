"""Carries out the refresh of a job's volumes: the site gets the files that have changed since it got them.

The process keeps digests of the files that the site has. A new leader has none, and sends all files once.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bridge.clock import Clock
from bridge.core.job_lifecycle import NEVER
from bridge.core.retries import TokenBucket
from bridge.errors import SiteError
from bridge.pools.pool_interface import Pool, RefreshesFiles
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import VolumeFile
from bridge.script import references, volume_files
from bridge.script.references import Objects
from bridge.script.volume_files import CurrentFiles
from controllers.virtual.pod_reports import PodReports
from controllers.virtual.pod_state import Entry, ObjectKey, Pod, SentFiles
from controllers.virtual.reference_reader import ReferenceReader, Reread, keys_of, versions_of

REFRESH_AGAIN = 60.0
"""Seconds until a failed refresh is repeated."""
LEAST_GAP = 2.0
"""Minimum seconds between two refreshes of one pod: a controller may write labels many times in a second."""
UNKNOWN_WITHIN = 300.0
"""Maximum delay in seconds before files are sent if this process does not know which files the site has."""
SHOWN_WITHIN = 15.0
"""The same if the volumes show labels or annotations, whose changes somebody may wait for."""
UNIT = 2**14
UNITS = 256
"""Bytes of files that count as one, and how many of them are sent per second, at most, and four times as many at once.
Smaller requests, such as tokens, do not count. One user may change a large object of ten thousand pods every minute."""
SKEW = 5.0
"""Seconds by which the clocks of hub and site may differ: the site refuses requests if it is more."""


def unknown_until(pod: Pod, now: float) -> float | None:
    """Return the time of the first refresh if this process does not know which files the site has; ``None``: none."""
    # random: after a change of the leader, the files of all pods are unknown at the same time
    if volume_files.shown_fields(pod):
        return now + SHOWN_WITHIN * random.random()  # noqa: S311
    refs = references.of_volumes(pod)
    if refs.tokens or refs.configmaps or refs.secrets:
        return now + UNKNOWN_WITHIN * random.random()  # noqa: S311
    return None


class VolumeActor:
    """Sends the files of volumes. ``check_leadership`` raises LostLeadershipError."""

    def __init__(
        self, reports: PodReports, reader: ReferenceReader, clock: Clock, check_leadership: Callable[[], None]
    ) -> None:
        self._reports, self._reader, self._clock = reports, reader, clock
        self._check_leadership = check_leadership
        self._limit = TokenBucket(UNITS, 4 * UNITS, clock)

    def submitted(
        self,
        pod: Pod,
        pool: Pool,
        objects: Objects,
        entry: Entry,
        answer: JobStatus,
        sent_at: float,
        refresh_in: float | None,
    ) -> None:
        """Record the files of a prepared pod that the site has got with its script.

        ``sent_at``: time of the request, in seconds since 1970. An earlier request may have submitted the job, with
        older files.
        """
        now, keys, shown = self._clock.monotonic(), keys_of(pod), volume_files.shown(pod)
        entry.files, entry.stale, entry.reserved, entry.refresh_at = None, frozenset(), False, None
        if pool.refreshes is None or not (keys or shown or refresh_in is not None):
            return
        existed = answer.submitted_at is not None and answer.submitted_at < sent_at - SKEW
        # the script of an earlier request may have won, with the files of that time
        if existed or entry.lifecycle.until > NEVER:
            entry.refresh_at = unknown_until(pod, now)
            return
        current = pool.refreshes.current_files(pod, objects)
        digests = {**dict.fromkeys(current.kept, b""), **_digests(current)}
        entry.files = SentFiles(digests, versions_of(keys, objects), shown)
        entry.refresh_at = None if refresh_in is None else now + refresh_in

    def refresh(self, pod: Pod, pool: Pool, entry: Entry) -> None:
        """Send the files that have changed. Objects are read again only for volumes with a changed one."""
        now, sent = self._clock.monotonic(), entry.files
        entry.refresh_after = now + LEAST_GAP
        if pool.refreshes is None:
            entry.refresh_at, entry.stale = None, frozenset()
            return
        if not pool.ready().ok:
            entry.refresh_after = now + REFRESH_AGAIN
            return
        prepared_pod = pool.prepare(pod)
        keys = _keys_to_read(prepared_pod, sent, entry.stale)
        if keys and not entry.reserved and (wait := self._reader.wait_for_reads(keys)) > 0:
            entry.reserved, entry.refresh_after = True, now + wait
            return
        entry.reserved = False
        due = entry.refresh_at is not None and now >= entry.refresh_at
        if due:
            # before the requests, which may fail
            entry.refresh_at = now + REFRESH_AGAIN
        reread = self._reader.reread(prepared_pod, pool.name, keys) if keys else Reread(Objects(), [])
        tokens = self._reader.tokens(prepared_pod, pool.name) if due else None
        objects = replace(reread.objects, tokens={} if tokens is None else tokens.texts)
        current = pool.refreshes.current_files(prepared_pod, objects)
        digests = _digests(current)
        files, lists = _changes(sent, current, digests)
        if not entry.counted and (wait := self._wait_for_bytes(files)) > 0:
            entry.counted, entry.refresh_after = True, now + wait
            return
        entry.counted = False
        self._send(prepared_pod, pool.refreshes, entry, files, lists)
        versions = {key: version for key, version in (sent.versions if sent else {}).items() if key not in keys}
        versions.update(versions_of(keys, reread.objects))
        entry.files = SentFiles(_digests_after(sent, current, digests, lists), versions, volume_files.shown(pod))
        entry.stale -= keys
        if tokens is not None:
            refresh_in = tokens.refresh_in
            entry.refresh_at = None if refresh_in is None else self._clock.monotonic() + refresh_in
        for problem in (*reread.problems, *current.problems):
            self._reports.files_kept(pod, entry, problem)

    def _wait_for_bytes(self, files: Sequence[VolumeFile]) -> float:
        """Reserve the sending of large files; return the seconds to wait before."""
        units = sum(len(file.data) for file in files) // UNIT
        return max((self._limit.take() for _ in range(units)), default=0.0)

    def _send(
        self, pod: Pod, site: RefreshesFiles, entry: Entry, files: Sequence[VolumeFile], lists: Mapping[str, list[str]]
    ) -> None:
        """Send files; what the site refuses for good, or what is too large for a request, is not sent again."""
        if not files and not lists:
            return
        self._check_leadership()
        try:
            site.refresh(pod, files, lists)
        except SiteError as error:
            if error.retryable:
                raise
            self._reports.files_kept(pod, entry, error.with_hint, topic=error.reason)


def _keys_to_read(pod: Pod, sent: SentFiles | None, stale: frozenset[ObjectKey]) -> frozenset[ObjectKey]:
    """Return the objects of the volumes with a changed one; all objects if ``sent`` is ``None``."""
    if sent is None:
        return frozenset(keys_of(pod))
    if not stale:
        return frozenset()
    each_volume = (keys_of({**pod, "spec": {"volumes": [volume]}}) for volume in pod["spec"].get("volumes") or ())
    return frozenset(key for keys in each_volume if stale.intersection(keys) for key in keys) | stale


def _changes(
    sent: SentFiles | None, current: CurrentFiles, digests: Mapping[str, bytes]
) -> tuple[list[VolumeFile], dict[str, list[str]]]:
    """Return the files that the site does not have, and the paths in the volumes in which it has others."""
    before = sent.digests if sent is not None else {}
    lists = current.lists()
    files = [file for path, file in current.files.items() if before.get(path) != digests[path]]
    if sent is not None:
        old_paths = {path for path in before if path.partition("/")[0] in lists}
        new_paths = {f"{name}/{path}" for name, paths in lists.items() for path in paths}
        changed_volumes = {path.partition("/")[0] for path in old_paths ^ new_paths}
        lists = {name: paths for name, paths in lists.items() if name in changed_volumes}
    return files, lists


def _digests_after(
    sent: SentFiles | None, current: CurrentFiles, digests: Mapping[str, bytes], lists: Mapping[str, list[str]]
) -> dict[str, bytes]:
    """Return the digests of the files that the site has after the refresh."""
    before = sent.digests if sent is not None else {}
    kept_digests = {path: digest for path, digest in before.items() if not _is_removed(path, lists)}
    return {**dict.fromkeys(current.kept, b""), **kept_digests, **digests}


def _digests(current: CurrentFiles) -> dict[str, bytes]:
    return {path: _digest(file) for path, file in current.files.items()}


def _digest(file: VolumeFile) -> bytes:
    return hashlib.blake2b(file.data, digest_size=12, salt=file.mode.to_bytes(4, "big")).digest()


def _is_removed(path: str, lists: Mapping[str, list[str]]) -> bool:
    volume, _, path_in_volume = path.partition("/")
    return volume in lists and path_in_volume not in lists[volume]
