"""A real kubelet: which pods it rejects, when their resources are free again, the output of containers."""

import contextlib
import json
import signal
import time
from pathlib import Path

import pytest

from cluster.polling import eventually
from cluster.systems import kube, realnode
from cluster.world import NAMESPACE

pytestmark = pytest.mark.real

CPUS = realnode.size().cpus
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.2; done"
"""A program that ends when its grace period is over, and not before."""


def whole(world, script="echo done", grace=3, cpus=CPUS, **more):
    """Create a pod with all CPUs of the node."""
    more = {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace, "memory": "64Mi", **more}
    return world.create(cpu=str(cpus), script=script, **more)


def logs(world, pod):
    return world.cluster.kubectl("logs", "-n", NAMESPACE, pod["metadata"]["name"], check=False)


def ready(world, pod):
    """Wait until the pod's program handles its signals."""
    world.running(pod, 60)
    eventually(lambda: "ready" in logs(world, pod), "its first line")
    return pod


def test_a_job_runs_to_its_end_and_its_words_can_be_read(clean):
    world = clean
    template = world.manifest(script="echo hello from $HOSTNAME", memory="64Mi", restartPolicy="Never")
    body = {
        "metadata": {"name": "hello"},
        "spec": {"completions": 3, "parallelism": 3, "template": {"spec": template["spec"]}},
    }
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
    world.api("POST", path, body)
    eventually(lambda: world.api("GET", f"{path}/hello")["status"].get("succeeded") == 3, "the Job complete", 90)
    for pod in world.pods(selector="job-name=hello"):
        assert logs(world, pod) == f"hello from {pod['metadata']['name']}\n"
        assert pod["spec"]["nodeName"] == realnode.NAME
    eventually(lambda: not world.queue(), "no job left")
    world.api("DELETE", f"{path}/hello?propagationPolicy=Background")


def runs(world, pod):
    """Wait until the pod's program has run; the kubelet did not reject it."""
    return world.seen(pod, "run", lambda p: p["status"]["phase"] == "Succeeded", 60)


def ends_first(world, old, new, timeout=30):
    """Assert that ``new`` waited with a reason until ``old`` had ended, and then ran."""
    name = old["metadata"]["name"]
    told = world.seen(new, "told why", lambda p: scheduled(p).get("reason") == "NodeBusy", timeout)
    assert f"{NAMESPACE}/{name}" in scheduled(told)["message"], scheduled(told)
    assert not told["spec"].get("nodeName")
    assert world.get(old)["status"]["phase"] == "Running"
    job = world.job_of(told)
    found = runs(world, new)
    assert world.job_of(found) == job, "its job was kept"
    last = world.get(old)
    assert last is None or last["status"]["phase"] in ("Succeeded", "Failed")


def scheduled(pod):
    return next((c for c in pod["status"].get("conditions") or () if c["type"] == "PodScheduled"), {})


def test_after_scancel_the_next_pod_waits_for_the_grace_of_the_last(clean):
    world = clean
    old = ready(world, whole(world, STUBBORN))
    world.slurm("scancel", str(world.labelled(old)))
    new = whole(world)
    ends_first(world, old, new)


def test_a_time_limit_while_the_kubelet_is_restarted(clean):
    # Slurm checks time limits every 30 s: two cases share one wait
    world = clean
    old = ready(world, whole(world, STUBBORN, grace=8, cpus=1, job={"timelimit": "10"}))
    count = "i=0; while [ $i -lt 50 ]; do i=$((i+1)); echo tick $i; sleep 0.1; done"
    counting = world.create(cpu="500m", script=count, memory="64Mi", restartPolicy="Never")
    world.running(counting, 60)
    new = whole(world)
    world.labelled(new)
    world.slurm("scontrol", "update", f"jobid={world.labelled(old)}", "EndTime=now+1")
    world.cluster.kill(realnode.KUBELET)
    world.cluster.start_daemon(realnode.KUBELET)
    ends_first(world, old, new, 60)
    assert world.events(old, "TimeLimit")
    assert world.get(counting)["status"]["phase"] == "Succeeded"
    assert logs(world, counting).splitlines() == [f"tick {number + 1}" for number in range(50)]


def test_a_deleted_pod_keeps_its_job_until_its_grace_is_over(clean):
    world = clean
    old = ready(world, whole(world, STUBBORN))
    job = world.labelled(old)
    new = whole(world)
    world.delete(old)
    world.polled(2)
    assert world.queue().get(job) == "RUNNING"
    assert not world.get(new)["spec"].get("nodeName")
    runs(world, new)
    assert job not in world.queue()


@pytest.fixture
def daemons(clean):
    """A DaemonSet whose pod takes three quarters of the node."""
    world = clean
    path, selector = "/apis/apps/v1/namespaces/kube-system/daemonsets", "app%3Dagent"
    for where, body in kube.namespace_objects("kube-system"):
        world.api.ensure(where, body)
    template = world.manifest(cpu=f"{CPUS * 750}m", memory="16Mi", script=STUBBORN, terminationGracePeriodSeconds=1)
    labels = {"app": "agent"}
    pod = {"metadata": {"labels": labels}, "spec": {**template["spec"], "tolerations": [{"operator": "Exists"}]}}
    spec = {"selector": {"matchLabels": labels}, "template": pod}
    world.api("POST", path, {"metadata": {"name": "agent"}, "spec": spec})
    (agent,) = eventually(lambda: world.pods("kube-system", selector), "its pod")
    # no default scheduler runs here
    target = {"metadata": {"name": agent["metadata"]["name"]}, "target": {"kind": "Node", "name": realnode.NAME}}
    world.api("POST", f"{world.path(agent['metadata']['name'], 'kube-system')}/binding", target)
    world.running(agent, 60)
    yield world
    world.api("DELETE", f"{path}/agent")
    eventually(lambda: not world.pods("kube-system", selector), "its pod gone", 60)


