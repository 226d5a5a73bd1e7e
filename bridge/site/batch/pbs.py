"""OpenPBS and PBS Professional 14.1 or newer, by their commands: qsub, qselect, qstat, qdel and pbsnodes.

Sources: qsub(1B), qselect(1B), qstat(1B), qdel(1B), pbs_job_attributes(7B), and ``job.h`` for Exit_status and substate.
"""

from __future__ import annotations

import calendar
import json
import math
import os
import pwd
import re
import shlex
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import Field

from bridge import job_ends
from bridge.errors import BatchError
from bridge.protocol.model.identifiers import UID_PATTERN
from bridge.script.settings import AbsolutePath, Seconds, SettingsPart, Words
from bridge.site.batch import batch_interface
from bridge.site.batch.array_files import ArrayFiles, Arrays, no_arrays
from bridge.site.batch.commands import Commands, command_environment, portions

KEPT = ("PBS_CONF_FILE", "PBS_SERVER", "LD_LIBRARY_PATH", "KRB5CCNAME")
LARGEST_ARRAY = 10_000
"""The default of ``max_array_size``."""
DELETED, SIGNAL = 91, 256
"""``substate`` of a job that was deleted; ``Exit_status`` of a script that signal 0 would have ended."""
_PHASES: dict[str, tuple[batch_interface.Phase, str]] = {
    **dict.fromkeys("QT", ("queued", "WaitingForResources")),
    "H": ("queued", "Held"),
    "W": ("queued", "Waiting"),
    "M": ("queued", "Moved"),
    **dict.fromkeys("RBE", ("running", "")),
    **dict.fromkeys("SU", ("running", "Suspended")),
    **dict.fromkeys("FX", ("ended", "")),
}
"""``job_state``; a letter of a newer version neither begins nor ends a job."""
_ENDS = {
    -29: (job_ends.TIME_LIMIT, "was terminated because it reached its walltime"),
    -28: (job_ends.TIME_LIMIT, "was terminated because it reached its limit of CPU time"),
    **dict.fromkeys((-27, -26), (job_ends.OUT_OF_MEMORY, job_ends.OUT_OF_MEMORY.text)),
    **dict.fromkeys((-25, -24), (job_ends.KILLED, "was terminated because it used more CPUs than it requested")),
}
"""``Exit_status`` of jobs that PBS ended (JOB_EXEC_KILL_* in ``job.h``): end, and predicate of the job."""
_BAD_STATES = re.compile(r"down|offline|unknown|stale|provisioning|maintenance|unresolvable|sleep")
_SUBJOB_ENDS, _SUBJOB_DELETED = ("Subjob finished", "Subjob failed"), "Subjob terminated"
"""``comment`` of a job of an array that ended, and of one that was deleted, without a record of its own."""
_UID, _NO_HISTORY = re.compile(UID_PATTERN), re.compile(r"job history", re.IGNORECASE)
_JOB_ID = re.compile(r"^(\d+(?:\.\S+)?)\s*$", re.MULTILINE | re.ASCII)
_ARRAY_ID = re.compile(r"^(\d+\[\](?:\.\S+)?)\s*$", re.MULTILINE | re.ASCII)
_SUBJOB = re.compile(r"\d+\[(\d{1,7})\](?:\..*)?", re.ASCII)
_GONE = re.compile(r"unknown job id|job has finished|request invalid for state", re.IGNORECASE)
_UNKNOWN = re.compile(r"end of file|timed? ?out|protocol|reset by peer|communication|batch system error", re.IGNORECASE)
_LATER = re.compile(
    r"cannot connect|connection refused|would exceed|maximum number|too many|try again|unavailable|munge|authenticat"
    r"|credential|not accepting|no permission.*now|server shutting",
    re.IGNORECASE,
)
_UNITS = {"": 1, "b": 1, "kb": 2**10, "mb": 2**20, "gb": 2**30, "tb": 2**40, "pb": 2**50}


class PBS(SettingsPart):
    """``[pbs]``: used with ``batch.kind = "pbs"``."""

    read_at_start = True
    bin_dir: AbsolutePath | None = Field(
        None, examples=["/opt/pbs/bin"], description="Directory of qsub, qstat, ...; default: PATH."
    )
    timeout: Seconds = Field(30, description="Seconds for each command.")
    queue: str | None = Field(None, examples=["workq"], description="If the flavor names none.")
    account: str | None = Field(None, examples=["project"], description="If the flavor names none.")
    options: Words = Field([], description="More options of qsub.")
    gpus: dict[str, str] = Field(
        {"nvidia.com/gpu": "ngpus", "amd.com/gpu": "ngpus"}, description="Resource of PBS for an extended resource."
    )
    environment: batch_interface.Environment = Field({})


