"""A slurmrestd on a real socket, with jobs in memory whose states a test sets.

It answers like the daemons of 22.05, 24.11 or 26.05 in everything that podbridge uses; the tests of the client
run on it and on real ones.

>>> with FakeSlurm() as slurm:
...     slurm.fault = lambda method, path: (502, b"bad gateway") if method == "POST" else None
"""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from bridge import gres_text
from bridge.gres_text import Gres
from bridge.slurm import hostlist
from bridge.slurm.versions import VERSIONS, ApiVersion

Answer = tuple[int, bytes]
Fault = Callable[[str, str], "Answer | Literal['hang', 'reset', 'reset-after', 'hang-after'] | None"]

SERVED = {
    "22.05.8": ("v0.0.38",),
    "24.11.5": ("v0.0.40", "v0.0.41", "v0.0.42"),
    "26.05.5": ("v0.0.42", "v0.0.43", "v0.0.44", "v0.0.45"),
}
TOKEN = "e30.eyJzdW4iOiAic2x1cm0ifQ.c2lnbmF0dXJl"
"""Says ``{"sun": "slurm"}``."""


@dataclass
class FakeJob:
    """One job; ``asked`` is the ``job`` object of the submission.

    A component of a heterogeneous job has the id of its ``leader`` and its number ``offset``.
    """

    job_id: int
    asked: dict[str, Any]
    states: list[str] = field(default_factory=lambda: ["PENDING"])
    nodes: str = ""
    reason: str = "Priority"
    user: str = "slurm"
    submit_time: int = 0
    start_time: int = 0
    end_time: int = 0
    restarts: int = 0
    leader: int = 0
    offset: int = 0
    batch_host: str = ""
    started_on: str = ""
    """Its nodes when it started: it may have given some back."""

    @property
    def batch(self) -> bool:
        """Return whether the job has a script; of the components of a heterogeneous job, only the first has one."""
        return "EXTERNAL_JOB" not in self.asked.get("flags", []) and not self.offset

    @property
    def shown_id(self) -> str:
        """Return its id in ``jobs/state``."""
        return f"{self.job_id}+{self.offset}" if self.leader else str(self.job_id)


@dataclass
class FakeNode:
    """One node."""

    name: str
    states: set[str] = field(default_factory=lambda: {"IDLE"})
    reason: str = ""
    cpus: int = 128
    memory: int = 512_000
    gres: str = "gpu:8"


