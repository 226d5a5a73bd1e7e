"""HTCondor, by its commands: condor_submit, condor_q, condor_history, condor_rm and condor_status."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Mapping, Sequence

from pydantic import Field

from bridge.errors import BatchError
from bridge.logs import kv
from bridge.script.settings import AbsolutePath, Seconds, SettingsPart, Words
from bridge.site.batch import batch_interface
from bridge.site.batch import condor_text as text
from bridge.site.batch.array_files import ArrayFiles
from bridge.site.batch.commands import Commands, command_environment, portions

log = logging.getLogger(__name__)

MIB = 2**20
GPU_RESOURCE = "nvidia.com/gpu"
KEPT = ("CONDOR_CONFIG", "LD_LIBRARY_PATH", "KRB5CCNAME", "BEARER_TOKEN_FILE", "_CONDOR_SEC_TOKEN_DIRECTORY")
LARGEST_ARRAY = 20_000
"""The default of ``MAX_JOBS_PER_SUBMISSION``."""
MOST_STARTS = 10
"""Starts of a parallel job on machines of which one does not answer, before it ends as one that has lost a machine."""
LEAVE = 600
"""Seconds that a completed job remains in the queue, for :meth:`CondorBatch.jobs`."""
_JOB_ID = re.compile(r"^(\d+\.\d+)(?: - \d+\.\d+)?\s*$", re.MULTILINE | re.ASCII)
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
    environment: batch_interface.Environment = Field({})
    remove_held: bool = Field(True, description="Remove held jobs, with the reason of the hold.")


class CondorBatch(batch_interface.BatchSystem):
    """One schedd, as the user who runs the submitter."""

    kind = "htcondor"
    settings = HTCondor
    submit_program = "condor_submit"
    period = 10.0
    gangs = arrays = enters = True  # by the script of the job: condor_ssh_to_job needs sshd on all machines

    def __init__(self, config: HTCondor, site: batch_interface.Site) -> None:
        self._config = config
        self._array_files = ArrayFiles(site.folder)
        environment = batch_interface.job_environment(self._config.environment)
        self._environment = {**environment, batch_interface.CHANNEL: "1"}
        self._commands = Commands(
            self._config.bin_dir, self._config.timeout, command_environment(batch_interface.job_environment({}), KEPT)
        )

    def version(self) -> str:
        """Return the version of the commands."""
        match = re.search(r"CondorVersion: (\S+)", self._commands.ask("condor_version").out)
        return f"htcondor {match[1] if match else ''}".strip()

    # --- one job ------------------------------------------------------------------------------------------------------
    def submit(self, request: batch_interface.BatchJobRequest) -> str:
        """Run condor_submit. The job starts the job's own script, and the submit file contains no secret."""
        if request.machines > 1 and (problem := self.gang_problem()):
            # the job would wait for ever. A collector that has just started lists no machine yet.
            raise BatchError(problem, retryable=not text.has_slots(self._status("Name", "-limit", "1")))
        return self._submit(request, (request.uid,))

    def _submit(self, request: batch_interface.BatchJobRequest, pods: Sequence[str]) -> str:
        """Return the id of the first job."""
        command = ("condor_submit", *self._address_options(), "-terse", "-")
        return self._commands.submit(
            request.array or request.uid,
            *command,
            input=self.submit_file(request, pods),
            job_id=_JOB_ID,
            unknown=_UNKNOWN,
            later=_LATER,
        )

    def most_in_array(self) -> int:
        """Return a size that most schedds allow."""
        return LARGEST_ARRAY

    def submit_array(self, request: batch_interface.BatchJobRequest, pods: Sequence[str]) -> list[str]:
        """Run condor_submit once: each pod is a process of one cluster, with its own directory and UID."""
        cluster = self._submit(request, pods).partition(".")[0]
        return [f"{cluster}.{index}" for index in range(len(pods))]

    def find_array(self, array: str) -> dict[str, str]:
        """Search in the queue, and in the history for the jobs that have left it."""
        constraint = f"JobBatchName == {text.string(batch_interface.NAME_PREFIX + array)}"
        jobs = text.jobs(self._query(constraint))
        if (missing := len(self._array_files.uids(array)) - len(jobs)) > 0:
            jobs += text.jobs(self._history(constraint, "-limit", str(missing)))
        return {job.uid: job.id for job in jobs}

    def submit_file(self, request: batch_interface.BatchJobRequest, pods: Sequence[str]) -> str:
        """Return the submit file of the jobs of ``pods``, by UID; raises :class:`BatchError` for flags of the user."""
        if request.flags:
            raise BatchError(f"flags {list(request.flags)}: this batch system takes none")
        lines = {
            "universe": "vanilla" if request.machines == 1 else "parallel",
            "executable": "/bin/bash",
            "arguments": text.arguments(is_parallel=request.machines > 1),
            "initialdir": f"{text.value(str(request.folder.parent))}/$(pod)",
            # no file transfer: the machines share the job's directory with the submitter
            "transfer_executable": "False",
            "should_transfer_files": "NO",
            "getenv": "False",
            "environment": text.environment(self._environment),
            "batch_name": request.name,
            f"+{text.UID}": text.string("$(pod)"),
            "request_cpus": str(request.cpus * request.together),
            "request_memory": str(max(1, math.ceil(request.memory * request.together / MIB))),
            "notification": "Never",
            "on_exit_remove": "True",
            "periodic_remove": _remove_condition(request),
            "leave_in_queue": f"JobStatus == 4 && time() - EnteredCurrentStatus < {LEAVE}",
        }
        if request.gpus:
            lines["request_gpus"] = str(request.gpus * request.together)
        if request.machines > 1:
            lines["machine_count"] = str(request.machines)
        extra_lines = [*self._config.submit_lines, *(request.flavor.flags if request.flavor else ())]
        queue = ["queue pod from (", *pods, ")", ""]
        return "\n".join([*(f"{key} = {value}" for key, value in lines.items()), *extra_lines, *queue])

    def pods_per_machine(self, members: int, per_node: int) -> int:
        """Return the largest number of which ``members`` is a multiple: all slots of a job have the same size."""
        return max(pods for pods in range(1, min(members, per_node) + 1) if members % pods == 0)

    def gang_problem(self) -> str:
        """Run condor_status: a schedd runs parallel jobs only on slots that name it as their DedicatedScheduler."""
        # an answer of condor_q begins with the name, also where the schedd is the one of this machine
        schedd = text.schedd_name(self._commands.ask("condor_q", *self._address_options(), "-totals").out)
        scheduler = text.string(f"DedicatedScheduler@{schedd}")
        if text.has_slots(self._status("Name", "-constraint", f"DedicatedScheduler == {scheduler}", "-limit", "1")):
            return ""
        return (
            f"no machine runs groups of pods: set DedicatedScheduler = {scheduler} and add DedicatedScheduler to"
            " STARTD_ATTRS on the machines that are to"
        )

    def find(self, uid: str) -> str | None:
        """Search in the queue, then in the history."""
        constraint = f"{text.UID} == {text.string(uid)}"
        jobs = text.jobs(self._query(constraint)) or text.jobs(self._history(constraint, "-limit", "1"))
        return min((job.id for job in jobs), key=text.order, default=None)

    def cancel(self, ids: Collection[str]) -> None:
        """Run condor_rm."""
        self._remove(ids, "podbridge cancelled the job")

    def _remove(self, ids: Collection[str], reason: str) -> None:
        for portion in portions(ids):
            result = self._commands.run("condor_rm", *self._address_options(), "-reason", reason, *portion)
            is_gone = re.search(
                r"not found|couldn't find|already|no jobs matched|no result", result.err + result.out, re.I
            )
            if result.code != 0 and not is_gone:
                raise BatchError(f"condor_rm: {result.words}", retryable=True)

    # --- all jobs -----------------------------------------------------------------------------------------------------
    def jobs(self) -> dict[str, batch_interface.BatchJob]:
        """Run condor_q, once for all jobs; remove held jobs if ``remove_held`` is set."""
        listed_jobs = text.jobs(self._query(f"{text.UID} =!= undefined"), held_ends=self._config.remove_held)
        held_ids = [job.id for job in listed_jobs if job.reason in text.HELD_REASONS and job.phase == "ended"]
        if held_ids:
            try:
                self._remove(held_ids, "held: podbridge ends it")
            except BatchError as error:
                log.warning("held jobs not removed yet", extra=kv(why=error))
        return {job.id: job for job in listed_jobs}

    def past(self, ids: Collection[str]) -> dict[str, batch_interface.BatchJob]:
        """Run condor_history. It prints the newest first: an older job with the same id is from before a reset."""
        jobs_by_id: dict[str, batch_interface.BatchJob] = {}
        sorted_ids = sorted(ids)
        for start in range(0, len(sorted_ids), 100):
            self._read_past(sorted_ids[start : start + 100], jobs_by_id)
        return {job.id: job for job in jobs_by_id.values() if job.phase == "ended"}

    def _read_past(self, ids: list[str], jobs_by_id: dict[str, batch_interface.BatchJob]) -> None:
        """Add the newest record of each job to ``jobs_by_id``.

        With ``-limit``, condor_history ends at the last of the records instead of reading the whole history. If an id
        has several, they can take the places of other jobs, which are then searched again.
        """
        ids_left = ids
        while ids_left:
            test = " || ".join(
                f"(ClusterId == {cluster} && ProcId == {process})"
                for cluster, _, process in (job_id.partition(".") for job_id in ids_left)
            )
            records = text.jobs(self._history(f"{text.UID} =!= undefined && ({test})", "-limit", str(len(ids_left))))
            for job in records:
                jobs_by_id.setdefault(job.id, job)
            requested_ids, ids_left = ids_left, [job_id for job_id in ids_left if job_id not in jobs_by_id]
            # condor_history has read the whole history
            if len(records) < len(requested_ids) or len(ids_left) == len(requested_ids):
                return

    def _query(self, constraint: str) -> str:
        return self._ask_about_jobs(constraint, "condor_q", *self._address_options())

    def _history(self, constraint: str, *options: str) -> str:
        schedd_options = ["-name", self._config.schedd] if self._config.schedd else []
        return self._ask_about_jobs(constraint, "condor_history", *schedd_options, *options)

    def _ask_about_jobs(self, constraint: str, *words: str) -> str:
        attributes = ",".join(text.ATTRIBUTES)
        return self._commands.ask(*words, "-json", "-attributes", attributes, "-constraint", constraint).out

    def capacity(self) -> batch_interface.Capacity:
        """Run condor_status and add up the slots."""
        total, free = text.slots(self._status(",".join(text.SLOT_ATTRIBUTES)))
        return batch_interface.Capacity(_amount(total), _amount(free))

    def _status(self, attributes: str, *more: str) -> str:
        pool_options = ["-pool", self._config.pool] if self._config.pool else []
        return self._commands.ask("condor_status", *pool_options, "-json", "-attributes", attributes, *more).out

    def _address_options(self) -> list[str]:
        config = self._config
        return [*(["-pool", config.pool] if config.pool else []), *(["-name", config.schedd] if config.schedd else [])]


