"""The port: what a batch system does for the submitter."""

from __future__ import annotations

import math
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from bridge.clock import Clock
from bridge.script.settings import Flavor, SettingsPart

NAME_PREFIX = "pb-"
"""The name of a batch job is this prefix and the UID of its pod."""

Phase = Literal["queued", "running", "ended", "missing"]
"""``missing``: the job has started and the batch system no longer knows it. Only the watcher sets it."""

Finite = Annotated[float, Field(allow_inf_nan=False)]
"""A number of a file that a job may have changed: no comparison and no rounding of it is an error."""
Environment = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str],
    Field(description="Variables of jobs; default: PATH, HOME, USER, LOGNAME, LANG."),
]
"""A key of drivers; see :func:`job_environment`."""


@dataclass(frozen=True, slots=True)
class BatchJobRequest:
    """A job to submit: one machine, ``cpus`` of it, ``memory`` bytes, for ``time_limit`` seconds (none: the default).

    ``folder`` is the job's directory; it contains ``job.sh``. ``flags`` are the user's words for the submit command, if
    the site allows any. ``most_seconds`` is the site's time limit, which also applies to ``flags`` (none: no limit).
    ``replaced`` are the ids of earlier jobs of the same pod, which have ended or are about to, without a container.
    """

    uid: str
    folder: Path
    cpus: int = 1
    memory: int = 0
    gpus: int = 0
    gpu_resource: str = ""
    time_limit: float | None = None
    flavor: Flavor | None = None
    flags: tuple[str, ...] = ()
    most_seconds: float | None = None
    replaced: tuple[str, ...] = ()
    flags_win: bool = False
    """Whether ``flags`` replace the options of the flavor and of the site, instead of being refused."""
    traceparent: str = ""
    """The W3C trace context of the submission, for the tools of the site; empty if this process sends no traces."""
    members: int = 1
    """Pods of the group that the job runs: it needs ``members`` times the CPUs, memory and GPUs."""
    together: int = 1
    """Of these, the pods of each machine; the last machine may have fewer."""
    array: str = ""
    """The array to submit, whose jobs are those of other pods equal to ``uid``; empty: one job."""
    others: tuple[BatchJobRequest, ...] = ()
    """Of a heterogeneous job: the next pods by rank, which request something else, on other machines."""

    @property
    def name(self) -> str:
        """Name of the batch job, or of the array, by which it is found after a submit without an answer."""
        return NAME_PREFIX + (self.array or self.uid)

    @property
    def machines(self) -> int:
        """Number of machines, without those of ``others``."""
        return math.ceil(self.members / self.together)

    @property
    def components(self) -> tuple[BatchJobRequest, ...]:
        """The components of the job in the order of the ranks; one if all pods request the same."""
        return (replace(self, others=()), *self.others)


@dataclass(frozen=True, slots=True)
class GangStarter:
    """How the job of a group starts its pods on its machines.

    ``command`` starts a program once for each pod (``task`` is ``member``) or once on each machine (``machine``); the
    program and its arguments follow. A process for a pod has ``SLURM_PROCID``, from 0, and ``SLURM_LOCALID``, its
    number on its machine; a process for a machine has ``PBS_NODENUM``, from 0. The program also precedes each word
    ``:``, which separates the components of a heterogeneous job. Without a command, the batch system runs the job's
    script on each machine, on all but the first with the arguments ``machine`` and the machine's number.
    """

    command: Sequence[str] = ()
    task: Literal["member", "machine"] = "machine"
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the processes, if ``command`` does not pass on those of the job's script."""


@dataclass(frozen=True, slots=True)
class Entrance:
    """How a program starts on the machine of a running job: the words before its own, and its environment."""

    words: Sequence[str]
    environment: Mapping[str, str]
    reports_failures: bool = False
    """Whether the words print an error of their own if the program has another exit code than 0."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job as the batch system reports it. Times are seconds since 1970.

    ``reason`` is CamelCase. The script of an ended job with ``by_itself`` came to its end and recorded how; any other
    ended job was ended from outside for this ``reason``.
    """

    id: str
    uid: str
    phase: Phase
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    signal: int = 0
    host: str = ""
    started_at: Finite | None = None
    ended_at: Finite | None = None
    by_itself: bool = False


@dataclass(frozen=True, slots=True)
class Amount:
    """CPUs, bytes of memory and devices by extended resource."""

    cpus: int = 0
    memory: int = 0
    extended: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The resources of all working machines, and the part of them that is free."""

    total: Amount
    free: Amount


@dataclass(frozen=True, slots=True)
class Site:
    """What a batch system gets of its site. ``folder`` is the submitter's directory."""

    folder: Path
    flavors: tuple[Flavor, ...]
    clock: Clock


