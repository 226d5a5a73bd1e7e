"""Two hubs and one pool: the leader is killed, stopped and ended while pods are created and deleted."""

import http.client
import itertools
import selectors
import signal
import socket
import threading
import time
from datetime import datetime
from pathlib import Path

import pytest

from cluster import Cluster
from cluster.pods import PoolWorld
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from cluster.ports import free_block
from cluster.processes import of_user
from tests.chaos import marks

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

POOL = "local-site"
HUBS = ("first", "second")
LEASE = "/apis/coordination.k8s.io/v1/namespaces/podbridge/leases/podbridge-controllers"
WRITES = ("create", "update", "patch", "delete", "deletecollection")
TIMES = {"leaseDuration": 6, "renewDeadline": 5, "retryPeriod": 0.5}
BATCH = 12
"""Pods that are created before the fault, during it, and after it."""


class Service:
    """The Service of the webhook: one address that forwards connections to one of the hubs."""

    def __init__(self):
        self.port = free_block(1)
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._target, self._open = 0, []
        threading.Thread(target=self._accept, daemon=True).start()

    def forward_to(self, port):
        """Forward new connections to ``port``, and close the open ones."""
        self._target = port
        for end in self._open:
            end.close()
        self._open = []

    def close(self):
        self._listener.close()
        self.forward_to(0)

    def _accept(self):
        while True:
            try:
                client = self._listener.accept()[0]
            except OSError:
                return
            try:
                hub = socket.create_connection(("127.0.0.1", self._target), 1)
            except OSError:
                client.close()
                continue
            self._open += [client, hub]
            threading.Thread(target=self._carry, args=(client, hub), daemon=True).start()

    @staticmethod
    def _carry(client, hub):
        other = {client: hub, hub: client}
        with client, hub, selectors.DefaultSelector() as ready:
            try:
                for end in other:
                    ready.register(end, selectors.EVENT_READ)
                while True:
                    for key, _ in ready.select(0.5):
                        data = key.fileobj.recv(65536)
                        if not data:
                            return
                        other[key.fileobj].sendall(data)
            except (OSError, ValueError):  # closed by the other side, or by forward_to
                return


