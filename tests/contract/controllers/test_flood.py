"""A flooding pool, with its own credentials, beside a pool whose pods change: delays up to the API server.

nats-server with the configuration that ``podbridge nats config`` writes, and a real API server.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from bridge.apps.cli.nats_command import nats as nats_command
from bridge.errors import KubeUnavailableError, SiteDownError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import NODES, PODS
from bridge.pools.submitter.nats_registry import NatsPools
from bridge.protocol.model.jobs import ContainerState
from bridge.protocol.nats.envelope import pack
from bridge.protocol.nats.messages import Event
from bridge.protocol.nats.nats_server_config import INBOX
from bridge.protocol.nats.subjects import Subjects
from bridge.telemetry.metrics import POOL_FLOODS
from cluster.polling import eventually
from tests.contract.controllers.test_virtual import Hub
from tests.contract.nats.conftest import folder, world  # noqa: F401  (fixtures)
from tests.contract.nats.servers import OWNER, PREFIX, NatsServer, status
from tests.contract.nats.test_pools import Living

pytestmark = pytest.mark.real

NAMESPACE = "flooded"
PODS_BESIDE = 20
PAUSE = 0.05
"""Seconds between two changes of the pods beside the flood: twenty a second."""
SECONDS = 12.0
SENDER = """
import base64, json, os, socket, sys, time
import nkeys
os.nice(19)  # elsewhere it would have a machine of its own
port, seed, block, seconds = int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4])
sock = socket.create_connection(("127.0.0.1", port))
info = json.loads(sock.makefile("rb").readline().split(b" ", 1)[1])
pair = nkeys.from_seed(bytearray(open(seed, "rb").read().strip()))
signature = base64.urlsafe_b64encode(pair.sign(info["nonce"].encode())).rstrip(b"=").decode()
connect = {"verbose": False, "pedantic": False, "nkey": pair.public_key.decode(), "sig": signature}
sock.sendall(b"CONNECT " + json.dumps(connect).encode() + b"\\r\\n")
block = open(block, "rb").read()
print("begun", flush=True)
end, sent = time.monotonic() + seconds, 0
while time.monotonic() < end:
    sock.sendall(block)
    sent += len(block)
print(sent, flush=True)
"""


class Watch:
    """The times at which the API server first reported each restart count of each pod."""

    def __init__(self, kube: KubeClient) -> None:
        self.seen: dict[tuple[str, int], float] = {}
        self._latest: dict[str, int] = {}
        self._kube = kube
        self._thread = threading.Thread(target=self._until_closed, daemon=True)
        self._thread.start()

    def _until_closed(self) -> None:
        with contextlib.suppress(KubeUnavailableError):
            self._run()

    def _run(self) -> None:
        version = self._kube.get(PODS.path(NAMESPACE))["metadata"]["resourceVersion"]
        params = {"resourceVersion": version, "timeoutSeconds": 120}
        for event in self._kube.watch(PODS.path(NAMESPACE), params, idle_timeout=120):
            now, pod = time.monotonic(), event["object"]
            uid = pod["metadata"]["uid"]
            for container in pod["status"].get("containerStatuses") or ():
                for count in range(self._latest.get(uid, 0) + 1, container["restartCount"] + 1):
                    self.seen[uid, count] = now
                self._latest[uid] = max(self._latest.get(uid, 0), container["restartCount"])


class Site(Living):
    """A site whose jobs restart their container when the test requests it."""

    def restart(self, job: str, restarts: int) -> None:
        state = ContainerState(
            name="main", state="running", started=True, ready=True, started_at=1.8e9, restarts=restarts
        )
        with self.lock:
            self.sequence += 1
            self.jobs[job] = status(job, "running", job_id=job, containers=[state])
            self._say(lambda: self.announcer.publish(self.event(job)))


@pytest.fixture
def place(kubernetes: Any, world: Any, folder: Any) -> Iterator[SimpleNamespace]:  # noqa: F811
    out = folder / "nats"
    done = CliRunner().invoke(nats_command, ["config", "--pools", "alpha,loud", "--out", str(out), "--prefix", PREFIX])
    assert done.exit_code == 0, done.output
    server = NatsServer(folder, config_file=out / "nats-server.conf").start()
    sites = {}
    for pool in ("alpha", "loud"):
        site = sites[pool] = Site(pool=pool, config={"runtime": {"kind": "none"}})
        site.connect(world.link(server.url, pool, seed_file=out / "pools" / f"{pool}.seed"))
        world.supervisor.spawn(f"hello-{pool}", lambda site=site: _announce(site, world.supervisor))
    link = world.link(server.url, "hub", inbox_prefix=INBOX, seed_file=out / "hub.seed")
    pools = NatsPools(link, PREFIX, OWNER)
    pools.start(world.supervisor)
    kubernetes.add_namespace(NAMESPACE)
    admin = KubeClient.load(str(kubernetes.kubeconfig))
    hub = Hub(kubernetes, pools)
    yield SimpleNamespace(admin=admin, quiet=sites["alpha"], server=server, seed=out / "pools" / "loud.seed")
    for pod in admin.get(PODS.path(NAMESPACE))["items"]:
        admin.delete(PODS.path(NAMESPACE, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})
    hub.stop()
    for pool in sites:
        admin.delete(NODES.path(name=pool))
    admin.close()
    for site in sites.values():
        site.wait.set()
    server.kill()


def _announce(site: Site, supervisor: Any) -> None:
    while not supervisor.wait(0.5):
        with contextlib.suppress(SiteDownError):  # the server ends before the supervisor
            site.say_hello()
            site.announcer.publish(site.buildconfig())


def pod(number: int) -> dict[str, Any]:
    spec = {
        "nodeName": "alpha",
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "main", "image": "none", "command": ["true"]}],
    }
    return {"metadata": {"name": f"beside-{number}"}, "spec": spec}


def figures(delays: list[float]) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the maximum."""
    ordered = sorted(delays)
    return ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]


