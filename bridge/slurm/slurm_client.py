"""The client of slurmrestd: one method for each request that podbridge sends.

The docstrings state the size and the time of each answer, measured on 2 cores with Slurm 22.05.8, 24.11.5 and 26.05.5;
a single number is that of the slowest version. slurmrestd has four threads by default. A request that slurmctld does
not answer blocks one of them for 10 s, and other requests wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from bridge.clock import Clock, SystemClock
from bridge.config.hub import Config
from bridge.errors import SlurmError, SlurmFederationError, SlurmRefusedError, SlurmUnavailableError
from bridge.slurm import components, hostlist, job_resources, parsers, slurm_answers, slurm_values
from bridge.slurm.auth import TokenSource, expiry
from bridge.slurm.cancelling import Cancellations
from bridge.slurm.external_nodes import ExternalNode, conf_line
from bridge.slurm.job_resources import NodeResources
from bridge.slurm.models import HIGHEST_ID, Job, JobRequest, JsonObject, Node, Partition, SubmissionResult
from bridge.slurm.slurm_answers import read_all
from bridge.slurm.slurm_transport import Negotiation, Patience, Transport
from bridge.slurm.versions import ApiVersion

MOST_IDS = 2500
"""Number of ids in one request. slurmrestd 24.11 and 26.05 refuse a request line of more than 128 KiB."""
LIST_JOBS = 12_000.0
"""Number of jobs whose states slurmrestd lists in one second; twice as many take four seconds."""
SAMPLES = 16
"""Number of answers about single jobs over which their size is averaged."""


class SlurmClient:
    """A client of one slurmrestd, for any thread. Every call has a time limit and raises only ``Slurm...Error``.

    No call is repeated. A write raises :class:`SlurmUnavailableError` if it was certainly not carried out, and
    :class:`SlurmUnknownOutcomeError` if it may have been carried out. The id of a heterogeneous job is that of its
    leader; :meth:`allocation`, :meth:`resources` and :meth:`set_excluded_nodes` are for one component.
    """

    def __init__(
        self, config: Config, token: Path | str | None, *, pool_size: int = 16, clock: Clock | None = None
    ) -> None:
        self._tokens = TokenSource(token, config.slurm.user_name)
        self._clock = clock or SystemClock()
        self._transport = Transport(config, self._tokens, pool_size=pool_size, clock=self._clock)
        self._patience = Patience(config.slurm.read_timeout, self._clock)
        self.job_bytes = 9000.0
        self.array_tasks: Counter[frozenset[str]] = Counter()
        """Estimate of the bytes of one job in a list, from the answers so far."""
        self.cancellations = Cancellations(self._clock)
        self._negotiation = Negotiation(self._transport, config.slurm_api_version)

    # --- versions -----------------------------------------------------------------------------------------------------
    @property
    def version(self) -> ApiVersion:
        """The newest API version that podbridge and slurmrestd know, or the pinned one: see :class:`Negotiation`."""
        return self._negotiation.version

    @property
    def slurm_release(self) -> str:
        """Release of slurmrestd, e.g. ``26.05.5``."""
        return self._negotiation.release

    def token_expires_in(self) -> float | None:
        """Return the seconds until the token expires by the local clock; ``None`` if the token has no ``exp``."""
        end = expiry(self._tokens.token)
        return None if end is None else end - self._clock.time()

    @property
    def user_name(self) -> str:
        """The Slurm user as which podbridge sends requests."""
        return self._tokens.user_name

    def _call(self, endpoint: str, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        return self._sized(endpoint, method, path, body)[0]

    def _sized(
        self, endpoint: str, method: str, path: str, body: JsonObject | None = None, patience: float = 1
    ) -> tuple[JsonObject, int]:
        """Return the data of an answer and its size in bytes."""
        version = self._negotiation.confirmed()
        status, answer = self._transport.send(method, f"/slurm/{version.name}/{path}", endpoint, body, patience)
        # slurmrestd was replaced and does not serve this version any more; a 404 with Slurm's own answer is about a job
        if status == 404 and slurm_answers.read_answer(answer) is None:
            self._negotiation.doubt()
        return slurm_answers.judge(version, endpoint, status, answer), len(answer)

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def ping(self) -> None:
        """Check that slurmctld answers; raises :class:`SlurmUnavailableError` if not. 400 to 700 bytes, 3 ms.

        It raises the same error for a token that slurmctld does not accept. It takes 9 to 10 s if slurmctld is down
        (22.05) or hangs.
        """
        pings = self._call("ping", "GET", "ping").get("pings")
        for entry in pings if isinstance(pings, list) else []:
            if isinstance(entry, dict) and (entry.get("responding") is True or entry.get("ping") == "UP"):
                return
        raise SlurmUnavailableError("ping: slurmctld does not answer slurmrestd, or does not accept the token")

    def server_time(self) -> int:
        """Return the time of slurmctld in seconds since the epoch (``diag``). 3 to 7 kB, 4 ms."""
        statistics = self._call("diag", "GET", "diag").get("statistics")
        now = slurm_values.number(statistics.get("req_time")) if isinstance(statistics, dict) else 0
        if not now:
            raise SlurmUnavailableError("diag: slurmrestd's answer has no time")
        return int(now)

    def submit(self, request: JobRequest) -> SubmissionResult:
        """Submit a placeholder job. 4 ms; 1,000 a second over 8 connections, 100 if batch jobs start meanwhile."""
        data = self._call("submit", "POST", "job/submit", parsers.job_body(request, self.version))
        # before the id is returned: a bind refuses a job that this process has cancelled
        self.cancellations.forget(data["job_id"])
        # the bits above MAX_JOB_ID name the cluster of a federation at which the job was submitted
        if data["job_id"] > HIGHEST_ID:
            outcome = self._cancel_federated(data["job_id"])
            raise SlurmFederationError(
                f"job {data['job_id']} {outcome}: this Slurm cluster is in a federation, which may run the job on "
                f"another cluster",
                hint="podbridge cannot keep a job on one cluster of a federation: an administrator removes the cluster "
                "from it (sacctmgr modify federation), or gives podbridge a cluster of its own",
            )
        return SubmissionResult(data["job_id"], slurm_answers.warning(data))

    def _cancel_federated(self, job_id: int) -> str:
        """Cancel a job of a federation; return what happened to it.

        ``DELETE job/{id}`` of slurmrestd 24.11.5 answers "Invalid job id" for the id of a federation, and the job runs
        on; ``DELETE jobs/``, which came with ``jobs/state/``, cancels it.
        """
        if not self.version.job_states:
            self.cancel(job_id)
            return f"may still run (end it with scancel {job_id})"
        with self.cancellations.sending(job_id):
            self._call("cancel", "DELETE", "jobs/", {"jobs": [str(job_id)]})
        return "was cancelled"

    def cancel(self, job_id: int) -> None:
        """Cancel a pending or running job; does nothing for an unknown or ended job. 2 to 5 ms, external jobs 3.7 ms.

        Do not call it for a job that the token's user may not cancel: slurmctld 24.11.5 and 26.05.5 then stop answering
        until they are restarted.
        """
        with self.cancellations.sending(job_id):
            self._call("cancel", "DELETE", f"job/{job_id}")

    def job(self, job_id: int) -> Job:
        """Return one job. 4 kB (22.05) to 9 kB, 3 to 5 ms; without ``flags=MIXED`` 47 kB on a node of 128 CPUs.

        The id of a leader returns the whole heterogeneous job, that of another component this component alone.
        Raises :class:`SlurmNotFoundError` only if slurmctld itself has reported that it knows no such job.
        """
        query = "?flags=MIXED" if self.version.numbers else ""
        data, size = self._sized("job", "GET", f"job/{job_id}{query}")
        self.job_bytes += (size - self.job_bytes) / SAMPLES
        for job in self._read_jobs(data):
            if job.job_id == job_id:
                return job
        raise SlurmUnavailableError(f"job: slurmrestd's answer has no job {job_id}")

    def allocation(self, job_id: int) -> tuple[str, ...]:
        """Return the nodes of a running job (see ``version.allocations``). 0.7 kB, half of the cost of :meth:`job`.

        Raises :class:`SlurmRefusedError` if the job has no nodes: it is pending, has ended or does not exist.
        """
        return tuple(entry["node"] for entry in self.allotted(job_id))

    def allotted(self, job_id: int) -> list[JsonObject]:
        """Return the resources of a running job on each of its nodes (:func:`bridge.slurm.allotments.of_nodes`).

        Raises the errors of :meth:`allocation`.
        """
        data = self._call("resources", "GET", f"resources/{job_id}")
        entries = [entry for entry in data["nodes"] if isinstance(entry, dict) and entry.get("node")]
        if not entries:
            raise SlurmRefusedError(f"resources: job {job_id} has no nodes")
        return entries

    def resources(self, job_id: int) -> dict[str, NodeResources]:
        """Return the cores and gres indices of a running job by node, from the same answer as :meth:`allocation`."""
        data = self._call("resources", "GET", f"resources/{job_id}")
        try:
            return {entry["node"]: job_resources.read(entry) for entry in data["nodes"]}
        except (ValueError, TypeError, KeyError) as error:
            raise SlurmUnavailableError(f"resources: an answer of slurmrestd cannot be read: {error}") from error

    def jobs(self, *, all_nodes: bool = False) -> list[Job]:
        """Return all jobs, without DETAIL. 4 kB a job on 22.05, 8 to 9 kB on newer versions; 0.85 s for 2,200 jobs.

        With ``all_nodes``, the jobs without pods have their nodes, too.
        """
        # without flags=MIXED, 24.11 and 26.05 list every core of a node: 46 kB a job on nodes with 128 CPUs, and
        # slurmrestd keeps gigabytes of memory after a few such answers
        return self._read_jobs(self._list("?flags=MIXED" if self.version.numbers else ""), all_nodes=all_nodes)

    def jobs_changed_since(self, moment: int) -> list[Job] | None:
        """Return all jobs if any has changed since ``moment`` (slurmctld's clock), else ``None``: 0 bytes, 2 ms.

        Slurm cannot return the changed jobs alone.
        """
        data = self._list(f"?update_time={moment}" + ("&flags=MIXED" if self.version.numbers else ""))
        # from v0.0.39 on, the answer without changes is 200 with an empty list and no last_update
        if not data or (not data["jobs"] and not slurm_values.number(data.get("last_update"))):
            return None
        return self._read_jobs(data)

    def _list(self, query: str) -> JsonObject:
        """Read a list of all jobs, and estimate the size of one job."""
        try:
            data, size = self._patience.call("jobs", partial(self._sized, "jobs", "GET", f"jobs{query}"))
        except SlurmUnavailableError:
            # too slow or too large: with a larger estimate, the next poll reads the jobs alone (QueryPlan.in_bulk)
            self.job_bytes *= 2
            raise
        if data.get("jobs"):
            self.job_bytes = size / len(data["jobs"])
        return data

    def job_states(self, ids: Sequence[int] | None = None) -> dict[int, frozenset[str]]:
        """Return the states of all jobs, or of those of ``ids`` that exist (see ``version.job_states``).

        40 to 80 bytes a job; 14 ms for 2,200 jobs. For all jobs, the time grows with the square of their number, 26 s
        for 60,000: slurmrestd 26.05 frees the list from its front and walks over the rest for each entry. For ids, it
        is 0.05 s for each request of ``MOST_IDS``.
        """
        if ids is None:
            data, _ = self._patience.call("jobs/state", partial(self._sized, "jobs/state", "GET", "jobs/state"))
            array_tasks = Counter[frozenset[str]]()
            listed = parsers.read_states((entry for entry in data["jobs"] if isinstance(entry, dict)), array_tasks)
            self.array_tasks = array_tasks
            return listed
        states_by_id: dict[int, frozenset[str]] = {}
        for first in range(0, len(ids), MOST_IDS):
            query = "&".join(f"job_id={job_id}" for job_id in ids[first : first + MOST_IDS])
            data = self._call("jobs/state", "GET", f"jobs/state?{query}")
            states_by_id |= parsers.read_states(entry for entry in data["jobs"] if isinstance(entry, dict))
        return states_by_id

    def estimate_list(self) -> float:
        """Return an estimate of the seconds that the list of the states of all jobs takes, from ``diag``. 4 ms.

        The next :meth:`job_states` of all jobs gets enough time for it.
        """
        seconds = (parsers.read_job_count(self._call("diag", "GET", "diag")) / LIST_JOBS) ** 2
        self._patience.expect("jobs/state", 2 * seconds)
        return seconds

    def set_excluded_nodes(self, job_id: int, nodes: tuple[str, ...]) -> None:
        """Set the nodes that Slurm must not allocate to a pending job or component; ``nodes`` may be empty. 3 ms.

        Raises :class:`SlurmRefusedError` if the job is not pending, or if the API version cannot do it (22.05).
        """
        if not self.version.exclude_nodes:
            raise SlurmRefusedError(f"API version {self.version.name} of slurmrestd can't exclude nodes")
        # Slurm ignores an empty list; an empty name clears the list
        self._call("set_job", "POST", f"job/{job_id}", {"excluded_nodes": [hostlist.compressed(nodes)]})

    def shrink(self, job_id: int, nodes: tuple[str, ...]) -> None:
        """Let a running job or component keep only ``nodes``, which it has now. 3 ms.

        Slurm takes the others from it at once; the state of the job does not change. The same request may be repeated.
        Raises :class:`SlurmRefusedError` if the job lacks one of the nodes, or if its batch host is not among them, and
        on 22.05 for a while after an earlier update. Do not call it for a pending job: these nodes would be the only
        ones on which it may start.
        """
        kept_nodes = hostlist.compressed(nodes)
        body: JsonObject = {"required_nodes": [kept_nodes]} if self.version.numbers else {"nodelist": kept_nodes}
        self._call("set_job", "POST", f"job/{job_id}", body)

    def _read_jobs(self, data: JsonObject, *, all_nodes: bool = False) -> list[Job]:
        own_user = self.user_name
        read = partial(parsers.read_component, own_user=own_user, all_nodes=all_nodes)
        return components.joined(read_all(data["jobs"], read))

    # --- nodes --------------------------------------------------------------------------------------------------------
    def nodes(self) -> list[Node]:
        """Return all nodes. 1.3 kB (22.05) to 2.5 kB a node; 4 ms for 4 nodes, 0.2 s for 1,000."""
        return read_all(self._call("nodes", "GET", "nodes")["nodes"], parsers.read_node)

    def nodes_since(self, moment: int) -> tuple[list[Node], int] | None:
        """Return all nodes and the time of the answer if any node has changed since ``moment``, else ``None``.

        ``moment`` is the time that an earlier call returned (slurmctld's clock), 0 for the first call. Without a change
        the answer has 0 bytes and takes 2 ms.
        """
        data: JsonObject = {}
        if moment:
            try:
                data = self._call("nodes", "GET", f"nodes?update_time={moment}")
            except SlurmError:
                # 22.05 answers 304 if no node has changed, and 500 instead of the nodes if one has; 24.11 does the
                # same unless the partitions have changed too
                moment = 0
            else:
                if not data or (not data["nodes"] and not slurm_values.number(data.get("last_update"))):
                    return None
                if not self.version.numbers:
                    moment = 0
        # the clock of slurmctld, read before the nodes: no change is missed
        now = 0 if self.version.numbers else self.server_time()
        data = data if moment else self._call("nodes", "GET", "nodes")
        return read_all(data["nodes"], parsers.read_node), now or int(slurm_values.number(data.get("last_update")))

    def partitions(self) -> list[Partition]:
        """Return all partitions. 1 to 3 kB a partition, 4 ms. A single partition is always the default one."""
        partitions = read_all(self._call("partitions", "GET", "partitions")["partitions"], parsers.read_partition)
        return [replace(partitions[0], default=True)] if len(partitions) == 1 else partitions

    def set_node(self, name: str, state: Literal["DRAIN", "UNDRAIN"], reason: str = "") -> None:
        """Drain a node, or undo its drain; both may be repeated. 3 ms.

        After UNDRAIN, 24.11 keeps ``reason`` (the old one if it is empty), 26.05 none. Raises
        :class:`SlurmRefusedError` for an API version without it (22.05), :class:`SlurmNotFoundError` for no such node.
        """
        if not self.version.node_updates:
            raise SlurmRefusedError(f"API version {self.version.name} of slurmrestd can't drain nodes")
        body: JsonObject = {"state": [state]} | ({"reason": reason} if reason else {})
        self._call("set_node", "POST", f"node/{quote(name, safe='')}", body)

    def node(self, name: str) -> Node | None:
        """Return one node; ``None`` if slurmctld knows no such node: the answer has no list of nodes. 2.5 kB, 3 ms."""
        nodes = self._call("node", "GET", f"node/{quote(name, safe='')}").get("nodes")
        parsed_nodes = read_all(nodes, parsers.read_node) if isinstance(nodes, list) else []
        return next((node for node in parsed_nodes if node.name == name), None)

    def add_external_node(self, node: ExternalNode, cluster: str) -> None:
        """Create an external node for the Kubernetes cluster with the UID ``cluster``. 2 to 5 ms.

        Raises :class:`SlurmRefusedError` if the API version cannot do it (before v0.0.44), and with the code
        ``ALREADY_EXISTS`` if Slurm has a node with this name.
        """
        if not self.version.external_nodes:
            raise SlurmRefusedError(f"API version {self.version.name} of slurmrestd can't create external nodes")
        self._call("add_node", "POST", "new/node", {"node_conf": conf_line(node, cluster)})

    def delete_node(self, name: str) -> None:
        """Delete a node that was created through the API; does nothing for an unknown node. 2 ms.

        Raises :class:`SlurmRefusedError` if the node has a job, or is a node of slurm.conf.
        """
        self._call("delete_node", "DELETE", f"node/{quote(name, safe='')}")
