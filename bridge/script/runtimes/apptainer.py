"""Apptainer and Singularity. ``exec`` runs the ``command`` of a container, ``run`` the image's own.

Source: the user guide of Apptainer 1.x (command line, bind paths, environment, ``--no-eval``).
"""

from __future__ import annotations

import re
from typing import ClassVar, Literal

from pydantic import Field

from bridge import names
from bridge.errors import ScriptError
from bridge.protocol.model.announcement import JobUser
from bridge.script.plan_types import Container, Plan
from bridge.script.quoting import array, word
from bridge.script.runtimes import runtime_images
from bridge.script.runtimes.runtime_interface import Runtime
from bridge.script.settings import BuildSettings, SettingsPart, Words

_CLEANS = re.compile(r"--(cleanenv|containall)=.*|-[A-Za-z]*[eC][A-Za-z]*")
_ITS_OWN = ("APPTAINER_", "APPTAINERENV_", "SINGULARITY_", "SINGULARITYENV_", "BASH_FUNC_")
"""Prefixes of variables that apptainer does not pass on unchanged, or that bash would execute."""


class Apptainer(SettingsPart):
    """``[apptainer]``: options of apptainer or singularity."""

    executable: str = "apptainer"
    fakeroot: bool = False
    userns: bool = False
    uts: bool = False
    sharens: bool = False
    containall: bool = True
    fuse_mode: Literal["container", "host", "host-privileged"] = Field(
        "container", description="Where the script of a FUSE volume runs; host-privileged: without apptainer."
    )
    no_init: bool = False
    no_home: bool = True
    no_privs: bool = True
    nvidia_support: Literal["auto", "always", "never"] = Field("auto", description="auto: for pods that request GPUs.")
    cleanenv: bool = True
    unsquash: bool = False
    writable_tmpfs: bool = Field(True, description="Containers may change their root file system.")
    root_filesystem: Literal["disk", "memory"] = Field(
        "disk", description="Where changes are stored; memory: some MiB (sessiondir max size)."
    )
    options: Words = Field([], description="More options.")


class ApptainerRuntime(Runtime):
    """``apptainer exec`` and ``apptainer run``."""

    kind = library = "apptainer"
    account_files = True
    settings: ClassVar[type[SettingsPart] | None] = Apptainer
    schemes = ("docker", "oras", "library", "shub", "https", "http")
    exec_mounts = True
    option_annotations = (names.SINGULARITY_MOUNTS, names.SINGULARITY_OPTIONS)

    def accept(self, container: Container, field_path: str, config: BuildSettings, image_root: str) -> None:
        """Refuse names that are no images, and variables that it cannot set."""
        runtime_images.accept_image(container, field_path, config, image_root, self.schemes)
        for name in runtime_images.foreign(container):
            if name.startswith(_ITS_OWN):
                runtime_images.refuse_name(
                    container, name, self.kind, f"letters, digits and _ in names that begin with {', '.join(_ITS_OWN)}"
                )
        home = container.environment.get("HOME", "")
        if home and (not home.startswith("/") or ":" in home):
            raise ScriptError(
                f"{container.fields['HOME']}: the value {home!r} of HOME is not allowed at this site "
                f"(runtime {self.kind}); allowed: an absolute path without ':'"
            )
        if not self.fuse_mode(config):
            return
        for mount in container.mounts:
            if mount.kind == "fuse" and (mount.read_only or any(letter.isspace() for letter in mount.path)):
                raise ScriptError(
                    f"{field_path}.volumeMounts: readOnly, or a place with blanks ({mount.path!r}), is not allowed for "
                    f"a FUSE volume at this site (apptainer.fuse_mode is {config.section(Apptainer).fuse_mode})"
                )

    def refused_user(
        self, user: int | None, group: int | None, config: BuildSettings, jobs: JobUser | None
    ) -> tuple[str, str] | None:
        """Refuse other users than that of the site, and 0 without ``fakeroot``."""
        return runtime_images.own_user(user, group, jobs, root=config.section(Apptainer).fakeroot)

    def options(self, plan: Plan) -> list[str]:
        """Return the variables of ``lib/runtime_apptainer.bash``."""
        own = plan.config.section(Apptainer)
        _refuse_cleaning(plan)
        # umask 0022 in containers, not the script's 077; no shell evaluates variables and arguments
        words = ["--no-umask", "--no-eval"]
        words += [
            f"--{flag}"
            for flag, on in (
                ("fakeroot", own.fakeroot),
                ("userns", own.userns),
                ("uts", own.uts),
                ("sharens", own.sharens),
                ("containall", own.containall),
                ("no-init", own.no_init),
                ("no-home", own.no_home),
                ("no-privs", own.no_privs and not own.fakeroot),
                ("cleanenv", own.cleanenv),
                ("unsquash", own.unsquash),
            )
            if on
        ]
        if plan.config.runtime.network == "none":
            words += ["--net", "--network", "none"]
        return [
            *runtime_images.options(plan),
            f"RUNTIME={word(self.executable(plan.config))}",
            array("OPTIONS", [*words, *own.options, *plan.annotations.options]),
            array("GPU_WORDS", _gpus(plan)),
            f"WRITABLE_TMPFS={'1' if own.writable_tmpfs else ''}",
            f"ROOT_FILESYSTEM={own.root_filesystem}",
            f"FAKEROOT_USER={'0' if own.fakeroot else ''}",
        ]

    def fuse_mode(self, config: BuildSettings) -> str:
        """Return ``apptainer.fuse_mode``, where apptainer mounts."""
        own = config.section(Apptainer).fuse_mode
        return own if own != "host-privileged" else ""

    def executable(self, config: BuildSettings) -> str:
        """Return the program."""
        return config.section(Apptainer).executable

    def version_command(self, config: BuildSettings) -> list[str]:
        """Return ``apptainer --version``."""
        return [self.executable(config), "--version"]


class SingularityRuntime(ApptainerRuntime):
    """Singularity: the options and the section of apptainer, with a program of another name."""

    kind = "singularity"
    settings = None

    def executable(self, config: BuildSettings) -> str:
        """Return ``apptainer.executable``, or ``singularity`` where it has its default."""
        own = config.section(Apptainer).executable
        return "singularity" if own == "apptainer" else own


def _refuse_cleaning(plan: Plan) -> None:
    """Refuse options that would remove variables: the script replaces --cleanenv and --containall by their names."""
    for container in plan.containers:
        for name in runtime_images.foreign(container):
            for option in (*plan.config.section(Apptainer).options, *plan.annotations.options):
                if _CLEANS.fullmatch(option) and option not in ("-e", "-C"):
                    raise ScriptError(
                        f"{container.fields[name]}: the variable name {name!r} is not allowed with the option "
                        f"{option!r}; allowed: --cleanenv or --containall in its place"
                    )


def _gpus(plan: Plan) -> list[str]:
    support, resource = plan.config.section(Apptainer).nvidia_support, plan.size.gpu_resource
    words = []
    if support == "always" or (support == "auto" and resource == "nvidia.com/gpu"):
        words.append("--nv")
    if resource == "amd.com/gpu":
        words.append("--rocm")
    return words
