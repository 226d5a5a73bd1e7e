"""Virtual nodes and their pods: a real API server, podbridge's own permissions, and a site in memory."""

import contextlib
import itertools
import threading
import time
from types import SimpleNamespace

import pytest
from prometheus_client import REGISTRY

from bridge.clock import SystemClock
from bridge.config.hub import parse
from bridge.control.control_loop import KubeDependencies
from bridge.core.threads import Supervisor
from bridge.errors import KubeNotFoundError, SiteRefusedError
from bridge.kube.cache import Cache
from bridge.kube.events import EventRecorder
from bridge.kube.kube_client import KubeClient
from bridge.kube.prune import prune_node
from bridge.kube.resources import CONFIGMAPS, LEASES, NODES, PODS, SECRETS
from bridge.script.buildconfig import BuildConfig
from cluster.polling import eventually
from controllers.virtual import virtual_node_loop, virtual_pod_decide
from controllers.virtual.node_manifest import NodeSettings
from controllers.virtual.virtual_node_loop import VirtualNodes
from tests.fakes.pool import FakePool, FakePools

pytestmark = pytest.mark.real

NAMESPACE = "virtual"
NUMBERS = itertools.count(1)


class Hub:
    """The virtual nodes' loop, started and stopped as a process would."""

    def __init__(self, kubernetes, pools, **options):
        text = "{nats: {servers: ['nats://127.0.0.1:1']}, silentAfter: 2, removeAfter: 2, submitTimeout: 1}"
        config = parse(f"pools: {text}")
        self.supervisor = Supervisor()
        self.kube = KubeClient.load(str(kubernetes.podbridge_kubeconfig))
        nodes = Cache(self.kube, NODES, name="nodes", prune=prune_node)
        self.events = EventRecorder(self.kube, rate=options.get("rate", 100))
        settings = NodeSettings(2.0, options.get("remove_after", 3600.0), "127.0.0.1", 10250, "v1.0.0-podbridge")
        self.shared = shared = KubeDependencies(config, self.kube, nodes, self.events, SystemClock())
        self.loop = VirtualNodes(shared, None, pools, settings)
        self.loop.start(self.supervisor)
        self.supervisor.spawn("nodes", lambda: nodes.run(self.supervisor.stopping))
        self.supervisor.spawn("events", lambda: self.events.run(self.supervisor.stopping))

    def stop(self):
        self.events.flush(2)
        self.supervisor.stop()
        self.kube.close()
        self.supervisor.join(3)
        assert self.supervisor.failure is None


