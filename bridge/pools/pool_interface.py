"""The interface between the hub and a pool, for every transport. All requests are idempotent by pod UID.

A pod is a raw Kubernetes object. Methods that send a request to the site raise :class:`bridge.errors.SiteError`. A pool
reports a job as unknown (``None``) only if the site itself has said so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from bridge.protocol.model.announcement import Announcement, Readiness
from bridge.protocol.model.jobs import JobStatus, JobUsage
from bridge.protocol.model.requests import LogOptions, VolumeFile
from bridge.protocol.model.sessions import CommandOptions, Connection, Session
from bridge.script.references import Objects
from bridge.script.volume_files import CurrentFiles

Pod = Mapping[str, Any]
"""A raw pod. If a job has no pod, ``metadata`` has only its namespace, name and UID."""


class ListsJobs(Protocol):
    """The site names all its jobs, so :meth:`Pool.jobs` also has those that this process does not know of."""

    def missing(self) -> frozenset[str]:
        """Return the UIDs of the jobs of :meth:`Pool.jobs` that the site's batch system no longer lists."""


class FollowsPods(Protocol):
    """The site answers only about single jobs: the hub names the pods whose jobs are polled.

    The hub writes its intent to a pod before it submits it. ``statement``: the annotation with which a user states
    something about the job, which counts for one submission and becomes a part of the intent; empty: none.
    """

    statement: str

    def add(self, pod: Pod) -> None:
        """Request the state of this pod's job periodically from now on."""

    def remove(self, job: str) -> None:
        """Stop requesting the state of this job: its pod is gone, and the end of the job is confirmed."""


class SiteFolders(Protocol):
    """The site keeps its jobs in a folder, of which there may be several by mistake: the hub chooses one."""

    @property
    def folder(self) -> str:
        """Id of the folder that holds the pool's jobs. Empty before the first announcement."""

    def announcements(self) -> Mapping[str, tuple[Announcement, float]]:
        """Return the last announcement for each folder id, and the monotonic time at which it arrived."""

    def choose(self, folder: str) -> None:
        """Use the jobs of this folder from now on, and discard the state of any other folder."""


class HoldsJobs(Protocol):
    """A job can wait for a grant after its start: its pod may be queued at several pools at once."""

    def allows_race(self) -> bool | None:
        """Return whether the site accepts such jobs; ``None`` if it is not known yet. Sends no request."""

    def offer(self, pod: Pod, objects: Objects, wait: float) -> JobStatus:
        """Submit a job as :meth:`Pool.submit`, whose script waits for its grant, for ``wait`` seconds at most.

        It replaces a job that has ended unused.
        """

    def withdraw(self, pod: Pod) -> JobStatus | None:
        """End the job of a pod that may be offered or bound here again; ``None`` if the site does not know the job.

        A job that needs no grant, or has it, goes on: this request may arrive late, after the pod was bound here.
        """

    def grant(self, pod: Pod, ticket: str) -> JobStatus | None:
        """Let the waiting script with this ticket begin; ``None`` if the site does not know the job.

        The pod must be bound to this pool with the grant for this ticket.
        """


class RefreshesFiles(Protocol):
    """The site can replace files in the volumes of a job."""

    def current_files(self, pod: Pod, objects: Objects) -> CurrentFiles:
        """Return the present files of a prepared pod's volumes, as far as the objects are known. Sends no request."""

    def refresh(self, pod: Pod, files: Sequence[VolumeFile], volumes: Mapping[str, Sequence[str]]) -> None:
        """Replace files in the volumes of a job.

        ``volumes``: the paths of all files in a volume; the site removes other ones.
        """


