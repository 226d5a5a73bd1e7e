"""HTCondor, by its commands: condor_submit, condor_q, condor_history, condor_rm and condor_status."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Mapping

from pydantic import Field

from bridge.errors import BatchError
from bridge.logs import kv
from bridge.script.settings import AbsolutePath, Seconds, SettingsPart, Words
from bridge.site.batch import condor_text as text
from bridge.site.batch.batch_interface import (
    Amount,
    BatchJob,
    BatchJobRequest,
    BatchSystem,
    Capacity,
    Environment,
    Site,
    job_environment,
)
from bridge.site.batch.commands import Commands, command_environment, portions
from bridge.site.files.atomic_files import write
from bridge.site.files.beneath import Below

log = logging.getLogger(__name__)

MIB = 2**20
GPU_RESOURCE = "nvidia.com/gpu"
KEPT = ("CONDOR_CONFIG", "LD_LIBRARY_PATH", "KRB5CCNAME", "BEARER_TOKEN_FILE", "_CONDOR_SEC_TOKEN_DIRECTORY")
LEAVE = 600
"""Seconds that a completed job remains in the queue, for :meth:`CondorBatch.jobs`."""
_JOB_ID = re.compile(r"^(\d+\.\d+)(?: - \d+\.\d+)?\s*$", re.MULTILINE)
"""A line of condor_submit's output: the first and the last job of the submission."""
_LATER = re.compile(
    r"failed to connect|can't (?:connect|find)|unable to (?:connect|locate)|timed? ?out|too many|authenticat|exceed"
    r"|communication error|no route|unavailable",
    re.IGNORECASE,
)
_UNKNOWN = re.compile(r"failed to commit|disconnect|connection (?:lost|closed|reset)|commit.*timed? out", re.IGNORECASE)


class HTCondor(SettingsPart):
    """``[htcondor]``: used with ``batch.kind = "htcondor"``."""

    read_at_start = True
    bin_dir: AbsolutePath | None = Field(
        None, examples=["/opt/condor/bin"], description="Directory of condor_submit, ...; default: PATH."
    )
    timeout: Seconds = Field(60, description="Seconds for each command.")
    schedd: str | None = Field(
        None, examples=["schedd.example"], description="Name of the schedd; default: this machine's."
    )
    pool: str | None = Field(
        None, examples=["collector.example:9618"], description="Address of the collector; default: as configured."
    )
    submit_lines: Words = Field([], description='More lines of submit files, e.g. +ProjectName = "x".')
    environment: Environment = Field({})
    remove_held: bool = Field(True, description="Remove held jobs, with the reason of the hold.")


