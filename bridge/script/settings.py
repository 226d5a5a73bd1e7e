"""The sections of a BuildConfig that every container runtime uses, and the base class of all sections.

Drivers import this module, so nothing in it knows a driver: :mod:`bridge.script.buildconfig` adds their sections.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

AbsolutePath = Annotated[str, Field(pattern=r"^/[^\x00-\x1f]*$", max_length=4096)]
_PEM = r"^-----BEGIN CERTIFICATE-----\n[A-Za-z0-9+/=\n -]*-----END CERTIFICATE-----\n?$"
Words = list[Annotated[str, Field(max_length=4096)]]
Seconds = Annotated[float, Field(gt=0, le=86400)]
MOST_FLAVORS = 1000
"""A hub compares the pods of a pool with the flavors that the site has sent."""


class SettingsPart(BaseModel):
    """A section of a configuration; unknown keys are errors.

    A section with ``read_at_start`` is read at the start of a process only: a change applies after a restart.
    ``Field(examples=[...])`` is the value that the sample shows for a key without a default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    read_at_start: ClassVar[bool] = False


P = TypeVar("P", bound=SettingsPart)


class Volumes(SettingsPart):
    """``[volumes]``: directories on the machines that run jobs."""

    scratch_area: AbsolutePath = Field(
        "/tmp",  # noqa: S108
        description="Directory for emptyDir volumes, if scratch_in_job_folder is false.",
    )
    scratch_in_job_folder: bool = Field(True, description="Store emptyDir volumes in the job's directory.")
    image_dir: AbsolutePath | None = Field(
        None, examples=["/shared/images"], description="Directory of images as files; in their names, _ replaces :."
    )
    image_paths: list[AbsolutePath] = Field(
        [], description="Other images, or directories of images, that pods may name."
    )
    apptainer_cachedir: AbsolutePath | None = Field(
        None, examples=["/shared/cache/apptainer"], description="Default: the runtime's own."
    )
    cvmfs_unpacked_path: AbsolutePath | None = Field(
        None, examples=["/cvmfs/unpacked.cern.ch"], description="Directory of unpacked images, by their names."
    )
    additional_directories_in_path: list[AbsolutePath] = []
    cvmfs_path: Annotated[str, Field(pattern=r"^(/[^\x00-\x1f]*)?$", max_length=4096)] = Field(
        "", description="CernVM-FS (/cvmfs) for volumes of cvmfs.vk.io/; empty: refuse them."
    )
    fuse_sleep_seconds: Annotated[float, Field(ge=0, le=600)] = Field(
        5, description="Seconds that the script of a FUSE volume has to mount it."
    )
    host_paths: list[AbsolutePath] = Field([], description="Directories for hostPath volumes.")


class RuntimeSection(SettingsPart):
    """``[runtime]``: the container runtime."""

    kind: str = "apptainer"
    image_prefix: str = Field("docker://", description="Prefix of images without a scheme that are no path.")
    network: Literal["host", "none"] = Field("host", description="none: containers have no network.")
    run_as_user: Literal["refuse", "ignore"] = Field(
        "refuse", description="If the runtime cannot give runAsUser or runAsGroup."
    )


