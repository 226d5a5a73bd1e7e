"""A running cluster with podbridge: calls of tests and of the demonstration to Kubernetes and Slurm."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.request import urlopen

from cluster.core import Cluster
from cluster.errors import ClusterError
from cluster.polling import eventually

NAMESPACE = "slurm-bridge"
LABEL = "scheduler.slinky.slurm.net/slurm-jobid"
ANNOTATION = "bridge.vk.io/slurm-job"
NODE = "slinky.slurm.net/slurm-node"
JOB_PREFIX = "slurmjob.slinky.slurm.net/"

Object = dict[str, Any]
T = TypeVar("T")


class World:
    """One running cluster. Pods without a name get a unique number."""

    numbers = itertools.count(1)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.api = cluster.api

    # --- Kubernetes ---------------------------------------------------------------------------------------------------
    def manifest(
        self,
        name: str | None = None,
        *,
        cpu: str = "1",
        memory: str = "1Gi",
        job: Mapping[str, str] | None = None,
        run: str | None = None,
        stop: str | None = None,
        script: str | None = None,
        **spec: Any,
    ) -> Object:
        """Return a manifest: ``job`` holds job annotations by short name, ``run`` and ``stop`` are seconds for kwok.

        A shell on the real node runs ``script``.
        """
        annotations = {JOB_PREFIX + key: value for key, value in (job or {}).items()}
        if run is not None:
            annotations["hack/run-seconds"] = run
        if stop is not None:
            annotations["hack/stop-seconds"] = stop
        requests = {"cpu": cpu, "memory": memory}
        container: Object = {"name": "main", "image": "none", "resources": {"requests": requests}}
        if script is not None:
            container |= {"image": "busybox:1", "command": ["sh", "-c", script]}
        metadata = {"name": name or f"p{next(self.numbers)}", "annotations": annotations}
        return {"metadata": metadata, "spec": {"containers": [container], **spec}}

    def path(self, name: str, namespace: str = NAMESPACE) -> str:
        """Return the path of a pod."""
        return f"/api/v1/namespaces/{namespace}/pods/{name}"

    def _path(self, pod: Object, namespace: str | None = None) -> str:
        return self.path(pod["metadata"]["name"], namespace or pod["metadata"].get("namespace", NAMESPACE))

    def create(self, name: str | None = None, *, namespace: str = NAMESPACE, **more: Any) -> Object:
        """Create a pod (see :meth:`manifest`); return the API server's answer."""
        found: Object = self.api("POST", f"/api/v1/namespaces/{namespace}/pods", self.manifest(name, **more))
        return found

    def create_gang(
        self,
        name: str,
        size: int,
        *,
        namespace: str = NAMESPACE,
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Object:
        """Create an indexed Job whose pods start together; return the answer.

        ``labels`` are those of its pods; ``more``: see :meth:`manifest`.
        """
        template = self.manifest(name, **{"restartPolicy": "Never", **more})
        del template["metadata"]["name"]
        template["metadata"]["labels"] = dict(labels or {})
        spec = {"completionMode": "Indexed", "completions": size, "parallelism": size, "template": template}
        body = {
            "metadata": {"name": name, "annotations": {"bridge.vk.io/gang": "true", **(annotations or {})}},
            "spec": spec,
        }
        found: Object = self.api("POST", f"/apis/batch/v1/namespaces/{namespace}/jobs", body)
        return found

    def explained(self, kind: str, name: str, namespace: str = NAMESPACE, **variables: str) -> dict[str, Any]:
        """Return what ``podbridge explain`` prints as JSON, with more ``variables`` of the environment."""
        command = ["podbridge", "explain", kind, name, "-n", namespace, "-o", "json"]
        environment = {**os.environ, **self.cluster.env, **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise ClusterError(f"{' '.join(command)}: {done.stderr}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def members(self, gang: Object) -> list[Object]:
        """Return the pods of a Job that exist."""
        return self.pods(gang["metadata"]["namespace"], f"job-name={gang['metadata']['name']}")

    def delete_gang(self, gang: Object) -> None:
        """Delete a Job and its pods."""
        path = f"/apis/batch/v1/namespaces/{gang['metadata']['namespace']}/jobs/{gang['metadata']['name']}"
        self.api.request("DELETE", path, {"propagationPolicy": "Background"})

    def get(self, pod: Object, namespace: str | None = None) -> Object | None:
        """Return the pod; ``None`` if the pod with this UID does not exist."""
        status, found = self.api.request("GET", self._path(pod, namespace))
        if status == 404 or found["metadata"].get("uid") != pod["metadata"]["uid"]:
            return None
        result: Object = found
        return result

    def pods(self, namespace: str = NAMESPACE, selector: str = "") -> list[Object]:
        """List pods."""
        found: list[Object] = self.api("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}")["items"]
        return found

    def delete(self, pod: Object, grace: int | None = None) -> None:
        """Delete a pod, if it exists."""
        body = {} if grace is None else {"gracePeriodSeconds": grace}
        self.api.request("DELETE", self._path(pod), body)

    def condition(self, pod: Object, kind: str) -> Object:
        """Return a condition of the pod; empty if it has none."""
        found = self.get(pod) or {"status": {}}
        return next((c for c in found["status"].get("conditions") or () if c["type"] == kind), {})

    def events(self, pod: Object, reason: str, namespace: str | None = None) -> list[Object]:
        """Return the Events of a pod with a reason."""
        where = namespace or pod["metadata"].get("namespace", NAMESPACE)
        items = self.api("GET", f"/apis/events.k8s.io/v1/namespaces/{where}/events")["items"]
        uid = pod["metadata"]["uid"]
        return [e for e in items if (e.get("regarding") or {}).get("uid") == uid and e.get("reason") == reason]

    def seen(
        self,
        pod: Object,
        what: str,
        check: Callable[[Object], object],
        timeout: float = 30,
        namespace: str | None = None,
    ) -> Object:
        """Wait until ``check`` is true for the pod; return it."""

        def look() -> Object | None:
            found = self.get(pod, namespace)
            return found if found is not None and check(found) else None

        found = eventually(look, f"{pod['metadata']['name']} {what}", timeout)
        assert found is not None  # noqa: S101
        return found

    def bound(self, pod: Object, timeout: float = 30) -> Object:
        """Wait until the pod is bound."""
        return self.seen(pod, "bound", lambda p: p["spec"].get("nodeName"), timeout)

    def running(self, pod: Object, timeout: float = 30) -> Object:
        """Wait until the pod runs."""
        return self.seen(pod, "running", lambda p: p["status"]["phase"] == "Running", timeout)

    def labelled(self, pod: Object, timeout: float = 30) -> int:
        """Wait until the pod has the label of its job; return the job's id."""
        return self.job_of(self.seen(pod, "labelled", lambda found: LABEL in _labels(found), timeout))

    def gone(self, pod: Object, timeout: float = 30) -> None:
        """Wait until the pod does not exist."""
        eventually(lambda: self.get(pod) is None, f"{pod['metadata']['name']} gone", timeout)

    @staticmethod
    def job_of(pod: Object) -> int:
        """Return the job id of the pod: its binding sets the annotation, and a pod that waits has the label; else 0."""
        return int((pod["metadata"].get("annotations") or {}).get(ANNOTATION) or _labels(pod).get(LABEL, "0"))

    def kube_node(self, name: str) -> Object:
        """Return a node of Kubernetes."""
        found: Object = self.api("GET", f"/api/v1/nodes/{name}")
        return found

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of podbridge's samples of ``name`` with these labels; 0 if there is none."""
        url = f"http://127.0.0.1:{self.cluster.podbridge_port('metrics')}/metrics"
        with urlopen(url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        found = [
            line for line in lines if line.startswith((f"{name}{{", f"{name} ")) and all(w in line for w in wanted)
        ]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    def polled(self, count: int = 4) -> None:
        """Wait until podbridge has requested Slurm's jobs ``count`` more times; three answers terminate a pod.

        The status is not counted: Slurm 22.05 answers 500 if no job has changed.
        """

        def lists() -> float:
            name = "podbridge_slurm_requests_total"
            # 304: a list without changes, on 22.05
            answers = [(endpoint, code) for endpoint in ("jobs", "jobs/state") for code in ("200", "304")]
            return sum(self.metric(name, endpoint=endpoint, code=code) for endpoint, code in answers)

        before = lists()
        eventually(lambda: lists() >= before + count, f"{count} polls of Slurm")

    # --- Slurm --------------------------------------------------------------------------------------------------------
    def slurm(self, *argv: str) -> str:
        """Run one of Slurm's tools."""
        return self.cluster.run_slurm(*argv)

    def queue(self) -> dict[int, str]:
        """Return the jobs of squeue: id -> state; each component of a heterogeneous job has its own id."""
        lines = self.slurm("squeue", "-h", "-o", "%A %T").splitlines()
        return {int(line.split()[0]): line.split()[1] for line in lines if line.strip()}

    def job(self, job_id: int) -> dict[str, str]:
        """Return the fields of ``scontrol show job``; empty if Slurm does not know the job."""
        text = self.cluster.run_slurm("scontrol", "show", "job", str(job_id), check=False)
        return dict(re.findall(r"(\w+)=(\S*)", text)) if "JobId=" in text else {}

    def job_comment(self, job_id: int) -> str:
        """Return the AdminComment of a job: podbridge's link to its pods, as JSON."""
        found = re.search(r"AdminComment=(\{.*\})", self.slurm("scontrol", "show", "job", str(job_id)))
        return found[1] if found else ""

    def jobs_by_uid(self) -> dict[str, list[tuple[int, str]]]:
        """Return all jobs that Slurm knows, also ended ones, as (id, state) by the UID in the comment."""
        text = self.cluster.run_slurm("scontrol", "show", "job", "-o", check=False)
        found: dict[str, list[tuple[int, str]]] = {}
        for line in text.splitlines():
            job, state = re.search(r"JobId=(\d+)", line), re.search(r"JobState=(\w+)", line)
            for uid in re.findall(r'"uid":"([0-9a-f-]+)"', line):
                if job and state:
                    found.setdefault(uid, []).append((int(job[1]), state[1]))
        return found

    def node(self, name: str) -> tuple[str, str]:
        """Return the state and the reason of a node in Slurm."""
        text = self.slurm("scontrol", "show", "node", name)
        state, reason = re.search(r"State=(\S+)", text), re.search(r"Reason=(.*?)(?: \[|$)", text, re.MULTILINE)
        return state[1] if state else "", reason[1] if reason else ""

    # --- both ---------------------------------------------------------------------------------------------------------
    def clear(self) -> None:
        """Delete every pod of the managed namespace, and wait until no pod and no job is left."""
        self.api.delete_pods(NAMESPACE)
        eventually(lambda: not self.pods(), "no pod left", 60)
        eventually(lambda: not self.queue(), "no job left", 30)


def _labels(pod: Object) -> Object:
    return pod["metadata"].get("labels") or {}