class CondorBatch(BatchSystem):
    """One schedd, as the user who runs the submitter."""

    kind = "htcondor"
    settings = HTCondor
    period = 10.0

    def __init__(self, config: HTCondor, site: Site) -> None:
        self._config = config
        self._environment = job_environment(self._config.environment)
        self._commands = Commands(
            self._config.bin_dir, self._config.timeout, command_environment(job_environment({}), KEPT)
        )

    def version(self) -> str:
        """Return the version of the commands."""
        found = re.search(r"CondorVersion: (\S+)", self._commands.ask("condor_version").out)
        return f"htcondor {found[1] if found else ''}".strip()

    # --- one job ------------------------------------------------------------------------------------------------------
    def submit(self, request: BatchJobRequest) -> str:
        """Run condor_submit with a wrapper that starts the job's own script and contains no secret."""
        if request.flags:
            raise BatchError(f"flags {list(request.flags)}: this batch system takes none")
        folder = request.folder
        write(Below(str(folder), "wrapper.sh"), text.WRAPPER, mode=0o700)
        write(Below(str(folder), "job.sub"), self.submit_file(request).encode())
        command = ("condor_submit", *self._where(), "-terse", "job.sub")
        return self._commands.submit(request.uid, *command, cwd=folder, job_id=_JOB_ID, unknown=_UNKNOWN, later=_LATER)

    def submit_file(self, request: BatchJobRequest) -> str:
        """Return the submit file of a job."""
        folder = text.value(str(request.folder))
        # a job that started and lost its machine must not start again; one that runs too long ends
        remove = ["(JobStatus == 1 && NumJobStarts > 0)"]
        if request.time_limit is not None:
            limit = math.ceil(request.time_limit)
            remove.append(f"(JobStatus == 2 && time() - EnteredCurrentStatus > {limit})")
        lines = {
            "universe": "vanilla",
            "executable": f"{folder}/wrapper.sh",
            "initialdir": folder,
            "transfer_executable": "False",
            "should_transfer_files": "NO",
            "getenv": "False",
            "environment": text.environment(self._environment),
            "batch_name": request.name,
            f"+{text.UID}": text.string(request.uid),
            "request_cpus": str(request.cpus),
            "request_memory": str(max(1, math.ceil(request.memory / MIB))),
            "notification": "Never",
            "on_exit_remove": "True",
            "periodic_remove": " || ".join(remove),
            "leave_in_queue": f"JobStatus == 4 && time() - EnteredCurrentStatus < {LEAVE}",
        }
        if request.gpus:
            lines["request_gpus"] = str(request.gpus)
        more = [*self._config.submit_lines, *(request.flavor.flags if request.flavor else ())]
        return "\n".join([*(f"{key} = {value}" for key, value in lines.items()), *more, "queue 1", ""])

    def find(self, uid: str) -> str | None:
        """Search in the queue, then in the history."""
        wanted = f"{text.UID} == {text.string(uid)}"
        jobs = text.jobs(self._query(wanted)) or text.jobs(self._history(wanted, "-limit", "1"))
        return min((job.id for job in jobs), default=None)

    def cancel(self, ids: Collection[str]) -> None:
        """Run condor_rm."""
        self._remove(ids, "podbridge cancelled the job")

    def _remove(self, ids: Collection[str], why: str) -> None:
        for some in portions(ids):
            said = self._commands.run("condor_rm", *self._where(), "-reason", why, *some)
            gone = re.search(r"not found|couldn't find|already|no jobs matched|no result", said.err + said.out, re.I)
            if said.code != 0 and not gone:
                raise BatchError(f"condor_rm: {said.words}", retryable=True)

    # --- all jobs -----------------------------------------------------------------------------------------------------
    def jobs(self) -> dict[str, BatchJob]:
        """Run condor_q, once for all jobs; remove held jobs if ``remove_held`` is set."""
        found = text.jobs(self._query(f"{text.UID} =!= undefined"), held_ends=self._config.remove_held)
        held = [job.id for job in found if job.reason in text.HELD_REASONS and job.phase == "ended"]
        if held:
            try:
                self._remove(held, "held: podbridge ends it")
            except BatchError as error:
                log.warning("held jobs not removed yet", extra=kv(why=error))
        return {job.id: job for job in found}

    def past(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """Run condor_history. It prints the newest first: an older job with the same id is from before a reset."""
        result: dict[str, BatchJob] = {}
        wanted = sorted(ids)
        for start in range(0, len(wanted), 100):
            self._read_past(wanted[start : start + 100], result)
        return {job.id: job for job in result.values() if job.phase == "ended"}

    def _read_past(self, ids: list[str], result: dict[str, BatchJob]) -> None:
        """Add the newest record of each job to ``result``.

        With ``-limit``, condor_history ends at the last of the records instead of reading the whole history. If an id
        has several, they can take the places of other jobs, which are then searched again.
        """
        left = ids
        while left:
            test = " || ".join(f"(ClusterId == {c} && ProcId == {p})" for c, _, p in (i.partition(".") for i in left))
            found = text.jobs(self._history(f"{text.UID} =!= undefined && ({test})", "-limit", str(len(left))))
            for job in found:
                result.setdefault(job.id, job)
            asked, left = left, [job_id for job_id in left if job_id not in result]
            if len(found) < len(asked) or len(left) == len(asked):  # it has read the whole history
                return

    def _query(self, constraint: str) -> str:
        attributes = ",".join(text.ATTRIBUTES)
        return self._commands.ask(
            "condor_q", *self._where(), "-json", "-attributes", attributes, "-constraint", constraint
        ).out

    def _history(self, constraint: str, *options: str) -> str:
        attributes = ",".join(text.ATTRIBUTES)
        where = ["-name", self._config.schedd] if self._config.schedd else []
        return self._commands.ask(
            "condor_history", *where, "-json", "-attributes", attributes, *options, "-constraint", constraint
        ).out

    def capacity(self) -> Capacity:
        """Run condor_status and add up the slots."""
        pool = ["-pool", self._config.pool] if self._config.pool else []
        said = self._commands.ask("condor_status", *pool, "-json", "-attributes", ",".join(text.SLOT_ATTRIBUTES))
        total, free = text.slots(said.out)
        return Capacity(_amount(total), _amount(free))

    def _where(self) -> list[str]:
        config = self._config
        return [*(["-pool", config.pool] if config.pool else []), *(["-name", config.schedd] if config.schedd else [])]


def _amount(found: Mapping[str, int]) -> Amount:
    gpus = {GPU_RESOURCE: found["GPUs"]} if found["TotalGPUs"] else {}
    return Amount(found["Cpus"], found["Memory"] * MIB, gpus)
