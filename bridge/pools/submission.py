"""The submission of a pod to podbridge's submitter: its script and parameters. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.poolapi.requests import JobSubmission
from bridge.script import build, library
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from bridge.wire.envelope import GarbledError
from bridge.wire.messages import UNKNOWN_LIBRARY, ScriptWithoutLibrary

LIBRARY_REFUSED = (UNKNOWN_LIBRARY, GarbledError.reason)
"""Reasons with which a submitter of another version refuses a script without its library."""


def make(pod: Mapping[str, Any], config: BuildConfig, objects: Objects, pool: str) -> JobSubmission:
    """Return the job of a pod for a site; raises ``ScriptError`` and ``MissingReferenceError``."""
    made = build.build(pod, config, objects, pool)
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
    )


def without_library(script: str, digest: str) -> str | ScriptWithoutLibrary:
    """Return the script without the bash library of this digest.

    Return ``script`` itself if this version has another library, or if the script does not contain it.
    """
    parts = library.split(script, digest)
    return ScriptWithoutLibrary(before=parts[0], library=digest, after=parts[1]) if parts else script
