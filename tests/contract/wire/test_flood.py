"""A flooding pool beside a correct one, on a real nats-server."""

from __future__ import annotations

import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.metrics import POOL_FLOODS, POOL_MESSAGES_DROPPED
from bridge.pools import nats_registry
from bridge.pools.nats_registry import NatsPools
from bridge.wire.envelope import pack
from bridge.wire.messages import Event
from bridge.wire.subjects import Subjects
from cluster.polling import eventually
from tests.contract.wire.servers import OWNER, PREFIX, NatsServer, World, status
from tests.contract.wire.test_pools import Living

SENDER = """
import os, socket, sys, time
os.nice(19)  # elsewhere it would have a machine of its own
block = open(sys.argv[2], "rb").read()
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sock.sendall(b'CONNECT {"verbose":false,"pedantic":false}\\r\\n')
end = time.monotonic() + float(sys.argv[3])
print("begun", flush=True)
sent = 0
while time.monotonic() < end:
    sock.sendall(block)
    sent += len(block)
print(sent, flush=True)
"""
SECONDS = 5.0
LOUD = Subjects(PREFIX, "loud", OWNER)
MESSAGES = {
    "events": (LOUD.event, pack(Event(pool="loud", submitter="s", sequence=1, status=status("uid-1"))), 5000),
    "bombs": (LOUD.event, zlib.compress(b"{" + b" " * 500_000_000, 1)[:1_000_000], 8),
    "large announcements": (LOUD.announce, b"{" + b" " * 1_000_000, 8),
}


def dropped(pool: str) -> float:
    return POOL_MESSAGES_DROPPED.labels(pool)._value.get()


@pytest.fixture
def quiet(server: NatsServer, world: World) -> Iterator[Living]:
    made = Living()
    made.connect(world.link(server.url, "quiet"))
    yield made
    made.wait.set()


@pytest.mark.parametrize("kind", MESSAGES)
def test_a_pool_that_floods_delays_no_other(
    server: NatsServer, world: World, quiet: Living, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(nats_registry, "MUTE", 3.0)
    loud = Living(pool="loud")
    loud.connect(world.link(server.url, "loud"))
    changes: list[bool] = []
    link = world.link(server.url, "hub")
    link.watch(changes.append)
    pools = NatsPools(link, PREFIX, OWNER)
    pools.start(world.supervisor)
    for site in (quiet, loud):
        eventually(lambda site=site: site.say_hello() or site.pool in pools.pools())
        eventually(lambda site=site: pools.pools()[site.pool].complete_at() is not None)
    changes.clear()
    pool = pools.pools()["alpha"]
    seen: dict[str, float] = {}
    pool.subscribe(lambda uid: seen.setdefault(uid, time.monotonic()))
    subject, data, count = MESSAGES[kind]
    block = folder / "block"
    block.write_bytes(f"PUB {subject} {len(data)}\r\n".encode().join([b"", data + b"\r\n"]) * count)
    floods = POOL_FLOODS.labels("loud")._value.get()
    words = [sys.executable, "-c", SENDER, str(server.port), str(block), str(SECONDS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == "begun\n"
        sent: dict[str, float] = {}
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            uid = f"uid-{len(sent)}"
            sent[uid] = time.monotonic()
            quiet.change(uid, "queued")
            time.sleep(0.05)
        megabytes = int(sender.stdout.readline()) / 1e6
    eventually(lambda: len(seen) >= len(sent))
    delays = sorted(seen[uid] - sent[uid] for uid in sent)
    figures = f"median {delays[len(delays) // 2]:.3f} s, longest {delays[-1]:.3f} s; {dropped('loud'):.0f} dropped"
    print(f"{kind}: {megabytes:.0f} MB sent; {len(delays)} events of the other pool, {figures}")
    # until the flood is noticed, and again each time it is looked whether it is over, the server has some megabytes
    # of it waiting for the hub
    assert delays[int(len(delays) * 0.9)] < 1
    assert delays[-1] < 5
    assert changes == []  # the server did not take the hub for a slow consumer
    assert POOL_FLOODS.labels("loud")._value.get() > floods
    # what was dropped is made up for
    loud.jobs["uid-late"] = status("uid-late", "running")
    eventually(lambda: "uid-late" in pools.pools()["loud"].jobs(), timeout=20)
    eventually(lambda: not pools._muted, timeout=20)
    loud.change("uid-heard", "queued")
    eventually(lambda: "uid-heard" in pools.pools()["loud"].jobs(), timeout=20)
