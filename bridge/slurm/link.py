"""The comment of a Slurm job: a JSON object that names the pods of the job."""

from __future__ import annotations

import json

from bridge.slurm.models import JobLink, PodRef


def encode(link: JobLink) -> str:
    """Return ``{"cluster": ..., "pods": [{"namespace": ..., "name": ..., "uid": ...}]}`` without spaces."""
    pods = [{"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in link.pods]
    return json.dumps({"cluster": link.cluster, "pods": pods}, separators=(",", ":"))


def decode(text: str) -> JobLink | None:
    """Read a comment; ``None`` for any text that :func:`encode` does not write, such as the comment of a user."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        data = json.loads(text)
        link = JobLink(
            data["cluster"], tuple(PodRef(pod["namespace"], pod["name"], pod["uid"]) for pod in data["pods"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    words = [link.cluster, *(word for pod in link.pods for word in (pod.namespace, pod.name, pod.uid))]
    return link if link.pods and all(isinstance(word, str) and word for word in words) else None
