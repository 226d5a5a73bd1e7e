"""Publishes the sums of Slurm in a ConfigMap, for users and the web page, which have no token of Slurm."""

from __future__ import annotations

import logging
import math

from bridge import names
from bridge.control.control_loop import Dependencies, Loop
from bridge.errors import BridgeError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.lease import Elector
from bridge.kube.resources import CONFIGMAPS
from bridge.logs import kv
from bridge.slurm import cluster_sums, day_history
from bridge.slurm.cluster_sums import CONFIRM, ClusterSums
from bridge.slurm.day_history import Marks, Sample
from bridge.slurm.models import Snapshot

log = logging.getLogger(__name__)

AGAIN = 60.0
"""Seconds until the next attempt if the ConfigMap does not exist or may not be written."""


class SlurmPublisher(Loop):
    """Writes the ConfigMap after a change, at most once in ``slurm.publishPeriod``, and every ``CONFIRM`` seconds.

    While Slurm does not answer, nothing is written: the time in the ConfigMap shows the age of the state. The leader
    also keeps the last day there.
    """

    def __init__(self, dependencies: Dependencies, elector: Elector | None) -> None:
        super().__init__("slurm-publisher", (), elector, 1, dependencies.clock)
        config = dependencies.config
        self._poller = dependencies.poller
        self._kube = dependencies.kube.fenced(self.check_leadership)
        self._path = CONFIGMAPS.path(config.leader_election.namespace, names.slurm_sums(config.installation))
        self._period = config.slurm.publish_period or CONFIRM
        self._written: ClusterSums | None = None
        self._written_at = self._due = -math.inf
        self._reported = False
        self._day: tuple[Sample, ...] | None = None
        self._marks: Marks | None = None

    def on_started_leading(self) -> None:
        """Write again: a former leader may have written."""
        self._written, self._due, self._day, self._marks = None, -math.inf, None, None

    def reconcile(self) -> None:
        """Write the ConfigMap if it is due."""
        snapshot = self._poller.snapshot
        if self.clock.monotonic() >= self._due and snapshot.sequence and not snapshot.error:
            self.workers.submit("slurm-publisher", self._write)

    def _write(self) -> None:
        now = self.clock.monotonic()
        self._due = now + self._period  # also after an error
        began, snapshot = self.clock.time() - self._poller.age(), self._poller.snapshot
        sums = cluster_sums.of(snapshot, self._poller.other_jobs(), began, self._period)
        try:
            day = self._next_day(sums, snapshot, now)
            if sums == self._written and day == self._day and now < self._written_at + max(CONFIRM, self._period):
                return
            patch = cluster_sums.to_config_map(sums)
            patch["data"][day_history.KEY] = day_history.to_text(day)
            self._kube.patch(self._path, patch, kind="merge")
        except (KubeNotFoundError, KubeForbiddenError) as error:
            self._due = now + AGAIN
            self._report(error)
            return
        if day != self._day or self._marks is None:
            self._marks = day_history.marks(snapshot, now)
        self._written, self._written_at, self._day, self._reported = sums, now, day, False
        size = sum(len(text) for part in patch.values() for text in part.values() if text)
        log.debug("sums of Slurm written", extra=kv(nodes=len(sums.nodes), bytes=size))

    def _next_day(self, sums: ClusterSums, snapshot: Snapshot, now: float) -> tuple[Sample, ...]:
        """Return the samples of the last day, with a new one if it is due; those of a former leader are read first."""
        if self._day is None:
            try:
                return day_history.kept(day_history.from_config_map(self._kube.get(self._path)), sums.at)
            except ValueError as error:
                log.warning("the last day of Slurm cannot be read and begins anew", extra=kv(error=error))
                return ()
        if self._marks is None or now < self._marks.at + day_history.PERIOD:
            return self._day
        new = day_history.sample(sums, snapshot, self._marks, day_history.marks(snapshot, now))
        return day_history.kept((*self._day, new), sums.at)

    def _report(self, error: BridgeError) -> None:
        if not self._reported:
            log.warning("the sums of Slurm are not published: apply config/rbac.yaml", extra=kv(error=error))
        self._reported = True
