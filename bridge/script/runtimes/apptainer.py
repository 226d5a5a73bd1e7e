"""Apptainer and Singularity. ``command`` is run by ``exec``, the image's own by ``run``.

Source: the user guide of Apptainer 1.x (command line, bind paths, environment, ``--no-eval``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bridge.errors import ScriptError
from bridge.script import fuse
from bridge.script.buildconfig import BuildConfig
from bridge.script.quoting import array, word
from bridge.script.runtimes import images

if TYPE_CHECKING:
    from bridge.script.plan import Container, Plan

library = "apptainer"
_CLEANS = re.compile(r"--(cleanenv|containall)=.*|-[A-Za-z]*[eC][A-Za-z]*")
_ITS_OWN = ("APPTAINER_", "APPTAINERENV_", "SINGULARITY_", "SINGULARITYENV_", "BASH_FUNC_")
"""Variables of its own environment that it does not hand on as they are, or that a script of its name would run."""
login = images.login


def accept(container: Container, where: str, config: BuildConfig, image_root: str) -> None:
    """Refuse names that are no images, variables for the runtime itself, and user 0 where the site does not fake it."""
    images.accept_image(container, where, config, image_root, library)
    for name in images.foreign(container):
        if name.startswith(_ITS_OWN):
            images.refuse_name(
                container,
                name,
                config.runtime.kind,
                f"letters, digits and _ in names that begin with {', '.join(_ITS_OWN)}",
            )
    if container.run_as.startswith("0:") and not config.apptainer.fakeroot:
        raise ScriptError(
            f"{where}.securityContext.runAsUser: 0 is not allowed at this site (apptainer.fakeroot is false)"
        )
    if not fuse.mode(config):
        return
    for mount in container.mounts:
        if mount.kind == "fuse" and (mount.read_only or any(letter.isspace() for letter in mount.path)):
            raise ScriptError(
                f"{where}.volumeMounts: readOnly, or a place with blanks ({mount.path!r}), is not allowed for a FUSE "
                f"volume at this site (apptainer.fuse_mode is {config.apptainer.fuse_mode})"
            )


def options(plan: Plan) -> list[str]:
    """Give the site's options, in words."""
    own = plan.config.apptainer
    kind = plan.config.runtime.kind
    executable = "singularity" if kind == "singularity" and own.executable == "apptainer" else own.executable
    _refuse_cleaning(plan)
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
        *images.options(plan),
        f"RUNTIME={word(executable)}",
        array("OPTIONS", [*words, *own.options, *plan.extras.options]),
        array("GPU_WORDS", _gpus(plan)),
        f"WRITABLE_TMPFS={'1' if own.writable_tmpfs else ''}",
        f"FAKEROOT_USER={'0' if own.fakeroot else ''}",
    ]


def _refuse_cleaning(plan: Plan) -> None:
    """Refuse options that would drop variables: the script replaces those that clean the environment by their names."""
    for container in plan.containers:
        for name in images.foreign(container):
            for option in (*plan.config.apptainer.options, *plan.extras.options):
                if _CLEANS.fullmatch(option) and option not in ("-e", "-C"):
                    raise ScriptError(
                        f"{container.fields[name]}: the variable name {name!r} is not allowed with the option "
                        f"{option!r}; allowed: --cleanenv or --containall in its place"
                    )


def _gpus(plan: Plan) -> list[str]:
    support, resource = plan.config.apptainer.nvidia_support, plan.size.gpu_resource
    words = []
    if support == "always" or (support == "auto" and resource == "nvidia.com/gpu"):
        words.append("--nv")
    if resource == "amd.com/gpu":
        words.append("--rocm")
    return words
