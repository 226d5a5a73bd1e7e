"""The types of a plan: a pod at a site as plain data, made by :mod:`bridge.script.plan`."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.script.hosts import Hosts
from bridge.script.mounts import Mount
from bridge.script.probes import Action, Probe
from bridge.script.settings import BuildSettings
from bridge.script.sizing import Size
from bridge.script.volumes import Volumes


@dataclass(frozen=True, slots=True)
class Container:
    """One container. ``kind`` is ``init``, ``sidecar`` or ``main``; ``memory`` the limit in KiB.

    ``pull_policy`` is ``Always``, ``IfNotPresent`` or ``Never``.
    ``run_as`` is ``<user>:<group>``, each a number or empty. ``command`` is empty where the image's own is run, with
    ``args`` in the place of its arguments where there are any. ``fields`` has, for messages, the field of the pod that
    each variable comes from.
    """

    name: str
    kind: str
    image: str
    pull_policy: str
    command: list[str]
    args: list[str]
    directory: str
    environment: dict[str, str]
    fields: dict[str, str]
    mounts: list[Mount]
    memory: int | None
    fallback_to_logs: bool
    read_only_root: bool
    run_as: str
    non_root: bool
    probes: list[Probe]
    post_start: Action | None
    pre_stop: Action | None
    stdin: bool
    stdin_once: bool
    tty: bool

    @property
    def has_console(self) -> bool:
        """Whether a client can attach to its input or terminal."""
        return self.stdin or self.tty

    @property
    def ways(self) -> set[str]:
        """Kinds of the probes and hooks of the container: ``exec``, ``http`` ..."""
        actions = [probe.action for probe in self.probes]
        return {action.how for action in (*actions, self.post_start, self.pre_stop) if action is not None}


@dataclass(frozen=True, slots=True)
class Reach:
    """The Services that a pod reaches. ``places``: address, port and target of each, one after the other.

    ``alone``: no other pod is in its batch job.
    """

    places: list[str]
    alone: bool


@dataclass(frozen=True, slots=True)
class AnnotationOptions:
    """Options from annotations. ``flags``: words for the submit command. ``options``: words for the runtime.

    ``mpi``: ``None``, or the words after ``mpiexec -np <tasks>`` that stand before each main container's command line.
    ``pre_exec``: a script that runs outside of containers before anything else. ``workdir``: directory for emptyDir
    volumes, instead of the site's.
    """

    flags: list[str]
    options: list[str]
    mpi: list[str] | None
    pre_exec: str
    image_root: str
    workdir: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A pod; times in seconds. ``grant_wait``: how long the script waits for a grant; ``None``: it needs none."""

    containers: list[Container]
    volumes: Volumes
    restart_policy: str
    grace: float
    deadline: float | None
    pull_secret: bytes
    size: Size
    annotations: AnnotationOptions
    config: BuildSettings
    hosts: Hosts
    reach: Reach | None = None
    grant_wait: float | None = None
