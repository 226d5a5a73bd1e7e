"""Slurm 22.05 to 26.05, by its commands: sbatch, squeue, scancel, sinfo, and sacct if there is accounting."""

from __future__ import annotations

import logging
import math
import os
import pwd
import re
import shlex
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from bridge import names
from bridge.clock import SYSTEM_CLOCK
from bridge.core.single_flight_cache import SingleFlightCache
from bridge.errors import BatchError
from bridge.site.batch import adopted, array_files, batch_interface, batch_user, commands, slurm_words
from bridge.site.batch import slurm_text as text
from bridge.site.batch.slurm_words import Slurm

log = logging.getLogger(__name__)

KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "LD_LIBRARY_PATH", "KRB5CCNAME")
# squeue and sacct print local times without a zone; as seconds since 1970 they are unambiguous
_EPOCH = {"SLURM_TIME_FORMAT": "%s"}
# by default, squeue and sacct shorten the indexes of pending jobs of an array to 64 bytes: 1_[0-2,4,...]
_WHOLE_INDEXES = {**_EPOCH, "SLURM_BITSTR_LEN": "0"}
ACCOUNTING_RETRY = 600.0
"""Seconds until sacct is run again on a cluster that had no accounting."""
ACCOUNTING_REST = 60.0
"""Seconds until sacct is run again after a time-out, which delays the list of all jobs."""
MPI_REMEMBERED = 60.0
"""Seconds for which the answer of srun about MPI is cached: the pods of a group arrive one after the other."""

