"""The client of slurmrestd: one method for each thing that podbridge asks of Slurm.

Costs in the docstrings were measured on 2 cores with Slurm 22.05.8, 24.11.5 and 26.05.5; where one number stands for
all three it is the slowest. slurmrestd answers with four threads by default: calls that slurmctld does not answer block
them for 10 s each, and the others wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal, TypeVar
from urllib.parse import quote

from bridge.clock import Clock, SystemClock
from bridge.config import Config
from bridge.errors import SlurmError, SlurmRefusedError, SlurmUnavailableError
from bridge.slurm import answers, hostlist, parsers
from bridge.slurm.auth import TokenSource, claims
from bridge.slurm.models import ApiVersion, Job, JobRequest, JsonObject, Node, Partition, Submitted
from bridge.slurm.transport import Transport
from bridge.slurm.versions import VERSIONS, newest_common

T = TypeVar("T")

MOST_PATIENCE = 16.0
"""Times ``readTimeout`` that a list of all jobs may take."""
SAMPLES = 16
"""Single jobs over which their size is averaged."""


class SlurmClient:
    """Speaks to one slurmrestd, from any thread. Every call has a time limit and raises only ``Slurm...Error``.

    Nothing is tried twice here. Writes tell "surely not carried out" (:class:`SlurmUnavailableError`) from "perhaps"
    (:class:`SlurmUnknownOutcomeError`).
    """

    def __init__(
        self, config: Config, token: Path | str | None, *, pool_size: int = 16, clock: Clock | None = None
    ) -> None:
        self._tokens = TokenSource(token, config.slurm.user_name)
        self._clock = clock or SystemClock()
        self._transport = Transport(config, self._tokens, pool_size=pool_size, clock=self._clock)
        self._read_timeout = config.slurm.read_timeout
        self._patience: dict[str, float] = {}
        self.job_bytes = 9000.0
        """Estimate of the bytes of one job in a list, from the answers so far."""
        self._pinned = config.slurm_api_version
        self._negotiated: tuple[ApiVersion, str] | None = None
        self._doubted = False

    # --- what is spoken -----------------------------------------------------------------------------------------------
    @property
    def version(self) -> ApiVersion:
        """The newest API version that both sides know, or the pinned one.

        Asked for by a ping of each, newest first, until slurmrestd knows one: at most eight answers of 200 bytes, 2 ms
        each (``/openapi/v3`` would be 0.2 to 0.9 MB). After slurmrestd has said 404 to a call, the next asks again.
        Raises :class:`ConfigError` where the pinned version is not served.
        """
        return (self._negotiated or self._ask())[0]

    @property
    def slurm_release(self) -> str:
        """Release of slurmrestd, e.g. ``26.05.5``."""
        return (self._negotiated or self._ask())[1]

    def token_expires_in(self) -> float | None:
        """Say how many seconds the token is good for by this machine's clock; ``None`` where it does not tell."""
        end = claims(self._tokens.token).get("exp")
        return end - self._clock.time() if isinstance(end, int | float) else None

    @property
    def user_name(self) -> str:
        """The Slurm user that podbridge acts as."""
        return self._tokens.user_name

    def _ask(self) -> tuple[ApiVersion, str]:
        # several threads may ask at once: better than all waiting for one that hangs
        found = self._negotiated = self._negotiate()
        self._doubted = False
        return found

    def _negotiate(self) -> tuple[ApiVersion, str]:
        for name in [self._pinned] if self._pinned else reversed(VERSIONS):
            status, body = self._transport.send("GET", f"/slurm/{name}/ping", "ping")
            data = answers.own(body)
            if data is not None:  # slurmrestd knows the version, whatever slurmctld does
                return newest_common([name], self._pinned), answers.release(data)
            if status != 404:
                answers.judge(None, "ping", status, body)
        served = self._served()
        if not served:
            raise SlurmUnavailableError("ping: HTTP 404 for every API version: not slurmrestd's address?", status=404)
        return newest_common(served, self._pinned), ""

    def _served(self) -> set[str]:
        _, body = self._transport.send("GET", "/openapi/v3", "openapi")
        data = answers.json_object(body)
        paths = data.get("paths") if data else None
        return {path.split("/")[2] for path in paths or () if path.startswith("/slurm/v")}

    def _call(self, endpoint: str, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        return self._sized(endpoint, method, path, body)[0]

    def _sized(
        self, endpoint: str, method: str, path: str, body: JsonObject | None = None, patience: float = 1
    ) -> tuple[JsonObject, int]:
        """Return the data of an answer and its size in bytes."""
        version = self._ask()[0] if self._doubted else self.version
        status, answer = self._transport.send(method, f"/slurm/{version.name}/{path}", endpoint, body, patience)
        if status == 404 and answers.own(answer) is None:
            self._doubted = True
        return answers.judge(version, endpoint, status, answer), len(answer)

    # --- jobs ---------------------------------------------------------------------------------------------------------
    def ping(self) -> None:
        """Ask whether slurmctld answers; raises :class:`SlurmUnavailableError` if not. 400 to 700 bytes, 3 ms.

        A token that slurmctld does not accept looks the same here. 9 to 10 s where slurmctld is down (22.05) or hangs.
        """
        pings = self._call("ping", "GET", "ping").get("pings")
        for entry in pings if isinstance(pings, list) else []:
            if isinstance(entry, dict) and (entry.get("responding") is True or entry.get("ping") == "UP"):
                return
        raise SlurmUnavailableError("ping: slurmctld does not answer slurmrestd, or does not accept the token")

    def server_time(self) -> int:
        """Ask what time slurmctld has, in epoch seconds (``diag``). 3 to 7 kB, 4 ms."""
        statistics = self._call("diag", "GET", "diag").get("statistics")
        now = parsers.number(statistics.get("req_time")) if isinstance(statistics, dict) else 0
        if not now:
            raise SlurmUnavailableError("diag: slurmrestd's answer has no time")
        return int(now)

    def submit(self, request: JobRequest) -> Submitted:
        """Queue a placeholder job. 4 ms; 1,000 a second over 8 connections, 100 where batch jobs start meanwhile."""
        data = self._call("submit", "POST", "job/submit", parsers.job_body(request, self.version))
        return Submitted(data["job_id"], answers.warning(data))

    def cancel(self, job_id: int) -> None:
        """End a job, waiting or running; an unknown or ended one is fine. 2 to 5 ms, external jobs 3.7 ms.

        Never for a job that the token's user may not cancel: slurmctld 24.11.5 and 26.05.5 were seen to lock up for
        good when asked so.
        """
        self._call("cancel", "DELETE", f"job/{job_id}")

    def job(self, job_id: int) -> Job:
        """Ask for one job. 4 kB (22.05) to 9 kB, 3 to 5 ms; without ``flags=MIXED`` 47 kB on a node of 128 CPUs.

        Raises :class:`SlurmNotFoundError` only where slurmctld itself has said that it knows no such job.
        """
        query = "?flags=MIXED" if self.version.numbers else ""
        data, size = self._sized("job", "GET", f"job/{job_id}{query}")
        self.job_bytes += (size - self.job_bytes) / SAMPLES
        for job in self._read_jobs(data):
            if job.job_id == job_id:
                return job
        raise SlurmUnavailableError(f"job: slurmrestd's answer has no job {job_id}")

    def allocation(self, job_id: int) -> tuple[str, ...]:
        """Ask which nodes a running job has (see ``version.allocations``). 0.7 kB, half of what :meth:`job` costs.

        Raises :class:`SlurmRefusedError` where it has none, because it waits, has ended or was never there.
        """
        data = self._call("resources", "GET", f"resources/{job_id}")
        found = tuple(entry["node"] for entry in data["nodes"] if isinstance(entry, dict) and entry.get("node"))
        if not found:
            raise SlurmRefusedError(f"resources: job {job_id} has no nodes")
        return found

    def jobs(self) -> list[Job]:
        """Ask for all jobs, without DETAIL. 4 kB a job on 22.05, 8 to 9 kB on newer ones; 0.85 s for 2,200 jobs."""
        return self._read_jobs(self._list("?flags=MIXED" if self.version.numbers else ""))

    def jobs_changed_since(self, moment: int) -> list[Job] | None:
        """Ask for all jobs if any has changed since ``moment`` (slurmctld's clock), else ``None``: 0 bytes, 2 ms.

        Never only the changed ones: Slurm tells all or nothing.
        """
        data = self._list(f"?update_time={moment}" + ("&flags=MIXED" if self.version.numbers else ""))
        # from v0.0.39 on nothing new is 200 with an empty list that was never dated
        if not data or (not data["jobs"] and not parsers.number(data.get("last_update"))):
            return None
        return self._read_jobs(data)

    def _list(self, query: str) -> JsonObject:
        """Ask for all jobs."""
        try:
            data, size = self._patiently("jobs", f"jobs{query}")
        except SlurmUnavailableError:
            self.job_bytes *= 2
            raise
        if data.get("jobs"):
            self.job_bytes = size / len(data["jobs"])
        return data

    def _patiently(self, endpoint: str, path: str) -> tuple[JsonObject, int]:
        """Ask for a list of all jobs; where that takes too long, the next call to the endpoint has twice the time.

        slurmrestd works on after the caller has given up: asked again with the same time, it never answers.
        """
        patience, began = self._patience.get(endpoint, 1.0), self._clock.monotonic()
        try:
            return self._sized(endpoint, "GET", path, patience=patience)
        except SlurmUnavailableError:
            if self._clock.monotonic() - began >= patience * self._read_timeout:
                self._patience[endpoint] = min(2 * patience, MOST_PATIENCE)
            raise

    def job_states(self) -> dict[int, frozenset[str]]:
        """Ask for the states of all jobs (see ``version.job_states``). 80 bytes a job; 14 ms for 2,200.

        slurmrestd needs time that grows with the square of their number (26.05: it frees a list from its front, and
        goes through all that is left for each entry).
        """
        data = self._patiently("jobs/state", "jobs/state")[0]
        return parsers.read_states(entry for entry in data["jobs"] if isinstance(entry, dict))

    def set_excluded_nodes(self, job_id: int, nodes: Iterable[str]) -> None:
        """Change which nodes a waiting job must not get; none is allowed. 3 ms.

        Raises :class:`SlurmRefusedError` where the job does not wait any more or the API can't do it (22.05).
        """
        if not self.version.exclude_nodes:
            raise SlurmRefusedError(f"API version {self.version.name} of slurmrestd can't exclude nodes")
        # an empty list would change nothing, an empty name does
        self._call("set_job", "POST", f"job/{job_id}", {"excluded_nodes": [hostlist.compress(nodes)]})

    def _read_jobs(self, data: JsonObject) -> list[Job]:
        own_user = self.user_name
        return _read_all(data["jobs"], lambda obj: parsers.read_job(obj, own_user))

    # --- nodes --------------------------------------------------------------------------------------------------------
    def nodes(self) -> list[Node]:
        """Ask for all nodes. 1.3 kB (22.05) to 2.5 kB a node; 4 ms for 4, 0.2 s for 1,000."""
        return _read_all(self._call("nodes", "GET", "nodes")["nodes"], parsers.read_node)

    def nodes_since(self, moment: int) -> tuple[list[Node], int] | None:
        """Ask for all nodes if any has changed since ``moment``, else ``None``: 0 bytes, 2 ms.

        ``moment`` is what an earlier call returned beside the nodes (slurmctld's clock), 0 for the first one.
        """
        data: JsonObject = {}
        if moment:
            try:
                data = self._call("nodes", "GET", f"nodes?update_time={moment}")
            except SlurmError:
                # 22.05 answers 304 where nothing has changed, and 500 instead of nodes where something has; so does
                # 24.11 unless the partitions have changed, too
                moment = 0
            else:
                if not data or (not data["nodes"] and not parsers.number(data.get("last_update"))):
                    return None
                if not self.version.numbers:
                    moment = 0
        # by slurmctld's own clock, read beforehand: no change can slip through
        now = 0 if self.version.numbers else self.server_time()
        data = data if moment else self._call("nodes", "GET", "nodes")
        return _read_all(data["nodes"], parsers.read_node), now or int(parsers.number(data.get("last_update")))

    def partitions(self) -> list[Partition]:
        """Ask for all partitions. 1 to 3 kB a partition, 4 ms. A single one is the default whether told or not."""
        found = _read_all(self._call("partitions", "GET", "partitions")["partitions"], parsers.read_partition)
        if len(found) == 1 and not found[0].default:
            only = found[0]
            return [Partition(only.name, only.nodes, default=True, max_minutes=only.max_minutes)]
        return found

    def set_node(self, name: str, state: Literal["DRAIN", "UNDRAIN"], reason: str = "") -> None:
        """Drain a node or take its drain back; both may be repeated. 3 ms.

        24.11 keeps the old reason on a node after UNDRAIN, 26.05 empties it. Raises :class:`SlurmRefusedError` where
        the API can't do it (22.05), :class:`SlurmNotFoundError` for a node that Slurm does not know.
        """
        if not self.version.node_updates:
            raise SlurmRefusedError(f"API version {self.version.name} of slurmrestd can't drain nodes")
        body: JsonObject = {"state": [state]} | ({"reason": reason} if reason else {})
        self._call("set_node", "POST", f"node/{quote(name, safe='')}", body)


def _read_all(entries: Iterable[object], read: Callable[[JsonObject], T]) -> list[T]:
    """Read every entry; one that can't be read makes the whole answer worthless, or a job would seem to be gone."""
    found = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise SlurmUnavailableError("slurmrestd's answer has something else in place of an object")
        try:
            found.append(read(entry))
        except ValueError as error:
            raise SlurmUnavailableError(f"slurmrestd's answer can't be read: {error}") from error
    return found
