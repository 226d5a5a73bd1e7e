"""A NuNet DMS, or a group of its peers, as a pool."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bridge import errors, names
from bridge.config.nunet import NunetGroupSection, NunetSection
from bridge.core.job_lifecycle import Event
from bridge.logs import kv
from bridge.pools.nunet import dialect, dms_logs, peers, pod_annotations, pod_request
from bridge.pools.nunet.dialect import JobAnswer
from bridge.pools.nunet.dms_client import DmsClient
from bridge.pools.nunet.peers import Peer, PeerList, Placed, Service
from bridge.pools.nunet.submissions import Submission, Submissions
from bridge.pools.polled.polled_pool import PolledPool, PolledPools, retryable
from bridge.pools.registry import PoolContext
from bridge.protocol.model.announcement import READY, Announcement, Readiness
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import LogOptions
from bridge.script import references
from bridge.script.references import Objects
from bridge.workload.pods import intent
from bridge.workload.pods import uid as uid_of

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]
BATCH = "NuNet DMS"
_HINT = f"when the DMS certainly has no job of the pod, annotate it with {pod_annotations.NO_JOB}=true"
_MOST_NAMED = 5


def make(sections: Iterable[NunetSection], context: PoolContext) -> PolledPools:
    """Return the pools of ``pools.nunet``. Raises :class:`ConfigError`."""
    return PolledPools(
        pool for number, section in enumerate(sections) for pool in pools_of(section, context, f"pools.nunet[{number}]")
    )


def pools_of(section: NunetSection, context: PoolContext, location: str) -> list[NunetPool]:
    """Return the pools of one DMS: one for each group of peers. ``location``: the place in the configuration."""
    try:
        defaults = pod_annotations.values(section.defaults)
    except ValueError as error:
        raise errors.ConfigError(f"{location}.defaults.{error}") from error
    if "no-job" in defaults:
        raise errors.ConfigError(f"{location}.defaults.no-job: only a pod can have it")
    dms = DmsClient(section, context.clock)
    return [NunetPool(group, section, dms, defaults, context) for group in section.virtual_nodes]


class NunetPool(PolledPool):
    """One virtual node of a DMS, ``group``; implements :class:`bridge.pools.pool_interface.Pool`.

    ``defaults``: values of annotations.
    """

    def __init__(
        self,
        group: NunetGroupSection,
        section: NunetSection,
        dms: DmsClient,
        defaults: Mapping[str, Any],
        context: PoolContext,
    ) -> None:
        super().__init__(
            group.name,
            context.clock,
            poll_period=section.poll_period,
            ping_period=section.ping_period,
            batch=1,  # the DMS answers about one job
            statement=pod_annotations.NO_JOB,
        )
        self._dms, self._section, self._defaults = dms, section, defaults
        self._labels = {**section.labels, **group.labels}
        self._submit_timeout, self._interlink = context.config.pools.submit_timeout, context.interlink
        self._states_by_word = {dialect.normal(word): state for word, state in section.statuses.items()}
        self._submissions = Submissions()
        self._unknown_words: set[str] = set()
        self._peers: PeerList | None = None
        self._all_peers: tuple[Peer, ...] = ()

    # --- the site -----------------------------------------------------------------------------------------------------
    def ready(self) -> Readiness:
        """Return whether a peer of the group is available."""
        if self._peers is None:
            return Readiness("NotAnnounced", "the DMS has not answered yet", transient=True)
        if not any(peer.available for peer in self._peers.peers):
            return Readiness("NoPeerAvailable", f"none of the {len(self._peers.peers)} peers of the pool is available")
        return READY

    def _ping(self) -> None:
        self._update_peers(self._section.ping_period / 2)

    def _announcement(self, problem: str) -> Announcement:
        listed = self._peers or PeerList((), 0.0)
        free, held = self._submissions.free(listed), self._held()
        # the peers report what is free, a node has what jobs may use: the jobs of this pool are added
        capacity = peers.total([*free.values(), *(placed.resources for placed in held)])
        return Announcement(
            pool=self.name,
            submitter="dms",
            time=self._clock.time(),
            period=self._section.ping_period,
            version="",
            batch=f"{BATCH}, {len(free)} of {len(listed.peers)} peers available",
            capacity=capacity.quantities(),
            free=peers.total(free.values()).quantities(),
            jobs={"running": len(held)},
            labels={**peers.labels(free), **self._labels},
            taints=self._section.taints,
            problem=problem,
        )

    def _update_peers(self, at_most: float) -> None:
        peer_list = self._dms.peers(at_most)
        members = peers.members(peer_list.peers, self._section.virtual_nodes, self.name)
        self._peers, self._all_peers = PeerList(tuple(members), peer_list.requested_at), peer_list.peers

    def _held(self) -> list[Placed]:
        """Return what the jobs hold that have not ended."""
        held: list[Placed] = []
        for uid, status in self.jobs().items():
            if status.phase == "ended":
                continue
            if (placed := self._submissions.get(uid).placed) is not None:
                held.append(placed)
            elif (pod := self.follows.get(uid)) is not None and "spec" in pod:  # another process has submitted it
                with contextlib.suppress(errors.ScriptError):
                    held.append(Placed(status.host, pod_request.resources(pod), -1.0))
        return held

    # --- requests -----------------------------------------------------------------------------------------------------
    def prepare(self, pod: Pod) -> Pod:
        """Return the pod without the automatic token; raises ScriptError for one that the DMS cannot run."""
        if self._interlink:  # the volume with the token is one of a Secret there
            is_automatic = lambda name: name.startswith(names.AUTOMATIC_VOLUME_PREFIX)  # noqa: E731
            site_pod = references.without_volumes(pod, is_automatic)
        else:
            site_pod = references.at_site(pod, api_server=False)
        pod_request.check(site_pod, self._section, self._values(pod))
        return site_pod

    def _values(self, pod: Pod) -> dict[str, Any]:
        return {**self._defaults, **pod_annotations.read(pod)}

    def submit(self, pod: Pod, objects: Objects) -> JobStatus:
        """Submit the job of a prepared pod to the peer that suits it."""
        with self._submissions.only_caller(uid_of(pod)) as submission:
            return self._submit(submission, pod, objects)

    def _submit(self, submission: Submission, pod: Pod, objects: Objects) -> JobStatus:
        # the DMS cannot search for a job_id, and a second job would be paid too:
        # after a lost answer, no caller may submit again, unless the user says that there is no job
        uid = uid_of(pod)
        if not submission.lifecycle.may_submit or self._job_id(pod) is not None:
            if (known_status := self.status(pod)) is not None:
                return known_status
            submission.lifecycle = submission.lifecycle.after(Event.DENIED)
        values = self._values(pod)
        body = pod_request.body(pod, objects, self.name, self._section, values)
        with retryable():
            self._update_peers(self._section.ping_period)
        if self._peers is None or not self.ready().ok:
            raise errors.SiteDownError(self.ready().message)
        if (shown_job := self._shown_job(uid)) is not None:
            return self._status_of_shown(pod, *shown_job)
        if dialect.services_of(self._all_peers, uid=uid) and "no-job" not in values:
            raise errors.UnknownJobError("a peer that is not in the pool shows a job of the pod", hint=_HINT)
        requested, requested_at = pod_request.resources(pod), self._clock.monotonic()
        peer = self._submissions.place(uid, self._peers, requested, values, self._held(), requested_at)
        if self._section.peer_field:
            body[self._section.peer_field] = peer.id
        try:
            with submission.sending(pod_annotations.no_job(pod)):
                job = self._dms.submit(body, self._submit_timeout)
        except errors.SiteUnknownOutcomeError:
            raise  # the job may hold its resources
        except errors.SiteError:
            submission.placed = None
            raise
        submission.identify(job, requested_at)
        answer = JobAnswer(job=job, status="queued", message=f"submitted for {peer.short_name}")
        status = dialect.job_status(pod, answer, job, {}, peer=peer.id, now=self._clock.time())
        self.follows.record(status, requested_at)
        log.info("job submitted to the DMS", extra=kv(pool=self.name, job=job, peer=peer.id))
        return status

    def cancel(self, pod: Pod, grace: float, *, forget: bool = False) -> JobStatus | None:
        """Cancel a job. The DMS has no grace period, and keeps no files that could be deleted."""
        uid = uid_of(pod)
        try:
            status = self.status(pod)
        except errors.UnknownJobError:
            if not forget:
                raise
            status = None  # the pod has failed before its job had an id
        if forget and (status is None or status.phase == "ended"):
            self._forget(uid)
            self.follows.record_absence(uid, self._clock.monotonic())
            return None
        if status is None or status.phase == "ended":
            return status
        if status.job_id == uid:
            raise errors.SiteRefusedError(
                "the job cannot be cancelled: a peer shows it without the id that the DMS needs; the pod stays until "
                "the job has ended",
                reason="NoJobId",
                retryable=True,
            )
        # no request for a cancellation is published
        if not self._section.cancel_path:
            limit = f": {status.message}" if status.message else ""
            raise errors.SiteRefusedError(
                f"job {status.job_id} cannot be cancelled: no cancelPath is configured; the pod stays until the "
                f"job has ended{limit}",
                reason="NoCancelPath",
                retryable=True,
            )
        self._dms.cancel(status.job_id)
        return self.status(pod)

    def _fetch(self, pods: Sequence[Pod]) -> Mapping[str, JobStatus | None]:
        return {uid_of(pod): self._state(pod) for pod in pods}

    def _state(self, pod: Pod) -> JobStatus | None:
        """Request the state of one job. Raises SiteError also if it is not known whether the DMS has the job."""
        uid = uid_of(pod)
        job = self._job_id(pod)
        if job is not None:
            answer = self._dms.status(job)
            return None if answer is None else self._status(pod, answer, job)
        self._update_peers(self._section.ping_period / 2)
        if (shown_job := self._shown_job(uid)) is not None:
            return self._status_of_shown(pod, *shown_job)
        word, submission = pod_annotations.no_job(pod), self._submissions.get(uid)
        if word and word != submission.open_word and intent(pod) != (self.name, word):
            return None
        raise (errors.UntracedJobError if submission.open_word is None else errors.UnknownJobError)(
            "the pod may have been submitted, and the DMS cannot say whether it has a job of it: no peer shows one",
            hint=_HINT,
        )

    def _shown_job(self, uid: str, job: str = "") -> tuple[Peer, Service] | None:
        """Return the peer that got a pod's job, and its entry with the job's id or else the UID; ``None``: no entry.

        If this peer is not known, it is one of the pool. Any other peer could state the end of a job that it does not
        have. Raises UnknownJobError if several peers show the job.
        """
        placed, last_status = self._submissions.get(uid).placed, self.job(uid)
        peer_id = placed.peer if placed is not None else last_status.host if last_status is not None else ""
        candidates: Iterable[Peer] = self._peers.peers if self._peers is not None else ()
        if peer_id and self._section.peer_field:
            candidates = (peer for peer in self._all_peers if peer.id == peer_id)
        return _single(dialect.services_of(candidates, job=job, uid="" if job else uid))

    def _status_of_shown(self, pod: Pod, peer: Peer, service: Service) -> JobStatus:
        """Return the state of a job that a peer shows."""
        _single(dialect.services_of(self._all_peers, job=service.job))
        answer = self._dms.status(service.job) if service.job else None
        answer = answer or JobAnswer(job=service.job, status=service.status or "running")
        return self._claim_job(pod, answer, service.job or uid_of(pod), peer.id)

    def _claim_job(self, pod: Pod, answer: JobAnswer, job: str, peer: str = "") -> JobStatus:
        uid = uid_of(pod)
        job_ids = {uid_of(other): self._job_id(other) for other in self.follows.pods()}
        self._submissions.claim(uid, job, self._clock.monotonic(), job_ids)
        return self._status(pod, answer, job, peer)

    def _status(self, pod: Pod, answer: JobAnswer, job: str, peer: str = "") -> JobStatus:
        uid = uid_of(pod)
        last_status = self.job(uid)
        if dialect.state_of(answer.status, self._states_by_word) is None and answer.status not in self._unknown_words:
            self._unknown_words.add(answer.status)
            log.warning(dialect.unknown(answer.status), extra=kv(pool=self.name, job=job))
        submission = self._submissions.get(uid)
        peer = peer or (submission.placed.peer if submission.placed else "")
        status = dialect.job_status(
            pod, answer, job, self._states_by_word, peer=peer, last_status=last_status, now=self._clock.time()
        )
        if status.phase == "ended":
            submission.placed = None
        return status

    def _job_id(self, pod: Pod) -> str | None:
        """Return the DMS's id of the pod's job: from this process, the view, or the pod's annotation.

        The UID stands for the id of a job that only a peer shows, and is not returned: the DMS does not know it.
        """
        uid, last_status = uid_of(pod), self.job(uid_of(pod))
        recorded = (pod["metadata"].get("annotations") or {}).get(names.REMOTE_JOB, "")
        pool, _, recorded_job = recorded.partition("/")
        for job in (
            self._submissions.get(uid).job,
            last_status.job_id if last_status is not None else "",
            recorded_job if pool == self.name else "",
        ):
            if job and job != uid:
                return job
        return None

    def logs(self, pod: Pod, options: LogOptions) -> Iterator[bytes]:
        """Return the log of the job, from the URL that the DMS or the peer publishes."""
        dms_logs.refuse_options(options)
        url = self._log_url(pod)
        dms_logs.check_url(url, self._section)

        def ended() -> bool:
            status = self.job(uid_of(pod))
            return status is None or status.phase == "ended"

        return dms_logs.Log(lambda skip: dms_logs.read(url, self._section, skip), ended, options)

    def _log_url(self, pod: Pod) -> str:
        job = self._job_id(pod)
        answer = self._dms.status(job) if job else None
        if answer is not None and answer.log_url:
            return answer.log_url
        self._update_peers(self._section.ping_period)
        shown_job = self._shown_job(uid_of(pod), job or "") or self._shown_job(uid_of(pod))
        if shown_job is None or not shown_job[1].log_url:
            raise errors.SiteRefusedError("the DMS shows no log of the job yet", retryable=True)
        return shown_job[1].log_url

    def _forget(self, job: str) -> None:
        self._submissions.forget(job)


def _single(shown: Sequence[tuple[Peer, Service]]) -> tuple[Peer, Service] | None:
    """Return the only peer that shows a job; raises UnknownJobError if there are several."""
    if len(shown) > 1:
        names_of_peers = ", ".join(peer.short_name for peer, _ in shown[:_MOST_NAMED])
        raise errors.UnknownJobError(f"several peers show the job of the pod, and one at most has it: {names_of_peers}")
    return shown[0] if shown else None
