"""The mass-termination guards, called brakes in the code: one for Slurm, one for each pool.

The log, metrics, Events of the pods and one key of a ConfigMap report each engaged brake. An administrator answers in
this ConfigMap (``podbridge brake``), where each later leader finds the answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bridge import names
from bridge.clock import Clock, rfc3339
from bridge.config import hub
from bridge.control.brake import ANSWER_SUFFIX, Brake, BrakeAnswer, GuardLimits, step
from bridge.core.workers import Workers
from bridge.errors import KubeNotFoundError
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import CONFIGMAPS
from bridge.logs import kv
from bridge.telemetry.metrics import BRAKE_ENGAGED, BRAKE_HELD
from bridge.workload import pods

log = logging.getLogger(__name__)

Pod = Mapping[str, Any]

LEFT_FOR = 60.0
"""Minimum seconds without a missing job before a new leader deletes the record and the answer of a former one."""
READ_EVERY = 2.0
"""Seconds between two reads of the ConfigMap, for an administrator's answer."""
MOST_EVENTS = 100
"""Largest number of Events for one incident, so that other Events are not delayed."""
REASON = "JobsMissing"


@dataclass(slots=True)
class _Entry:
    """The state of one brake.

    ``incident`` is the time when it engaged. ``complete_since`` is the monotonic time since when no job was missing,
    ``None`` if one is or jobs are not listed. ``read_at`` is ``None`` before a first read.
    """

    brake: Brake = field(default_factory=Brake)
    incident: str = ""
    ends: str = ""
    answer: str = ""
    complete_since: float | None = None
    read_at: float | None = None
    dirty: bool = False
    record: dict[str, Any] = field(default_factory=dict)


def config_map_path(settings: hub.Config) -> str:
    """Return the path of the ConfigMap with the engaged brakes."""
    return CONFIGMAPS.path(settings.leader_election.namespace, names.brake_config_map(settings.installation))


class Brakes:
    """Decides which pods with missing jobs may be terminated. Only one thread calls :meth:`judge`.

    ``path`` is that of the ConfigMap. ``kube`` is fenced; all writes go through ``workers``.
    """

    def __init__(
        self,
        settings: hub.BrakeSection,
        path: str,
        kube: KubeClient,
        events: EventRecorder,
        clock: Clock,
        workers: Workers,
    ) -> None:
        self._limits = GuardLimits(settings.share, settings.least, settings.hold)
        self._path = path
        self._kube, self._events, self._clock, self._workers = kube, events, clock, workers
        self._entries: dict[str, _Entry] = {}

    def judge(
        self, name: str, expected: int, missing: Mapping[str, Pod], settle: float = 0.0, *, listed: bool = True
    ) -> Brake:
        """Return the state of the brake ``name``; ``expected`` counts the pods that should have jobs.

        A pod may be terminated for a missing job only if the result allows its UID. ``settle``: see ``GuardLimits``.
        The jobs must be ``listed``, else their absence from ``missing`` means nothing.
        """
        entry, now = self._entries.setdefault(name, _Entry()), self._clock.monotonic()
        before = entry.brake
        marked = {uid for uid, pod in missing.items() if pods.is_marked_missing(pod)}
        limits = replace(self._limits, settle=settle)
        after = step(before, expected, missing.keys(), now, limits, self._answer(entry), marked)
        entry.brake = after
        if missing or not listed:
            entry.complete_since = None
        elif entry.complete_since is None:
            entry.complete_since = now
        if after.engaged and not before.engaged:
            moment = self._clock.time()
            entry.incident, entry.ends, entry.dirty = rfc3339(moment), rfc3339(moment + self._limits.hold), True
            self._report_engaged(name, expected, missing)
        elif before.engaged and not after.engaged:
            entry.dirty, entry.answer, entry.record = True, "", {}
            log.warning("mass-termination guard released", extra=kv(brake=name, ended=len(after.allowed)))
        if after.engaged:
            counts = {"missing": len(after.held), "known": expected}
            entry.record = {"since": entry.incident, **counts, "endsAt": entry.ends}
        BRAKE_ENGAGED.labels(name).set(after.engaged)
        BRAKE_HELD.labels(name).set(len(after.held))
        self._synchronize(name, entry, now)
        return after

    def _report_engaged(self, name: str, expected: int, missing: Mapping[str, Pod]) -> None:
        text = (
            f"the jobs of {len(missing)} of {expected} pods are missing at the same time: podbridge terminates none of "
            f"these pods for {self._limits.hold:g} s; see podbridge brake status"
        )
        log.error("mass-termination guard engaged", extra=kv(brake=name, missing=len(missing), known=expected))
        for pod in list(missing.values())[:MOST_EVENTS]:
            self._events.event(pod, REASON, text, warning=True, action="Holding")

    @staticmethod
    def _answer(entry: _Entry) -> BrakeAnswer:
        """Return the administrator's answer; a confirmation counts only for the incident that it names."""
        answer, _, incident = entry.answer.partition(" ")
        # a hold counts also after a change of the leader, which gives the incident another time
        if answer == BrakeAnswer.HOLD:
            return BrakeAnswer.HOLD
        return BrakeAnswer.CONFIRM if answer == BrakeAnswer.CONFIRM and incident == entry.incident else BrakeAnswer.NONE

    def _synchronize(self, name: str, entry: _Entry, now: float) -> None:
        """Write the ConfigMap if the state has changed, and read it while the brake is engaged.

        A new leader first sees no missing jobs, because it has not confirmed any yet: what a former leader left in the
        ConfigMap may belong to an incident that is not over.
        """
        if entry.brake.engaged:
            due = entry.read_at is None or now >= entry.read_at + READ_EVERY
        else:
            since, wait = entry.complete_since, max(LEFT_FOR, self._limits.hold)
            due = entry.read_at is None and since is not None and now >= since + wait
        if entry.dirty or due:
            self._workers.submit(f"brake/{name}", lambda: self._exchange(name, entry), 2, kind="brake")

    def _exchange(self, name: str, entry: _Entry) -> None:
        # not dirty before the requests: a change during them makes it dirty again
        engaged, record, entry.dirty, done = entry.brake.engaged, dict(entry.record), False, False
        try:
            data: dict[str, str] = self._kube.get(self._path).get("data") or {}
            keys = (name, name + ANSWER_SUFFIX)
            changes: dict[str, str | None] = {}
            if engaged:
                entry.answer = data.get(keys[1], "")
                text = json.dumps(record)
                changes = {name: text} if data.get(name) != text else {}
            else:  # the incident is over
                changes = {key: None for key in keys if key in data}
            if changes:
                self._kube.patch(self._path, {"data": changes}, kind="merge")
            done = True
        except KubeNotFoundError:
            done = True
            if engaged:
                log.warning("no ConfigMap for the brake: apply config/rbac.yaml", extra=kv(path=self._path))
        finally:
            entry.read_at = self._clock.monotonic()
            entry.dirty = entry.dirty or not done


def mark_patch(pod: Pod, missing: bool, now: str) -> dict[str, Any]:
    """Return the strategic status patch for this condition: the job is missing, or found again."""
    if missing:
        text = "its job is missing, like the jobs of many other pods; podbridge does not terminate these pods yet"
        return pods.condition_patch(pod, names.JOB_MISSING, "True", REASON, text, now)
    return pods.condition_patch(pod, names.JOB_MISSING, "False", "JobFound", "its job was found again", now)