class Replicas(PoolWorld):
    """Two hubs, and the pods that were created for them."""

    def __init__(self, cluster, service):
        super().__init__(cluster)
        self.service = service
        self.kept, self.deleted = [], []
        self.taken_over, self.logs_after = [], []
        self.counter = itertools.count()

    def start(self, hub):
        own = {"admission": {"url": f"https://127.0.0.1:{self.service.port}"}, "leaderElection": TIMES}
        self.cluster.start_podbridge(name=hub, config_overrides=own)

    def holder(self):
        return self.api("GET", LEASE)["spec"]["holderIdentity"]

    def leader(self):
        """Return the hub that holds the lease, and its identity; ``None`` if no running hub holds it."""
        holder = self.holder()
        name = next((hub for hub in HUBS if f"_{self.cluster.pid(hub)}_" in holder), None)
        return name and (name, holder)

    def create(self, seconds):
        """Create a pod; retry while the webhook is moved to another hub."""
        name = f"c{next(self.counter)}"
        spec = marks.spec(name, seconds, terminationGracePeriodSeconds=1)
        body = {"metadata": {"name": name, "annotations": {"bridge.vk.io/pools": POOL}}, "spec": spec}

        def sent():
            try:
                status, found = self.api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", body)
            except (OSError, http.client.HTTPException):
                return None
            return found if status == 201 else self.get_named(name) if status == 409 else None

        return eventually(sent, f"{name} created", 20)

    def get_named(self, name):
        return self.api("GET", self.path(name, NAMESPACE))

    def batch(self):
        """Create pods of different durations, and put every fourth on the list of those to delete."""
        pods = [self.create(number % 6) for number in range(BATCH)]
        for number, pod in enumerate(pods):
            (self.deleted if number % 4 == 3 else self.kept).append(pod)
        return pods

    def delete_some(self, pods):
        for pod in pods:
            if pod in self.deleted:
                self.delete(pod)

    def port_written(self):
        return self.kube_node(POOL)["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]

    def late_writes(self, identity, since):
        """Return the writes of a hub after the time ``since``, without those of its lease."""
        events = [event for event in self.cluster.audit_events() if identity in event.get("userAgent", "")]
        assert events, "the audit log has no request of this hub"
        return [
            f"{event['verb']} {event['requestURI']}"
            for event in events
            if event["verb"] in WRITES
            and event["objectRef"]["resource"] not in ("leases", "tokenreviews", "subjectaccessreviews")
            and datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp() > since
        ]


@pytest.fixture
def world(state_folder):
    with Cluster(state_folder / "replicas", slurm=None, pools=[POOL], nodes=1, kwok=False, audit=True) as cluster:
        cluster.start_submitters()
        service = Service()
        world = Replicas(cluster, service)
        try:
            for hub in HUBS:
                world.start(hub)
            service.forward_to(cluster.podbridge_port("admission", HUBS[0]))
            world.ready(POOL)
            yield world
        finally:
            service.close()


def change(world, how):
    """Kill, stop or end the leader and wait until the other hub serves logs; return the late writes of the former."""
    cluster = world.cluster
    old, identity = eventually(world.leader, "a leader")
    other = next(hub for hub in HUBS if hub != old)
    world.service.forward_to(cluster.podbridge_port("admission", other))
    before = world.batch()
    running = world.create(40)
    world.deleted.append(running)
    world.running(running)
    began = time.monotonic()
    if how == "ended":
        cluster.stop_podbridge(old)
    else:
        cluster.kill(old, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    during = world.batch()
    world.delete_some(before)
    new, _ = eventually(lambda: (found := world.leader()) and found[0] != old and found, "another leader", 20)
    world.taken_over.append(time.monotonic() - began)
    assert new == other
    eventually(lambda: world.port_written() == cluster.podbridge_port("kubelet", new), "its port on the node", 5)
    eventually(lambda: world.logs(running, check=False) == f"{running['metadata']['name']}\n", "logs", 5)
    world.logs_after.append(time.monotonic() - began)
    late = []
    if how == "stopped":
        since = time.time()
        cluster.kill(old, signal.SIGCONT)
        eventually(lambda: cluster.pid(old) is None, "the old leader ends", 10)
        late = world.late_writes(identity, since)
    if how != "ended":
        cluster.processes.forget(old)
    world.start(old)
    world.delete_some(during)
    world.delete(running)
    world.batch()
    world.delete_some(world.deleted[-BATCH // 4 :])
    assert world.leader()[0] == new
    assert world.port_written() == cluster.podbridge_port("kubelet", new)
    return late


def test_the_leader_goes_and_no_pod_notices(world, report):
    site = world.cluster.sites[POOL]
    marks.prepare(world)
    late = [write for how in ("killed", "stopped", "ended") for write in change(world, how)]

    def over():
        found = {pod["metadata"]["uid"]: pod["status"]["phase"] for pod in world.pods(NAMESPACE)}
        waiting = [pod for pod in world.kept if found.get(pod["metadata"]["uid"]) in ("Pending", "Running")]
        return not waiting and not any(pod["metadata"]["uid"] in found for pod in world.deleted)

    eventually(over, "all pods over, and the deleted ones gone", 60, 0.5)
    phases = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in world.pods(NAMESPACE)}
    ran = marks.runs(world)
    names = [pod["metadata"]["name"] for pod in world.kept]
    lost = [name for name in names if phases.get(name) != "Succeeded" or name not in ran]
    twice = [name for name, count in ran.items() if count > 1]
    reasons = [event["reason"] for event in node_events(world)]
    world.clear()
    left = world.jobs_at(POOL) + scripts(site.uid)
    many = len(world.kept) + len(world.deleted)
    report(
        f"leader killed, stopped and ended, {many} pods ({len(world.deleted)} deleted): "
        f"{len(lost)} lost, {len(twice)} run twice, {len(left)} left behind, {len(late)} late writes; "
        f"another led after {seconds(world.taken_over)} s, logs after {seconds(world.logs_after)} s"
    )
    assert not lost, {name: phases.get(name) for name in lost[:5]}
    assert not twice
    assert not left
    assert not late
    assert "SiteSilent" not in reasons


def seconds(times):
    return ", ".join(f"{time:.1f}" for time in times)


def node_events(world):
    items = world.api("GET", "/apis/events.k8s.io/v1/events")["items"]
    return [event for event in items if (event.get("regarding") or {}).get("name") == POOL]


def scripts(uid):
    """Return the command lines of processes that a job left behind."""
    found = []
    for pid in of_user(uid):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if "submitter" not in words:
            found.append(words)
    return found
