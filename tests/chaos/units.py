"""Workloads of every kind for the storm: each is created, runs to its end by itself, and is deleted.

The controllers of Jobs, JobSets and LeaderWorkerSets create lost members again. Of the other kinds, the storm does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cluster.world import NAMESPACE, World
from tests.chaos.storage import Storage
from tests.fakes.device_drivers import CPU, DRA, GPU, requests
from tests.fakes.pod_groups import API_VERSION
from tests.fakes.pod_groups import LABEL as MEMBER_OF

Object = dict[str, Any]

LABEL = "storm"
"""Label of all pods of a unit: its name."""
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
TEMPLATES = f"{DRA}/namespaces/{NAMESPACE}/resourceclaimtemplates"
DEVICES = "storm-devices"
"""Template of claims for one GPU and two CPUs, which all pods with devices use."""
MEMBERS = 3
CPUS = "24"
"""CPUs of a pod: five fit on a node, so some jobs wait."""
DRIVER = "8"
"""CPUs of the first pod of a mixed workload."""
RETRIES = 50


@dataclass(eq=False)
class Unit:
    """One workload.

    Attributes
    ----------
    owner
        Path of the object whose controller creates the pods; empty for bare pods.
    pods
        Pods that the storm creates, by name.
    more
        Paths of further objects, which are deleted with the unit.
    disturbed
        What was done to the unit: what it is allowed to lose.
    """

    name: str
    kind: str
    owner: str = ""
    pods: dict[str, Object] = field(default_factory=dict)
    more: tuple[str, ...] = ()
    volumes: bool = False
    disturbed: list[str] = field(default_factory=list)
    deleted: bool = False


class Workloads:
    """Creates and deletes units."""

    def __init__(self, world: World, storage: Storage, *, devices: bool, old: bool) -> None:
        """``old``: the version of Slurm excludes no nodes, which volumes need, and has no heterogeneous jobs."""
        self._world = world
        self._storage = storage
        self._makers: dict[str, Callable[[str], Unit]] = {
            "pod": lambda name: Unit(name, "pod", pods={name: self._pod(name)}),
            "job": lambda name: self._job(name, "job"),
            "jobset": lambda name: self._jobset(name, "jobset", {}),
            "whole jobset": lambda name: self._jobset(name, "whole jobset", {"bridge.vk.io/gang": "all"}),
            "train job": self._train_job,
            "lws": self._lws,
            "podgroup": lambda name: self._pod_group(name, "podgroup"),
            "smaller podgroup": self._smaller_pod_group,
            "workload": lambda name: self._pod_group(name, "workload"),
            "kueue": self._kueue,
        }
        if not old:
            self._makers["volumes"] = self._with_volumes
            all_in_one = {"bridge.vk.io/gang": "all"}
            self._makers["mixed jobset"] = lambda name: self._jobset(name, "mixed jobset", all_in_one, DRIVER)
            self._makers["mixed kueue"] = lambda name: self._kueue(name, DRIVER)
        if devices:
            source = [{"name": "d", "resourceClaimTemplateName": DEVICES}]
            self._makers["device"] = lambda name: Unit(name, "device", pods={name: self._pod(name, claims=source)})
            self._makers["job with devices"] = lambda name: self._job(name, "job with devices", claims=source)
            body = {"metadata": {"name": DEVICES}, "spec": {"spec": requests((GPU, 1), (CPU, 2))}}
            world.api("POST", TEMPLATES, body)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self._makers)

    def create(self, kind: str, name: str) -> Unit:
        unit = self._makers[kind](name)
        for body in unit.pods.values():
            self._world.api("POST", PODS, body)
        return unit

    def over(self, unit: Unit, succeeded: set[str], running: int) -> bool:
        """Return whether the unit has reached its end.

        ``succeeded`` are the names of its pods that have succeeded, ``running`` is the number of those that run.
        """
        if not unit.owner:
            return unit.pods.keys() <= succeeded
        found = self._world.api("GET", unit.owner)
        if unit.kind == "lws":
            # LeaderWorkerSet 0.7 counts a replica as ready when its leader is, and its workers exist
            ready = found.get("status", {}).get("readyReplicas") == found["spec"]["replicas"]
            return ready and running == MEMBERS
        conditions = found.get("status", {}).get("conditions") or ()
        return any(one["type"] in ("Complete", "Completed") and one["status"] == "True" for one in conditions)

    def recreate(self, unit: Unit, existing: dict[str, Object], succeeded: set[str]) -> None:
        """Delete failed pods, and create missing ones; ``existing``: the unit's pods by name."""
        for name, body in unit.pods.items():
            pod = existing.get(name)
            if pod is None and name not in succeeded:
                self._world.api.request("POST", PODS, body)
            elif pod is not None and pod["status"]["phase"] == "Failed":
                self._world.delete(pod)

    def delete(self, unit: Unit) -> None:
        unit.deleted = True
        background = {"propagationPolicy": "Background"}
        if unit.owner:
            self._world.api.request("DELETE", unit.owner, background)
        for name in unit.pods:
            self._world.api.request("DELETE", f"{PODS}/{name}")
        for path in unit.more:
            self._world.api.request("DELETE", path, background)
        if unit.volumes:
            self._storage.remove(unit.name)

    def close(self) -> None:
        self._world.api.request("DELETE", f"{TEMPLATES}/{DEVICES}")

    # --- kinds --------------------------------------------------------------------------------------------------------
    def _pod(
        self, unit: str, name: str = "", *, claims: list[Object] | None = None, cpu: str = CPUS, **spec: Any
    ) -> Object:
        spec |= {"resourceClaims": claims} if claims else {}
        made = self._world.manifest(name or unit, cpu=cpu, run="1", restartPolicy="Never", **spec)
        made["metadata"]["labels"] = {LABEL: unit}
        return made

    def _template(self, unit: str, claims: list[Object] | None = None, cpu: str = CPUS) -> Object:
        made = self._pod(unit, claims=claims, cpu=cpu)
        del made["metadata"]["name"]
        return made

    def _with_volumes(self, name: str) -> Unit:
        pod = self._pod(name, volumes=self._storage.prepare(name))
        return Unit(name, "volumes", pods={name: pod}, volumes=True)

    def _job_spec(self, unit: str, size: int, claims: list[Object] | None = None, cpu: str = CPUS) -> Object:
        indexed = {"completionMode": "Indexed", "completions": size, "parallelism": size, "backoffLimit": RETRIES}
        return {**indexed, "template": self._template(unit, claims, cpu)}

    def _owned(self, kind: str, version: str, plural: str, name: str, body: Object) -> Unit:
        path = f"/apis/{version}/namespaces/{NAMESPACE}/{plural}"
        self._world.api("POST", path, {"apiVersion": version, **body})
        return Unit(name, kind, f"{path}/{name}")

    def _job(self, name: str, kind: str, claims: list[Object] | None = None) -> Unit:
        metadata = {"name": name, "annotations": {"bridge.vk.io/gang": "true"}}
        body = {"kind": "Job", "metadata": metadata, "spec": self._job_spec(name, MEMBERS, claims)}
        return self._owned(kind, "batch/v1", "jobs", name, body)

    def _jobset(self, name: str, kind: str, annotations: dict[str, str], driver: str = CPUS) -> Unit:
        def replicated(part: str, size: int, cpu: str) -> Object:
            return {"name": part, "replicas": 1, "template": {"spec": self._job_spec(name, size, cpu=cpu)}}

        spec = {"replicatedJobs": [replicated("driver", 1, driver), replicated("workers", 2, CPUS)]}
        spec["failurePolicy"] = {"maxRestarts": RETRIES}  # type: ignore[assignment]
        body = {"kind": "JobSet", "metadata": {"name": name, "annotations": annotations}, "spec": spec}
        return self._owned(kind, "jobset.x-k8s.io/v1alpha2", "jobsets", name, body)

    def _train_job(self, name: str) -> Unit:
        version = "trainer.kubeflow.org/v1alpha1"
        spec = {"backoffLimit": RETRIES, "template": self._template(name)}
        spec["template"]["spec"]["containers"][0]["name"] = "node"
        step = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
        nodes = {"name": "node", "template": {"metadata": step, "spec": spec}}
        sets = {"replicatedJobs": [nodes], "failurePolicy": {"maxRestarts": RETRIES}}
        runtime = {"mlPolicy": {"numNodes": 1}, "template": {"spec": sets}}
        body = {"kind": "TrainingRuntime", "metadata": {"name": name}, "spec": runtime}
        path = self._owned("", version, "trainingruntimes", name, body).owner
        reference = {"name": name, "kind": "TrainingRuntime", "apiGroup": "trainer.kubeflow.org"}
        job = {"runtimeRef": reference, "trainer": {"numNodes": MEMBERS}}
        body = {"kind": "TrainJob", "metadata": {"name": name}, "spec": job}
        unit = self._owned("train job", version, "trainjobs", name, body)
        unit.more = (path,)
        return unit

    def _lws(self, name: str) -> Unit:
        template = self._template(name)
        del template["metadata"]["annotations"]["hack/run-seconds"], template["spec"]["restartPolicy"]
        spec = {"replicas": 1, "leaderWorkerTemplate": {"size": MEMBERS, "workerTemplate": template}}
        body = {"kind": "LeaderWorkerSet", "metadata": {"name": name}, "spec": spec}
        return self._owned("lws", "leaderworkerset.x-k8s.io/v1", "leaderworkersets", name, body)

    def _pod_group(self, name: str, kind: str) -> Unit:
        labels, spec = {}, {}
        if kind == "podgroup":
            version, wanted = API_VERSION, {"minMember": MEMBERS}
            labels[MEMBER_OF] = name
        else:
            version, wanted = "scheduling.k8s.io/v1alpha2", {"schedulingPolicy": {"gang": {"minCount": MEMBERS}}}
            spec["schedulingGroup"] = {"podGroupName": name}
        body = {"kind": "PodGroup", "metadata": {"name": name}, "spec": wanted}
        path = self._owned(kind, version, "podgroups", name, body).owner
        return Unit(name, kind, pods=self._members(name, labels, {}, **spec), more=(path,))

    def _smaller_pod_group(self, name: str) -> Unit:
        """Create a PodGroup that starts without one of its members, which a Job creates."""
        body = {"kind": "PodGroup", "metadata": {"name": name}, "spec": {"minMember": MEMBERS - 1}}
        group = self._owned("", API_VERSION, "podgroups", name, body).owner
        spec = self._job_spec(name, MEMBERS)
        spec["template"]["metadata"]["labels"][MEMBER_OF] = name
        body = {"kind": "Job", "metadata": {"name": name}, "spec": spec}
        unit = self._owned("smaller podgroup", "batch/v1", "jobs", name, body)
        unit.more = (group,)
        return unit

    def _kueue(self, name: str, driver: str = CPUS) -> Unit:
        counted = {"kueue.x-k8s.io/pod-group-total-count": str(MEMBERS)}
        members = self._members(name, {"kueue.x-k8s.io/pod-group-name": name}, counted, driver)
        return Unit(name, "kueue" if driver == CPUS else "mixed kueue", pods=members)

    def _members(
        self, name: str, labels: dict[str, str], annotations: dict[str, str], driver: str = CPUS, **spec: Any
    ) -> dict[str, Object]:
        sizes = {f"{name}-{number}": CPUS if number else driver for number in range(MEMBERS)}
        made = {member: self._pod(name, member, cpu=cpu, **spec) for member, cpu in sizes.items()}
        for body in made.values():
            body["metadata"]["labels"] |= labels
            body["metadata"]["annotations"] |= annotations
        return made
