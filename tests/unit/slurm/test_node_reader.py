"""When the nodes are read, and when only the question is sent whether one has changed."""

from typing import Any

import pytest

from bridge.errors import SlurmUnavailableError
from bridge.slurm.models import Node, Partition
from bridge.slurm.node_reader import FULL_PERIOD, NodeReader
from bridge.slurm.poll_state import Answers
from tests.fakes.clock import FakeClock


class Controller:
    """One node, and the clock of slurmctld."""

    def __init__(self) -> None:
        self.time = self.changed_at = 1_000_000
        self.node = Node("n1", frozenset({"IDLE"}))
        self.down = False
        self.full = 0

    def set(self, state: str) -> None:
        self.node, self.changed_at = Node("n1", frozenset({state})), self.time

    def nodes_since(self, moment: int) -> tuple[list[Node], int] | None:
        if self.down:
            raise SlurmUnavailableError("down")
        if moment and self.changed_at < moment:
            return None
        self.full += 1
        return [self.node], self.time

    def partitions(self) -> list[Partition]:
        return []


class Polls:
    def __init__(self) -> None:
        self.slurm, self.clock = Controller(), FakeClock()
        client: Any = self.slurm
        self.reader = NodeReader(client, self.clock)

    def poll(self) -> frozenset[str] | None:
        """Return the states of the node, if the poll has read them."""
        self.clock.advance(2)
        self.slurm.time += 2
        nodes = self.reader.add(Answers(self.clock.monotonic(), {})).nodes
        return nodes["n1"].states if nodes is not None else None


@pytest.fixture
def polls() -> Polls:
    polls = Polls()
    assert polls.poll() == {"IDLE"}
    return polls


def test_without_a_change_the_nodes_are_read_once_a_minute(polls: Polls) -> None:
    for _ in range(150):
        polls.poll()
    assert polls.slurm.full == 1 + 300 // FULL_PERIOD


def test_a_change_is_seen_though_the_clock_of_slurmctld_was_set_back(polls: Polls) -> None:
    polls.slurm.time -= 3600
    polls.slurm.set("DOWN")
    assert {"DOWN"} in [polls.poll() for _ in range(31)]
    polls.slurm.set("IDLE")
    assert polls.poll() == {"IDLE"}


def test_after_a_failed_poll_and_on_request_the_nodes_are_read(polls: Polls) -> None:
    assert polls.poll() is None
    polls.slurm.down = True
    with pytest.raises(SlurmUnavailableError):
        polls.poll()
    polls.slurm.down = False
    assert polls.poll() == {"IDLE"}
    assert polls.poll() is None
    polls.reader.require_read()
    assert polls.poll() == {"IDLE"}
