"""Annotations of the interLink Slurm plugin, as far as the site allows them; image pull secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter

from bridge import names
from bridge.errors import ScriptError
from bridge.script import interlink_rules
from bridge.script.plan_types import AnnotationOptions
from bridge.script.quoting import clean, split_annotation
from bridge.script.references import Objects
from bridge.script.runtimes import runtime_table as runtimes
from bridge.script.settings import BuildSettings
from bridge.script.volumes import may_use

_DOCKER_JSON, _DOCKER_CFG = ".dockerconfigjson", ".dockercfg"


class _Login(BaseModel):
    """One login; unknown fields are omitted, as by a kubelet."""

    auth: str | None = None
    username: str | None = None
    password: str | None = None
    email: str | None = None
    identitytoken: str | None = None
    registrytoken: str | None = None


_Logins = dict[str, _Login | None]
_LOGINS = TypeAdapter(_Logins)


class _DockerConfig(BaseModel):
    auths: _Logins | None = None


_LIMITS = {
    names.FLAGS: "allow_user_flags",
    names.PRE_EXEC: "allow_pre_exec",
    names.MPI_FLAGS: "allow_runtime_options",
    names.SINGULARITY_OPTIONS: "allow_runtime_options",
    names.SINGULARITY_MOUNTS: "allow_runtime_options",
    names.ENROOT_OPTIONS: "allow_runtime_options",
    names.ENROOT_MOUNTS: "allow_runtime_options",
}
"""The key of ``limits`` that allows an annotation."""


def read(pod: Mapping[str, Any], config: BuildSettings) -> AnnotationOptions:
    """Read the annotations; raises ``ScriptError`` for one that the site does not allow."""
    by_interlink = config.limits.by_interlink
    if by_interlink:
        annotations = interlink_rules.normalized(pod)
    else:
        stated = pod["metadata"].get("annotations") or {}
        annotations = {key: str(value) for key, value in stated.items() if key.startswith(names.SITE_PREFIX) and value}
    runtime = runtimes.of(config)
    for key, value in annotations.items():
        clean(value, f"annotation {key}")
        if key in _LIMITS and not getattr(config.limits, _LIMITS[key]):
            raise ScriptError(f"annotation {key} is not allowed at this site (limits.{_LIMITS[key]} is false)")
    options = [word for key in runtime.option_annotations for word in split_annotation(annotations, key)]
    workdir = annotations.get(names.JOB_WORKDIR, "")
    if workdir and not may_use(workdir, config):
        raise ScriptError(
            f"annotation {names.JOB_WORKDIR}: {workdir!r} is not allowed; allowed at this site: below "
            f"{', '.join(config.volumes.host_paths) or 'no path'}"
        )
    mpi = None
    if names.MPI_FLAGS in annotations:
        if not runtime.supports_mpi:  # if it were ignored, one process would run instead of many
            raise ScriptError(
                f"annotation {names.MPI_FLAGS} is not possible at this site, whose runtime is {runtime.kind}; "
                f"it is with {', '.join(runtimes.MPI_KINDS[:-1])} and {runtimes.MPI_KINDS[-1]}"
            )
        mpi = [] if annotations[names.MPI_FLAGS] == "true" else split_annotation(annotations, names.MPI_FLAGS)
    flags = split_annotation(annotations, names.FLAGS)
    return AnnotationOptions(
        flags=interlink_rules.flags(pod, config, flags) if by_interlink else flags,
        options=options,
        mpi=mpi,
        pre_exec=annotations.get(names.PRE_EXEC, ""),
        image_root=annotations.get(names.IMAGE_ROOT, ""),
        workdir=workdir,
    )


def pull_secret(pod: Mapping[str, Any], objects: Objects) -> bytes:
    """Return the image pull secrets as one docker ``config.json``; empty: there are none."""
    auths: dict[str, dict[str, str]] = {}
    for name in dict.fromkeys(str(each.get("name")) for each in pod["spec"].get("imagePullSecrets") or ()):
        data = (objects.secrets.get(name) or {}).get("data") or {}
        try:
            if _DOCKER_JSON in data:
                logins = _DockerConfig.model_validate_json(base64.b64decode(data[_DOCKER_JSON])).auths or {}
            elif _DOCKER_CFG in data:
                logins = _LOGINS.validate_json(base64.b64decode(data[_DOCKER_CFG]))
            else:
                continue
            # the first secret that names a registry wins, as for a kubelet
            auths = {**{registry: _login(entry) for registry, entry in logins.items() if entry is not None}, **auths}
        except (TypeError, ValueError):  # its text and its cause contain the login
            raise ScriptError(f"spec.imagePullSecrets: Secret {name!r} does not hold a docker configuration") from None
    return json.dumps({"auths": auths}).encode() if auths else b""


def _login(entry: _Login) -> dict[str, str]:
    """Return a login with the field ``auth``, which every runtime reads; raises ``ValueError`` if it is not base64."""
    values: dict[str, str] = entry.model_dump(exclude_none=True)
    if text := "".join(values.get("auth", "").split()):
        padded = text + "=" * (-len(text) % 4)
        base64.b64decode(padded)
        return {**values, "auth": padded}
    if "username" not in values:
        return values
    pair = f"{values['username']}:{values.get('password', '')}"
    return {**values, "auth": base64.b64encode(pair.encode()).decode()}