class PbsBatch(batch_interface.BatchSystem):
    """One PBS server, as the user who runs the submitter."""

    kind = "pbs"
    settings = PBS
    submit_program = "qsub"
    period = 10.0
    gangs = heterogeneous = arrays = enters = True  # PBS starts a program on a machine only from within the job

    def __init__(self, config: PBS, site: batch_interface.Site) -> None:
        self._config = config
        self._array_files = ArrayFiles(site.folder)
        self._variables = {**batch_interface.job_environment(config.environment), batch_interface.CHANNEL: "1"}
        self._user = pwd.getpwuid(os.geteuid()).pw_name
        environment = command_environment(batch_interface.job_environment({}), KEPT)
        # qstat prints local times without a zone
        self._commands = Commands(config.bin_dir, config.timeout, {**environment, "TZ": "UTC"})

    def version(self) -> str:
        """Return the version of the commands."""
        return " ".join(["pbs", *self._commands.ask("qstat", "--version").out.split()[-1:]])

    def submit(self, request: batch_interface.BatchJobRequest) -> str:
        """Run qsub. The script that PBS stores starts the job's own script and contains no secret."""
        folder = shlex.quote(str(request.folder))
        start = f"exec bash {folder}/job.sh </dev/null >>{folder}/script.log 2>&1"
        return self._qsub(request, self.words(request), start, _JOB_ID)

    def most_in_array(self) -> int:
        """Return a size that most servers allow."""
        return LARGEST_ARRAY

    def submit_array(self, request: batch_interface.BatchJobRequest, pods: Sequence[str]) -> list[str]:
        """Run qsub once. The script that PBS stores finds the pod of its index in the file of the array."""
        enter = self._array_files.enter(request.array, request.folder.parent, "PBS_ARRAY_INDEX")
        start = f'{enter}exec bash "$PWD/job.sh" </dev/null >>script.log 2>&1'
        words = [*self.words(request), "-J", f"0-{len(pods) - 1}"]
        return _subjobs(self._qsub(request, words, start, _ARRAY_ID), len(pods))

    def find_array(self, array: str) -> dict[str, str]:
        """Search by name, in the history too where the server has one."""
        pods = self._array_files.uids(array)
        found = self._select("-x", "-N", batch_interface.NAME_PREFIX + array)
        return dict(zip(pods, _subjobs(found[0], len(pods)), strict=True)) if found else {}

    def _qsub(
        self, request: batch_interface.BatchJobRequest, words: Sequence[str], start: str, job_id: re.Pattern[str]
    ) -> str:
        for part in request.components:
            if part.flags:
                raise BatchError(f"flags {list(part.flags)}: this batch system takes none")
            if part.flavor != request.flavor:
                found = [each.flavor.name if each.flavor else "none" for each in (request, part)]
                raise BatchError(f"flavors {', '.join(found)}: a job of PBS has one queue; allowed: one for all pods")
        lines = ["#!/bin/bash"]
        # not with -v: qstat of some versions writes invalid JSON for values with quotes, commas or digits alone
        # (OpenPBS issues 1255 and 2049)
        lines += [f"export {name}={shlex.quote(text)}" for name, text in self._variables.items()]
        script = "\n".join([*lines, start, ""])
        name = request.array or request.uid
        return self._commands.submit(name, "qsub", *words, input=script, job_id=job_id, unknown=_UNKNOWN, later=_LATER)

    def words(self, request: batch_interface.BatchJobRequest) -> list[str]:
        """Return the options of qsub for a job; the site's own come last."""
        flavor, config = request.flavor, self._config
        machines = sum(part.machines for part in request.components)
        if machines > 1 and flavor and flavor.nodelist:
            raise BatchError(
                f"flavor {flavor.name}: nodelist {flavor.nodelist}: PBS reads it as one host, and the group needs"
                f" {machines} machines; allowed: a flavor without nodelist, or members-per-node {request.members}"
            )
        # not y, with which PBS repeats the job after the loss of its machine: job.sh runs once. An array must have y
        rerunnable = "y" if request.array else "n"
        words = ["-N", request.name, "-S", "/bin/bash", "-r", rerunnable, "-j", "oe", "-o", "/dev/null"]
        words += ["-W", "umask=077"]
        words += ["-l", f"select={'+'.join(map(self._select_words, request.components))}"]
        if machines > 1:  # a machine for each chunk
            words += ["-l", "place=scatter"]
        if request.time_limit is not None:
            words += ["-l", f"walltime={max(1, math.ceil(request.time_limit))}"]
        if queue := (flavor and (flavor.reservation or flavor.partition)) or config.queue:
            words += ["-q", queue]
        if account := (flavor and flavor.account) or config.account:
            words += ["-A", account]
        return [*words, *config.options, *(flavor.flags if flavor else ())]

    def _select_words(self, request: batch_interface.BatchJobRequest) -> str:
        """Return the chunks of a component, one for each machine, in the order of the ranks."""
        machines = request.machines
        last = request.members - (machines - 1) * request.together
        if last == request.together:
            return self._chunk(request, machines, last)
        return f"{self._chunk(request, machines - 1, request.together)}+{self._chunk(request, 1, last)}"

    def _chunk(self, request: batch_interface.BatchJobRequest, count: int, pods: int) -> str:
        """Return ``count`` chunks with the resources of ``pods`` pods each."""
        flavor = request.flavor
        chunk = [f"ncpus={request.cpus * pods}", f"mem={max(1, math.ceil(request.memory * pods / 2**20))}mb"]
        extra = list(flavor.generic_resources) if flavor else []
        if request.gpus:
            gpu = self._config.gpus.get(request.gpu_resource, "ngpus")
            chunk.append(f"{gpu}={request.gpus * pods}")
            extra = [item for item in extra if item.partition("=")[0] != gpu]
        if flavor and flavor.nodelist:
            extra.append(f"host={flavor.nodelist}")
        return ":".join([str(count), *chunk, *extra])

    def gang_starter(self, request: batch_interface.BatchJobRequest, mpi: str) -> batch_interface.GangStarter:
        """Return pbsdsh: one process for each chunk, with the variables of pbs_mom and of qsub, not of the script."""
        program = f"{self._config.bin_dir}/pbsdsh" if self._config.bin_dir else "pbsdsh"
        return batch_interface.GangStarter((program, "--"), "machine", self._variables)

    def find(self, uid: str) -> str | None:
        """Search by name, in the history too where the server has one."""
        ids = self._select("-x", "-N", batch_interface.NAME_PREFIX + uid)
        return min(ids, key=lambda job_id: int(job_id.partition(".")[0]), default=None)

    def cancel(self, ids: Collection[str]) -> None:
        """Run qdel: SIGTERM, and SIGKILL after the queue's ``kill_delay``."""
        for portion in portions(ids):
            result = self._commands.run("qdel", *portion)
            if complaints := result.complaints(_GONE):
                raise BatchError("; ".join(complaints), retryable=True)

    def jobs(self) -> dict[str, batch_interface.BatchJob]:
        """Run qselect for the ids of this user's jobs that have not ended, and qstat for these."""
        return self._stat(self._select())

    def past(self, ids: Collection[str]) -> dict[str, batch_interface.BatchJob]:
        """Read the history, where the server has one (``job_history_enable``)."""
        return self._stat(ids, "-x")

    def _select(self, *words: str) -> list[str]:
        result = self._commands.run("qselect", "-u", self._user, *words)
        if result.code != 0 and words[:1] == ("-x",) and _NO_HISTORY.search(result.err):
            return self._select(*words[1:])
        if result.code != 0:
            raise BatchError(f"qselect: {result.words}", retryable=True)
        return [line.strip() for line in result.out.splitlines() if line.strip()[:1].isdigit()]

    def _stat(self, ids: Collection[str], *options: str) -> dict[str, batch_interface.BatchJob]:
        jobs: dict[str, batch_interface.BatchJob] = {}
        for portion in portions(ids):
            # -t: the jobs of arrays, of which qselect lists the arrays alone
            result = self._commands.run("qstat", *options, "-t", "-f", "-F", "json", *portion)
            if result.code != 0 and _NO_HISTORY.search(result.err):
                return {}
            answer = dict(_objects(result.out, "Jobs"))
            # some versions of OpenPBS answer for one of several ids (issue 2672): an incomplete answer counts as none
            if result.complaints(_GONE) or any(job_id not in answer and job_id not in result.err for job_id in portion):
                raise BatchError(f"qstat {' '.join(options)}: {result.words}: not all jobs answered", retryable=True)
            jobs.update((job.id, job) for job in parse_jobs(answer, self._array_files.uid))
        return jobs

    def capacity(self) -> batch_interface.Capacity:
        """Run pbsnodes and add up the nodes that work."""
        return parse_nodes(self._commands.ask("pbsnodes", "-a", "-F", "json").out, self._config.gpus)