def test_a_pool_that_floods_delays_no_status_of_another_pools_pods(place: SimpleNamespace, folder: Any) -> None:  # noqa: F811
    eventually(
        lambda: any(n["metadata"]["name"] == "alpha" for n in place.admin.get(NODES.path())["items"]), "the node"
    )
    uids = [place.admin.create(PODS.path(NAMESPACE), pod(n))["metadata"]["uid"] for n in range(PODS_BESIDE)]
    eventually(lambda: all(uid in place.quiet.jobs for uid in uids), "every pod is taken", 30)
    for uid in uids:
        place.quiet.restart(uid, 0)
    watch = Watch(place.admin)
    counts = dict.fromkeys(uids, 0)

    def changes(seconds: float) -> dict[tuple[str, int], float]:
        sent: dict[tuple[str, int], float] = {}
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            uid = uids[len(sent) % len(uids)]
            counts[uid] += 1
            sent[uid, counts[uid]] = time.monotonic()
            place.quiet.restart(uid, counts[uid])
            time.sleep(PAUSE)
        return sent

    def delays(sent: dict[tuple[str, int], float]) -> list[float]:
        eventually(lambda: sent.keys() <= watch.seen.keys(), "every change is on its pod", 30)
        return [watch.seen[key] - at for key, at in sent.items()]

    changes(1)  # the first ones also bring the annotation and the phase
    without = figures(delays(changes(4)))
    loud = Subjects(PREFIX, "loud", OWNER)
    data = pack(Event(pool="loud", submitter="s", sequence=1, status=status("uid-1")))
    block = folder / "block"
    block.write_bytes(f"PUB {loud.event} {len(data)}\r\n".encode().join([b"", data + b"\r\n"]) * 5000)
    floods = POOL_FLOODS.labels("loud")._value.get()
    words = [sys.executable, "-c", SENDER, str(place.server.port), str(place.seed), str(block), str(SECONDS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == "begun\n"
        found = delays(changes(SECONDS))
        during, at_the_end = figures(found), figures(found[-len(found) // 4 :])
        megabytes = int(sender.stdout.readline()) / 1e6
    for name, (median, high, longest) in (("without", without), ("during", during), ("at the end of", at_the_end)):
        print(f"{name} the flood: median {median:.3f} s, p99 {high:.3f} s, longest {longest:.3f} s")
    print(f"{megabytes:.0f} MB sent in {SECONDS:.0f} s; {len(found)} changes of pods beside it")
    assert POOL_FLOODS.labels("loud")._value.get() > floods, "the sender was no flood"
    # a slow machine needs seconds for what waits on the server when the hub notices the flood
    assert at_the_end[0] < 1 + without[1]
