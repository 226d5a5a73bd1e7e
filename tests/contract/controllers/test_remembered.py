"""A hub restarts while a site is silent: real API server, nats-server and redis, and the hub's own wiring."""

import contextlib
import time

import pytest

from bridge.apps.hub.hub_pools import HubPools
from bridge.clock import SystemClock
from bridge.config.hub import parse
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.errors import KubeNotFoundError
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.prune import prune_node
from bridge.kube.resources import NODES, PODS
from bridge.pools.store.redis_store import RedisStore
from bridge.protocol.nats.request_server import Announcer, Server
from bridge.serving.health import Health
from cluster.polling import eventually
from tests.contract.nats.conftest import folder  # noqa: F401
from tests.contract.nats.servers import PREFIX, Site, World
from tests.contract.store.servers import Broker, RedisServer

OWNER = "c1"

pytestmark = pytest.mark.real

NAMESPACE = "remembered"


class Talking(Site):
    def announce(self):
        capacity = {"cpu": "64", "memory": "256Gi"}
        return super().announce().model_copy(update={"capacity": capacity, "batch": "Slurm 26.05", "period": 1})


class Hub:
    """The hub's side of pools, as podbridge wires it."""

    def __init__(self, kubernetes, broker, store):
        nats = {"servers": [broker.server.url], "seedFile": str(broker.out / "hub.seed")}
        times = {"silentAfter": 2, "removeAfter": 3, "kubeletPort": 0, "nodeAddress": "127.0.0.1"}
        config = parse(f"pools: { ({'nats': nats, 'store': store, **times})!r}")
        self.supervisor = Supervisor()
        self.kube = KubeClient.load(str(kubernetes.podbridge_kubeconfig))
        nodes, clock = Cache(self.kube, NODES, name="nodes", prune=prune_node), SystemClock()
        self.events = EventRecorder(self.kube, rate=100)
        shared = KubeDependencies(config, self.kube, nodes, self.events, clock)
        self.remote = HubPools(shared, None, "test", "v1.0.0-podbridge", OWNER)
        self.remote.start(self.supervisor, Health())
        self.remote.loop.start(self.supervisor)
        self.supervisor.spawn("nodes", lambda: nodes.run(self.supervisor.stopping))
        self.supervisor.spawn("events", lambda: self.events.run(self.supervisor.stopping))

    def stop(self):
        self.supervisor.stop()
        self.kube.close()
        self.supervisor.join(5)
        assert self.supervisor.failure is None


@pytest.fixture(params=["redis", "nats", "none"])
def place(request, folder, kubernetes):  # noqa: F811
    kubernetes.add_namespace(NAMESPACE)
    kubernetes.open_to_pools(NAMESPACE)
    broker = Broker(folder, "--jetstream")
    redis = RedisServer(folder).start() if request.param == "redis" else None
    store = {"kind": request.param}
    if redis is not None:
        store["redis"] = {"url": redis.url, "passwordFile": str(redis.password_file)}
    world, admin = World(), KubeClient.load(str(kubernetes.kubeconfig))
    made = Place(kubernetes, broker, store, redis, world, admin)
    yield made
    made.end()


class Place:
    def __init__(self, kubernetes, broker, store, redis, world, admin):
        self.kubernetes, self.broker, self.store, self.redis, self.admin = kubernetes, broker, store, redis, admin
        self.world, self.site = world, Talking()
        self.link = broker.site(world)
        self.announcer = Announcer(self.link, PREFIX, "alpha")
        Server(self.link, PREFIX, "alpha", self.site)
        world.supervisor.spawn("announce", self._announce)
        self.hub = Hub(kubernetes, broker, store)

    def _announce(self):
        while not self.world.supervisor.wait(0.5):
            if self.link.connected:
                with contextlib.suppress(Exception):
                    self.announcer.publish(self.site.announce())
                    self.announcer.publish(self.site.buildconfig())

    def restart(self):
        self.hub.stop()
        self.hub = Hub(self.kubernetes, self.broker, self.store)

    def end(self):
        with contextlib.ExitStack() as last:
            if self.redis is not None:
                last.callback(self.redis.kill)
            last.callback(self.broker.server.kill)
            self.hub.stop()
            for pod in self.admin.get(PODS.path(NAMESPACE))["items"]:
                self.kill(pod)
            with contextlib.suppress(KubeNotFoundError):
                self.admin.delete(NODES.path(name="alpha"))
            self.world.close()

    def node(self):
        try:
            return self.admin.get(NODES.path(name="alpha"))
        except KubeNotFoundError:
            return None

    def ready(self):
        return next(c for c in self.node()["status"]["conditions"] if c["type"] == "Ready")

    def pod(self):
        container = {"name": "main", "image": "none", "command": ["true"]}
        spec = {
            "nodeName": "alpha",
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        }
        return self.admin.create(PODS.path(NAMESPACE), {"metadata": {"generateName": "p"}, "spec": spec})

    def kill(self, pod):
        with contextlib.suppress(KubeNotFoundError):
            self.admin.delete(PODS.path(NAMESPACE, pod["metadata"]["name"]), {"gracePeriodSeconds": 0})

    def fall_silent(self):
        """A pod runs at the site; hub and site stop, and only the hub is started again."""
        self.site.config = {"runtime": {"kind": "none"}}
        eventually(lambda: self.node() is not None, "node")
        pod = self.pod()
        eventually(lambda: pod["metadata"]["uid"] in self.site.jobs, "submit")
        time.sleep(0.5)
        self.link.close()
        self.restart()
        return pod


@pytest.mark.parametrize("place", ["redis", "nats"], indirect=True)
def test_the_node_of_a_silent_site_keeps_its_capacity_and_stays_while_a_job_is_remembered(place):
    pod = place.fall_silent()
    assert place.hub.remote._pools.remembered("alpha") == 1
    assert place.ready()["status"] == "True"  # not before the site could have spoken
    ready = eventually(lambda: place.ready() if place.ready()["status"] == "False" else None, "silent")
    assert ready["reason"] == "SiteSilent"
    assert "last heard 20" in ready["message"]
    assert "jobs remembered there: 1" in ready["message"]
    assert "last announcement: Slurm 26.05" in ready["message"]
    assert place.node()["status"]["capacity"]["cpu"] == "64"
    place.kill(pod)
    time.sleep(8)  # removeAfter is 3
    assert place.node() is not None
    # an administrator gives the site up
    place.admin.delete(NODES.path(name="alpha"))
    eventually(lambda: place.hub.remote._pools.pools() == {}, "forgotten", 15)
    eventually(lambda: place.hub.remote._pools.remembered("alpha") == 0, "its jobs are forgotten", 15)
    if place.redis is not None:
        store = RedisStore(place.redis.access(), OWNER)
        eventually(lambda: store.load("pools") == store.load("jobs") == {}, "swept")


@pytest.mark.parametrize("place", ["none"], indirect=True)
def test_without_a_store_the_node_goes_once_no_pod_is_bound(place):
    pod = place.fall_silent()
    place.kill(pod)
    eventually(lambda: place.node() is None, "gone", 20)
