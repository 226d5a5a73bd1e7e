"""The entry of this package: builds a job from a pod."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bridge.logs import kv
from bridge.poolapi.job_user import JobUser
from bridge.script import interlink_rules, plan, references, render
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import ROOT_CA, Objects
from bridge.script.runtimes import table as runtimes
from bridge.script.volumes import inside

log = logging.getLogger(__name__)

TOKEN_MODE = 0o644


@dataclass(frozen=True, slots=True)
class Job:
    """A script, and the resources to request. ``memory`` in bytes, times in seconds."""

    script: str
    cpus: int
    memory: int
    gpus: int
    gpu_resource: str
    time_limit: float | None
    flags: list[str]
    flavor: str
    grace: float


def at_site(pod: references.Pod, config: BuildConfig) -> references.Pod:
    """Return the pod as this site gets it; raises ``ScriptError`` (see :func:`bridge.script.references.at_site`)."""
    files = runtimes.of(config).account_files
    return references.at_site(pod, api_server=config.api_server.url is not None, account_files=files)


def build(
    pod: Mapping[str, Any],
    config: BuildConfig,
    objects: Objects,
    node: str,
    grant_wait: float | None = None,
    jobs: JobUser | None = None,
) -> Job:
    """Return the job of a pod for a site; raises ``ScriptError`` and ``MissingReferenceError``.

    ``grant_wait``: seconds for which the script waits for a grant before it starts anything; ``None``: it needs none.
    ``jobs``: the user of the site's jobs, if it has announced one.
    """
    if config.api_server.ca is not None:
        reached_by = {"data": {"ca.crt": config.api_server.ca}}
        objects = replace(objects, configmaps={**objects.configmaps, ROOT_CA: reached_by})
    planned = replace(plan.make(pod, config, objects, node, jobs), grant_wait=grant_wait)
    size = planned.size
    by_flags = interlink_rules.apply(config)
    for problem in interlink_rules.warnings(pod, config) if by_flags else ():
        log.warning("the pod gets less than it asks for", extra=kv(pod=pod["metadata"].get("uid"), why=problem))
    return Job(
        script=render.script(planned),
        cpus=size.cpus,
        memory=size.memory,
        gpus=0 if by_flags else size.gpus,
        gpu_resource="" if by_flags else size.gpu_resource,
        time_limit=None if size.time_limit is None else size.time_limit + (grant_wait or 0),
        flags=planned.annotations.flags,
        flavor=size.flavor,
        grace=planned.grace,
    )


def token_files(pod: Mapping[str, Any], tokens: Mapping[tuple[str, str], str]) -> list[tuple[str, str, int]]:
    """Return the files of renewed service account tokens: path below ``volumes/``, text, mode."""
    files = []
    for index, volume in enumerate(pod["spec"].get("volumes") or ()):
        projected = volume.get("projected") or {}
        mode = int(projected.get("defaultMode", TOKEN_MODE)) & 0o777
        for part in projected.get("sources") or ():
            if (inner := part.get("serviceAccountToken")) is None:
                continue
            path = inside(str(inner.get("path") or ""), f"spec.volumes[{index}].projected")
            token = tokens.get((str(volume["name"]), path))
            if token is not None:
                files.append((f"{volume['name']}/{path}", token, mode))
    return files
