"""Reduction of pods on virtual nodes in memory: complete until the job is submitted, then only the needed fields."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from bridge import names
from bridge.kube.prune import IDENTITY, pick
from bridge.script import volume_files

Object = dict[str, Any]
Field = tuple[str, str | None]

_ANNOTATIONS = (
    names.REMOTE_JOB,
    names.JOB_INTENT,
    names.GRANT,
    names.PLACE_IN_JOB,
    names.TRACEPARENT,
    names.EXPOSE,
    names.EXPOSE_PERMITTED,
    names.REACH,
)
_SPEC = ("nodeName", "restartPolicy", "terminationGracePeriodSeconds", "readinessGates", "serviceAccountName")
_WORD = 32
"""Maximum length of strings that are interned: types, reasons and images repeat, times do not."""
_WITH_FILES = ("configMap", "secret", "downwardAPI", "projected")
_MOST_SOURCES = 4096
_CONTAINER = ("name", "image", "restartPolicy", "resources", "stdin", "tty")
Source = tuple[Any, list[Field]]
"""The source of a volume, and the labels and annotations that it shows."""


class SharedSources:
    """Equal sources of volumes of all pods: one object each. Thread-safe: each cache of pods has a thread."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        self._lock = threading.Lock()

    def get(self, key: str, make: Callable[[], Source]) -> Source:
        """Return the source with this key; make it if there is none."""
        with self._lock:
            source = self._sources.get(key)
            if source is None:
                if len(self._sources) >= _MOST_SOURCES:
                    self._sources.clear()
                source = self._sources[key] = make()
            return source


_sources = SharedSources()


def prune(pod: Object) -> Object:
    """Return identity, containers, volumes with files and status of a submitted pod; any other pod unchanged."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    all_annotations = metadata.get("annotations") or {}
    ended = status.get("phase") in ("Succeeded", "Failed")
    # the script is built from the whole pod
    if not ended and not all_annotations.get(names.REMOTE_JOB):
        return pod
    reduced_metadata = pick(metadata, IDENTITY)
    annotation_names: tuple[str, ...] = _ANNOTATIONS
    files = [] if ended else [pair for pair in map(_with_files, spec.get("volumes") or ()) if pair is not None]
    # the selectors of Services, and their names for ports
    is_exposed = not ended and names.EXPOSE in all_annotations
    if shown := [field for _, fields in files for field in fields]:
        labels = metadata.get("labels") or {}
        if labels := pick(labels, _shown(shown, "labels", labels)):
            reduced_metadata["labels"] = labels
        annotation_names += _shown(shown, "annotations", all_annotations)
    if is_exposed and "labels" in metadata:
        reduced_metadata["labels"] = metadata["labels"]
    if annotations := pick(all_annotations, annotation_names):
        reduced_metadata["annotations"] = annotations
    if names.POOL_FINALIZER in (metadata.get("finalizers") or ()):
        reduced_metadata["finalizers"] = [names.POOL_FINALIZER]
    reduced_spec = pick(spec, _SPEC)
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            keys = (*_CONTAINER, "ports") if is_exposed else _CONTAINER
            reduced_spec[kind] = [pick(container, keys) for container in spec[kind]]
    reduced_spec = _shared(reduced_spec)
    if files:
        reduced_spec["volumes"] = [volume for volume, _ in files]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": reduced_metadata,
        "spec": reduced_spec,
        "status": _shared(status),
    }


def _with_files(volume: Object) -> tuple[Object, list[Field]] | None:
    """Return a volume with files, and the labels and annotations that it shows; ``None`` for another volume.

    Equal sources of all pods are one object: each pod has the same ones for its service account.
    """
    kind = next((kind for kind in _WITH_FILES if volume.get(kind) is not None), None)
    if kind is None:
        return None

    def make() -> Source:
        return _shared(volume[kind]), volume_files.shown_fields({"spec": {"volumes": [volume]}})

    source, fields = _sources.get(f"{kind} {volume[kind]!r}", make)
    return {"name": volume["name"], kind: source}, fields


def _shown(fields: list[Field], kind: str, values: Object) -> tuple[str, ...]:
    """Return the keys of the labels or annotations that volumes show."""
    keys = [key for field, key in fields if field == kind]
    return tuple(values) if None in keys else tuple(key for key in keys if key is not None)


def _shared(value: Any) -> Any:
    """Intern equal strings of all pods: this saves two thirds of a pod's memory."""
    if isinstance(value, dict):
        return {sys.intern(key): _shared(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shared(inner) for inner in value]
    is_word = isinstance(value, str) and len(value) <= _WORD and not value[:1].isdigit()
    return sys.intern(value) if is_word else value
