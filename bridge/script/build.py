"""The entry of this package: builds a job from a pod."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bridge import names
from bridge.logs import kv
from bridge.protocol.model.announcement import JobUser
from bridge.protocol.model.requests import EqualPods, JobSubmission, PlaceInJob
from bridge.script import interlink_rules, plan, references, render, volume_files
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import ROOT_CA, Objects
from bridge.script.runtimes import runtime_table as runtimes
from bridge.script.volume_files import CurrentFiles
from bridge.workload import pods, remote_gangs

log = logging.getLogger(__name__)


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
) -> JobSubmission:
    """Return the job of a pod for a site; raises ``ScriptError`` and ``MissingReferenceError``.

    ``grant_wait``: seconds for which the script waits for a grant before it starts anything; ``None``: it needs none.
    ``jobs``: the user of the site's jobs, if it has announced one.
    """
    objects, place = _with_authorities(config, objects), _place(pod)
    planned = plan.make(pod, config, objects, node, jobs)
    if place is None:  # else the job of the group waits
        planned = replace(planned, grant_wait=grant_wait)
    size = planned.size
    by_flags = config.limits.by_interlink
    for problem in interlink_rules.warnings(pod, config) if by_flags else ():
        log.warning("the pod gets less than it asks for", extra=kv(pod=pod["metadata"].get("uid"), why=problem))
    metadata = pod["metadata"]
    return JobSubmission(
        namespace=metadata["namespace"],
        name=metadata["name"],
        script=render.script(planned),
        cpus=size.cpus,
        memory=size.memory,
        # the flags of the pod and of its flavor request the GPUs
        gpus=0 if by_flags else size.gpus,
        gpu_resource="" if by_flags else size.gpu_resource,
        # the job waits for its grant within its time limit
        time_limit=None if size.time_limit is None else size.time_limit + (grant_wait or 0),
        flags=planned.annotations.flags,
        flavor=size.flavor,
        grace=planned.grace,
        grant_wait=grant_wait,
        place=place,
        array=_array(pod),
    )


def _place(pod: Mapping[str, Any]) -> PlaceInJob | None:
    """Return the place of a pod whose group is one job at the site."""
    place = remote_gangs.place_of(pod)
    if place is None:
        return None
    return PlaceInJob(
        gang=place.gang,
        rank=place.rank,
        size=place.size,
        per_node=remote_gangs.per_node(pod),
        names=remote_gangs.host_names(pod),
        mpi=remote_gangs.mpi(pod),
    )


def _array(pod: Mapping[str, Any]) -> EqualPods | None:
    """Return the pods with which a pod may be in one array at the site. Without the annotation, the site decides.

    Admission copies the annotation of the pod's owners or namespace.
    """
    text, owner = (pod["metadata"].get("annotations") or {}).get(names.ARRAY), pods.owner_reference(pod)
    if owner is None or text not in ("true", None):
        return None
    return EqualPods(owner=owner["uid"], wanted=None if text is None else True)


def current_files(pod: Mapping[str, Any], config: BuildConfig, objects: Objects, node: str) -> CurrentFiles:
    """Return the present files of a prepared pod's volumes, as far as the objects are known."""
    return volume_files.current(pod, _with_authorities(config, objects), node)


def _with_authorities(config: BuildConfig, objects: Objects) -> Objects:
    """Return the objects with the certificates of the API server as the site reaches it."""
    if config.api_server.ca is None:
        return objects
    return replace(objects, configmaps={**objects.configmaps, ROOT_CA: {"data": {"ca.crt": config.api_server.ca}}})