def test_a_node_that_daemons_fill_gets_no_pod_that_its_kubelet_would_reject(daemons):
    world = daemons
    big = whole(world)
    found = world.seen(big, "told why", lambda p: scheduled(p).get("reason") == "NoRoomNow")
    assert "too little cpu beside" in scheduled(found)["message"], scheduled(found)
    assert not world.job_of(found)
    world.delete(big)
    # Slurm counts whole CPUs and does not know the DaemonSet: both pods get a job, but only one fits on the node
    first, second = (world.create(cpu=f"{CPUS * 200}m", script=STUBBORN, memory="16Mi") for _ in range(2))
    late = eventually(
        lambda: next(
            (p for p in (first, second) if world.condition(p, "PodScheduled").get("reason") == "NodeBusy"), None
        ),
        "one of them held",
    )
    early = first if late is second else second
    world.running(early)
    assert json.dumps(world.condition(late, "PodScheduled")).count("CoreSpecCount") == 1
    world.delete(early, 1)
    world.running(late)


@pytest.fixture
def hung(clean):
    """The cluster; a test may stop its kubelet."""
    yield clean
    if clean.cluster.pid(realnode.KUBELET):
        clean.cluster.kill(realnode.KUBELET, signal.SIGCONT)


def test_a_pod_that_a_hung_kubelet_never_ends_is_waited_for_for_a_while(hung):
    world = hung
    old = ready(world, whole(world, STUBBORN, grace=2))
    world.cluster.kill(realnode.KUBELET, signal.SIGSTOP)
    world.slurm("scancel", str(world.labelled(old)))
    new = whole(world)
    world.seen(new, "told why", lambda p: scheduled(p).get("reason") == "NodeBusy")
    given_back = eventually(lambda: world.events(new, "NodeRefused"), "its job given back", 60)
    assert "too little cpu beside the pods there" in given_back[0]["note"]
    eventually(lambda: not world.queue(), "no job")
    world.cluster.kill(realnode.KUBELET, signal.SIGCONT)
    runs(world, new)


def alive(pod):
    """Return whether a process of the pod is alive: the kubelet names its cgroup after the pod's UID."""
    name = f"/pod{pod['metadata']['uid']}/"
    for file in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if name in file.read_text():
                return True
    return False


def holds_until_ended(world, old, new, job):
    """Assert that ``job`` runs, and ``new`` is not bound, while a process of ``old`` is alive; then ``new`` runs."""
    seconds, began = 0.0, time.monotonic()
    while True:
        # read before the processes: a process that is alive afterwards was alive then
        running = world.queue().get(job) == "RUNNING"
        bound = world.get(new)["spec"].get("nodeName")
        if not alive(old):
            break
        seconds = time.monotonic() - began
        assert running and not bound, f"{seconds:.1f} s after the deletion: job running {running}, bound to {bound}"
        assert seconds < 30
    assert seconds > 0.5, "the containers ended too early to show anything"
    runs(world, new)
    world.gone(old)
    assert job not in world.queue()


def test_a_pod_whose_grace_period_is_0_keeps_its_job_until_its_containers_have_ended(clean):
    world = clean
    old = ready(world, whole(world, STUBBORN, grace=0))
    new = whole(world)
    assert old["spec"]["terminationGracePeriodSeconds"] == 0
    world.delete(old)
    holds_until_ended(world, old, new, world.labelled(old))


def test_a_pod_deleted_by_force_keeps_its_job_until_its_containers_have_ended(hung):
    world = hung
    old = ready(world, whole(world, STUBBORN, grace=30))
    job = world.labelled(old)
    new = whole(world)
    world.cluster.kill(realnode.KUBELET, signal.SIGSTOP)
    name = old["metadata"]["name"]
    world.cluster.kubectl("delete", "pod", "-n", NAMESPACE, name, "--grace-period=0", "--force", "--wait=false")
    world.polled(3)
    assert world.get(old)["metadata"]["deletionGracePeriodSeconds"] == 0
    assert world.queue().get(job) == "RUNNING" and alive(old)
    world.cluster.kill(realnode.KUBELET, signal.SIGCONT)
    holds_until_ended(world, old, new, job)


def test_after_scancel_the_next_pod_waits_for_containers_with_a_grace_period_of_0(hung):
    world = hung
    old = ready(world, whole(world, STUBBORN, grace=0))
    world.cluster.kill(realnode.KUBELET, signal.SIGSTOP)
    world.slurm("scancel", str(world.labelled(old)))
    new = whole(world)
    told = world.seen(new, "told why", lambda p: scheduled(p).get("reason") == "NodeBusy")
    assert alive(old) and not told["spec"].get("nodeName")
    world.cluster.kill(realnode.KUBELET, signal.SIGCONT)
    found = runs(world, new)
    assert world.job_of(found) == world.job_of(told), "its job was kept"
    assert not alive(old)