def _remove_condition(request: batch_interface.BatchJobRequest) -> str:
    """Return the condition that ends a job: it has lost its machine, and must not start again; or it runs too long.

    The shadow of a job of the parallel universe evaluates it with the attributes that the job had before its start, in
    particular JobStatus 1 (seen with 23.9). The schedd may match a job with a machine that no longer answers; the job
    has not begun, and the schedd matches it again, a limited number of times: the machine may be the same each time.
    """
    is_parallel = request.machines > 1
    is_lost = "JobStatus == 1 && NumJobStarts > 0"
    if is_parallel:
        # the shadow writes NumJobStarts some seconds after the start, and not at all if it is killed before
        is_over = f"VacateReasonCode =!= {text.NOT_ACTIVATED} || NumShadowStarts > {MOST_STARTS}"
        has_begun = f"NumJobStarts > 0 || (LastJobStatus == 2 && ({is_over}))"
        is_lost = f"JobStatus == 1 && RemoteHost =?= undefined && ({has_begun})"
    conditions = [f"({is_lost})"]
    if request.time_limit is not None:
        running_since = "JobCurrentStartDate" if is_parallel else "EnteredCurrentStatus"
        is_running = "RemoteHost =!= undefined" if is_parallel else "JobStatus == 2"
        conditions.append(f"({is_running} && time() - {running_since} > {math.ceil(request.time_limit)})")
    return " || ".join(conditions)


def _amount(counts: Mapping[str, int]) -> batch_interface.Amount:
    gpus = {GPU_RESOURCE: counts["GPUs"]} if counts["TotalGPUs"] else {}
    return batch_interface.Amount(counts["Cpus"], counts["Memory"] * MIB, gpus)
