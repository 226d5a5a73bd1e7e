"""Reads nodes and partitions from slurmrestd."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import replace

from bridge.clock import Clock
from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.slurm.models import Node
from bridge.slurm.poll_state import Answers
from bridge.slurm.progress import count_nodes
from bridge.slurm.slurm_client import SlurmClient

log = logging.getLogger(__name__)

PERIOD = 0.8
"""Seconds between two requests for changed nodes: 2 ms if no node has changed."""
SLOW_PERIOD = 1.6
"""The same while podbridge has no job: with the polls, less than one request per second."""
REST = 3.0
"""Pause before the nodes may be read again, as a multiple of the time that reading them took: 0.2 to 0.3 s for 1,000
nodes. While jobs start and end, some node has always changed. The pause and two reads must stay below two seconds for
1,000 nodes, since a change may come right after an answer."""
FULL_PERIOD = 60.0
"""Seconds after which all nodes are read without the question whether one has changed. Slurm answers it by its clock,
and would see no change for as long as its clock was set back. 2.5 MB a minute for 1,000 nodes that do not change."""
PARTITIONS = 10.0
"""Seconds between two reads of the partitions."""


class NodeReader:
    """Reads the nodes when one has changed, in polls and between them. Only for the poller's thread."""

    def __init__(self, client: SlurmClient, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._required = threading.Event()
        self._requested_at = self._due_at = self._read_at = self._partitions_at = -math.inf
        self._moment = 0
        self._new_nodes: list[Node] | None = None

    def require_read(self) -> None:
        """Read nodes and partitions in the next poll; for any thread."""
        self._required.set()

    def changed(self, *, slowly: bool = False) -> bool:
        """Return whether the next poll has news of nodes, after a request if one is due; its answer is kept.

        ``slowly``: the period is ``SLOW_PERIOD``.
        """
        now = self._clock.monotonic()
        try:
            if not slowly or now >= self._requested_at + SLOW_PERIOD:
                self._read_changes(now)
        except BridgeError as error:
            log.debug("nodes cannot be read", extra=kv(error=error))  # the next poll fails too, and logs it
        return self._new_nodes is not None or self._required.is_set()

    def add(self, answers: Answers) -> Answers:
        """Return the answers with the nodes, if one has changed, and every ``PARTITIONS`` seconds the partitions."""
        is_required = self._required.is_set()
        self._required.clear()  # before the request: a later require_read() needs a later read
        try:
            self._read_changes(self._clock.monotonic(), now=is_required)
            if is_required or answers.began - self._partitions_at >= PARTITIONS:
                partitions = {partition.name: partition for partition in self._client.partitions()}
                answers = replace(answers, partitions=partitions)
                self._partitions_at = answers.began
        except BridgeError:
            if is_required:
                self._required.set()
            raise
        if self._new_nodes is None:
            return answers
        nodes, self._new_nodes = {node.name: node for node in self._new_nodes}, None
        count_nodes(nodes.values())
        return replace(answers, nodes=nodes)

    def _read_changes(self, began: float, *, now: bool = False) -> None:
        if not now and began < self._due_at:
            return
        # before the request: one that fails must not be repeated at once
        self._requested_at, self._due_at = began, began + PERIOD
        moment = 0 if now or began - self._read_at >= FULL_PERIOD else self._moment
        self._moment = 0  # an error may be a restart of slurmctld, with another clock: all nodes are read after it
        changes = self._client.nodes_since(moment)
        if changes is None:
            self._moment = moment
            return
        self._new_nodes, self._moment = changes
        self._read_at, ended = began, self._clock.monotonic()
        self._due_at = max(self._due_at, ended + REST * (ended - began))
