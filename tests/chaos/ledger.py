"""Checks every change of a pod, and all jobs of Slurm from time to time: what must hold at each moment of a storm."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from cluster.polling import eventually
from cluster.world import NAMESPACE, World
from tests.chaos.units import LABEL, Unit
from tests.fakes.device_drivers import DRA

Object = dict[str, Any]

GROUP = "bridge.vk.io/group"
JOB = "bridge.vk.io/slurm-job"
FINALIZER = "scheduler.slinky.slurm.net/finalizer"
FINAL = ("Succeeded", "Failed")
LIVE = ("PENDING", "RUNNING", "SUSPENDED")
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
CLAIMS = f"{DRA}/namespaces/{NAMESPACE}/resourceclaims"


@dataclass
class Life:
    """One pod, from its creation to its end.

    Attributes
    ----------
    key
        What the comment of its job names: its UID, or kind, name, UID and index of its group.
    slot
        Index in its group, else its name.
    minimum
        Number of members that start together.
    job
        Id of its job, 0 before it is bound.
    """

    unit: str
    key: str
    slot: str
    minimum: int
    pod: Object = field(default_factory=dict)
    job: int = 0
    gone: bool = False

    @property
    def name(self) -> str:
        return str(self.pod["metadata"]["name"])

    @property
    def node(self) -> str:
        return str(self.pod["spec"].get("nodeName") or "")

    @property
    def ended(self) -> bool:
        return self.gone or self.pod["status"]["phase"] in FINAL

    @property
    def alone(self) -> bool:
        """Whether the pod is a member of a group with a job of its own."""
        return bool(json.loads((self.pod["metadata"].get("annotations") or {}).get(GROUP, "{}")).get("alone"))

    @property
    def runs(self) -> bool:
        return bool(self.node) and not self.ended


class Ledger:
    """What has happened to the pods and jobs of a storm; ``violations`` are the broken rules, one sentence each."""

    def __init__(self, world: World) -> None:
        self.lives: dict[str, Life] = {}
        self.jobs: dict[int, tuple[str, str]] = {}
        """Job -> key in its comment and last state."""
        self.violations: list[str] = []
        self._world = world
        self._lock = threading.Lock()
        self._stopping = False
        self._version = str(world.api("GET", PODS)["metadata"]["resourceVersion"])
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch; it notices within a second."""
        self._stopping = True
        self._thread.join(10)

    def existing(self, unit: str) -> list[Life]:
        """Return the pods of a unit that exist."""
        return [life for life in self._of(unit) if not life.gone]

    def succeeded(self, unit: str) -> set[str]:
        """Return the names of the pods of a unit that have succeeded."""
        return {life.name for life in self._of(unit) if life.pod["status"]["phase"] == "Succeeded"}

    def _of(self, unit: str) -> list[Life]:
        """Return all pods of a unit; the watch adds pods in its own thread."""
        with self._lock:
            return [life for life in self.lives.values() if life.unit == unit]

    def caught_up(self, unit: str) -> None:
        """Wait until the watch has delivered what the API server shows of the pods of a unit."""
        listed = self._world.pods(selector=f"{LABEL}={unit}")
        wanted = {pod["metadata"]["uid"]: int(pod["metadata"]["resourceVersion"]) for pod in listed}

        def delivered() -> bool:
            with self._lock:
                seen = {uid: self.lives[uid].pod for uid in wanted if uid in self.lives}
            return all(
                uid in seen and int(seen[uid]["metadata"]["resourceVersion"]) >= at for uid, at in wanted.items()
            )

        eventually(delivered, f"the watch delivers the pods of {unit}")

    # --- pods ---------------------------------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Read the changes of all pods, in the order of the API server, without a gap."""
        while not self._stopping:
            try:
                self._read()
            except (OSError, http.client.HTTPException):
                continue  # a slow machine: the next watch begins at the last version
            except Exception as error:  # a test must not go on without its checks
                self.violations.append(f"the watch of the pods has ended: {error!r}")
                raise

    def _read(self) -> None:
        path = f"{PODS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=1&resourceVersion={self._version}"
        with contextlib.closing(self._world.api.connection(10)) as connection:
            connection.request("GET", path)
            for line in connection.getresponse():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise AssertionError(f"a gap: {event['object'].get('message')}")
                self._version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    with self._lock:
                        self._change(event["type"], event["object"])

    def _change(self, kind: str, pod: Object) -> None:
        metadata = pod["metadata"]
        unit = (metadata.get("labels") or {}).get(LABEL)
        if unit is None:
            return
        annotations = metadata.get("annotations") or {}
        life = self.lives.get(metadata["uid"])
        if life is None:
            group = json.loads(annotations.get(GROUP, "{}"))
            life = self.lives[metadata["uid"]] = Life(
                unit, _key(group) if group else metadata["uid"], str(group.get("slot", metadata["name"])),
                int(group.get("minimum", 1)), pod
            )  # fmt: skip
        before, was_held, ran = life.node, _held(life.pod), life.runs
        life.pod, life.gone = pod, kind == "DELETED"
        if life.node and not before:
            life.job = int(annotations.get(JOB, "0"))
            self._bound(life)
        if ran and was_held and life.runs and not _held(pod):
            self.violations.append(f"{life.name} was released while it ran")
        if ran and life.gone and pod["status"]["phase"] not in FINAL:
            self.violations.append(f"{life.name} was removed while it ran")

    def _bound(self, life: Life) -> None:
        who = f"{life.name} (job {life.job}, {life.node})"
        if not life.job or not _held(life.pod):
            self.violations.append(f"{who} was bound without a job id or a finalizer")
        for other in self.lives.values():
            if other is life or not other.runs:
                continue
            if (other.key, other.slot) == (life.key, life.slot):
                self.violations.append(f"doubled: {who} has the slot of {other.name}, which runs")
            if (other.job, other.node) == (life.job, life.node):
                self.violations.append(f"doubled: {who} has the place of {other.name}, which runs")
            if other.key == life.key and other.job != life.job and not (life.alone or other.alone):
                self.violations.append(f"doubled: {who} and {other.name} of one group run in two jobs")

    # --- jobs and devices ---------------------------------------------------------------------------------------------
    def look(self, *, devices: bool) -> None:
        """Read all jobs and the devices of all claims; call it at least once in the time that Slurm keeps a job."""
        text = self._world.cluster.run_slurm("scontrol", "show", "job", "-o", check=False)
        found: dict[int, tuple[str, str]] = {}
        for line in text.splitlines():
            # the components of a heterogeneous job are one job; version 22.05 has the link in Comment
            job = re.search(r"HetJobId=(\d+)", line) or re.search(r"JobId=(\d+)", line)
            state = re.search(r"JobState=(\w+)", line)
            comment = re.search(r"Comment=(\{.*?\}) [A-Z]\w+=", line) or re.search(r"Comment=(\{.*\})", line)
            if job and state and comment:
                link = json.loads(comment[1])
                key = _key(link["group"]) if "group" in link else link["pods"][0]["uid"]
                number = int(job[1])
                if number not in found or state[1] in LIVE:
                    found[number] = (key, state[1])
        self.jobs |= found
        live = Counter(key for key, state in found.values() if state in LIVE)
        self.violations += [f"doubled: {count} jobs of {key} at once" for key, count in live.items() if count > 1]
        if devices:
            self._look_at_devices()

    def _look_at_devices(self) -> None:
        used = Counter(
            (one["driver"], one["pool"], one["device"])
            for claim in self._world.api("GET", CLAIMS)["items"]
            for one in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        )
        self.violations += [f"doubled: device {device} is in {n} claims" for device, n in used.items() if n > 1]

    # --- at the end ---------------------------------------------------------------------------------------------------
    def check_unit(self, unit: Unit) -> None:
        """Check a unit that has reached its end: its slots have run, in one job unless it was disturbed."""
        self.caught_up(unit.name)
        lives = self._of(unit.name)
        together = [life for life in lives if not life.alone]  # docs/users/groups.md: the others have jobs of their own
        jobs = {(life.key, life.job) for life in together if life.job}
        for key, job in jobs:
            bound = {life.slot for life in together if (life.key, life.job) == (key, job)}
            minimum = max(life.minimum for life in lives if life.key == key)
            if len(bound) < minimum and not unit.disturbed:
                self.violations.append(
                    f"half bound: {len(bound)} of {minimum} members in job {job}: {self.story(unit)}"
                )
        if unit.disturbed:
            return
        keys = {life.key for life in lives}
        for key in keys:
            own = {job for job, (owner, _) in self.jobs.items() if owner == key}
            own |= {life.job for life in together if life.key == key and life.job}  # no look saw the job
            if len(own) != 1:
                self.violations.append(f"doubled: {unit.name} was not disturbed and had jobs {sorted(own)}")
        shared = [job for job, count in Counter(life.job for life in lives).items() if job and count > 1]
        if any(life.alone and life.job in shared for life in lives):
            self.violations.append(f"doubled: {unit.name} has a job of one pod with more pods: {self.story(unit)}")
        if any(not life.job for life in lives):
            self.violations.append(f"lost: a pod was never bound: {self.story(unit)}")

    def check_calls(self, calls: list[list[str]]) -> int:
        """Check that no Binding names a job that the hub itself has cancelled before; return the number of Bindings."""
        cancelled: set[str] = set()
        binds = 0
        for what, job, *pod in calls:
            if what == "cancel":
                cancelled.add(job)
                continue
            binds += 1
            if job in cancelled:
                self.violations.append(f"{pod[0]} was bound to job {job}, which the hub had cancelled")
        return binds

    def story(self, unit: Unit) -> str:
        """Return what is known about a unit that does not reach its end."""
        lines = [f"{unit.name} ({unit.kind}), disturbed by {unit.disturbed}"]
        lives = self._of(unit.name)
        for life in lives:
            said = [one for one in life.pod["status"].get("conditions") or () if one["type"] == "PodScheduled"]
            deleted = "deleted " if life.pod["metadata"].get("deletionTimestamp") else ""
            lines.append(
                f"  {life.name} slot {life.slot} {deleted}{'gone ' if life.gone else ''}"
                f"{life.pod['status']['phase']} node {life.node} job {life.job} held {_held(life.pod)} {said}"
            )
        keys = {life.key for life in lives}
        lines += [f"  job {job} {state}" for job, (key, state) in self.jobs.items() if key in keys]
        return "\n".join(lines)


def _key(group: Object) -> str:
    return "/".join(str(group.get(name, "")) for name in ("kind", "name", "uid", "index"))


def _held(pod: Object) -> bool:
    return FINALIZER in (pod["metadata"].get("finalizers") or ())