class FakeSlurm:
    """The server. A test may change ``jobs`` and ``nodes``; ``calls`` lists the requests.

    ``fault(method, path)`` is called before each request. It returns ``None`` for an ordinary answer, a status and a
    body, or a failure of the connection, with ``-after`` for one after the request was carried out.
    """

    def __init__(self, release: str = "26.05.5", nodes: int = 4) -> None:
        self.release, self.served = release, SERVED[release]
        self.nodes = {f"node-{i}": FakeNode(f"node-{i}") for i in range(nodes)}
        self.partitions = ["main"]
        self.jobs: dict[int, FakeJob] = {}
        self.calls: list[tuple[str, str]] = []
        self.fault: Fault | None = None
        self.down = False
        self.accepted: set[str] | None = None
        """Tokens that slurmctld accepts; ``None``: all."""
        self._next_id = 1
        self._ahead = 0
        self._changed = int(time.time())
        self._nodes_told: list[dict[str, Any]] = []
        self._nodes_changed = 0
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"slurm": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self) -> FakeSlurm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Return its URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop, and close connections that hang."""
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    # --- the hand -----------------------------------------------------------------------------------------------------
    def add(self, asked: dict[str, Any] | None = None, user: str = "slurm") -> FakeJob:
        """Add a pending job, as after a submission."""
        with self._lock:
            now = int(time.time()) + self._ahead
            job = FakeJob(self._next_id, asked or {"name": "other"}, user=user, submit_time=now)
            self.jobs[job.job_id] = job
            self._next_id += 1
            self.touch()
            return job

    def start(self, job_id: int, node: str = "node-0", *, configuring: bool = False) -> None:
        """Start a job on nodes (a hostlist)."""
        with self._lock:
            job = self.jobs[job_id]
            job.states = ["RUNNING", "CONFIGURING"] if configuring else ["RUNNING"]
            job.nodes, job.reason, job.start_time = node, "None", int(time.time())
            job.started_on = node
            self.touch()

    def end(self, job_id: int, *states: str) -> None:
        """End a job, e.g. ``TIMEOUT`` or ``CANCELLED, COMPLETING``."""
        with self._lock:
            job = self.jobs[job_id]
            job.states, job.end_time = list(states), int(time.time())
            self.touch()

    def requeue(self, job_id: int) -> None:
        """Requeue a job."""
        with self._lock:
            job = self.jobs[job_id]
            job.states, job.nodes, job.reason = ["PENDING", "REQUEUED"], "", "BeginTime"
            job.restarts += 1
            job.submit_time += 1
            self.touch()

    def forget(self, job_id: int) -> None:
        """Remove a job, as slurmctld does some minutes after its end."""
        with self._lock:
            del self.jobs[job_id]
            self.touch()

    def lose_state(self) -> None:
        """Restart slurmctld without its state, which takes some seconds: job ids start at 1 again."""
        with self._lock:
            self.jobs.clear()
            self._next_id = 1
            self._ahead += 10
            self.touch()

    def touch(self) -> None:
        """Set the time of the last change."""
        self._changed = int(time.time())

    def count(self, method: str, part: str) -> int:
        """Count the requests of a method whose path has ``part`` in it."""
        return sum(1 for m, path in self.calls if m == method and part in path)

    # --- answers ------------------------------------------------------------------------------------------------------
    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """Answer one request like slurmrestd."""
        path, _, query = path.partition("?")
        if path == "/openapi/v3":
            return self._json(200, {"paths": {f"/slurm/{name}/ping": {} for name in self.served}}, bare=True)
        match = re.fullmatch(r"/slurm/(v[0-9.]+)/(.*?)/?", path)
        if not match or match[1] not in self.served:
            return 404, b"Unable to find requested URL endpoint."
        with self._lock:
            return self._route(VERSIONS[match[1]], method, match[2], query, body)

    def _route(self, version: ApiVersion, method: str, path: str, query: str, body: bytes) -> Answer:
        old = not version.numbers
        if self.down:
            return self._while_down(method, path, old)
        head, _, tail = path.partition("/")
        if path == "ping":
            return self._json(200, {"pings": [{"ping": "UP"}] if old else [{"responding": True}]})
        if path == "diag":
            now = int(time.time())
            return self._json(200, {"statistics": {"req_time": now if old else _number(now)}})
        if path == "job/submit" and method == "POST":
            asked = json.loads(body)
            return self._submit_components(version, asked) if "jobs" in asked else self._submit(version, asked)
        if path == "jobs/state" and not old:
            ids = {int(job_id) for job_id in re.findall(r"job_id=(\d+)", query)}
            chosen = [job for job in self.jobs.values() if not query or job.job_id in ids or job.leader in ids]
            return self._json(200, {"jobs": [{"job_id": j.shown_id, "state": j.states} for j in chosen]})
        if path == "jobs":
            return self._list(version, query)
        if head == "job" and tail.isdigit():
            return self._one(version, method, int(tail), body)
        if head == "resources" and version.allocations:
            return self._resources(int(tail))
        if path == "nodes":
            return self._nodes(query, old)
        if path == "partitions":
            return self._json(200, {"partitions": [self._partition(name, version) for name in self.partitions]})
        if head == "node" and method == "POST" and version.node_updates:
            return self._set_node(tail, json.loads(body))
        return 404, b"Unable to find requested URL."

    def _while_down(self, method: str, path: str, old: bool) -> Answer:
        if path == "ping" and not old:
            return self._json(200, {"pings": [{"responding": False}]})
        if method == "DELETE" and not old:
            return self._error(403, 1, "Operation not permitted", status=[])
        if method == "POST":
            return self._error(500 if old else 502, 1800, "Unable to contact slurm controller", old)
        return self._error(500, -1, "Unspecified error", jobs=None)

    def _submit(self, version: ApiVersion, asked: dict[str, Any]) -> Answer:
        old, job = not version.numbers, asked["job"]
        wrong = 500 if old else 422
        if job.get("partition", "main") not in self.partitions:
            return self._error(wrong, 2000, "Invalid partition name specified", old)
        excluded = hostlist.expand(",".join(job.get("excluded_nodes", [])))
        if not set(excluded) <= self.nodes.keys():
            return self._error(wrong, 2018, "Invalid node name specified", old)
        if "EXTERNAL_JOB" not in job.get("flags", []) and not (job.get("script") or asked.get("script")):
            return self._error(500, 9000, "Query empty or not RFC7320 compliant")
        if len(excluded) == len(self.nodes) or self._memory(job) > max(n.memory for n in self.nodes.values()):
            return self._error(wrong, 2014, "Requested node configuration is not available", old)
        too_big = job.get("cpus_per_task", 1) > max(node.cpus for node in self.nodes.values())
        if too_big and self.release == "24.11.5":
            return self._error(500, 2014, "Requested node configuration is not available")
        made = self.add(job)
        note = []
        if too_big:
            made.reason = "PartitionConfig"
            note = [{"error_code": 2015, "error": "Requested partition configuration not available now"}]
        warnings = [{"description": entry["error"]} for entry in note]
        extra = {"errors": note} if old else {"warnings": warnings}
        return self._json(200, {"job_id": made.job_id, "job_submit_user_msg": "", **extra})

    def _submit_components(self, version: ApiVersion, asked: dict[str, Any]) -> Answer:
        """Submit a heterogeneous job. If one component is refused, the others are cancelled."""
        if not version.heterogeneous:
            return self._error(500, 9000, "Query empty or not RFC7320 compliant")
        made: list[FakeJob] = []
        notes: list[Any] = []
        for component in asked["jobs"]:
            status, body = self._submit(version, {"job": component})
            if status != 200:
                for job in made:
                    self.end(job.job_id, "CANCELLED")
                return status, body
            answer = json.loads(body)
            notes += answer["warnings"]
            made.append(self.jobs[answer["job_id"]])
            made[-1].leader, made[-1].offset = made[0].job_id, len(made) - 1
        return self._json(200, {"job_id": made[0].job_id, "job_submit_user_msg": "", "warnings": notes})

    def whole(self, job_id: int) -> list[FakeJob]:
        """Return the job, and if it is a leader, all components of its job."""
        return [job for job in self.jobs.values() if job_id in (job.job_id, job.leader)]

    @staticmethod
    def _cpus(job: FakeJob) -> dict[str, int]:
        """Return the CPUs of a job on each of its nodes: without a number of tasks a node, the first has most tasks."""
        asked, nodes = job.asked, hostlist.expand(job.started_on) or ("none",)
        each, tasks = int(asked.get("tasks_per_node", 0)), int(asked.get("tasks", 1))
        counts = [each] * len(nodes) if each else [max(1, tasks - len(nodes) + 1), *[1] * (len(nodes) - 1)]
        given = zip(nodes, (count * int(asked.get("cpus_per_task", 1)) for count in counts), strict=True)
        return {node: count for node, count in given if not job.nodes or node in hostlist.expand(job.nodes)}

    @staticmethod
    def _gres(job: FakeJob) -> list[Gres]:
        texts = (job.asked.get("tres_per_node") or job.asked.get("gres") or "").split(",")
        return [gres_text.read(text) for text in texts if text]

    @staticmethod
    def _memory(job: dict[str, Any]) -> int:
        value = job.get("memory_per_node", 0)
        return int(value["number"] if isinstance(value, dict) else value)

    def _nodes(self, query: str, old: bool) -> Answer:
        """Answer "unchanged" like Slurm: only if the last change was in a second before that of ``update_time``."""
        nodes = [self._node(node, old) for node in self.nodes.values()]
        if nodes != self._nodes_told:
            self._nodes_told, self._nodes_changed = nodes, int(time.time())
        since = re.search(r"update_time=(\d+)", query)
        if since and self._nodes_changed < int(since[1]):
            return 304, b""
        if since and old:
            return self._error(500, -1, "Unspecified error", nodes=[])
        return self._json(200, {"nodes": nodes, "last_update": _number(int(time.time()))})

    def _list(self, version: ApiVersion, query: str) -> Answer:
        since = re.search(r"update_time=(\d+)", query)
        if since and self._changed < int(since[1]):
            if not version.numbers:
                return 304, b""
            return self._json(
                200, {"jobs": [], "last_update": _number(0), "warnings": [{"description": "No job changes"}]}
            )
        jobs = [self._job(job, version) for job in self.jobs.values()]
        return self._json(200, {"jobs": jobs, "last_update": _number(self._changed)})

    def _one(self, version: ApiVersion, method: str, job_id: int, body: bytes) -> Answer:
        old, job = not version.numbers, self.jobs.get(job_id)
        if job is None:
            if method == "DELETE" and not old:
                return self._json(200, {"status": [{"error": {"code": 2017, "message": "Invalid job id specified"}}]})
            return self._error(500 if old else 404, 2017, "Invalid job id specified", jobs=[])
        if method == "DELETE":
            for part in self.whole(job_id):
                if part.states[0] in ("PENDING", "RUNNING"):
                    self.end(part.job_id, "CANCELLED")
            return self._json(200, {} if old else {"status": [{"error": {"code": 0}}]})
        kept = json.loads(body).get("nodelist" if old else "required_nodes") if method == "POST" else None
        if kept and job.states[0] == "RUNNING":
            return self._shrink(job, kept if isinstance(kept, str) else ",".join(kept), old)
        if method == "POST" and version.exclude_nodes:
            if job.states[0] != "PENDING":
                return self._error(422, 2073, "Job is no longer pending execution", results=None)
            change = {k: [n for n in v if n] for k, v in json.loads(body).items() if v}
            named = hostlist.expand(",".join([*change.get("excluded_nodes", []), *job.asked.get("excluded_nodes", [])]))
            if not set(named) <= self.nodes.keys():  # the old names too: the job can no longer be updated
                return self._error(422, 2018, "Invalid node name specified", results=None)
            job.asked.update(change)
            self.touch()
            if job.reason == "PartitionConfig":  # carried out nevertheless
                return self._error(422, 2015, "Requested partition configuration not available now", results=None)
            return self._json(200, {"results": None})
        return self._json(200, {"jobs": [self._job(part, version) for part in self.whole(job_id)]})

    def _shrink(self, job: FakeJob, kept: str, old: bool) -> Answer:
        """Let a running job keep some of its nodes: the batch host is one of them."""
        nodes = hostlist.expand(kept)
        host = {self._batch_host(job)} if job.batch else set()
        if not host <= set(nodes) <= set(hostlist.expand(job.nodes)):
            return self._error(500 if old else 422, 2018, "Invalid node name specified", results=None)
        job.batch_host = job.batch_host or self._batch_host(job)
        job.nodes = hostlist.compress(nodes)
        self.touch()
        return self._json(200, {"results": None})

    @staticmethod
    def _batch_host(job: FakeJob) -> str:
        return job.batch_host or next(iter(hostlist.expand(job.nodes)), "")

    def _resources(self, job_id: int) -> Answer:
        job = self.jobs.get(job_id)
        if job is None or not job.nodes:
            return self._error(500, 2017, "Invalid job id specified", nodes=[])
        gres = [{"name": one.name, "type": one.type, "count": one.count, "index": "N/A"} for one in self._gres(job)]
        fixed = {"sockets_per_node": 128, "cores_per_socket": 1, "mem_alloc": self._memory(job.asked), "gres": gres}
        each = self._cpus(job).items()
        return self._json(
            200, {"nodes": [{"node": node, "core_bitmap": f"{2**count - 1:#x}", **fixed} for node, count in each]}
        )

    def _job(self, job: FakeJob, version: ApiVersion) -> dict[str, Any]:
        number: Callable[[int], Any] = _number if version.numbers else int
        flags = [state for state in job.states[1:] if state not in ("POWER_UP_NODE",)]
        nodes = len(hostlist.expand(job.nodes)) or 1
        each = self._cpus(job)
        cpus, memory = sum(each.values()), self._memory(job.asked) * nodes
        given = f"cpu={cpus},mem={memory}M,node={nodes},billing={cpus}" if job.nodes else ""
        per_node = job.asked.get("tres_per_node") or ",".join(
            f"gres:{one}" for one in job.asked.get("gres", "").split(",") if one
        )
        return {
            "job_id": job.job_id,
            "het_job_id": number(job.leader),
            "het_job_offset": number(job.offset),
            # before the API had lists, one state hides the other
            "job_state": job.states if version.lists else (flags or job.states)[0],
            "state_reason": job.reason,
            "state_description": "",
            "name": job.asked.get("name", ""),
            "partition": job.asked.get("partition", "main"),
            "user_name": job.user,
            "admin_comment": job.asked.get("admin_comment", ""),
            "comment": job.asked.get("comment", ""),
            "nodes": job.nodes,
            "batch_flag": job.batch,
            "batch_host": self._batch_host(job),
            "node_count": number(nodes),
            "cpus": number(cpus),
            "tasks": number(job.asked.get("tasks", 1)),
            "tres_alloc_str": given,
            "tres_per_node": per_node,
            "excluded_nodes": ",".join(job.asked.get("excluded_nodes", [])),
            "submit_time": number(job.submit_time),
            "start_time": number(job.start_time),
            "end_time": number(job.end_time),
            "time_limit": job.asked.get("time_limit") or number(0),
            "restart_cnt": job.restarts,
            "exit_code": {"return_code": _number(0)} if version.numbers else 0,
            "job_resources": None if version.numbers or not job.nodes else self._old_resources(job, each),
            "gres_detail": [] if version.numbers else [",".join(map(str, self._gres(job)))] * nodes,
        }

    def _old_resources(self, job: FakeJob, cpus: dict[str, int]) -> dict[str, Any]:
        """Return what 22.05 shows in every answer; later versions do so with DETAIL only, which nothing requests."""
        memory, core = self._memory(job.asked), {"cores": {"0": "allocated"}}
        each = [
            {"nodename": node, "memory_allocated": memory, "sockets": {str(number): core for number in range(count)}}
            for node, count in cpus.items()
        ]
        return {"nodes": job.nodes, "allocated_cpus": sum(cpus.values()), "allocated_nodes": each}

    def _node(self, node: FakeNode, old: bool) -> dict[str, Any]:
        common = {"name": node.name, "reason": node.reason, "cpus": node.cpus, "real_memory": node.memory}
        common |= {"gres": node.gres, "partitions": self.partitions}
        if old:
            base = sorted(node.states - {"DRAIN"})[0].lower()
            return {**common, "state": base, "state_flags": sorted(node.states & {"DRAIN"}), "features": "fast"}
        return {**common, "state": sorted(node.states), "features": ["fast"]}

    def _partition(self, name: str, version: ApiVersion) -> dict[str, Any]:
        nodes, default = hostlist.compress(self.nodes), name == self.partitions[0]
        if not version.numbers:
            return {"name": name, "nodes": nodes, "flags": ["default"] if default else [], "max_time_limit": -1}
        flags = {"flags": ["DEFAULT"] if default else []} if version.default_partition else {}
        infinite = {"set": False, "infinite": True, "number": 0}
        return {"name": name, "nodes": {"configured": nodes}, "maximums": {"time": infinite}, **flags}

    def not_accepted(self) -> Answer:
        """Answer like slurmrestd if slurmctld rejects the token."""
        if self.release == "22.05.8":
            return self._error(500, -1, "Unspecified error", jobs=[])
        return self._error(511, 1007, "Protocol authentication error")

    def _set_node(self, name: str, asked: dict[str, Any]) -> Answer:
        node = self.nodes.get(name)
        if node is None:
            return self._error(422, 2018, "Invalid node name specified")
        for state in asked["state"]:
            if state == "UNDRAIN":
                node.states.discard("DRAIN")
                node.reason = (asked.get("reason") or node.reason) if self.release == "24.11.5" else ""
            else:
                node.states.add(state)
                node.reason = asked.get("reason", "")
        return self._json(200, {})

    def _error(self, http: int, code: int, text: str, submit: bool = False, **more: Any) -> Answer:
        key = "error_code" if submit else "error_number"
        return self._json(http, {"errors": [{key: code, "error": text, "source": "fake"}], **more})

    def _json(self, status: int, data: dict[str, Any], bare: bool = False) -> Answer:
        key = "Slurm" if self.release == "22.05.8" else "slurm"
        meta = (
            {} if bare else {"meta": {"plugin": {"type": "openapi/fake"}, key: {"release": self.release}}, "errors": []}
        )
        return status, json.dumps({**meta, **data}).encode()


def _number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    slurm: FakeSlurm

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self) -> None:
        slurm = self.slurm
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        slurm.calls.append((self.command, self.path))
        fault = slurm.fault(self.command, self.path) if slurm.fault else None
        if isinstance(fault, tuple):
            return self._send(*fault)
        if fault in ("hang", "reset"):
            return self._break(fault)
        token = self.headers.get("X-SLURM-USER-TOKEN")
        if not token:
            return self._send(401, b"Authentication failure")
        if slurm.accepted is not None and token not in slurm.accepted and not self.path.endswith("/ping"):
            return self._send(*slurm.not_accepted())
        answer = slurm.answer(self.command, self.path, body)
        return self._break(fault.removesuffix("-after")) if fault else self._send(*answer)

    do_GET = do_POST = do_DELETE = _serve  # noqa: N815

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if body[:1] == b"{" else "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _break(self, how: str) -> None:
        self.close_connection = True
        if how == "hang":
            self.slurm._closing.wait()
        else:  # with this option, close() sends a reset
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


def paths(calls: Iterable[tuple[str, str]]) -> list[str]:
    """Return calls without the prefix of the path: ``GET jobs/state``."""
    return [f"{method} {re.sub(r'^/slurm/v[0-9.]+/', '', path)}" for method, path in calls]