_JOB_ID = re.compile(r"^(\d+)(?:;\S*)?\s*\Z", re.MULTILINE | re.ASCII)
"""The last line of sbatch's output: a job id, or a job id and a cluster."""
_STEP_JOB = re.compile(r"\d+(?:_\d+)?", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
_UNKNOWN = re.compile(
    r"socket timed out|zero bytes were transmitted|unexpected message|connection (?:reset|timed out)"
    r"|message receive failure|message send failure|slurm_receive_msg|communication shutdown failure",
    re.IGNORECASE,
)
"""Errors of sbatch after which the job may exist."""
_LATER = re.compile(
    r"unable to contact|standby mode|temporarily|not responding|try again|qos ?policy|accounting/qos|limit"
    r"|munge|authentication|credential|required node not available|in maintenance|queue is full|too many",
    re.IGNORECASE,
)
"""Errors of sbatch that a later submission may not have."""


_GONE = re.compile(r"invalid job id|already complet", re.IGNORECASE)
_SCHEDULER = re.compile(r"^SchedulerType\s*=\s*(\S+)\s*$", re.MULTILINE | re.ASCII)
_ARRAY_SIZE = re.compile(r"^MaxArraySize\s*=\s*(\d+)\s*$", re.MULTILINE | re.ASCII)


class SlurmBatch(batch_interface.BatchSystem):
    """One Slurm cluster, as the user who runs the submitter."""

    kind = "slurm"
    settings = Slurm
    submit_program = "sbatch"
    period = 5.0
    gangs = heterogeneous = arrays = enters = True

    def __init__(self, slurm: Slurm, site: batch_interface.Site) -> None:
        self._config = slurm
        self._partitions = [flavor.partition for flavor in site.flavors if flavor.partition]
        if slurm.partition:
            self._partitions.append(slurm.partition)
        # sbatch passes its environment to the job (--export=ALL): no login shell, and no variable of this process
        self._commands = commands.Commands(
            slurm.bin_dir,
            slurm.timeout,
            commands.command_environment(batch_interface.job_environment(slurm.environment), KEPT),
            {str(name): words for name, words in slurm.programs.items()},
        )
        self._mpi_ways: SingleFlightCache[Sequence[str]] = SingleFlightCache(SYSTEM_CLOCK)
        self._adopted = adopted.names(site.folder)
        self._array_files = array_files.ArrayFiles(site.folder)
        self._users = batch_user.users(site.folder)
        self._no_accounting_until = math.inf if slurm.accounting == "never" else 0.0
        self._accounting_rests_until = 0.0

    def version(self) -> str:
        """Return the version of the commands."""
        result = self._commands.ask("sbatch", "--version", extra=_EPOCH)
        return f"slurm {result.out.split()[-1]}" if result.out.split() else "slurm"

    # --- one job ------------------------------------------------------------------------------------------------------
    def submit(self, request: batch_interface.BatchJobRequest) -> str:
        """Run sbatch. The script that Slurm stores starts the job's own script and contains no secret."""
        folder = shlex.quote(str(request.folder))
        script = f"#!{self._config.bash}\nexec {self._bash_word} {folder}/job.sh >>{folder}/script.log 2>&1\n"
        # sbatch(1): a colon separates the components of a heterogeneous job
        in_group = bool(request.others)
        components = [slurm_words.words(self._config, part, in_group=in_group) for part in request.components]
        words = [word for component in components for word in (":", *component)][1:]
        user = batch_user.hand_over(request.folder, words)
        if user is not None:
            self._users = self._users | {user}  # a new set: another thread may read the old one
        return self._sbatch(request.uid, words, script)

    def _sbatch(self, name: str, words: Sequence[str], script: str) -> str:
        return self._commands.submit(
            name, "sbatch", *words, input=script, job_id=_JOB_ID, unknown=_UNKNOWN, later=_LATER
        )

    def entrance(
        self, job_id: str, host: str, folder: Path, *, tty: bool = False, component: int | None = None
    ) -> batch_interface.Entrance:
        """Return a step of the job, which shares its CPUs, memory and devices with the step that runs."""
        if not (_STEP_JOB.fullmatch(job_id) and _HOST.fullmatch(host)):
            # srun reads a host with a slash as the name of a file
            raise BatchError(f"job {job_id!r} on {host!r}: no job and machine of Slurm")
        words = [
            *self._commands.find("srun"),
            f"--jobid={job_id}",
            "--overlap",
            "--nodes=1",
            "--ntasks=1",
            f"--nodelist={host}",
            "--mem=0",
            "--cpu-bind=none",
            "--quiet",
            "--unbuffered",  # otherwise, slurmstepd waits for the end of a line
            f"--chdir={folder}",
        ]
        if component is not None:
            words.append(f"--het-group={component}")  # with the id of the first one: srun refuses those of the others
        if (user := folder.stat().st_uid) != os.geteuid():
            words.append(f"--uid={user}")
        if tty:
            words.append("--pty")
        return batch_interface.Entrance(words, self._commands.environment, reports_failures=True)

    @property
    def _bash_word(self) -> str:
        return "bash" if self._config.bash == "/bin/bash" else shlex.quote(self._config.bash)

    def most_in_array(self) -> int:
        """Return Slurm's ``MaxArraySize``, which is one more than the largest index."""
        match = _ARRAY_SIZE.search(self._commands.ask("scontrol", "show", "config").out)
        return int(match[1]) if match else 0

    def submit_array(self, request: batch_interface.BatchJobRequest, pods: Sequence[str]) -> list[str]:
        """Run sbatch once. The script that Slurm stores finds the pod of its index in the file of the array."""
        enter = self._array_files.enter(request.array, request.folder.parent, "SLURM_ARRAY_TASK_ID")
        script = f'#!{self._config.bash}\n{enter}exec {self._bash_word} "$PWD/job.sh" >>script.log 2>&1\n'
        words = slurm_words.words(self._config, request)
        if any(word.startswith("--uid=") for word in words):
            raise BatchError("an array can't run as another user: its file is the submitter's")
        words.append(f"--array=0-{len(pods) - 1}")
        base = self._sbatch(request.array, words, script)
        return [f"{base}_{index}" for index in range(len(pods))]

    def find_array(self, array: str) -> dict[str, str]:
        """Run squeue for the name."""
        found: dict[str, str] = {}
        output = self._squeue(f"--name={batch_interface.NAME_PREFIX}{array}")
        for job in sorted(text.jobs(output, arrays=self._array_files.uid), key=lambda job: int(job.id.split("_")[0])):
            found.setdefault(job.uid, job.id)
        return found

    def mpi_ways(self) -> Sequence[str]:
        """Run srun, which lists the plugins of this Slurm; return all ways if it cannot be run here."""
        try:
            return self._mpi_ways.get("", lambda: (self._listed_mpi_ways(), MPI_REMEMBERED))
        except BatchError:
            return names.MPI_WAYS

    def _listed_mpi_ways(self) -> Sequence[str]:
        listed = self._commands.ask("srun", "--mpi=list")
        plugins = f"{listed.out} {listed.err}".split()
        return [way for way in names.MPI_WAYS if way == "none" or way in plugins]

    def gang_starter(self, request: batch_interface.BatchJobRequest, mpi: str) -> batch_interface.GangStarter:
        """Return srun with the options that keep the pods of a group apart."""
        return batch_interface.GangStarter(slurm_words.gang_command(self._config, request, mpi), "member")

    def heterogeneous_problem(self) -> str:
        """Run scontrol: only the backfill scheduler starts heterogeneous jobs."""
        try:
            output = self._commands.ask("scontrol", "show", "config").out
        except BatchError as error:
            return str(error)
        match = _SCHEDULER.search(output)
        name = match[1] if match else "unknown"
        return "" if name == "sched/backfill" else f"SchedulerType is {name}; sched/backfill starts heterogeneous jobs"

    def find(self, uid: str) -> str | None:
        """Run squeue for the name."""
        jobs = text.jobs(self._squeue(f"--name={batch_interface.NAME_PREFIX}{uid}"))
        return min((job.id for job in jobs if job.uid == uid), key=int, default=None)

    def cancel(self, ids: Collection[str]) -> None:
        """Run scancel: SIGTERM, and SIGKILL after KillWait."""
        for portion in commands.portions(ids):
            result = self._commands.run("scancel", *portion)
            if complaints := result.complaints(_GONE):
                raise BatchError(f"scancel: {'; '.join(complaints)}", retryable=True)

    # --- all jobs -----------------------------------------------------------------------------------------------------
    def jobs(self) -> dict[str, batch_interface.BatchJob]:
        """Run squeue, once for all jobs, and scancel for heterogeneous jobs of which a component has ended."""
        jobs = {job.id: job for job in text.jobs(self._squeue(), self._adopted, self._array_files.uid)}
        if ends := [job.id for job in jobs.values() if job.reason == text.COMPONENT_ENDED]:
            self.cancel(ends)
        return jobs

    def _user_option(self) -> str:
        """Return the option of squeue for this user's jobs, and for those of other users that were submitted here."""
        if not self._users:
            return "--me"
        return f"--user={','.join(map(str, sorted({os.geteuid(), *self._users})))}"

    def _squeue(self, *more: str) -> str:
        return self._commands.ask(
            "squeue",
            self._user_option(),
            "--noheader",
            # also jobs in partitions that are hidden from this user
            "--all",
            # ended jobs too: slurmctld keeps them for MinJobAge (300 s by default), and squeue leaves them out
            "--states=all",
            "--format",
            text.FORMAT,
            *more,
            extra=_WHOLE_INDEXES,
        ).out

    def past(self, ids: Collection[str]) -> dict[str, batch_interface.BatchJob]:
        """Run sacct, if there is accounting. For an id that was assigned twice, it reports the newer job."""
        now = time.monotonic()
        if now < self._no_accounting_until:
            return {}
        if now < self._accounting_rests_until:
            # an error, not an empty answer: without records, a job that is not listed would be lost sooner
            raise BatchError("sacct did not answer a moment ago", retryable=True)
        jobs: dict[str, batch_interface.BatchJob] = {}
        for portion in commands.portions(ids):
            try:
                result = self._sacct(portion)
            except commands.CommandNotFoundError:
                self._no_accounting_until = now + ACCOUNTING_RETRY
                return {}
            except commands.CommandTimeoutError:
                self._accounting_rests_until = time.monotonic() + ACCOUNTING_REST
                raise
            if result.code != 0 and "accounting storage is disabled" in result.err + result.out:
                self._no_accounting_until = now + ACCOUNTING_RETRY
                return {}
            if result.code != 0:
                raise BatchError(f"sacct: {result.words}", retryable=True)
            past_jobs = text.past_jobs(result.out, _user_name, self._adopted, self._array_files.uid)
            jobs.update((job.id, job) for job in past_jobs)
        return jobs

    def _sacct(self, ids: Collection[str]) -> commands.CommandResult:
        options = ("--noheader", "--parsable2", "--allocations", f"--format={text.SACCT_FORMAT}")
        return self._commands.run("sacct", *options, f"--jobs={','.join(ids)}", extra=_WHOLE_INDEXES)

    def capacity(self) -> batch_interface.Capacity:
        """Run sinfo and add up the working nodes of this site's partitions."""
        result = self._commands.ask("sinfo", "--noheader", "--Node", "--Format", text.SINFO_FORMAT, extra=_EPOCH)
        nodes = text.nodes(result.out, set(self._partitions))
        total, free = batch_interface.Amount(), batch_interface.Amount()
        for node in nodes:
            total, free = _plus(total, node.total, self._resources), _plus(free, node.free, self._resources)
        return batch_interface.Capacity(total, free)

    def _resources(self, gres: str) -> str | None:
        """Return the extended resource of a gres (``gpu`` or ``gpu:a100``)."""
        resource_by_gres = {kind: name for name, kind in reversed(self._config.gres.items())}
        return resource_by_gres.get(gres) or resource_by_gres.get(gres.split(":")[0])


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def _plus(
    amount: batch_interface.Amount, node_amount: batch_interface.Amount, resource: text.Naming
) -> batch_interface.Amount:
    extended = dict(amount.extended)
    for gres, count in node_amount.extended.items():
        name = resource(gres)
        if name is not None:
            extended[name] = extended.get(name, 0) + count
    return batch_interface.Amount(amount.cpus + node_amount.cpus, amount.memory + node_amount.memory, extended)
