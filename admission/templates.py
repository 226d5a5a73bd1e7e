"""The pods of a manifest: one for each Pod and pod template, with what controllers and the API server set. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from admission.group_reader import Read
from bridge.errors import ConfigError
from bridge.kube.resources import Resource
from bridge.workload import quantity
from bridge.workload.annotations import merge
from bridge.workload.kinds import job_kinds

OFFLINE_UID = "00000000-0000-0000-0000-000000000000"

Object = dict[str, Any]
OwnedPod = tuple[Object, Mapping[str, str]]
"""A pod, and the annotations that it inherits from its owners."""


_KINDS = ("Pod", "Job", "CronJob", "JobSet", "LeaderWorkerSet")
_TEXTS = ("labels", "annotations", "nodeSelector")
_AMOUNTS = ("requests", "limits", "overhead")
_MAPPINGS = {*_TEXTS, *_AMOUNTS, "metadata", "spec", "template", "jobTemplate", "resources"}
_MAPPINGS |= {"leaderWorkerTemplate", "leaderTemplate", "workerTemplate"}
_FREE = {*_TEXTS, *_AMOUNTS, "matchLabels", "volumeAttributes"}
"""Mappings with keys that the user chooses."""
_LISTS = ("containers", "initContainers", "replicatedJobs", "tolerations")
"""Fields of pods, of templates and of their owners by the type of their value."""


def objects(documents: Iterable[Any], namespace: str) -> list[Object]:
    """Return the objects of the documents, those of Lists too, with the fields that the API server would set.

    Raises :class:`ConfigError` for a field of a pod or of a template that has a value of the wrong type.
    """
    result: list[Object] = []
    for document in documents:
        if not isinstance(document, dict):
            continue
        kind, spec = document.get("kind"), document.get("spec")
        for key in ("metadata", "spec"):
            if not isinstance(document.get(key), dict | None):
                raise _wrong(f"{kind}: {key}", document[key], "a mapping")
        if kind in _KINDS or _is_template((spec or {}).get("template")):
            _check(document, f"{kind} {(document.get('metadata') or {}).get('name') or 'without a name'}: ")
        if document.get("kind") == "List":
            _check_list(document.get("items"), "List: items")
            result += objects(document.get("items") or (), namespace)
            continue
        metadata = {"namespace": namespace, "uid": OFFLINE_UID, **(document.get("metadata") or {})}
        metadata.setdefault("name", metadata.get("generateName") or str(document.get("kind") or "pod").lower())
        result.append({**document, "metadata": metadata, "spec": document.get("spec") or {}})
    return result


def _check(fields: Mapping[str, Any], prefix: str) -> None:
    """Check the types of the fields below ``prefix`` that this program reads without a check."""
    for key, value in fields.items():
        path = f"{prefix}{key}"
        if key in _MAPPINGS and not isinstance(value, dict | None):
            raise _wrong(path, value, "a mapping")
        if key in _LISTS:
            _check_list(value, path)
        for name, text in (value or {}).items() if key in (*_TEXTS, *_AMOUNTS) else ():
            if key in _TEXTS and not isinstance(text, str):
                raise _wrong(f"{path}.{name}", text, "a string; put it in quotes")
            if key in _AMOUNTS and not _is_amount(text):
                raise _wrong(f"{path}.{name}", text, "a quantity such as 2, 500m or 4Gi")
        if isinstance(value, dict) and key not in _FREE:
            _check(value, f"{path}.")
        for index, one in enumerate(value if isinstance(value, list) else ()):
            if isinstance(one, dict):
                _check(one, f"{path}[{index}].")


def _check_list(value: Any, path: str) -> None:
    if not isinstance(value or [], list) or not all(isinstance(one, dict) for one in value or ()):
        raise _wrong(path, value, "a list of mappings")


def _is_amount(text: Any) -> bool:
    try:
        return quantity.parse(text) >= 0
    except ValueError:
        return False


def _wrong(path: str, value: Any, allowed: str) -> ConfigError:
    return ConfigError(f"{path}: {value!r} is not allowed; allowed: {allowed}")


def read_from(manifest_objects: Iterable[Object]) -> Read:
    """Return a function that reads the owners of groups from the manifest's objects."""
    by_key: dict[tuple[str, str, str], Object] = {}
    for obj in manifest_objects:
        by_key[_key(str(obj.get("kind", "")).lower() + "s", obj["metadata"])] = obj
        if obj.get("kind") == "CronJob":  # whose Job has this name too, as pods() yields it
            template = obj["spec"].get("jobTemplate") or {}
            given = (template.get("metadata") or {}).get("annotations") or {}
            metadata = {**obj["metadata"], "annotations": given}
            by_key[_key("jobs", metadata)] = {"metadata": metadata, "spec": template.get("spec") or {}}

    def read(resource: Resource, namespace: str, name: str) -> Mapping[str, Any] | None:
        return by_key.get((resource.plural, namespace, name))

    return read


