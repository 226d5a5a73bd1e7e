"""The hub in memory with two gangs and a bare pod: their owners, users and kubelets, and the jobs of Slurm."""

from bridge import names
from bridge.workload import links, pods
from tests import builders
from tests.fakes.memory_checks import WriteChecks
from tests.fakes.memory_hub import MemoryHub

NODES = tuple(f"n{i}" for i in range(13))
"""Enough for all pods: members may get jobs of their own while the jobs of their groups keep all nodes."""
UNITS = {
    "train": {"kind": "jobset", "index": "workers", "size": 3, "minimum": 3, "slots": True},
    "ring": {"kind": "podgroup", "size": 4, "minimum": 2, "slots": False},
    "alone": {"size": 1},
}
UNREACHABLE = "node.kubernetes.io/unreachable"
PLACES = [(name, slot) for name, unit in UNITS.items() for slot in range(unit["size"])]


def minimum(link):
    return UNITS[link.group.name]["minimum"] if link.group else 1


def places(job, shape=None):
    """Return the id of a job with each of its nodes, or with those of the components for a shape."""
    return {(job.job_id, node) for part in job.all if shape in (None, part.request.link.shape) for node in part.nodes}


def path_of(pod):
    return f"/api/v1/namespaces/ns/pods/{pod['metadata']['name']}"


class MemoryWorld:
    """What the rules of a machine need to know and to do. ``made`` counts the pods; ``done`` are the ended places."""

    apart = False

    def __init__(self):
        super().__init__()
        self.hub = MemoryHub(NODES, apart=self.apart)
        self.checks = WriteChecks(self.hub, minimum)
        self.made = 0
        self.done = set()
        self.unheard = 0.0
        self.copied = set()

    def absent(self):
        have = {pod["metadata"]["name"] for pod in self.hub.kube.pods()}
        return [place for place in PLACES if "{}-{}".format(*place) not in have and place not in self.done]

    def create(self, place):
        name, slot = place
        unit = UNITS[name]
        self.made += 1
        annotations = {}
        if unit["size"] > 1:
            place = {key: unit[key] for key in ("kind", "index") if key in unit}
            place |= {"name": name, "uid": f"o-{name}"} | ({"slot": slot} if unit["slots"] else {})
            annotations = builders.group(unit["size"], unit["minimum"], **place)
        metadata = {"name": f"{name}-{slot}", "creationTimestamp": self.hub.kube.stamp()}
        metadata["finalizers"] = [*self.finalizers]
        self.hub.create(
            builders.pod(f"u{self.made}", requests={"cpu": "5"}, annotations=annotations, metadata=metadata)
        )

    def unfinished(self):
        return [pod for pod in self.hub.kube.pods() if pod["status"]["phase"] != "Succeeded"]

    def changeable(self):
        """Return the pods whose job annotations a user may change: those without a job id."""
        return [pod for pod in self.hub.kube.pods() if pods.is_open(pod) and pods.job_id(pod) is None]

    def request(self, pod, back=False):
        pod = self.hub.kube.get(path_of(pod))
        annotations = pod["metadata"]["annotations"]
        if annotations.pop(names.TIME_LIMIT, None) is None and not back:
            annotations[names.TIME_LIMIT] = "5"
        self.hub.kube.put(path_of(pod), pod)

    def running(self):
        return [pod for pod in self.hub.kube.pods() if pods.is_bound(pod) and not pods.is_finished(pod)]

    def finish(self, pod, phase):
        pod = self.hub.kube.get(path_of(pod))
        pod["status"]["phase"] = phase
        self.hub.kube.put(path_of(pod), pod)
        if phase == "Succeeded":
            name, _, slot = pod["metadata"]["name"].rpartition("-")
            self.done.add((name, int(slot)))

    def jobs(self, state):
        return [job for job in self.hub.slurm.live() if job.state == state]

    def live_job(self, number):
        jobs = self.hub.slurm.live()
        return jobs[number % len(jobs)]

    def power(self, name, state, ready):
        """Set the state of power saving of a node, and whether its kubelet is ready."""
        self.hub.slurm.asleep.pop(name, None)
        if state:
            self.hub.slurm.asleep[name] = state
        path = f"/api/v1/nodes/{name}"
        node = self.hub.kube.get(path)
        node["status"]["conditions"] = [{"type": "Ready", "status": "True" if ready else "Unknown"}]
        taints = [taint for taint in node["spec"]["taints"] if taint["key"] != UNREACHABLE]
        node["spec"]["taints"] = taints if ready else [*taints, {"key": UNREACHABLE, "effect": "NoSchedule"}]
        self.hub.kube.put(path, node)

    def is_ready(self, name):
        return self.hub.kube.get(f"/api/v1/nodes/{name}")["status"]["conditions"][0]["status"] == "True"

    def every_pod_has_a_place(self):
        """Whether each index has a pod, each pod is bound or its group's job is full, and each group has one job.

        A member of a heterogeneous job has a place in the component of its shape only; a pod of another shape waits for
        the next job.
        """
        hub, running = self.hub, {}
        everyone = hub.kube.pods()
        for pod in everyone:
            if pods.is_bound(pod) and not pods.is_finished(pod):
                running.setdefault(links.key(pod), set()).add((pods.job_id(pod), pod["spec"]["nodeName"]))
        jobs = {job.request.link.keys[0]: job for job in hub.slurm.live()}
        if len(jobs) != len(hub.slurm.live()) or any(pods.is_deleted(pod) for pod in everyone):
            return False
        if jobs.keys() != running.keys() or any(not running[key] <= places(job) for key, job in jobs.items()):
            return False
        for pod in filter(pods.is_open, everyone):
            key = links.key(pod)
            if key not in jobs or not places(jobs[key], links.shape(pod)) <= running[key]:
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
            f"job {job.job_id} {[(part.state, part.nodes) for part in job.all]} {job.request.link.keys}"
            for job in self.hub.slurm.jobs.values()
        ]
        lines += [f"{key} {state}" for key, state in self.hub.scheduler.states.by_uid.items()]
        return "\n".join(lines)