def _subjobs(array_id: str, size: int) -> list[str]:
    """Return the ids of the jobs of an array: ``12[0].server``, ... of ``12[].server``."""
    return [array_id.replace("[]", f"[{index}]", 1) for index in range(size)]


def parse_jobs(
    answer: Mapping[str, Mapping[str, Any]], arrays: Arrays = no_arrays
) -> Iterator[batch_interface.BatchJob]:
    """Read ``Jobs`` of qstat; jobs that are not podbridge's are left out.

    For a job of an array without a record of its own (it is queued, or ended on a server without history), qstat shows
    the attributes of the array, with the job's state and comment.
    """
    for job_id, attributes in answer.items():
        before_prefix, prefix, uid = str(attributes.get("Job_Name")).partition(batch_interface.NAME_PREFIX)
        if "[" in job_id:
            subjob = _SUBJOB.fullmatch(job_id)
            uid = arrays(uid, int(subjob[1])) if subjob else ""
        if before_prefix or not prefix or not _UID.fullmatch(uid):
            continue
        phase, reason = _PHASES.get(str(attributes.get("job_state")), ("running", ""))
        comment = str(attributes.get("comment") or "")
        exit_code, signal_number, by_itself = None, 0, False
        message = f"PBS job {job_id} is queued: {comment}" if phase == "queued" else ""
        if phase == "ended":
            status = attributes.get("Exit_status")
            if comment in _SUBJOB_ENDS:
                by_itself = True
            elif attributes.get("substate") == DELETED or comment == _SUBJOB_DELETED or not isinstance(status, int):
                reason, message = job_ends.CANCELLED.site_reason, f"PBS job {job_id} was deleted"
            elif status in _ENDS:
                end, text = _ENDS[status]
                reason, message = end.site_reason, f"PBS job {job_id} {text}"
            else:
                by_itself, exit_code = True, status if 0 <= status < SIGNAL else None
                signal_number = status - SIGNAL if status > SIGNAL else 0
                message = f"PBS job {job_id} ended with Exit_status {status}: {comment}" if exit_code is None else ""
        started_at = _moment(attributes.get("stime"))
        ended_at = _moment(attributes.get("obittime")) or _moment(attributes.get("history_timestamp"))
        host = str(attributes.get("exec_host") or "").partition("/")[0]
        yield batch_interface.BatchJob(
            job_id, uid, phase, reason, message, exit_code, signal_number, host, started_at, ended_at, by_itself
        )