class Pool(Protocol):
    """One pool. ``name`` is also the name of its virtual node.

    ``late``: seconds after its time-out for which the site may still carry out a submission that got no answer.

    What not every pool can do is an attribute with the methods for it, ``None`` if this pool cannot do it.
    """

    name: str
    late: float

    @property
    def lists(self) -> ListsJobs | None:
        """Which jobs are missing. ``None``: the pool cannot name all its jobs, so it has :attr:`follows`."""

    @property
    def follows(self) -> FollowsPods | None:
        """Which pods to poll for. ``None``: the pool has :attr:`lists`."""

    @property
    def folders(self) -> SiteFolders | None:
        """The folders of the site."""

    @property
    def holds(self) -> HoldsJobs | None:
        """Jobs that wait for a grant."""

    @property
    def gangs(self) -> bool:
        """Whether the site runs the pods of a group as one job."""

    @property
    def heterogeneous_gangs(self) -> bool:
        """Whether these pods may request different resources."""

    @property
    def flavor_limits(self) -> str | None:
        """What a group may request there (:func:`bridge.script.flavor_limits.dump`); ``None``: it is not known yet."""

    @property
    def refreshes(self) -> RefreshesFiles | None:
        """New files for jobs."""

    @property
    def logs(self) -> Callable[[Pod, LogOptions], Iterator[bytes]] | None:
        """Iterates over the pieces of a log. To end the log at the site too, close the iterator."""

    @property
    def sessions(self) -> Callable[[Pod, CommandOptions], Session] | None:
        """Runs a command in a container of a running job, and returns its session, which the caller must close."""

    @property
    def usage(self) -> Callable[[Sequence[str]], Iterable[JobUsage]] | None:
        """Returns what the site has measured of jobs, by their UIDs, a few seconds ago; of other jobs, nothing."""

    @property
    def connections(self) -> Callable[[Pod, int], Connection] | None:
        """Connects to a port of a running pod, and returns the connection, which the caller must close."""

    @property
    def reaches(self) -> Callable[[Pod], Session] | None:
        """Opens the stream of a running pod's connections to Services; see :mod:`bridge.relay`. Close it."""

    def announced(self) -> tuple[Announcement, float] | None:
        """Return the last announcement and the monotonic time at which it arrived; ``None`` before the first."""

    def ready(self) -> Readiness:
        """Return whether the pool accepts submissions, and why not. Sends no request."""

    def prepare(self, pod: Pod) -> Pod:
        """Return the pod as this pool runs it, for example without a token for an API server that it cannot reach.

        Raises ScriptError for a pod that the pool cannot run. Sends no request.
        """

    # --- requests to the site -----------------------------------------------------------------------------------------
    def submit(self, pod: Pod, objects: Objects) -> JobStatus:
        """Submit the job of a prepared pod; return the state of the existing one if the site has it already.

        ``objects``: all objects that the pod refers to. Raises ScriptError and MissingReferenceError before it sends
        anything, and SiteUnknownOutcomeError if the site may have accepted the job.
        """

    def cancel(self, pod: Pod, grace: float, *, forget: bool = False) -> JobStatus | None:
        """Cancel a job, with ``grace`` seconds to end; return ``None`` if the site does not know it.

        ``forget``: also delete the job's files, once the job has ended.
        """

    def status(self, pod: Pod) -> JobStatus | None:
        """Request the state of one job from the site; ``None`` if the site does not know it."""

    # --- the view of jobs ---------------------------------------------------------------------------------------------
    def job(self, job: str) -> JobStatus | None:
        """Return one job of :meth:`jobs`."""

    def jobs(self) -> dict[str, JobStatus]:
        """Return the last known state of all jobs by UID. Empty before the first snapshot. Sends no request."""

    def complete_at(self) -> float | None:
        """Return the monotonic time at which the last complete snapshot was requested; ``None`` before the first.

        A job that is not in :meth:`jobs` was not at the site at that time. For a pool that follows pods, this is the
        time of the last successful request, and :meth:`jobs` has followed jobs alone.
        """

    def subscribe(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` after each change: with the pod's UID, or with an empty string for the announcement."""
