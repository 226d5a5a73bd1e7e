"""A machine that drives the real scheduler and controllers through orders of events, with two gangs and a bare pod.

After any events, a time without faults must bring every pod to a place, and after the deletion of all pods no job and
no pod may be left.
"""

import json

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge import names
from bridge.workload import links, pods
from tests.fakes.memory_hub import MemoryHub

NODES = tuple(f"n{i}" for i in range(9))
ROUNDS = 60
UNITS = {
    "train": {"kind": "jobset", "index": "workers", "size": 3, "minimum": 3, "slots": True},
    "ring": {"kind": "podgroup", "size": 4, "minimum": 2, "slots": False},
    "alone": {"size": 1},
}
PLACES = [(name, slot) for name, unit in UNITS.items() for slot in range(unit["size"])]
NUMBER = st.integers(0, 7)


def path_of(pod):
    return f"/api/v1/namespaces/ns/pods/{pod['metadata']['name']}"


class Hub(RuleBasedStateMachine):
    """The owners create pods, Slurm starts and ends jobs, kubelets run pods, and processes are killed."""

    def __init__(self):
        super().__init__()
        self.hub = MemoryHub(NODES)
        self.made = 0
        self.done = set()
        self.unheard = 0.0

    # --- owners and users ---------------------------------------------------------------------------------------------
    @initialize(
        units=st.sets(st.sampled_from(sorted(UNITS)), min_size=1), admitted=st.booleans(), copies_labels=st.booleans()
    )
    def first_pods(self, units, admitted, copies_labels):
        """Admission sets the finalizer; API servers before 1.33 do not copy the labels of a Binding."""
        self.finalizers = [names.FINALIZER] if admitted else []
        self.hub.kube.copies_labels = copies_labels
        for place in PLACES:
            if place[0] in units:
                self.create(place)
        self.look()

    @precondition(lambda self: self.absent())
    @rule(number=NUMBER, whole=st.booleans())
    def owner(self, number, whole):
        """A controller creates the missing pods of a group, or one of them."""
        absent = self.absent()
        name, slot = absent[number % len(absent)]
        for place in absent:
            if place == (name, slot) or (whole and place[0] == name):
                self.create(place)

    def absent(self):
        have = {pod["metadata"]["name"] for pod in self.hub.kube.pods()}
        return [place for place in PLACES if "{}-{}".format(*place) not in have and place not in self.done]

    def create(self, place):
        name, slot = place
        unit = UNITS[name]
        self.made += 1
        annotations = {}
        if unit["size"] > 1:
            group = {key: unit[key] for key in ("kind", "index", "size", "minimum") if key in unit}
            slots = {"slot": slot} if unit["slots"] else {}
            annotations[names.GROUP] = json.dumps(group | {"name": name, "uid": f"o-{name}"} | slots)
        meta = {"namespace": "ns", "name": f"{name}-{slot}", "uid": f"u{self.made}", "labels": {}}
        meta |= {
            "finalizers": [*self.finalizers],
            "annotations": annotations,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        spec = {
            "containers": [{"resources": {"requests": {"cpu": "1"}}}],
            "schedulerName": self.hub.config.scheduler_name,
        }
        path = f"/api/v1/namespaces/ns/pods/{name}-{slot}"
        self.hub.kube.put(path, {"kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}})

    def unfinished(self):
        return [pod for pod in self.hub.kube.pods() if pod["status"]["phase"] != "Succeeded"]

    @precondition(lambda self: self.unfinished())
    @rule(number=NUMBER, whole=st.booleans())
    def delete(self, number, whole):
        """A user deletes a pod, or all pods of a group that have not succeeded (docs/gangs.md)."""
        everyone = self.unfinished()
        key = links.key(everyone[number % len(everyone)])
        for index, pod in enumerate(everyone):
            if index == number % len(everyone) or (whole and links.key(pod) == key):
                self.hub.kube.request_deletion(path_of(pod))

    @rule(number=NUMBER)
    def cordon(self, number):
        node = self.hub.kube.get(f"/api/v1/nodes/{NODES[number]}")
        node["spec"]["unschedulable"] = not node["spec"].get("unschedulable")
        self.hub.kube.put(f"/api/v1/nodes/{NODES[number]}", node)

    # --- kubelets -----------------------------------------------------------------------------------------------------
    def running(self):
        return [pod for pod in self.hub.kube.pods() if pods.is_bound(pod) and not pods.is_finished(pod)]

    @precondition(lambda self: self.running())
    @rule(number=NUMBER, phase=st.sampled_from(["Failed", "Succeeded"]))
    def kubelet(self, number, phase):
        """The containers of a pod end."""
        pod = self.running()[number % len(self.running())]
        self.finish(pod, "Failed" if pods.is_deleted(pod) else phase)

    def finish(self, pod, phase):
        pod = self.hub.kube.get(path_of(pod))
        pod["status"]["phase"] = phase
        self.hub.kube.put(path_of(pod), pod)
        if phase == "Succeeded":
            name, _, slot = pod["metadata"]["name"].rpartition("-")
            self.done.add((name, int(slot)))

    # --- Slurm --------------------------------------------------------------------------------------------------------
    def jobs(self, state):
        return [job for job in self.hub.slurm.live() if job.state == state]

    @precondition(lambda self: self.jobs("PENDING"))
    @rule(number=NUMBER)
    def start(self, number):
        jobs = self.jobs("PENDING")
        self.hub.slurm.start(jobs[number % len(jobs)])

    @precondition(lambda self: self.hub.slurm.live())
    @rule(number=NUMBER, state=st.sampled_from(["CANCELLED", "NODE_FAIL", "TIMEOUT", "PENDING", ""]))
    def end(self, number, state):
        """A job ends, is requeued, or is forgotten at once (MinJobAge)."""
        jobs = self.hub.slurm.live()
        job = jobs[number % len(jobs)]
        job.state, job.nodes = state or "TIMEOUT", () if state == "PENDING" else job.nodes
        if not state:
            del self.hub.slurm.jobs[job.job_id]

    @precondition(lambda self: not self.hub.slurm.fault)
    @rule(fault=st.sampled_from(["late", "unanswered", "lost", "unavailable", "refused"]))
    def next_submission(self, fault):
        self.hub.slurm.fault, self.unheard = fault, 0

    @precondition(lambda self: self.hub.slurm.late)
    @rule()
    def arrive_late(self):
        """A request that a proxy has delayed reaches slurmctld; podbridge assumes that this takes less than 5 s."""
        self.unheard = 0
        while self.hub.slurm.late:
            self.hub.slurm.add(self.hub.slurm.late.pop())

    # --- the hub ------------------------------------------------------------------------------------------------------
    @rule(seconds=st.sampled_from([6, 1, 130]))
    def wait(self, seconds):
        self.unheard += seconds
        if self.unheard > 4:
            self.arrive_late()
        self.hub.clock.advance(seconds)

    @rule(polls=st.booleans(), delivers=st.booleans(), loops=st.sampled_from([(0,), (1,), (0, 1), (1, 0)]))
    def decide(self, polls, delivers, loops):
        if polls or not self.hub.poller.snapshot.sequence:
            self.poll()
        if delivers:
            self.hub.deliver()
        for number in loops:
            self.hub.loops[number].reconcile()

    def poll(self):
        self.hub.clock.advance(0.01)
        self.hub.poller.poll()

    @precondition(lambda self: self.hub.queues[0].calls or self.hub.queues[1].calls)
    @rule(numbers=st.lists(NUMBER, min_size=1, max_size=4))
    def act(self, numbers):
        """Some of the queued calls run, in any order."""
        for number in numbers:
            queue = self.hub.queues[0] if self.hub.queues[0].calls else self.hub.queues[1]
            if queue.calls:
                self.hub.run(lambda queue=queue, number=number: queue.run(number))

    @rule(starts=st.booleans())
    def look(self, starts=False):
        """The usual order: poll, deliver, decide, act."""
        for job in self.jobs("PENDING") if starts else ():
            self.hub.slurm.start(job)
        self.poll()
        for number in (0, 1):
            self.hub.deliver()
            if not self.hub.poller.snapshot.sequence:
                self.poll()
            self.hub.loops[number].reconcile()
            self.hub.run_all()

    @rule(writes=st.integers(1, 8))
    def kill(self, writes):
        """SIGKILL after a number of writes; the requests of the killed process settle while its lease expires."""
        self.hub.writes.kill_after = writes

    @rule(stopped=st.booleans())
    def restart(self, stopped):
        """SIGKILL between two decisions, or a clean stop, after which no request is open."""
        if stopped:
            self.arrive_late()
        self.hub.restart(inherited=not stopped)

    # --- what must hold -----------------------------------------------------------------------------------------------
    @invariant()
    def no_place_is_used_twice(self):
        used = [
            (pods.job_id(pod), pod["spec"]["nodeName"])
            for pod in self.hub.kube.pods()
            if pods.is_bound(pod) and not pods.is_finished(pod)
        ]
        assert len(used) == len(set(used)), used

    @invariant()
    def no_group_has_two_jobs(self):
        keys = [job.request.link.keys for job in self.hub.slurm.live()]
        assert len(keys) == len(set(keys)), self.story()

    @invariant()
    def the_members_of_a_group_run_in_one_job(self):
        found = {(links.key(pod), pods.job_id(pod)) for pod in self.running()}
        assert len(found) == len({key for key, _ in found}), self.story()

    def teardown(self):
        """Let everything come to an end, and check that nothing is missing, twice or left."""
        hub = self.hub
        hub.writes.kill_after, hub.slurm.fault = None, ""
        for name in NODES:
            node = hub.kube.get(f"/api/v1/nodes/{name}")
            node["spec"]["unschedulable"] = False
            hub.kube.put(f"/api/v1/nodes/{name}", node)
        if self.made % 2:  # nobody creates the deleted pods again: what is left without them must go
            self.settle(lambda: len(hub.slurm.live()) <= len({links.key(pod) for pod in hub.kube.pods()}))
        self.settle(self.every_pod_has_a_place, owners=True)
        for _ in range(len(PLACES)):
            for pod in self.running():
                self.finish(pod, "Succeeded")
            self.settle(self.every_pod_has_a_place, owners=True)
        assert self.done == set(PLACES), self.story()
        assert not hub.slurm.live(), self.story()
        for pod in hub.kube.pods():
            hub.kube.request_deletion(path_of(pod))
        self.settle(lambda: not hub.kube.pods() and not hub.slurm.live())

    def settle(self, good, owners=False):
        for _ in range(ROUNDS):
            self.round(owners)
            if good():
                return
        raise AssertionError(self.story())

    def round(self, owners):
        hub = self.hub
        self.wait(6)
        for pod in hub.kube.pods():
            if pods.is_bound(pod) and not pods.is_finished(pod) and pods.is_deleted(pod):
                self.finish(pod, "Failed")
            elif owners and pod["status"]["phase"] == "Failed" and not pods.is_deleted(pod):
                hub.kube.request_deletion(path_of(pod))
        for place in self.absent() if owners else ():
            self.create(place)
        for _ in range(2):
            self.look(starts=True)

    def every_pod_has_a_place(self):
        """Whether each index has a pod, each pod is bound or its group's job is full, and each group has one job."""
        hub, running = self.hub, {}
        everyone = hub.kube.pods()
        for pod in everyone:
            if pods.is_bound(pod) and not pods.is_finished(pod):
                running.setdefault(links.key(pod), set()).add((pods.job_id(pod), pod["spec"]["nodeName"]))
        jobs = {job.request.link.keys[0]: {(job.job_id, node) for node in job.nodes} for job in hub.slurm.live()}
        if len(jobs) != len(hub.slurm.live()) or any(pods.is_deleted(pod) for pod in everyone):
            return False
        if jobs.keys() != running.keys() or any(not running[key] <= jobs[key] for key in jobs):
            return False
        if any(pods.is_open(pod) and running.get(links.key(pod), ()) != jobs.get(links.key(pod)) for pod in everyone):
            return False
        have = {pod["metadata"]["name"] for pod in everyone}
        return all("{}-{}".format(*place) in have or place in self.done for place in PLACES)

    def story(self):
        lines = [f"at {self.hub.clock.now}"]
        for pod in self.hub.kube.pods():
            meta, said = pod["metadata"], pods.condition(pod, names.POD_SCHEDULED)
            lines.append(
                f"{meta['name']} {meta['uid']} node {pod['spec'].get('nodeName')} {pod['status']['phase']} job "
                f"{pods.job_id(pod)} deleted {pods.is_deleted(pod)} held {pods.is_held(pod)} {said.get('message', '')}"
            )
        lines += [
            f"job {job.job_id} {job.state} {job.nodes} {job.request.link.keys}" for job in self.hub.slurm.jobs.values()
        ]
        lines += [f"{key} {state}" for key, state in self.hub.scheduler._states.by_uid.items()]
        return "\n".join(lines)


# a failure shows its steps as they were tried: to shrink them would take minutes
Hub.TestCase.settings = settings(max_examples=60, stateful_step_count=50, phases=[Phase.reuse, Phase.generate])
TestHub = Hub.TestCase
