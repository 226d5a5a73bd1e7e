"""A pool behind interLink's REST API."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bridge.clock import Clock
from bridge.config.documents import toml_document
from bridge.config.interlink import InterlinkSection
from bridge.errors import ConfigError, SiteRefusedError
from bridge.interlink import ping
from bridge.interlink.messages import PingResponse, PodCreateRequests, RetrievedPodData
from bridge.logs import kv
from bridge.pools.interlink import references
from bridge.pools.interlink.interlink_client import PluginClient
from bridge.pools.interlink.interlink_transport import LogPieces, PluginTransport, ServerError
from bridge.pools.polled.polled_pool import PolledPool, PolledPools
from bridge.pools.pool_interface import Pod
from bridge.pools.registry import PoolContext
from bridge.protocol.model.announcement import READY, Announcement, Readiness
from bridge.protocol.model.jobs import JobStatus, identity_of
from bridge.protocol.model.requests import LogOptions
from bridge.script import build, self_contained
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects, at_site
from bridge.telemetry.metrics import POOL_REQUESTS, counted
from bridge.workload import pods
from bridge.workload.pods import uid as uid_of

log = logging.getLogger(__name__)

LONGEST_ID = 256
"""Characters of a job id, which becomes part of an annotation."""


class InterlinkPool(PolledPool):
    """One interLink plugin or API server; implements :class:`bridge.pools.pool_interface.Pool`.

    ``config``: how the pool builds the script that it sends as ``jobScript``; ``None``: the plugin builds its own.
    ``submit_timeout``: seconds for ``/create``.
    """

    def __init__(
        self,
        section: InterlinkSection,
        client: PluginClient,
        clock: Clock,
        submit_timeout: float,
        config: BuildConfig | None = None,
    ) -> None:
        super().__init__(
            section.name,
            clock,
            poll_period=section.poll_period,
            ping_period=section.ping_period,
            batch=section.batch,
            late=section.late_create,
        )
        self._section, self._client, self._config = section, client, config
        self._submit_timeout = submit_timeout
        self._lock = threading.Lock()
        """Guards these two: a job that is no longer followed may have a request in progress."""
        self._unknown: dict[str, int] = {}
        self._undeleted: dict[str, int] = {}
        self._degraded, self._response = "", PingResponse()

    # --- the site -----------------------------------------------------------------------------------------------------
    def ready(self) -> Readiness:
        """Return whether the plugin has answered the last pings."""
        if self._announced is None:
            return Readiness("PluginSilent", "the plugin has not answered yet", transient=True)
        if self._announced[0].problem:  # the condition Ready of the virtual node has it
            return Readiness("PluginSilent", self._announced[0].problem, transient=True)
        return READY

    def _ping(self) -> None:
        answer = self._client.ping()
        if answer.degraded and answer.degraded != self._degraded:
            log.warning("the plugin runs, but its ping fails", extra=kv(pool=self.name, answer=answer.degraded))
        self._degraded, self._response = answer.degraded, answer.response

    def _announcement(self, problem: str) -> Announcement:
        section, response = self._section, self._response
        taints = ping.taints(response)
        kind = "API server" if section.api == "server" else "plugin"
        degraded = f" (its ping fails: {self._degraded})" if self._degraded else ""
        return Announcement(
            pool=self.name,
            submitter=section.url,
            time=self._clock.time(),
            period=section.ping_period,
            version="",
            batch=f"interLink {kind} at {section.url}{degraded}",
            capacity={**{name: str(amount) for name, amount in section.capacity.items()}, **ping.capacity(response)},
            labels=section.labels,
            taints=section.taints if taints is None else taints,
            problem=problem,
        )

    # --- requests about one job ---------------------------------------------------------------------------------------
    def prepare(self, pod: Pod) -> Pod:
        """Return the pod without the token of its service account, unless the configuration allows tokens."""
        return at_site(pod, api_server=self._section.service_account_tokens)

    def submit(self, pod: Pod, objects: Objects) -> JobStatus:
        """Create the pod's job. If an earlier request, of any process, may have done so, look for the job first."""
        job = uid_of(pod)
        body = self._body(pod, objects)
        with self._lock:
            may_exist = job in self._unknown or pods.has_intent(pod)
        if may_exist and (status_at_site := self.status(pod)) is not None:
            self._known(job)
            return status_at_site
        with self._lock:
            self._unknown.setdefault(job, 0)  # also while the request is in progress
        try:
            with counted(POOL_REQUESTS, self.name, "create"):
                job_id = self._client.create(body, job, self._submit_timeout)
        except ServerError as error:
            with self._lock:
                count = self._unknown[job] = self._unknown.get(job, 0) + 1
            if error.answered and (status_at_site := self.status(pod)) is not None:
                return status_at_site
            is_last_attempt = count >= self._section.create_attempts
            if is_last_attempt or error.answered:  # the plugin itself has answered, twice: it has not created the pod
                raise SiteRefusedError(str(error), reason="PluginRefused", retryable=not is_last_attempt) from error
            raise
        self._known(job)
        status = JobStatus(
            **identity_of(pod), job_id=_printable(job_id), phase="queued", submitted_at=self._clock.time()
        )
        self.follows.record(status, self._clock.monotonic())
        return self.job(job) or status

    def _known(self, job: str) -> None:
        """Note that no submission of the job has an unknown outcome."""
        with self._lock:
            self._unknown.pop(job, None)

    def _body(self, pod: Pod, objects: Objects) -> RetrievedPodData | PodCreateRequests:
        if self._section.api == "server":
            return references.sent_request(pod, objects, self.name)
        script = None
        if self._config is not None:
            script = self_contained.wrap(build.build(pod, self._config, objects, self.name).script, pod)
        return RetrievedPodData(
            pod=references.sent_pod(pod, objects, self.name),
            container=references.sent_containers(pod, objects, self.name),
            job_script=script,
        )

    def cancel(self, pod: Pod, grace: float, *, forget: bool = False) -> JobStatus | None:
        """Delete the pod at the plugin, unless its job is not known, or has ended and ``forget`` is not set.

        interLink has one request for both: ``/delete`` ends the job and deletes its files. No request is
        sent for a pod that the plugin does not know.
        """
        pod, job = self.follows.whole(pod), uid_of(pod)
        status = self.status(pod)
        # interLink's Slurm plugin drops the connection of a /delete for a pod that it does not know
        if status is None or (status.phase == "ended" and not forget):
            return status
        # /delete has no field for the grace period; podbridge's plugin reads it from the pod
        metadata = {**pod["metadata"], "deletionGracePeriodSeconds": int(grace)}
        try:
            with counted(POOL_REQUESTS, self.name, "delete"):
                self._client.delete({**pod, "metadata": metadata})
        except (ServerError, SiteRefusedError) as error:
            if not self._may_skip(job, status):
                raise
            log.warning("the plugin does not delete an ended job", extra=kv(pool=self.name, job=job, error=error))
        if status.phase == "ended":
            self.follows.record_absence(job, self._clock.monotonic())
            return None
        return self.status(pod)

    def _may_skip(self, job: str, status: JobStatus) -> bool:
        """Whether the plugin has refused often enough to delete an ended job: nothing of it runs."""
        with self._lock:
            count = self._undeleted[job] = self._undeleted.get(job, 0) + 1
        return status.phase == "ended" and count >= self._section.create_attempts

    def _forget(self, job: str) -> None:
        self._known(job)
        with self._lock:
            self._undeleted.pop(job, None)

    def logs(self, pod: Pod, options: LogOptions) -> LogPieces:
        """Iterate over the pieces of a log."""
        return self._client.logs(pod, options)

    def _fetch(self, pods_to_request: Sequence[Pod]) -> Mapping[str, JobStatus | None]:
        return {
            job: None if status is None else self._with_known_values(status)
            for job, status in self._client.statuses(pods_to_request).items()
        }

    def _with_known_values(self, status: JobStatus) -> JobStatus:
        """Return a state with the job id and the time of submission, which not all plugins report with a state."""
        last_status = self.job(status.job)
        known_values: dict[str, Any] = {"job_id": _printable(status.job_id)}
        if last_status is not None:
            known_values = {
                "job_id": known_values["job_id"] or last_status.job_id,
                "submitted_at": last_status.submitted_at,
            }
        return replace(status, **known_values)


def _printable(text: str) -> str:
    return "".join(letter for letter in text if letter.isprintable())[:LONGEST_ID]


def make(sections: Iterable[InterlinkSection], context: PoolContext) -> PolledPools:
    """Return the pools of ``pools.interlink``. Raises :class:`ConfigError`."""
    timeout = context.config.pools.submit_timeout
    return PolledPools(make_pool(section, timeout, context.clock) for section in sections)


def make_pool(section: InterlinkSection, submit_timeout: float, clock: Clock) -> InterlinkPool:
    """Return one pool. Sends no request."""
    client = PluginClient(section, PluginTransport(section, clock), clock)
    config = None if section.build_config_file is None else read_build_config(section.name, section.build_config_file)
    return InterlinkPool(section, client, clock, submit_timeout, config)


def read_build_config(pool: str, path: Path) -> BuildConfig:
    """Read the file with the script settings of a pool. Raises :class:`ConfigError`."""
    location = f"pools.interlink, pool {pool}: buildConfigFile {path}"
    try:
        return BuildConfig.model_validate(toml_document(path.read_text(), location))
    except OSError as error:
        raise ConfigError(f"{location}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        raise ConfigError(f"{location}: {'; '.join(problems)}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{location}: {error}") from error
