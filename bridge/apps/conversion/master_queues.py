"""From manifests for kueue-nats to manifests for podbridge's MasterQueues. Pure.

Source: ``charts/interlink-all-in-one/crds/masterqueue.yaml`` of landerlini/interlink-condorce-plugin. The defaults of
its CustomResourceDefinition that podbridge's does not have are written out, so that the quotas stay what they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from bridge.apps.conversion.values_reader import Converted, Note, Object
from bridge.config.documents import yaml_documents
from bridge.errors import ConfigError
from controllers.queues import specification

QUOTA = {"cpu": "1M", "memory": "1Ei", "pods": 100_000, "nvidia.com/gpu": 10_000}
"""Defaults of ``nominalQuota``. A pool limits them; a local flavor has nothing else."""
TIMEOUT = 60
"""Default of ``poolTimeout`` in seconds; podbridge's is ``pools.silentAfter``."""
_TEMPLATE = (*specification.TEMPLATE, "stopPolicy")
_POOL_FIELDS = ("pools", "poolRegExp", "poolTimeout", "evictAfter")
_FLAVOR_FIELDS = ("name", "nominalQuota", "share", "canLendTo", *specification.KINDS)
_WRITTEN = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid", "finalizers")
"""Metadata of an object that was read from the API server."""


def convert(text: str, source: str) -> Converted:
    """Convert a file with MasterQueues and other objects; raises :class:`ConfigError`.

    Objects of Kueue stay as they are. All other objects, for example the operator itself, are dropped with a note.
    """
    listed = list(_objects(yaml_documents(text, source), source))
    documents: list[Object] = []
    notes: list[Note] = []
    for each in listed:
        group = str(each.get("apiVersion", "")).partition("/")[0]
        name = f"{each.get('kind')}/{(each.get('metadata') or {}).get('name')}"
        if (group, each.get("kind")) == ("vk.io", "MasterQueue"):
            documents.append(_queue(each, source, notes))
        elif group == "kueue.x-k8s.io":
            documents.append(each)
        else:
            notes.append(Note("dropped", name, "the chart of podbridge has its own controllers and definitions"))
    if not any(each["kind"] == "MasterQueue" for each in documents):
        raise ConfigError(f"{source}: has no MasterQueue; allowed: objects of kind MasterQueue, apiVersion vk.io/v1")
    return Converted(tuple(documents), tuple(notes))


def _objects(documents: list[Any], source: str) -> Iterator[Object]:
    for each in documents:
        if each is None:
            continue
        if not isinstance(each, dict) or not isinstance(each.get("metadata"), dict | None):
            raise ConfigError(f"{source}: {each!r} is no object of Kubernetes")
        if isinstance(each.get("items"), list):
            yield from _objects(each["items"], source)
        else:
            yield each


def _queue(manifest: Object, source: str, notes: list[Note]) -> Object:
    """Return a MasterQueue for podbridge; raises :class:`ConfigError`."""
    copy = deepcopy(manifest)
    metadata = copy.get("metadata") or {}
    title = f"MasterQueue/{metadata.get('name')}"
    spec = copy.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get("flavors"), list):
        raise ConfigError(f"{source}: {title}: spec.flavors is missing; allowed: a list of flavors")
    given = spec.get("template")
    for path, value in (
        ("metadata.annotations", metadata.get("annotations")),
        ("spec.template", given),
        ("spec.template.preemption", given.get("preemption") if isinstance(given, dict) else None),
    ):
        if not isinstance(value, dict | None):
            raise ConfigError(f"{source}: {title}: {path}: {value!r} is not allowed; allowed: a mapping")
    _only(spec, ("template", "flavors", "localQueues", "whenSilent"), f"{title}: spec", notes)
    spec["template"] = _template(spec.get("template") or {}, title, notes)
    try:
        flavors = [_flavor(each, f"{title}: spec.flavors[{i}]", notes) for i, each in enumerate(spec["flavors"])]
    except specification.SpecificationError as error:
        raise ConfigError(f"{source}: {error}") from error
    spec["flavors"] = flavors
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if not _written(key)}
    metadata = {key: value for key, value in metadata.items() if key not in (*_WRITTEN, "annotations")}
    result = {
        "apiVersion": "vk.io/v1",
        "kind": "MasterQueue",
        "metadata": {**metadata, **({"annotations": annotations} if annotations else {})},
        "spec": spec,
    }
    try:
        specification.read(result)
    except (specification.SpecificationError, KeyError) as error:
        raise ConfigError(f"{source}: {title}: {error}") from error
    return result


