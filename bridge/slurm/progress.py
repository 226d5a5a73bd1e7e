"""Reports the poller's state: metrics of a snapshot, and log lines until the first snapshot is complete."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable

from bridge.clock import Clock
from bridge.logs import kv
from bridge.slurm.models import Node, Snapshot
from bridge.slurm.states import Phase, phase
from bridge.telemetry.metrics import SLURM_NODES, SNAPSHOT_JOBS

log = logging.getLogger(__name__)

PERIOD = 30.0
"""Seconds between two log lines."""


class Progress:
    """The progress of the first reading; ``text`` is empty when it is complete."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_at = -math.inf
        self.text = ""

    def record(self, snapshot: Snapshot, read: int, total: int) -> None:
        """Record the result of a poll: ``read`` of ``total`` listed jobs have been read."""
        if snapshot.listed_at > -math.inf:
            if self._logged_at < math.inf:
                log.info("all jobs are read", extra=kv(jobs=read))
            self.text, self._logged_at = "", math.inf
            return
        self.text = f"read {read} of {total} jobs"
        if read < total and self._clock.monotonic() - self._logged_at >= PERIOD:
            self._logged_at = self._clock.monotonic()
            log.info("reading all jobs for the first time", extra=kv(read=read, of=total))


def count_jobs(snapshot: Snapshot) -> None:
    """Set the metrics of podbridge's jobs."""
    counts: Counter[str] = Counter()
    # thousands of jobs have a dozen combinations of states
    for states, number in Counter(None if k.missing else k.job.states for k in snapshot.jobs.values()).items():
        counts["missing" if states is None else phase(states).value] += number
    for name in [*(phase_.value for phase_ in Phase), "missing"]:
        SNAPSHOT_JOBS.labels(name).set(counts[name])


COUNTED_STATES = {
    "down": {"DOWN", "FAIL", "FUTURE", "NOT_RESPONDING", "ERROR"},
    "drained": {"DRAIN"},
    "powered_down": {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"},
    "allocated": {"ALLOCATED", "MIXED", "COMPLETING"},
    "idle": {"IDLE", "UNKNOWN"},
}
"""Value of the label ``state`` -> Slurm's states of a node; the first one that has one of them counts. Idle nodes
are ``UNKNOWN`` after a restart of slurmctld until they register."""


def count_nodes(nodes: Iterable[Node]) -> None:
    """Set the metric of Slurm's nodes."""
    counts = Counter(
        next((label for label, label_states in COUNTED_STATES.items() if label_states & node.states), "other")
        for node in nodes
    )
    for name in (*COUNTED_STATES, "other"):
        SLURM_NODES.labels(name).set(counts[name])
