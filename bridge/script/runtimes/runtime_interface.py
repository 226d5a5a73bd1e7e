"""The port: what a container runtime is at the hub. The site's part is bash, see :meth:`Runtime.bash`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import resources
from typing import ClassVar

from bridge.protocol.model.announcement import JobUser
from bridge.script.plan_types import Container, Plan
from bridge.script.settings import BuildSettings, SettingsPart


class Runtime(ABC):
    """A container runtime. Stateless: one object serves all threads."""

    kind: ClassVar[str]
    """Value of ``runtime.kind``, and name of the section of ``settings``."""
    settings: ClassVar[type[SettingsPart] | None] = None
    """Model of the runtime's section in ``site.toml`` and in the BuildConfig; ``None``: it has none."""
    library: ClassVar[str]
    """Name of the bash library: letters, digits and _. Runtimes with the same name share it."""
    schemes: ClassVar[tuple[str, ...]] = ("docker",)
    """URL schemes from which the library pulls images; empty: it runs no images."""
    supports_mpi: ClassVar[bool] = True
    """Whether ``mpiexec`` of the machine can start its containers (annotation ``mpi-flags``)."""
    exec_mounts: ClassVar[bool] = False
    """Whether ``runtime_exec`` mounts the volumes again, while the running container may change them."""
    image_user: ClassVar[bool] = False
    """Whether a container without ``runAsUser`` has the user of its image, and not that of the site."""
    account_files: ClassVar[bool] = False
    """Whether the volume that every pod has (``/var/run/secrets/kubernetes.io/serviceaccount``) can be mounted in any
    image, also where ``/var/run`` is a link."""
    option_annotations: ClassVar[tuple[str, ...]] = ()
    """Annotations whose words stand before the image on the command line, in this order."""
    secrets: ClassVar[tuple[str, ...]] = ("run/docker",)
    """Paths in a job's directory that contain logins of registries; removed at the end of the job.

    The library has the same in its array ``RUNTIME_SECRETS``.
    """

    folders: ClassVar[tuple[str, ...]] = ()
    """What the library needs in a job's directory beside the directories that all jobs have."""

    def bash(self) -> str:
        """Return the text of the bash library.

        It defines ``runtime_check``, ``runtime_start I`` (becomes the container; calls ``go`` just before, or
        ``cannot``), ``runtime_exec I WORD...`` (a command in the running container), ``runtime_signal I NAME``,
        ``runtime_pid I``, ``runtime_user I``, ``runtime_code I CODE``, ``runtime_oom I``, ``runtime_clean I``,
        ``runtime_remove PATH`` and ``runtime_end``; ``lib/runtime.bash`` has defaults for most. ``command_of``,
        ``variables_of`` and ``mounts_of`` read the data of a container. It must not contain heredocs: comments and
        indentation are stripped.
        """
        return (resources.files("bridge.script") / "lib" / f"runtime_{self.library}.bash").read_text("utf-8")

    @abstractmethod
    def accept(self, container: Container, field_path: str, config: BuildSettings, image_root: str) -> None:
        """Raise ``ScriptError`` for what this runtime does not support.

        ``field_path`` is the path of the container in the pod; ``image_root`` is the annotation of that name, or empty.
        """

    def refused_user(
        self, user: int | None, group: int | None, config: BuildSettings, jobs: JobUser | None
    ) -> tuple[str, str] | None:
        """Return the field that the runtime cannot give, ``runAsUser`` or ``runAsGroup``, and which values are allowed.

        ``user`` and ``group`` are the values of a pod, ``jobs`` is the user of the site's jobs, if it is known. Return
        ``None`` if the runtime can give both, or if only the machine of the job knows: see ``runtime_user``.
        """
        return None

    def login(self, secret: bytes) -> tuple[str, bytes]:
        """Return a path below ``run/`` and the content of the file with the logins of registries.

        ``secret`` is docker's ``config.json``, which most runtimes read.
        """
        return "docker/config.json", secret

    def options(self, plan: Plan) -> Sequence[str]:
        """Return lines of bash that set the variables of the library: the options of the site and of the pod."""
        return ()

    def fuse_mode(self, config: BuildSettings) -> str:
        """Return how the runtime mounts FUSE volumes: ``host``, ``container``, or empty if the job script mounts."""
        return ""

    def has_network(self, config: BuildSettings) -> bool:
        """Return whether probes reach the ports of a container from the machine."""
        return config.runtime.network == "host"

    def version_command(self, config: BuildSettings) -> Sequence[str]:
        """Return the command that prints the version, as the last word of its first line; empty: there is none."""
        return ()