def pods(manifest_objects: Iterable[Object]) -> Iterator[OwnedPod]:
    """Yield one pod for each Pod and pod template; of a JobSet, one for each replicated job."""
    for obj in manifest_objects:
        metadata, spec = obj["metadata"], obj["spec"]
        inherited = merge([metadata.get("annotations") or {}])
        match obj.get("kind"):
            case "Pod":
                yield _pod(obj, metadata), {}
            case "Job":
                yield _pod_of_job(spec, metadata, metadata["name"]), inherited
            case "CronJob":
                spec = (spec.get("jobTemplate") or {}).get("spec") or {}
                yield _pod_of_job(spec, metadata, metadata["name"]), inherited
            case "JobSet":
                yield from _pods_of_job_set(spec, metadata)
            case "LeaderWorkerSet":
                yield from ((pod, inherited) for pod in _pods_of_worker_set(spec, metadata))
            case _:
                if _is_template(spec.get("template")):
                    yield _pod(spec["template"], metadata), inherited


def _pods_of_job_set(spec: Mapping[str, Any], metadata: Object) -> Iterator[OwnedPod]:
    for entry in spec.get("replicatedJobs") or ():
        template, name = entry.get("template") or {}, f"{metadata['name']}-{entry.get('name', '')}-0"
        labels = {
            job_kinds.JOBSET_NAME: metadata["name"],
            job_kinds.REPLICATED_JOB: entry.get("name", ""),
            job_kinds.JOB_INDEX: "0",
        }
        given = (template.get("metadata") or {}).get("annotations") or {}
        pod = _pod_of_job({"completionMode": "Indexed", **(template.get("spec") or {})}, metadata, name, labels)
        yield pod, merge([given, metadata.get("annotations") or {}])


def _pod_of_job(
    spec: Mapping[str, Any], metadata: Object, name: str, labels: Mapping[str, str] | None = None
) -> Object:
    # the Job of a CronJob or of a JobSet does not exist yet
    uid = metadata["uid"] if name == metadata["name"] else OFFLINE_UID
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    index = {job_kinds.COMPLETION_INDEX: "0"} if spec.get("completionMode") == "Indexed" else {}
    template: Object = spec.get("template") or {}
    return _pod(template, {**metadata, "name": name}, labels, index, owner)


def _pods_of_worker_set(spec: Mapping[str, Any], metadata: Object) -> Iterator[Object]:
    template = spec.get("leaderWorkerTemplate") or {}
    workers = template.get("workerTemplate") or {}
    size = template.get("size", 1)
    parts = [("0", template.get("leaderTemplate") or workers)] + ([("1", workers)] if size != 1 else [])
    for index, part in parts:
        name = f"{metadata['name']}-0" + ("" if index == "0" else f"-{index}")
        labels = {job_kinds.LWS_NAME: metadata["name"], job_kinds.GROUP_INDEX: "0", job_kinds.WORKER_INDEX: index}
        yield _pod(part, {**metadata, "name": name}, labels, {job_kinds.LWS_SIZE: str(size)})


def _pod(
    template: Mapping[str, Any],
    outer: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: Object | None = None,
) -> Object:
    """Return a pod with the fields that the API server and the controller would set."""
    metadata = dict(template.get("metadata") or {})
    metadata.setdefault("name", outer["name"])
    metadata.setdefault("namespace", outer["namespace"])
    metadata.setdefault("uid", OFFLINE_UID)
    if labels:
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
    if annotations:
        metadata["annotations"] = {**(metadata.get("annotations") or {}), **annotations}
    if owner:
        metadata["ownerReferences"] = [owner]
    return {"metadata": metadata, "spec": {"schedulerName": "default-scheduler", **(template.get("spec") or {})}}


def _is_template(template: Any) -> bool:
    return isinstance(template, dict) and "spec" in template


def _key(plural: str, metadata: Mapping[str, Any]) -> tuple[str, str, str]:
    return plural, metadata["namespace"], metadata["name"]
