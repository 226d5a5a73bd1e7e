"""The main use of podbridge on real systems, on every version of Slurm."""

import signal

import pytest

from cluster.polling import eventually
from cluster.world import JOB_PREFIX, NAMESPACE, NODE

pytestmark = pytest.mark.real


def can(world, what):
    """Return whether Slurm's REST API supports an action; the limits of 22.05 are asserted by other tests."""
    return not (world.cluster.options.slurm == "22.05" and what in ("drain", "exclude", "admin_comment"))


@pytest.fixture(scope="module")
def limited(world):
    """Return a pod with a time limit, created first and checked last."""
    world.clear()
    pod = world.running(world.create("limited", job={"timelimit": "1"}))
    job = world.labelled(pod)
    assert world.job(job)["TimeLimit"] == "00:01:00"
    # slurmctld checks time limits every 30 s; the pod ends while other tests run
    world.slurm("scontrol", "update", f"jobid={job}", "EndTime=now+2")
    return pod


class TestStory:
    def test_01_a_job_of_eight_pods_runs_and_leaves_nothing_behind(self, limited, world):
        template = world.manifest(job={})
        spec = {**template["spec"], "restartPolicy": "Never"}
        body = {
            "metadata": {"name": "eight", "annotations": {JOB_PREFIX + "job-name": "from-the-owner"}},
            "spec": {"parallelism": 8, "completions": 8, "template": {"spec": spec}},
        }
        path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
        world.api("POST", path, body)
        eventually(lambda: world.api("GET", f"{path}/eight")["status"].get("succeeded") == 8, "the Job complete", 60)
        pods = world.pods(selector="job-name=eight")
        assert len(pods) == 8
        assert len({world.job_of(pod) for pod in pods}) == 8
        comments = world.jobs_by_uid()
        for pod in pods:
            job = world.job(world.job_of(pod))
            assert pod["spec"]["schedulerName"] == "slurm-bridge-scheduler"
            assert pod["metadata"]["annotations"][NODE] == pod["spec"]["nodeName"] == job["NodeList"]
            assert job["JobName"] == "from-the-owner"
            assert [found[0] for found in comments[pod["metadata"]["uid"]]] == [world.job_of(pod)]
        own = {world.job_of(pod) for pod in pods}
        eventually(lambda: not own & world.queue().keys(), "the jobs gone from the queue")
        eventually(
            lambda: not any(p["metadata"].get("finalizers") for p in world.pods(selector="job-name=eight")),
            "no finalizer",
        )
        world.api("DELETE", f"{path}/eight?propagationPolicy=Background")

    def test_03_a_pod_that_does_not_fit_waits_with_slurms_reason_and_runs_when_room_appears(self, world):
        blockers = [world.create(cpu="120", memory="1Gi") for _ in range(4)]
        for pod in blockers:
            world.running(pod)
        waiting = world.create(cpu="64")
        told = eventually(
            lambda: world.condition(waiting, "PodScheduled").get("reason") == "SlurmPending", "a condition", 40
        )
        assert told
        message = eventually(
            lambda: (
                (m := world.condition(waiting, "PodScheduled")["message"])
                and ("Resources" in m or "Priority" in m)
                and m
            ),
            "Slurm's reason",
            60,
        )
        assert f"Slurm job {world.labelled(waiting)} is pending in partition" in message
        assert world.job(world.labelled(waiting))["JobState"] == "PENDING"
        world.delete(blockers[0], grace=1)
        world.running(waiting, 30)
        for pod in (*blockers[1:], waiting):
            world.delete(pod, grace=1)
        for pod in (*blockers, waiting):
            world.gone(pod)

    def test_04_scancel_ends_the_pod_and_the_event_says_so(self, world):
        pod = world.create(stop="3")
        world.running(pod)
        job = world.labelled(pod)
        world.slurm("scancel", str(job))
        world.seen(
            pod,
            "deleted with the reason on it",
            lambda p: p["status"].get("reason") == "Cancelled" and p["metadata"].get("deletionTimestamp"),
        )
        condition = world.condition(pod, "DisruptionTarget")
        assert (condition["reason"], condition["message"]) == ("Cancelled", f"Slurm job {job} was cancelled")
        eventually(lambda: [e for e in world.events(pod, "Cancelled") if e["type"] == "Warning"], "an Event")
        world.gone(pod)

    def test_05_delete_releases_at_the_right_moment_without_the_garbage_collector(self, world):
        blockers = [world.create(cpu="120") for _ in range(4)]
        for pod in blockers:
            world.running(pod)
        waiting = world.create(cpu="64")
        job = world.labelled(waiting)
        world.cluster.kill("kube-controller-manager", signal.SIGSTOP)
        try:
            world.delete(waiting)
            world.gone(waiting, 10)
            eventually(lambda: job not in world.queue(), "the waiting job gone", 10)
            slow = world.create(cpu="2", stop="5")
            job = world.labelled(slow)
            world.running(slow)
            world.delete(slow)
            world.polled(2)
            assert world.get(slow)["metadata"]["deletionTimestamp"]
            assert world.queue()[job] == "RUNNING"
            world.gone(slow, 20)
            eventually(lambda: job not in world.queue(), "the running job gone", 10)
        finally:
            world.cluster.kill("kube-controller-manager", signal.SIGCONT)
        for pod in blockers:
            world.delete(pod, grace=1)

    def test_06_cordon_and_drain_in_both_directions(self, world):
        if not can(world, "drain"):
            self._drain_is_not_possible(world)
            return
        kubectl = world.cluster.kubectl
        kubectl("cordon", "node-1")
        eventually(lambda: "DRAIN" in world.node("node-1")[0], "drained", 20)
        assert world.node("node-1")[1].startswith("slurm-bridge:")
        kubectl("uncordon", "node-1")
        eventually(lambda: "DRAIN" not in world.node("node-1")[0], "back", 20)
        world.slurm("scontrol", "update", "nodename=node-2", "state=drain", "reason=disk")
        eventually(lambda: world.kube_node("node-2")["spec"].get("unschedulable"), "cordoned", 20)
        kubectl("uncordon", "node-2")
        world.polled(2)
        assert "DRAIN" in world.node("node-2")[0]
        assert world.node("node-2")[1] == "disk"
        world.slurm("scontrol", "update", "nodename=node-2", "state=resume")
        eventually(
            lambda: not world.kube_node("node-2")["metadata"].get("annotations", {}).get("bridge.vk.io/slurm-reason"),
            "given again",
            20,
        )
        assert not world.kube_node("node-2")["spec"].get("unschedulable")
        # idle nodes are UNKNOWN until they register again, which is no drain
        before = self._events_with(world, "UNKNOWN")
        world.cluster.stop_daemon("slurmctld")
        world.cluster.start_daemon("slurmctld")
        eventually(lambda: all("UNKNOWN" not in world.node(f"node-{n}")[0] for n in range(4)), "registered again")
        world.polled(2)
        assert self._events_with(world, "UNKNOWN") == before

    def _events_with(self, world, word):
        """Return the notes of the Events of nodes that have a word, and how often each was sent."""
        events = world.api("GET", "/apis/events.k8s.io/v1/namespaces/default/events")["items"]
        return {
            (event["metadata"]["name"], event["note"], (event.get("series") or {}).get("count", 1))
            for event in events
            if word in event["note"]
        }

    def _drain_is_not_possible(self, world):
        """On 22.05 a drain still cordons, and podbridge has logged at start what is not possible."""
        log = world.cluster.processes.log("podbridge").read_text()
        for words in ("drain nodes", "exclude nodes", "admin_comment", "external placeholder"):
            assert words in log
        world.slurm("scontrol", "update", "nodename=node-2", "state=drain", "reason=disk")
        eventually(lambda: world.kube_node("node-2")["spec"].get("unschedulable"), "cordoned", 40)
        world.slurm("scontrol", "update", "nodename=node-2", "state=resume")
        eventually(lambda: not world.kube_node("node-2")["spec"].get("unschedulable"), "uncordoned", 40)

    def test_07_nodes_that_kubernetes_refuses_are_excluded(self, world):
        if not can(world, "exclude"):
            pod = world.create(nodeSelector={"kubernetes.io/hostname": "node-3"})
            told = eventually(
                lambda: "can't exclude" in world.condition(pod, "PodScheduled").get("message", ""), "refused", 20
            )
            assert told
            assert not world.job_of(world.get(pod))
            world.delete(pod)
            return
        pod = world.create(nodeSelector={"kubernetes.io/hostname": "node-3"})
        assert world.bound(pod)["spec"]["nodeName"] == "node-3"
        assert world.job(world.labelled(pod))["ExcNodeList"] == "node-[0-2]"
        world.delete(pod, grace=1)

    def test_08_a_pod_that_no_node_fits_says_why(self, world):
        pod = world.create(nodeSelector={"disk": "none"})
        eventually(lambda: world.condition(pod, "PodScheduled").get("reason") == "Unschedulable", "told", 20)
        assert "nodeSelector disk=none does not match" in world.condition(pod, "PodScheduled")["message"]
        world.api.merge("/api/v1/nodes/node-0", {"metadata": {"labels": {"disk": "none"}}})
        try:
            if can(world, "exclude"):
                assert world.bound(pod, 40)["spec"]["nodeName"] == "node-0"
        finally:
            world.delete(pod, grace=1)
            world.gone(pod)
            world.api.merge("/api/v1/nodes/node-0", {"metadata": {"labels": {"disk": None}}})

    def test_09_slurms_refusal_is_told_in_slurms_words(self, world):
        pod = world.create(job={"partition": "nowhere"})
        eventually(lambda: world.condition(pod, "PodScheduled").get("reason") == "SlurmRefused", "told", 20)
        assert "partition" in world.condition(pod, "PodScheduled")["message"].lower()
        eventually(lambda: world.events(pod, "SlurmRefused"), "an Event")
        world.polled(2)
        assert [event["type"] for event in world.events(pod, "SlurmRefused")] == ["Warning"]
        world.delete(pod)
        world.gone(pod)

    def test_10_a_job_without_a_pod_is_found_and_released(self, world):
        pod = world.create()
        world.running(pod)
        job = world.labelled(pod)
        world.cluster.stop_podbridge()
        world.cluster.start_podbridge(("admission",))
        world.api.merge(world.path(pod["metadata"]["name"]), {"metadata": {"finalizers": None}})
        world.delete(pod, grace=0)
        world.gone(pod)
        assert job in world.queue()
        world.cluster.stop_podbridge()
        world.cluster.start_podbridge()
        eventually(lambda: job not in world.queue(), "the orphan released", 40)

    def test_11_a_job_cancelled_while_its_pod_waits_ends_the_pod(self, world):
        blockers = [world.create(cpu="120") for _ in range(4)]
        for pod in blockers:
            world.running(pod)
        waiting = world.create(cpu="64")
        world.slurm("scancel", str(world.labelled(waiting)))
        world.gone(waiting, 20)
        eventually(lambda: world.events(waiting, "Cancelled"), "an Event")
        for pod in blockers:
            world.delete(pod, grace=1)

    def test_12_a_time_limit_ends_the_pod(self, limited, world):
        eventually(lambda: world.events(limited, "TimeLimit"), "an Event", 150, 0.5)
        world.gone(limited)
        eventually(lambda: not world.queue(), "no job left")

    def test_13_a_node_that_fails_ends_its_pod(self, world):
        pod = world.create(stop="3")
        node = world.running(pod)["spec"]["nodeName"]
        world.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=broken")
        eventually(lambda: world.events(pod, "NodeFail"), "an Event", 40)
        world.gone(pod)
        # its slurmd runs and may have registered the node again
        world.cluster.run_slurm("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        eventually(lambda: "DOWN" not in world.node(node)[0], "in use again", 30)
        eventually(lambda: not world.kube_node(node)["spec"].get("unschedulable"), "uncordoned", 40)

    def test_14_a_job_that_is_preempted_ends_its_pod(self, world):
        low = [world.create(cpu="120") for _ in range(4)]
        for pod in low:
            world.running(pod)
        urgent = world.create(cpu="100", job={"partition": "urgent"})
        world.running(urgent)
        eventually(lambda: any(world.events(pod, "Preempted") for pod in low), "one of them told", 20)
        victim = next(pod for pod in low if world.events(pod, "Preempted"))
        world.gone(victim)
        assert all(world.get(pod)["status"]["phase"] == "Running" for pod in low if pod is not victim)
        world.clear()

    def test_15_a_job_that_is_put_back_into_the_queue_ends_its_pod(self, world):
        pod = world.create()
        world.running(pod)
        job = str(world.labelled(pod))
        if world.cluster.options.slurm == "26.05":
            said = world.cluster.run_slurm("scontrol", "requeue", job, check=False)
            world.polled()
            assert world.get(pod)["status"]["phase"] == "Running", said  # an external job cannot be requeued
        else:
            world.slurm("scontrol", "update", f"jobid={job}", "requeue=1")  # placeholder jobs have requeue=0
            world.slurm("scontrol", "requeue", job)
            eventually(lambda: world.events(pod, "Requeued") or world.events(pod, "JobCompleted"), "told", 40)
            world.gone(pod)
            eventually(lambda: int(job) not in world.queue(), "the job gone", 40)
        world.clear()
