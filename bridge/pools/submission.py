"""The submission of a pod to podbridge's submitter: its script and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.errors import SiteRefusedError
from bridge.poolapi.job_user import JobUser
from bridge.poolapi.jobs import JobStatus
from bridge.poolapi.requests import JobSubmission
from bridge.pools.submitter_client import Client
from bridge.script import build, library
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from bridge.wire.envelope import GarbledError
from bridge.wire.messages import UNKNOWN_LIBRARY, ScriptWithoutLibrary, Submit

LIBRARY_REFUSED = (UNKNOWN_LIBRARY, GarbledError.reason)
"""Reasons with which a submitter of another version refuses a script without its library."""


def make(
    pod: Mapping[str, Any],
    config: BuildConfig,
    objects: Objects,
    pool: str,
    grant_wait: float | None = None,
    jobs: JobUser | None = None,
) -> JobSubmission:
    """Return the job of a pod for a site; raises ``ScriptError`` and ``MissingReferenceError``.

    ``grant_wait``: seconds for which the script waits for a grant; ``None``: it needs none. ``jobs``: the user of the
    site's jobs, if it has announced one.
    """
    made = build.build(pod, config, objects, pool, grant_wait, jobs)
    metadata = pod["metadata"]
    return JobSubmission(
        namespace=metadata["namespace"],
        name=metadata["name"],
        script=made.script,
        cpus=made.cpus,
        memory=made.memory,
        gpus=made.gpus,
        gpu_resource=made.gpu_resource,
        time_limit=made.time_limit,
        flags=made.flags,
        flavor=made.flavor,
        grace=made.grace,
        grant_wait=grant_wait,
    )


def send(client: Client, job: str, made: JobSubmission, digest: str, timeout: float) -> JobStatus:
    """Submit a job to a site whose bash library has this digest; send the whole script if it refuses the other."""
    script = without_library(made.script, digest)
    try:
        return client.submit(job, Submit.of(made, script), timeout).status
    except SiteRefusedError as error:
        if script is made.script or error.reason not in LIBRARY_REFUSED:
            raise
        return client.submit(job, Submit.of(made, made.script), timeout).status


def without_library(script: str, digest: str) -> str | ScriptWithoutLibrary:
    """Return the script without the bash library of this digest.

    Return ``script`` itself if this version has another library, or if the script does not contain it.
    """
    parts = library.split(script, digest)
    return ScriptWithoutLibrary(before=parts[0], library=digest, after=parts[1]) if parts else script