class Place:
    """A hub, a site, and what a test does with pods there."""

    def __init__(self, kubernetes, **options):
        self.kubernetes = kubernetes
        self.options = options
        self.admin = KubeClient.load(str(kubernetes.kubeconfig))
        self.pool = FakePool(f"site{next(NUMBERS)}", labels={"gpu": "a100"}, batch="Slurm 26.05")
        self.pools = FakePools(self.pool)
        self.alive = True
        self.hub = Hub(kubernetes, self.pools, **options)
        self.supervisor = Supervisor()
        self.supervisor.spawn("announce", self._announce)
        eventually(lambda: self.node() is not None, "node")

    def _announce(self):
        while not self.supervisor.wait(0.5):
            if self.alive:
                self.pool.announce(**{**self.pool.heard[0].model_dump(), "time": time.time()})

    def restart(self):
        self.hub.stop()
        self.hub = Hub(self.kubernetes, self.pools, **self.options)

    def stop(self):
        self.supervisor.stop()
        self.hub.stop()
        self.supervisor.join(3)
        for pod in self.admin.get(PODS.path(NAMESPACE))["items"]:
            self.kill(pod)
        with contextlib.suppress(KubeNotFoundError):
            self.admin.delete(NODES.path(name=self.pool.name))

    def found(self, path):
        """Return an object, or None."""
        with contextlib.suppress(KubeNotFoundError):
            return self.admin.get(path)

    def node(self):
        return self.found(NODES.path(name=self.pool.name))

    def condition(self, kind="Ready"):
        return next(c for c in self.node()["status"]["conditions"] if c["type"] == kind)

    def pod(self, name=None, **spec):
        """Create a bound pod."""
        metadata = {"name": name or f"p{next(NUMBERS)}", **spec.pop("metadata", {})}
        return self.admin.create(PODS.path(NAMESPACE), {"metadata": metadata, "spec": self.spec(**spec)})

    def spec(self, *, container=None, **more):
        main = {"name": "main", "image": "none", "command": ["true"], **(container or {})}
        fixed = {"nodeName": self.pool.name, "restartPolicy": "Never", "automountServiceAccountToken": False}
        return {**fixed, "tolerations": [{"operator": "Exists"}], "containers": [main], **more}

    def submitted_pod(self, *args, **spec):
        """Create a pod whose job the site has."""
        pod = self.pod(*args, **spec)
        self.taken(pod)
        return pod

    def running_pod(self, *args, **spec):
        pod = self.submitted_pod(*args, **spec)
        self.pool.run(uid(pod))
        self.phase(pod, "Running")
        return pod

    def get(self, pod):
        found = self.found(PODS.path(NAMESPACE, pod["metadata"]["name"]))
        return found if found and uid(found) == uid(pod) else None

    def seen(self, pod, check, what="as it should be", timeout=15):
        def look():
            found = self.get(pod)
            return found if found is not None and check(SimpleNamespace(**found)) else None

        return eventually(look, f"pod {what}", timeout)

    def phase(self, pod, phase):
        return self.seen(pod, lambda p: p.status["phase"] == phase, phase)

    def taken(self, pod):
        eventually(lambda: uid(pod) in self.pool.site, "submit")
        return self.seen(pod, lambda p: "bridge.vk.io/job" in p.metadata.get("annotations", {}), "taken")

    def delete(self, pod, grace=None):
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        self.admin.delete(PODS.path(NAMESPACE, pod["metadata"]["name"]), body)

    def kill(self, pod):
        with contextlib.suppress(KubeNotFoundError):
            if pod["metadata"].get("finalizers"):
                self.admin.patch(PODS.path(NAMESPACE, pod["metadata"]["name"]), {"metadata": {"finalizers": None}})
            self.delete(pod, 0)

    def gone(self, pod, timeout=15):
        eventually(lambda: self.get(pod) is None, "gone", timeout)

    def events(self, obj, reason):
        items = self.admin.get(f"/apis/events.k8s.io/v1/namespaces/{NAMESPACE}/events")["items"]
        return [e for e in items if e["regarding"].get("uid") == uid(obj) and e["reason"] == reason]

    def writes(self, verb, names):
        """The requests of podbridge for these pods."""
        ours = (event for event in self.kubernetes.audit_events() if "podbridge" in event["user"]["username"])
        return [event for event in ours if event["verb"] == verb and event["objectRef"].get("name") in names]


def uid(pod):
    return pod["metadata"]["uid"]


@contextlib.contextmanager
def started_place(kubernetes, monkeypatch):
    monkeypatch.setattr(virtual_node_loop, "LEASE_PERIOD", 1.0)
    monkeypatch.setattr(virtual_pod_decide, "LOOK_AGAIN", 0.3)
    monkeypatch.setattr(virtual_pod_decide, "CANCEL_AGAIN", 1.0)
    kubernetes.add_namespace(NAMESPACE)
    kubernetes.open_to_pools(NAMESPACE)
    made = Place(kubernetes)
    yield made
    made.stop()


@pytest.fixture
def place(kubernetes, monkeypatch):
    with started_place(kubernetes, monkeypatch) as made:
        yield made


