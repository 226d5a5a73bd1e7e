"""Images: what the runtimes that use them share at the hub."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from bridge import names
from bridge.errors import ScriptError
from bridge.protocol.model.announcement import JobUser
from bridge.script.environment import IDENTIFIER
from bridge.script.plan_types import Container, Plan
from bridge.script.quoting import ADDRESS, array, word
from bridge.script.settings import BuildSettings

_IMAGE = re.compile(r"[A-Za-z0-9/][A-Za-z0-9_./:@+#%=~-]{0,4095}")
# names that loaders, shells, interpreters and runtimes of the machine obey before the container starts
_OF_THE_LOADER = re.compile(
    r"LD_.*|GLIBC_.*|GCONV_PATH|PATH|HOME|TMPDIR|XDG_.*|BASH_ENV|ENV|IFS|PS4|SHELLOPTS|BASHOPTS|PYTHON.*|PERL5.*"
    r"|APPTAINER.*|SINGULARITY.*|ENROOT_.*|CONTAINER.*|PODMAN_.*|REGISTRY_.*|DOCKER_.*|STORAGE_.*|CH_.*|SLURM_.*"
    r"|BASH_FUNC_.*"
)

_LONGEST = 8000
"""Bytes of a name and its value: programs that read lines have limits."""
_LONGEST_ADDRESS = 45
_DOCKER_HUB = "docker.io"
_HUB_NAMES = (_DOCKER_HUB, "index.docker.io", "registry-1.docker.io", "registry.docker.io")
_POLICIES = ("Always", "IfNotPresent", "Never")


def accept_image(
    container: Container, field_path: str, config: BuildSettings, root: str, schemes: Sequence[str]
) -> tuple[str, str]:
    """Refuse an image that is not at a registry or in a directory that the site keeps for images.

    Return the full name of the image and the field of the pod that it comes from. ``schemes`` are those of URLs that
    the runtime pulls.

    ``root`` is the annotation image-root, or empty. The name stands among the words of a command line, so its
    characters are checked as well. The site checks paths once more, after links are followed.
    """
    name = container.image
    if not _IMAGE.fullmatch(name) or ".." in name.split("/"):
        raise ScriptError(
            f"{field_path}.image: {name!r} is not allowed; allowed: the name of an image, a URL of one, or an "
            f"absolute path, made of letters, digits and _ . / : @ + # % = ~ -"
        )
    if root and (not _IMAGE.fullmatch(root) or ".." in root.split("/")):
        raise ScriptError(
            f"annotation {names.IMAGE_ROOT}: {root!r} is not allowed; allowed: the beginning of a URL or of an "
            f"absolute path, made of letters, digits and _ . / : @ + # % = ~ -"
        )
    prefix = root or config.runtime.image_prefix
    if "://" in name or name.startswith("/"):
        target, field = name, f"{field_path}.image"
    else:
        target = _with_prefix(name, prefix)
        field = f"annotation {names.IMAGE_ROOT}" if root else f"{field_path}.image"
    _accept_target(target, field, config, schemes)
    return target, field


def _with_prefix(name: str, prefix: str) -> str:
    return f"{prefix}{name}" if not prefix or prefix.endswith("/") else f"{prefix}/{name}"


def _accept_target(target: str, field: str, config: BuildSettings, schemes: Sequence[str]) -> None:
    scheme, separator, rest = target.partition("://")
    pulled = ", ".join(f"{each}://" for each in schemes)
    if separator:
        if scheme not in schemes:
            raise ScriptError(f"{field}: the scheme {scheme}:// is not allowed at this site; allowed: {pulled}")
        if not re.match("[A-Za-z0-9]", rest):  # some runtimes get it without the scheme: as a path, or an option
            raise ScriptError(
                f"{field}: {target!r} is not allowed; allowed after {scheme}://: a name that begins "
                f"with a letter or a digit"
            )
    elif target.startswith("/"):
        path, folders = posixpath.normpath(target), areas(config)
        if path not in folders and not any(path.startswith(folder.rstrip("/") + "/") for folder in folders):
            raise ScriptError(
                f"{field}: {target!r} is not allowed; allowed at this site: images below "
                f"{', '.join(folders) or 'no folder'}, or {pulled}"
            )


def areas(config: BuildSettings) -> list[str]:
    """Return the directories whose images pods may use; those that are no images themselves end with ``/``."""
    volumes, prefix = config.volumes, config.runtime.image_prefix
    folders = [folder for folder in (volumes.image_dir, volumes.cvmfs_unpacked_path, prefix) if folder]
    below = [posixpath.normpath(folder).rstrip("/") + "/" for folder in folders if folder.startswith("/")]
    return [*below, *map(posixpath.normpath, volumes.image_paths)]


def own_user(
    user: int | None, group: int | None, jobs: JobUser | None, *, root: bool = False
) -> tuple[str, str] | None:
    """Return :meth:`.runtime_interface.Runtime.refused_user` of a runtime that gives the user of the site.

    ``root``: it also gives user 0, with any group. Without ``jobs``, only user 0 can be refused.
    """
    if user is None or (user == 0 and root) or (user != 0 if jobs is None else user == jobs.uid):
        if group in (None, jobs and jobs.gid) or (user == 0 and root) or jobs is None or jobs.gid is None:
            return None
        return "runAsGroup", f"{jobs.gid}, the group of this site"
    own = "the user of this site" if jobs is None else f"{jobs.uid}, the user of this site"
    return "runAsUser", f"{own}, or 0" if root else own


def is_line(name: str, value: str) -> bool:
    """Return whether a file of lines ``NAME=VALUE`` can hold the variable, as ``lib/environment.bash`` decides."""
    size = len(name) + len(value.replace(ADDRESS, "x" * _LONGEST_ADDRESS).encode())
    return name[:1] != "#" and not re.search("[\n\r]", value) and size <= _LONGEST


def accept_lines(container: Container) -> None:
    """Refuse values of several lines for variables that would affect the runtime itself."""
    for name, value in container.environment.items():
        if _OF_THE_LOADER.fullmatch(name) and not is_line(name, value):
            raise ScriptError(
                f"{container.fields.get(name, name)}: the variable {name!r} is not allowed with a value of several "
                f"lines, or of more than {_LONGEST} bytes, at this site"
            )


def refuse_name(container: Container, name: str, runtime: str, allowed: str) -> NoReturn:
    """Raise ``ScriptError`` for a variable whose name the runtime does not support."""
    raise ScriptError(
        f"{container.fields[name]}: the variable name {name!r} is not allowed at this site, whose runtime is "
        f"{runtime}; allowed: {allowed}"
    )


def foreign(container: Container) -> list[str]:
    """Return the names of variables that no shell can assign."""
    return [name for name in container.environment if not IDENTIFIER.fullmatch(name)]


def options(plan: Plan) -> list[str]:
    """Return the variables that the libraries of all these runtimes read."""
    volumes, containers = plan.config.volumes, plan.containers
    prefix = plan.annotations.image_root or plan.config.runtime.image_prefix
    return [
        array("IMAGES", [c.image for c in containers]),
        array("HAS_COMMAND", ["1" if c.command else "" for c in containers]),
        array("PULL", [c.pull_policy for c in containers]),
        array("LOGIN", [login_digest(c.image, prefix, plan.pull_secret) for c in containers]),
        array("EXTRA_PATHS", volumes.additional_directories_in_path),
        array("IMAGE_AREAS", areas(plan.config)),
        f"IMAGE_DIR={word(volumes.image_dir or '')}",
        f"UNPACKED={word(volumes.cvmfs_unpacked_path or '')}",
        f"CACHE_DIR={word(volumes.apptainer_cachedir or '')}",
        f"IMAGE_ROOT={word(prefix)}",
        f"GPU_RESOURCE={word(plan.size.gpu_resource if plan.size.gpus else '')}",
        f"MPI_ASKED={'' if plan.annotations.mpi is None else '1'}",
        array("MPI_WORDS", plan.annotations.mpi or ()),
    ]


def pull_policy(container: Mapping[str, Any]) -> str:
    """Return the imagePullPolicy of a container; the default is Kubernetes': Always for the tag latest, or no tag."""
    policy = container.get("imagePullPolicy")
    if policy in _POLICIES:
        return str(policy)
    name = str(container.get("image") or "")
    # as in Kubernetes for a digest; a file of the site, and a URL of another protocol, count as one
    if "@" in name or "://" in name.removeprefix("docker://") or name.startswith("/"):
        return "IfNotPresent"
    tag = name.rpartition("/")[2].partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def login_digest(name: str, prefix: str, secret: bytes) -> str:
    """Return the SHA-256 of the logins that a pull of the image may use, in hexadecimal; empty: there is none.

    ``prefix`` is put before a ``name`` without a scheme; ``secret`` is docker's ``config.json``, or empty. For an image
    of another protocol than docker's, all logins count. Only pods with the same digest share a pulled image.
    """
    if not secret:
        return ""
    target = name if "://" in name or name.startswith("/") else _with_prefix(name, prefix)
    auths = json.loads(secret)["auths"]
    scheme, separator, rest = target.partition("://")
    if not separator or scheme in ("docker", "oras"):
        host = _registry(rest if separator else target)
        auths = {key: login for key, login in auths.items() if _host(key) == host}
    return hashlib.sha256(json.dumps(auths, sort_keys=True).encode()).hexdigest() if auths else ""


def _registry(name: str) -> str:
    """Return the registry of an image's name: its first part, if this can be a host."""
    first, slash, _ = name.partition("/")
    is_host = slash and ("." in first or ":" in first or first == "localhost")
    return _host(first) if is_host else _DOCKER_HUB


def _host(key: str) -> str:
    """Return the host of a registry as docker's ``config.json`` names it: a host, or a URL, with or without a path."""
    host = key.removeprefix("https://").removeprefix("http://").partition("/")[0].lower()
    return _DOCKER_HUB if host in _HUB_NAMES else host
