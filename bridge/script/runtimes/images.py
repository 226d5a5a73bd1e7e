"""What the runtimes that know images have in common at the hub."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from bridge.errors import ScriptError
from bridge.script.quoting import array, word

if TYPE_CHECKING:
    from bridge.script.plan import Container, Plan

_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./:@+#%=~-]{0,4095}")
_OF_THE_LOADER = re.compile(
    r"LD_.*|GLIBC_.*|GCONV_PATH|PATH|HOME|TMPDIR|XDG_.*|BASH_ENV|ENV|IFS|PS4|SHELLOPTS|BASHOPTS|PYTHON.*|PERL5.*"
    r"|APPTAINER.*|SINGULARITY.*|ENROOT_.*|CONTAINER.*|PODMAN_.*|REGISTRY_.*|DOCKER_.*|STORAGE_.*|CH_.*|SLURM_.*"
)


def accept_image(container: Container, where: str) -> None:
    """Refuse what is no name of an image: it stands among the words of a command line."""
    if not _IMAGE.fullmatch(container.image) or ".." in container.image.split("/"):
        raise ScriptError(
            f"{where}.image: {container.image!r} is not allowed; allowed: the name of an image, a URL of one, or an "
            f"absolute path, made of letters, digits and _ . / : @ + # % = ~ -"
        )


def accept_lines(container: Container, where: str) -> None:
    """Refuse values of several lines for variables that would work on the runtime itself, on their way through it."""
    for name, value in container.environment.items():
        if _OF_THE_LOADER.fullmatch(name) and ("\n" in value or "\r" in value or len(value) > 8000):
            raise ScriptError(
                f"{where}.env: {name}: a value of several lines, or above 8000 characters, is not allowed"
            )


def options(plan: Plan) -> list[str]:
    """Give what every such library reads."""
    volumes, containers = plan.config.volumes, plan.containers
    return [
        array("IMAGES", [c.image for c in containers]),
        array("HAS_COMMAND", ["1" if c.command else "" for c in containers]),
        array("ALWAYS_PULL", ["1" if c.always_pull else "" for c in containers]),
        array("EXTRA_PATHS", volumes.additional_directories_in_path),
        f"IMAGE_DIR={word(volumes.image_dir or '')}",
        f"UNPACKED={word(volumes.cvmfs_unpacked_path or '')}",
        f"CACHE_DIR={word(volumes.apptainer_cachedir or '')}",
        f"IMAGE_ROOT={word(plan.extras.image_root or plan.config.runtime.image_prefix)}",
        f"MPI_ASKED={'' if plan.extras.mpi is None else '1'}",
        array("MPI_WORDS", plan.extras.mpi or ()),
    ]


def login(secret: bytes) -> tuple[str, bytes]:
    """Keep docker's own file: most runtimes read it."""
    return "docker/config.json", secret
