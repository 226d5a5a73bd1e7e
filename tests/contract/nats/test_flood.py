"""A flooding pool beside a correct one, on a real nats-server."""

import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from bridge.pools.submitter import nats_registry
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.protocol.nats.envelope import pack
from bridge.protocol.nats.messages import Event
from bridge.protocol.nats.subjects import Subjects
from bridge.telemetry.metrics import POOL_FLOODS
from cluster.polling import eventually
from tests.contract.nats.servers import OWNER, PREFIX, NatsServer, World, status
from tests.contract.nats.test_pools import Living

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
SECONDS = 8.0
"""How long the flood lasts."""
MUTED = 10.0
"""Seconds for which a flooding pool is ignored: longer than the flood."""
LOUD = Subjects(PREFIX, "loud", OWNER)
MESSAGES = {
    "events": (LOUD.event, pack(Event(pool="loud", submitter="s", sequence=1, status=status("uid-1"))), 5000),
    "bombs": (LOUD.event, zlib.compress(b"{" + b" " * 500_000_000, 1)[:1_000_000], 8),
    "large announcements": (LOUD.announce, b"{" + b" " * 1_000_000, 8),
}


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
    monkeypatch.setattr(nats_registry, "MUTE", MUTED)
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
    usual: list[float] = []
    for number in range(20):
        uid, begun = f"usual-{number}", time.monotonic()
        quiet.change(uid, "queued")
        usual.append(eventually(lambda uid=uid: seen.get(uid)) - begun)
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
    eventually(lambda: sent.keys() <= seen.keys())
    in_order = [seen[uid] - sent[uid] for uid in sent]
    delays, last = sorted(in_order), median(in_order[-len(in_order) // 4 :])
    figures = f"median {median(delays):.3f} s, longest {delays[-1]:.3f} s; at the end, median {last:.3f} s"
    print(f"{kind}: {megabytes:.0f} MB sent; {len(delays)} events of the other pool, {figures}")
    # when the hub notices the flood, some megabytes of it wait for the hub on the server: a slow machine needs seconds
    # for them. After these, the flood delays no event: 0.003 s, and 0.6 s to 7 s if the hub does not mute the pool. A
    # busy machine delays events without a flood, too.
    assert last < max(0.3, 10 * median(usual))
    assert changes == []  # the server did not take the hub for a slow consumer
    assert POOL_FLOODS.labels("loud")._value.get() > floods
    # what was dropped is made up for
    loud.jobs["uid-late"] = status("uid-late", "running")
    eventually(lambda: "uid-late" in pools.pools()["loud"].jobs(), timeout=60)
    eventually(lambda: not pools._muted, timeout=60)
    loud.change("uid-heard", "queued")
    eventually(lambda: "uid-heard" in pools.pools()["loud"].jobs(), timeout=60)