def parse_nodes(output: str, gpus: Mapping[str, str]) -> batch_interface.Capacity:
    """Read the JSON of pbsnodes; ``gpus``: extended resource -> resource of PBS, the first of each counts."""
    resources = {kind: name for name, kind in reversed(tuple(gpus.items()))}
    total, free = (dict.fromkeys(("ncpus", "mem", *resources), 0) for _ in range(2))
    for _, node in _objects(output, "nodes"):
        available, assigned = (node.get(f"resources_{part}") for part in ("available", "assigned"))
        if isinstance(available, dict) and not _BAD_STATES.search(str(node.get("state"))):
            for name in total:
                total[name] += (count := _amount(available.get(name)))
                free[name] += max(0, count - _amount(assigned.get(name) if isinstance(assigned, dict) else 0))
    total_amount, free_amount = (
        batch_interface.Amount(
            counts["ncpus"], counts["mem"], {name: counts[k] for k, name in resources.items() if total[k]}
        )
        for counts in (total, free)
    )
    return batch_interface.Capacity(total_amount, free_amount)


def _objects(output: str, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        answer = json.loads(output, strict=False) if output.strip() else {}
    except ValueError as error:
        raise BatchError(f"the answer of PBS is not JSON: {error}", retryable=True) from error
    items = answer.get(key) if isinstance(answer, dict) else None
    return ((name, item) for name, item in (items or {}).items() if isinstance(item, dict))


def _amount(value: object) -> int:
    """Read a count, or a size such as ``527672488kb``, in bytes."""
    match = re.fullmatch(r"(\d+)([kmgtp]?b)?", str(value).lower(), re.ASCII)
    return int(match[1]) * _UNITS[match[2] or ""] if match else 0


def _moment(value: object) -> float | None:
    """Read seconds since 1970, or a time of ctime(3) in UTC."""
    if isinstance(value, int) and value > 0:
        return float(value)
    try:
        return float(calendar.timegm(time.strptime(str(value), "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return None