# --- the node ---------------------------------------------------------------------------------------------------------
def test_a_pool_has_a_node_and_a_lease(place):
    node = place.node()
    assert node["metadata"]["labels"]["gpu"] == "a100"
    assert node["status"]["capacity"] == {"cpu": "64", "memory": "256Gi", "pods": "10k", "ephemeral-storage": "1Pi"}
    assert place.condition()["status"] == "True"
    path = LEASES.path("kube-node-lease", place.pool.name)
    lease = eventually(lambda: place.found(path), "lease")
    assert lease["spec"]["leaseDurationSeconds"] == 40
    assert lease["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    eventually(lambda: place.found(path)["spec"]["renewTime"] != lease["spec"]["renewTime"], "renewed")


def test_what_a_site_says_anew_is_taken_over(place):
    place.pool.announce(
        labels={"disk": "ssd"}, taints=["disk=ssd:NoSchedule"], capacity={"nvidia.com/gpu": "4", "cpu": "bad"}
    )
    node = eventually(lambda: (n := place.node())["metadata"]["labels"].get("disk") and n, "labels")
    assert "gpu" not in node["metadata"]["labels"]
    found = {"nvidia.com/gpu": "4", "pods": "10k", "ephemeral-storage": "1Pi"}
    eventually(lambda: place.node()["status"]["capacity"] == found, "capacity")
    assert place.node()["status"]["allocatable"] == found
    assert "disk" in [taint["key"] for taint in place.node()["spec"]["taints"]]
    assert "'cpu'" in place.condition("AnnouncementAccepted")["message"]


def test_a_silent_site_is_not_ready_and_loses_nothing(place):
    pod = place.running_pod()
    place.alive = False
    eventually(lambda: place.condition()["status"] == "False", "NotReady", 20)
    assert place.condition()["reason"] == "SiteSilent"
    assert "last announcement: Slurm 26.05" in place.condition()["message"]
    eventually(
        lambda: any(t["key"] == "node.kubernetes.io/not-ready" for t in place.node()["spec"]["taints"]), "taint", 20
    )
    assert place.get(pod)["status"]["phase"] == "Running"
    place.alive = True
    eventually(lambda: place.condition()["status"] == "True", "Ready", 20)
    assert place.get(pod)["status"]["phase"] == "Running"
    assert place.pool.count("submit") == 1


def test_a_gone_pools_node_goes_and_its_pods_do_not(kubernetes):
    kubernetes.add_namespace(NAMESPACE)
    kubernetes.open_to_pools(NAMESPACE)
    place = Place(kubernetes, remove_after=1.5)
    try:
        pod = place.submitted_pod()
        place.alive = False
        eventually(lambda: place.condition()["status"] == "False", "NotReady", 20)
        time.sleep(4)
        assert place.node() is not None
        assert place.get(pod) is not None
        place.kill(pod)
        eventually(lambda: place.node() is None, "the node gone", 20)
        place.alive = True
        eventually(lambda: place.node() is not None, "the node again", 20)
    finally:
        place.stop()


def test_a_node_that_is_there_already_is_not_taken_over(place):
    name = f"real{next(NUMBERS)}"
    place.admin.create(NODES.path(), {"metadata": {"name": name, "labels": {"mine": "yes"}}})
    pod = place.admin.create(
        PODS.path(NAMESPACE),
        {"metadata": {"name": name}, "spec": {"nodeName": name, "containers": [{"name": "main", "image": "i"}]}},
    )
    other = FakePool(name)
    place.pools.add(other)
    time.sleep(2)
    node = place.admin.get(NODES.path(name=name))
    assert node["metadata"]["labels"] == {"mine": "yes"}
    assert not [t for t in node["spec"].get("taints", ()) if "vk.io" in t["key"]]
    assert other.asked == []
    events = place.admin.get("/apis/events.k8s.io/v1/namespaces/default/events")["items"]
    assert [e for e in events if e["reason"] == "PoolNameTaken" and e["regarding"]["name"] == name]
    place.kill(pod)
    place.admin.delete(NODES.path(name=name))


# --- pods -------------------------------------------------------------------------------------------------------------
def test_a_pods_life(place):
    pod = place.pod(container={"command": ["sh", "-c", "exit 3"]})
    found = place.taken(pod)
    assert found["metadata"]["annotations"]["bridge.vk.io/job"] == f"{place.pool.name}/1"
    assert found["status"]["phase"] == "Pending"
    assert found["status"]["hostIP"] == "127.0.0.1"
    place.pool.set(uid(pod), reason="Priority")
    place.seen(pod, lambda p: "Priority" in str(p.status), "with the reason", 20)
    place.pool.run(uid(pod))
    found = place.phase(pod, "Running")
    assert {c["type"]: c["status"] for c in found["status"]["conditions"]}["Ready"] == "True"
    place.pool.end(uid(pod), 3)
    found = place.phase(pod, "Failed")
    over = found["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (over["exitCode"], over["reason"]) == (3, "Error")
    assert found["status"]["qosClass"] == "BestEffort"
    assert "PodScheduled" not in {c["type"]: c["status"] for c in found["status"]["conditions"]}  # it was bound by hand
    time.sleep(0.5)
    assert uid(pod) in place.pool.site, "the folder stays for the logs"
    place.delete(pod)
    place.gone(pod)
    eventually(lambda: uid(pod) not in place.pool.site, "forgotten")
    for reason in ("BridgeSubmitted", "BridgeQueued", "BridgeStarted"):
        eventually(lambda r=reason: place.events(pod, r), reason)


def test_a_deleted_pod_goes_only_when_the_site_confirms(place):
    pod = place.running_pod()
    place.pool.obeys = False
    place.delete(pod, 5)
    eventually(lambda: place.pool.count("cancel") >= 2, "cancelled", 15)
    assert place.get(pod) is not None
    place.pool.end(uid(pod), 143)
    place.gone(pod)
    eventually(lambda: place.pool.count("forget") == 1, "forgotten")


def test_9_5_a_pod_deleted_while_the_site_is_down(place):
    pod = place.running_pod()
    place.pool.down()
    place.delete(pod, 0 + 1)
    eventually(lambda: place.events(pod, "BridgeWaiting"), "told")
    time.sleep(3)
    assert place.get(pod) is not None
    assert uid(pod) in place.pool.site
    place.pool.problem = None
    place.gone(pod, 45)
    eventually(lambda: uid(pod) not in place.pool.site, "forgotten")


def test_9_5_an_answer_that_was_lost_is_looked_up_and_nothing_runs_twice(place):
    place.pool.swallow = True
    pod = place.pod()
    eventually(lambda: place.pool.count("status", uid(pod)) >= 1, "status asked", 20)
    found = place.taken(pod)
    assert found["metadata"]["annotations"]["bridge.vk.io/job"].endswith("/1")
    assert place.pool.count("submit") == 1


def test_a_restart_of_the_hub_changes_nothing(place):
    running, waiting = place.pod(), place.pod()
    for pod in (running, waiting):
        place.taken(pod)
    place.pool.run(uid(running))
    before = place.phase(running, "Running")
    place.restart()
    place.pool.run(uid(waiting))
    place.phase(waiting, "Running")
    assert place.pool.count("submit") == 2
    assert place.get(running)["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


def test_a_pod_created_again_under_its_name_is_another_pod(place):
    first = place.running_pod("again")
    place.delete(first, 0)
    place.gone(first)
    second = place.pod("again")
    found = place.taken(second)
    assert found["metadata"]["annotations"]["bridge.vk.io/job"].endswith("/2")
    eventually(lambda: uid(first) not in place.pool.site, "the first forgotten")
    assert uid(second) in place.pool.site
    assert place.pool.site[uid(second)].phase == "queued"


def test_9_3_a_job_that_the_site_has_lost(place):
    pod = place.running_pod()
    place.pool.lose(uid(pod))
    place.pool.down()
    place.pool.snapshot()
    time.sleep(1)
    assert place.get(pod)["status"]["phase"] == "Running", "silence ends nothing"
    place.pool.problem = None
    found = place.seen(pod, lambda p: p.status["phase"] == "Failed", "lost", 45)
    assert found["status"]["reason"] == "JobLost"
    eventually(lambda: place.events(pod, "BridgeJobLost"), "the Event")


def test_a_site_that_loses_all_its_jobs_at_once_ends_no_pod_while_the_brake_holds(place):
    pods = [place.pod() for _ in range(12)]
    for pod in pods:
        place.taken(pod)
        place.pool.run(uid(pod))
    for pod in pods:
        place.phase(pod, "Running")
    kept = dict(place.pool.site)
    for pod in pods:
        place.pool.lose(uid(pod))
    place.pool.snapshot()

    def marked(value):
        kind = "bridge.vk.io/JobMissing"
        status = [place.get(pod)["status"] for pod in pods]
        return all(any((c["type"], c["status"]) == (kind, value) for c in s["conditions"]) for s in status)

    eventually(lambda: marked("True"), "every pod says that its job is missing", 40)
    eventually(lambda: place.events(pods[0], "JobsMissing"), "an Event")
    time.sleep(3)
    assert {place.get(pod)["status"]["phase"] for pod in pods} == {"Running"}
    place.pool.site.update(kept)
    place.pool.snapshot()
    eventually(lambda: marked("False"), "every pod says that its job is there")
    assert {place.get(pod)["status"]["phase"] for pod in pods} == {"Running"}


def test_9_3_a_pod_that_the_site_refuses(place):
    place.pool.problem = SiteRefusedError("no such partition", reason="InvalidPartition", hint="ask for another")
    pod = place.pod()
    found = place.phase(pod, "Failed")
    assert found["status"]["reason"] == "InvalidPartition"
    assert found["status"]["message"] == "no such partition (ask for another)"
    place.pool.problem = SiteRefusedError("slurmctld is away", retryable=True)
    later = place.pod()
    eventually(lambda: place.pool.count("submit", uid(later)) >= 2, "asked", 15)
    assert place.get(later)["status"]["phase"] == "Pending"
    place.pool.problem = None
    place.taken(later)


def test_a_pod_that_no_script_can_be_made_of(place):
    pod = place.pod(volumes=[{"name": "n", "nfs": {"server": "s", "path": "/"}}])
    found = place.phase(pod, "Failed")
    assert found["status"]["reason"] == "NotPossibleAtSite"
    assert "nfs" in found["status"]["message"]
    place.delete(pod)
    place.gone(pod)
    assert place.pool.asked == []


def test_references_are_awaited(place):
    key = {"name": "V", "valueFrom": {"secretKeyRef": {"name": "late", "key": "k"}}}
    volume = {"name": "c", "configMap": {"name": "late"}}
    pod = place.pod(container={"env": [key]}, volumes=[volume])
    found = place.seen(pod, lambda p: "late" in str(p.status), "waiting for its references")
    waiting = found["status"]["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "WaitingForReference"
    assert waiting["message"] == f"waiting for ConfigMap late, Secret late in namespace {NAMESPACE}"
    place.admin.create(SECRETS.path(NAMESPACE), {"metadata": {"name": "late"}, "stringData": {"k": "s3cret"}})
    place.admin.create(CONFIGMAPS.path(NAMESPACE), {"metadata": {"name": "late"}, "data": {"file": "text"}})
    place.taken(pod)
    assert "s3cret" in place.pool.submits[uid(pod)].script
    notes = [event["note"] for event in place.events(pod, "BridgeWaiting")]
    assert sum("Secret late" in note for note in notes) == 1
    # it may have been looked at between the two as well
    assert len(notes) == 1 or (len(notes) == 2 and all("ConfigMap late" in note for note in notes))


def test_service_account_tokens_are_bound_to_the_pod_and_refreshed(place):
    ca = "-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"
    server = {"url": "https://k8s.example:6443", "ca": ca}
    place.pool.config = BuildConfig.model_validate({"runtime": {"kind": "none"}, "api_server": server})
    place.admin.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "robot"}})
    pod = place.running_pod(automountServiceAccountToken=True, serviceAccountName="robot")
    record = place.hub.loop._records[place.pool.name]
    record.entries[uid(pod)].refresh_at = time.monotonic()
    place.hub.loop._reconciler.add(place.pool.name, uid(pod))
    eventually(lambda: uid(pod) in place.pool.refreshed, "refreshed")
    assert [file.path.rpartition("/")[2] for file in place.pool.refreshed[uid(pod)]] == ["token"]


def test_a_pod_held_by_a_finalizer_is_deleted_once(place):
    pod = place.running_pod(metadata={"finalizers": ["example.com/hold"]})
    place.delete(pod, 1)
    found = place.phase(pod, "Failed")
    eventually(lambda: place.get(pod)["metadata"]["deletionGracePeriodSeconds"] == 0, "deleted")
    time.sleep(1.5)
    deletes = place.writes("delete", {pod["metadata"]["name"]})
    assert len(deletes) == 1
    assert uid(found) in place.pool.site, "its logs can still be read"
    place.kill(place.get(pod))
    eventually(lambda: uid(pod) not in place.pool.site, "forgotten")


def test_a_job_controllers_pods(place):
    spec = {"completions": 3, "parallelism": 3, "template": {"spec": place.spec()}}
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    place.admin.create(path, {"metadata": {"name": "spread"}, "spec": spec})
    eventually(lambda: len(place.pool.site) == 3, "three jobs")
    for job in list(place.pool.site):
        place.pool.end(job)
    eventually(lambda: place.admin.get(f"{path}/spread")["status"].get("succeeded") == 3, "complete", 20)
    place.admin.delete(f"{path}/spread", {"propagationPolicy": "Background"})
    eventually(lambda: not place.pool.site, "forgotten", 20)


def test_few_writes_for_each_pod(place):
    pods = [place.pod() for _ in range(40)]
    for pod in pods:
        place.taken(pod)
    names = {pod["metadata"]["name"] for pod in pods}
    for pod in pods:
        place.pool.run(uid(pod))
    for pod in pods:
        place.phase(pod, "Running")
    time.sleep(1)
    writes = place.writes("patch", names)
    assert len(writes) == 80, "one with the job, one when it runs"


def threads_of(name):
    """Names of the threads that serve a pool."""
    ours = (f"pool-{name}-", f"cache-pods-{name}")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(ours)]


