"""The messages of the hub and a site about a pod of a group, compared with those about a single pod."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from typing import Any

import pytest

from bridge import names
from bridge.config.pools import NatsSection
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.pools.submitter.submitter_pool import SubmitterPool
from bridge.protocol.nats.envelope import parse
from bridge.protocol.nats.messages import Event
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.subjects import kind_of, last_token
from bridge.site.jobs.member_record import GANG_INCOMPLETE
from cluster.polling import eventually
from tests import builders
from tests.contract.site.conftest import OWNER

pytestmark = pytest.mark.real

SIZE = 8
PREFIX = "bridge.v1"
INBOX = f"_INBOX.{OWNER}"
LIFE = (
    ("queued", "", ()),
    ("queued", "Starting", ()),
    ("running", "", ("waiting",)),
    ("running", "", ("running",)),
    ("running", "", ("terminated",)),
    ("ended", "", ("terminated",)),
)
"""Phase, reason and states of the container in the events of a pod: states that follow each other at once are one."""

BETWEEN_WRITES = (GANG_INCOMPLETE, "Submitting")
"""Reasons of the further events of a pod of a group, if the submitter reads it between two writes of a submission."""


Told = tuple[str, str, tuple[str, ...]]


class Wire:
    """All messages that the server passes on about a set of pods."""

    def __init__(self, link: Link) -> None:
        self._messages = list[tuple[str, bytes]]()
        link.subscribe(">", lambda subject, data, _respond: self._messages.append((subject, data)), threads=0)

    def requests(self, pods: list[str]) -> Counter[str]:
        """Count the requests by their kind."""
        found = ((kind_of(PREFIX, subject), last_token(subject)) for subject, _ in self._messages)
        return Counter(kind for kind, pod in found if pod in pods)

    def events(self, pods: list[str]) -> dict[str, list[Told]]:
        """Return phase, reason and states of the container in the events of each pod."""
        told: dict[str, list[Told]] = {pod: [] for pod in pods}
        for subject, data in self._messages:
            if kind_of(PREFIX, subject) == "event" and (status := parse(Event, data).status).job in told:
                states = tuple(container.state for container in status.containers)
                told[status.job].append((status.phase, status.reason, states))
        return told


@pytest.fixture
def site(make_site: Any) -> Any:
    variables = f'PATH = "{os.environ["PATH"]}"'
    text = f'[runtime]\nkind = "none"\n[local]\ncpus = 16\nmemory = "64Gi"\nenvironment = {{ {variables} }}\n'
    made = make_site("local", text)
    made.start()
    return made


@pytest.fixture
def pool(site: Any, nats_url: str) -> SubmitterPool:
    """The pool as a hub sees it."""
    link = Link(NatsSection(servers=[nats_url]), "hub", INBOX)
    pools = NatsPools(link, PREFIX, OWNER)
    pools.start(site.supervisor)
    link.start(site.supervisor)
    return eventually(lambda: (found := pools.pools().get(site.pool)) and found.ready().ok and found, "the pool")


@pytest.fixture
def wire(site: Any, nats_url: str) -> Wire:
    link = Link(NatsSection(servers=[nats_url]), "wire")
    wire = Wire(link)
    link.start(site.supervisor)
    eventually(lambda: link.connected, "a connection")
    return wire


@pytest.mark.parametrize("gang", ["", str(uuid.uuid4())], ids=["single", "group"])
def test_a_pod_costs_two_requests_and_an_event_for_each_state(
    site: Any, pool: SubmitterPool, wire: Wire, gang: str
) -> None:
    pods = [builders.site_pod(str(uuid.uuid4()), f"w-{rank}") for rank in range(SIZE)]
    for rank, pod in enumerate(pods if gang else []):
        place = {names.PLACE_IN_JOB: f"{gang}/{rank}/{SIZE}", names.MEMBERS_PER_NODE: str(SIZE)}
        pod["metadata"]["annotations"] = place
    for pod in pods:
        pool.submit(pool.prepare(pod), builders.NO_OBJECTS)
    uids = [pod["metadata"]["uid"] for pod in pods]
    eventually(lambda: all(pool.jobs()[uid].phase == "ended" for uid in uids), "all have ended", 60)
    assert {pool.jobs()[uid].outcome for uid in uids} == {"Succeeded"}
    for pod in pods:
        pool.cancel(pod, 0, forget=True)
    eventually(
        lambda: not any((site.folder / "jobs" / uid).exists() for uid in (*uids, gang) if uid), "none is left", 60
    )
    assert wire.requests(uids) == {"submit": SIZE, "cancel": SIZE}
    for events in wire.events(uids).values():
        rest = list(events)
        for reason in BETWEEN_WRITES if gang else ():
            if rest[0] == ("queued", reason, ()):
                del rest[0]
        assert (rest[0], rest[-1]) == (LIFE[0], LIFE[-1]), events
        assert rest == [state for state in LIFE if state in rest], events  # each once, in order