def _written(annotation: str) -> bool:
    """Whether kubectl or kopf has written an annotation."""
    return annotation.startswith(("kubectl.kubernetes.io/", "kopf.zalando.org/", "kopf.dev/"))


def _only(section: Object, allowed: tuple[str, ...], path: str, notes: list[Note]) -> None:
    """Remove the fields that podbridge's definition does not have; an API server would drop them without a word."""
    for key in [key for key in section if key not in allowed]:
        del section[key]
        notes.append(Note("dropped", f"{path}.{key}", f"no such field; allowed: {', '.join(allowed)}"))


def _template(template: Object, title: str, notes: list[Note]) -> Object:
    _only(template, _TEMPLATE, f"{title}: spec.template", notes)
    policy = template.get("stopPolicy")
    if policy in specification.STOP_POLICIES and specification.STOP_POLICIES[policy] != policy:
        template["stopPolicy"] = specification.STOP_POLICIES[policy]
        notes.append(Note("changed", f"{title}: spec.template.stopPolicy", f"{policy} is {template['stopPolicy']}"))
    preemption = template.get("preemption") or {}
    borrowing = preemption.get("borrowWithinCohort")
    borrows = isinstance(borrowing, dict) and borrowing.setdefault("policy", "LowerPriority") != "Never"
    if borrows and preemption.get("reclaimWithinCohort", "Never") == "Never":
        text = "Kueue refuses borrowWithinCohort with reclaimWithinCohort: Never; change one of them"
        notes.append(Note("to do", f"{title}: spec.template.preemption", text))
    return template


def _flavor(listed: Any, path: str, notes: list[Note]) -> Object:
    if not isinstance(listed, dict):
        raise specification.SpecificationError(f"{path}: {listed!r} is not allowed; allowed: a flavor with a name")
    flavor: Object = listed
    _only(flavor, _FLAVOR_FIELDS, path, notes)
    for key in ("nominalQuota", *specification.KINDS):
        if not isinstance(flavor.get(key), dict | None):
            raise specification.SpecificationError(f"{path}.{key}: {flavor[key]!r} is not allowed; allowed: a mapping")
    if isinstance(flavor.get("natsFlavor"), dict):
        flavor = _pool_flavor(flavor, path, notes)
    quota = flavor.get("nominalQuota") or {}
    administrators = "localFlavor" in flavor and not (flavor["localFlavor"] or {}).get("nodeLabels")
    missing = {name: amount for name, amount in QUOTA.items() if name not in quota}
    if administrators and quota and missing:
        flavor["nominalQuota"] = {**quota, **missing}
        text = f"{', '.join(missing)} as in kueue-nats: Kueue admits no workload that requests a resource without quota"
        notes.append(Note("changed", f"{path}.nominalQuota", text))
    return flavor


def _pool_flavor(flavor: Mapping[str, Any], path: str, notes: list[Note]) -> Object:
    """Return a flavor with ``poolFlavor`` in the place of ``natsFlavor``."""
    pools = dict(flavor["natsFlavor"])
    for key in specification.IGNORED:
        if key in pools:
            del pools[key]
            notes.append(Note("dropped", f"{path}.natsFlavor.{key}", "podbridge knows the pools and their nodes"))
    _only(pools, _POOL_FIELDS, f"{path}.natsFlavor", notes)
    if "poolTimeout" not in pools:
        pools["poolTimeout"] = TIMEOUT
        notes.append(Note("changed", f"{path}.poolFlavor.poolTimeout", f"{TIMEOUT}, the default of kueue-nats"))
    return {
        ("poolFlavor" if key == "natsFlavor" else key): (pools if key == "natsFlavor" else value)
        for key, value in flavor.items()
    }