def series_of(name):
    """Metrics that name a pool."""
    found = (sample for metric in REGISTRY.collect() for sample in metric.samples)
    return [sample.name for sample in found if {name, f"pods-{name}", f"pool.{name}"} & set(sample.labels.values())]


def test_a_pool_that_is_gone_leaves_no_thread_and_no_metric_and_may_come_back(place):
    name = place.pool.name
    pod = place.submitted_pod()
    eventually(lambda: len(threads_of(name)) > 1, "threads")
    assert series_of(name)
    place.alive = False
    place.pools.drop(name)
    place.admin.delete(NODES.path(name=name))
    time.sleep(1)
    assert threads_of(name), "a pod is still bound there"
    place.kill(pod)
    eventually(lambda: threads_of(name) in ([], [f"cache-pods-{name}"]), "its workers' end")
    place.kill(place.pod())  # wakes its watch, which ends at the latest after a minute
    eventually(lambda: not threads_of(name), "its end")
    assert series_of(name) == []
    assert name not in place.hub.loop._records
    # it comes back
    place.pools.add(place.pool)
    place.pool.site.clear()
    place.pool.snapshot()
    place.alive = True
    eventually(lambda: place.node() is not None, "node")
    again = place.submitted_pod()
    place.pool.end(again["metadata"]["uid"])
    place.phase(again, "Succeeded")
    assert place.hub.supervisor.failure is None