class BatchSystem(ABC):
    """One batch system. Several threads may call any method at the same time.

    Each method may raise :class:`bridge.errors.BatchError`; it is ``retryable`` if the batch system may answer later.
    """

    kind: ClassVar[str]
    """Value of ``batch.kind``, and name of the section of ``settings``."""
    settings: ClassVar[type[SettingsPart]]
    """Model of the section in ``site.toml``; its keys are read at start."""
    submit_program: ClassVar[str] = ""
    """Program that submits jobs: on a machine that has it, ``podbridge submitter init`` proposes this batch system."""
    period: ClassVar[float]
    """Seconds between two lists of all jobs; ``batch.period`` overrides it."""
    lag: ClassVar[float] = 15.0
    """Seconds that a shared file system may take to show what a job wrote; ``batch.lag`` overrides it."""
    one_machine: ClassVar[bool] = False
    """Whether all jobs run on the machine of the submitter."""
    eager: ClassVar[bool] = False
    """Whether a list of all jobs is cheap, so that the submitter requests one after each change."""
    gangs: ClassVar[bool] = False
    """Whether it can run a group of pods as one job: ``members`` of a request, and :meth:`gang_starter`."""
    heterogeneous: ClassVar[bool] = False
    """Whether the pods of such a job may request different resources: ``others`` of a request."""
    arrays: ClassVar[bool] = False
    """Whether it runs equal pods as one array: :meth:`most_in_array`, :meth:`submit_array` and :meth:`find_array`."""
    enters: ClassVar[bool] = False
    """Whether a program can start on the machine of a running job: :meth:`entrance`."""

    @abstractmethod
    def __init__(self, settings: Any, site: Site) -> None:
        """Take the section of the configuration, an instance of ``settings``."""

    @abstractmethod
    def version(self) -> str:
        """Return kind and version, for example ``slurm 24.11.5``."""

    @abstractmethod
    def submit(self, request: BatchJobRequest) -> str:
        """Submit a job and return its id.

        Raises
        ------
        BatchUnknownOutcomeError
            There was no answer: the job may exist, or appear later.
        BatchError
            The job does not exist.
        """

    @abstractmethod
    def find(self, uid: str) -> str | None:
        """Search by name for the job of a pod and return its id."""

    @abstractmethod
    def cancel(self, ids: Collection[str]) -> None:
        """End jobs. A job that has ended, or is unknown, is no error."""

    @abstractmethod
    def jobs(self) -> dict[str, BatchJob]:
        """Return all jobs of this user whose names begin with :data:`NAME_PREFIX`, by id, with one query."""

    def mpi_ways(self) -> Sequence[str]:
        """Return how the processes of a group can form one MPI job, of :data:`bridge.names.MPI_WAYS`."""
        return ("none",)

    def gang_starter(self, request: BatchJobRequest, mpi: str) -> GangStarter:
        """Return how the job of a group starts its pods; ``mpi``: one of :meth:`mpi_ways`."""
        return GangStarter()

    def pods_per_machine(self, members: int, per_node: int) -> int:
        """Return how many pods each machine of a group's job has, by rank; the last one may have fewer.

        ``per_node``: pods that may share a machine.
        """
        return min(members, per_node)

    def gang_problem(self) -> str:
        """Return why it runs no group of pods as it is configured, and what to configure; empty: it runs groups."""
        return ""

    def heterogeneous_problem(self) -> str:
        """Return the same for groups whose pods request different resources."""
        return ""

    def most_in_array(self) -> int:
        """Return how many jobs an array may have at most; 0 and 1: none can be submitted.

        A batch system that refuses an array of this size for its size is given smaller ones.
        """
        return 0

    def submit_array(self, request: BatchJobRequest, pods: Sequence[str]) -> Sequence[str]:
        """Submit the jobs of ``request.array`` with one command; return their ids in the order of ``pods``, their UIDs.

        Each job runs the ``job.sh`` of its pod. :class:`bridge.site.batch.array_files.ArrayFiles` has the pods too.
        Raises the errors of :meth:`submit`, for all jobs or none.
        """
        raise NotImplementedError

    def find_array(self, array: str) -> Mapping[str, str]:
        """Search by name for the jobs of an array and return their ids by pod."""
        raise NotImplementedError

    def entrance(
        self, job_id: str, host: str, folder: Path, *, tty: bool = False, component: int | None = None
    ) -> Entrance:
        """Return how a program starts beside a running job on its machine ``host``.

        ``folder``: the job's directory. ``tty``: its input and output are a terminal. ``component``: that of a
        heterogeneous job which has the machine. The script has written ``host`` and perhaps ``job_id``, so they must be
        checked. Raises :class:`BatchError`. By default, the script starts the program itself, if the job has the
        variable :data:`CHANNEL`.
        """
        client = Path(__file__).parents[1] / "sessions" / "channel_client.py"
        words = (sys.executable, "-I", "-S", str(client), str(folder), host)
        return Entrance(words, job_environment({}))

    def past(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """Return how jobs ended that :meth:`jobs` no longer lists, as far as there are records."""
        return {}

    @abstractmethod
    def capacity(self) -> Capacity:
        """Measure the resources."""


CHANNEL = "PODBRIDGE_CHANNEL"
"""Variable of jobs whose script starts commands itself, because the batch system starts none in a running job."""


def job_environment(configured: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job: those configured, else a few harmless ones of this process."""
    if configured:
        return dict(configured)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LOGNAME", "LANG") if name in os.environ}
    return {"PATH": os.defpath, **kept}
