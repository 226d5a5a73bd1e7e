"""The comment of a Slurm job: a JSON object that names the pod or the group of the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bridge.slurm.models import GroupRef, JobLink, PodRef


def encode(link: JobLink) -> str:
    """Return ``{"cluster": ..., "pods": [{"namespace": ..., "name": ..., "uid": ...}], "shape": ...}`` without spaces.

    For a group: ``{"cluster": ..., "group": {"kind": ..., "namespace": ..., "name": ..., "uid": ..., "index": ...},
    "size": ..., "completed": ..., "together": ..., "shape": ...}``; for a component of a heterogeneous job, also
    ``"part": 0, "parts": 2, "members": ...``. If traces are sent, ``"traceparent": ...`` is the last field. A
    ``completed`` of 0 is absent.
    """
    shape: dict[str, Any] = {"shape": link.shape}
    if link.parts > 1:
        shape |= {"part": link.part, "parts": link.parts, "members": link.members}
    if link.traceparent:
        shape["traceparent"] = link.traceparent
    if link.group is not None:  # without its pods: the comment of Slurm 22.05 takes 1,024 characters, about 25 UIDs
        completed = {"completed": link.completed} if link.completed else {}
        counts = {"size": link.size, **completed, "together": link.together}
        return _text({"cluster": link.cluster, "group": asdict(link.group), **counts, **shape})
    pods = [{"namespace": pod.namespace, "name": pod.name, "uid": pod.uid} for pod in link.pods]
    return _text({"cluster": link.cluster, "pods": pods, **shape})


def decode(text: str) -> JobLink | None:
    """Read a comment; ``None`` for any text that :func:`encode` does not write, such as the comment of a user."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        data = json.loads(text)
        if "group" in data:
            return _read_group(data)
        refs = tuple(PodRef(pod["namespace"], pod["name"], pod["uid"]) for pod in data["pods"])
        link = JobLink(data["cluster"], refs, shape=data["shape"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None  # in 22.05, the owner may write any text to the comment, also deeply nested JSON
    words = [link.cluster, *(word for pod in link.pods for word in (pod.namespace, pod.name, pod.uid))]
    valid = isinstance(link.shape, str) and all(isinstance(word, str) and word for word in words)
    return link if link.pods and valid else None


def _read_group(data: Mapping[str, Any]) -> JobLink | None:
    fields = data["group"]
    group = GroupRef(*(fields[name] for name in ("kind", "namespace", "name", "uid", "index")))
    cluster, size, shape, completed = data["cluster"], data["size"], data["shape"], data.get("completed", 0)
    texts = (cluster, group.kind, group.namespace, group.name)
    if not all(isinstance(text, str) and text for text in texts) or not isinstance(
        group.uid + group.index + shape, str
    ):
        return None
    part, parts = data.get("part", 0), data.get("parts", 1)
    members, together = data["members"] if parts != 1 else 0, data["together"]
    # not isinstance: true is an int in Python, and a number in no comment of podbridge
    if any(type(number) is not int for number in (size, part, parts, completed, members, together)):
        return None
    if min(size, together) < 1 or min(completed, members) < 0 or not 0 <= part < parts:
        return None
    return JobLink(cluster, (), group, size, shape, part, parts, completed, members=members, together=together)


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"))