class ApiServer(SettingsPart):
    """``[api_server]``: how containers connect to the Kubernetes API server; without it they get no token."""

    url: Annotated[str, Field(pattern=r"^https://(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:[0-9]{1,5})?$")] | None = Field(
        None,
        examples=["https://k8s.example:6443"],
        description="https://HOST:PORT of the API server, as containers reach it.",
    )
    ca: Annotated[str, Field(pattern=_PEM, max_length=65536)] | None = Field(
        None,
        examples=["-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"],
        description="Its CA certificates (PEM, not a path).",
    )

    @model_validator(mode="after")
    def _both(self) -> ApiServer:
        if (self.url is None) != (self.ca is None):
            raise ValueError("one of url and ca alone is not allowed; allowed: both, or neither")
        return self

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a kubelet sets for the service ``kubernetes`` and that clients use."""
        if self.url is None:
            return {}
        host, _, port = self.url.removeprefix("https://").rpartition(":")
        if not host or "]" in port:  # no port: the colons are those of an IPv6 address, or there are none
            host, port = self.url.removeprefix("https://"), "443"
        names = ("KUBERNETES_SERVICE_PORT", "KUBERNETES_SERVICE_PORT_HTTPS")
        return {"KUBERNETES_SERVICE_HOST": host.strip("[]"), **dict.fromkeys(names, port)}


class Flavor(SettingsPart):
    """``[[flavors]]``: kinds of jobs; an annotation selects one, or else the first that covers the pod."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    description: str = ""
    account: str | None = None
    partition: str | None = None
    qos: str | None = None
    reservation: str | None = None
    nodelist: str | None = None
    generic_resources: Words = []
    max_time_seconds: Annotated[int, Field(ge=1)] | None = None
    max_resources: dict[str, str] = Field({}, description="Resource -> quantity; a GPU must be named to be available.")
    # a hub before this key refuses a BuildConfig with it
    max_group_resources: dict[str, str] = Field(
        {},
        description="Of a group; default: max_resources.",
        exclude_if=lambda quantities: not quantities,
    )
    uid: Annotated[int, Field(ge=0)] | None = Field(
        None, description="With interlink-slurm rules: user of pods without runAsUser."
    )
    cpu: Annotated[int, Field(ge=1)] | None = Field(None, description="CPUs of pods that request none.")
    memory: str | None = Field(None, description="Memory of pods that request none.")
    flags: Words = Field([], description="More options of the submit command.")


class LimitsSection(SettingsPart):
    """``[limits]``: defaults and limits of pods, and what their annotations may do."""

    default_cpu: Annotated[int, Field(ge=1)] = 1
    default_memory: str = "1Gi"
    max_time_seconds: Annotated[int, Field(ge=1)] | None = Field(None, examples=[86400])
    rules: Literal["podbridge", "interlink-slurm"] = Field(
        "podbridge", description="How size, flavor and flags follow from a pod."
    )
    default_uid: Annotated[int, Field(ge=0)] | None = Field(
        None, examples=[1000], description="With interlink-slurm rules: user of jobs without one."
    )
    probes: bool = Field(True, description="Run the probes of containers.")
    watch_memory: bool = Field(True, description="End a container that uses more than its memory limit.")
    allow_user_flags: bool = Field(False, description="Honour slurm-job.vk.io/flags: options of the submit command.")
    allow_pre_exec: bool = Field(False, description="Honour slurm-job.vk.io/pre-exec: a script outside of containers.")
    allow_race: bool = Field(False, description="Accept jobs of pods that are queued elsewhere too.")
    allow_exec: bool = Field(True, description="Run commands in containers: kubectl exec, cp, attach.")
    allow_ports: bool = Field(False, description="Connect to ports of pods: kubectl port-forward.")
    allow_reach: bool = Field(False, description="Let pods reach Services of their cluster: bridge.vk.io/reach.")
    allow_fuse: bool = Field(False, description="Honour fuse.vk.io/: a script that mounts; may run outside.")
    allow_runtime_options: bool = Field(
        False, description="Honour slurm-job.vk.io/mpi-flags, and options of the runtime."
    )

    @property
    def by_interlink(self) -> bool:
        """Whether the rules are those of the interLink Slurm plugin (:mod:`bridge.script.interlink_rules`)."""
        return self.rules == "interlink-slurm"


class BuildSettings(SettingsPart):
    """A BuildConfig without the sections of its runtimes: the type that drivers and the modules below them use."""

    runtime: RuntimeSection = RuntimeSection()
    volumes: Volumes = Volumes()
    limits: LimitsSection = LimitsSection()
    api_server: ApiServer = ApiServer()
    flavors: list[Flavor] = Field([], max_length=MOST_FLAVORS)
    default_flavor: str = ""
    header: str = Field("", description="First lines of every script (module load ...).")
    footer: str = Field("", description="Last lines of every script.")

    def section(self, model: type[P]) -> P:
        """Return the section of a driver, whose type is ``model``."""
        section: P = getattr(self, _field_of(type(self), model))
        return section


@cache
def _field_of(settings: type[BuildSettings], model: type[SettingsPart]) -> str:
    return next(name for name, field in settings.model_fields.items() if field.annotation is model)


def with_sections(name: str, base: type[P], sections: Mapping[str, type[SettingsPart]]) -> type[P]:
    """Return a model called ``name``: ``base`` with one more section of defaults for each item of ``sections``."""
    fields = {key: (model, model()) for key, model in sections.items()}
    return create_model(name, __base__=base, **fields)  # type: ignore[call-overload, no-any-return]
