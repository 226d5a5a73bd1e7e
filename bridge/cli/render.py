"""``podbridge render``: prints the webhook's patch and the job request of a manifest's pods, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import click
import yaml

from admission import field_policy
from admission.mutate import mutate
from admission.validate import Rules, Scope, create
from bridge import config as configuration
from bridge import names, namespace_policies
from bridge.errors import BridgeError, ConfigError
from bridge.slurm.parsers import job_body
from bridge.slurm.versions import VERSIONS
from bridge.workload import translate
from bridge.workload.annotations import merge

OFFLINE_UID = "00000000-0000-0000-0000-000000000000"


def run(manifest: IO[str], config_file: Path | None, api: str | None, form: str) -> int:
    """Print a record for each pod of the manifest; return the exit status, 1 if admission would refuse a pod."""
    config = configuration.load(config_file)
    name = api or config.slurm_api_version or next(reversed(VERSIONS))
    if name not in VERSIONS:
        raise ConfigError(f"--api {name}: unknown; allowed: {', '.join(VERSIONS)}")
    try:
        documents = [document for document in yaml.safe_load_all(manifest) if document]
    except yaml.YAMLError as error:
        raise ConfigError(f"{manifest.name}: not YAML: {error}") from error
    found = [pod for document in documents for pod in _pods(document, config.managed_namespaces[:1])]
    if not found:
        raise ConfigError(f"{manifest.name}: contains no Pod and no object with a pod template")
    records = [_record(pod, owner, config, name) for pod, owner in found]
    if form == "json":
        click.echo(json.dumps(records, indent=2))
    else:
        click.echo(yaml.safe_dump_all(records, sort_keys=False), nl=False)
    return 1 if any(record.get("refused") for record in records) else 0


def _pods(document: Any, namespaces: list[str]) -> Iterator[tuple[dict[str, Any], Mapping[str, str]]]:
    """Yield the pods of a manifest, each with the annotations of the object that has the pod template."""
    if not isinstance(document, dict):
        return
    if document.get("kind") == "List":
        for item in document.get("items") or ():
            yield from _pods(item, namespaces)
        return
    metadata = document.get("metadata") or {}
    if document.get("kind") == "Pod":
        yield _complete(document, metadata, namespaces), {}
        return
    spec = document.get("spec") or {}
    if document.get("kind") == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    template = spec.get("template")
    if isinstance(template, dict) and "spec" in template:
        yield _complete(template, metadata, namespaces), metadata.get("annotations") or {}


def _complete(pod: dict[str, Any], outer: Mapping[str, Any], namespaces: list[str]) -> dict[str, Any]:
    """Add the fields that the API server would set."""
    metadata = dict(pod.get("metadata") or {})
    metadata.setdefault("name", outer.get("name") or outer.get("generateName") or "pod")
    metadata.setdefault("namespace", outer.get("namespace") or (namespaces[0] if namespaces else "default"))
    metadata.setdefault("uid", OFFLINE_UID)
    spec = {"schedulerName": "default-scheduler", **(pod.get("spec") or {})}
    return {"metadata": metadata, "spec": spec}


def _record(
    pod: dict[str, Any], inherited: Mapping[str, str], config: configuration.Config, api: str
) -> dict[str, Any]:
    """Return the record of one pod: patch, permissions, warnings, job request, problems."""
    namespace = pod["metadata"]["namespace"]
    record: dict[str, Any] = {"pod": f"{namespace}/{pod['metadata']['name']}"}
    managed = config.managed_namespace_selector is not None or namespace in config.managed_namespaces
    jobs = merge([inherited])
    policy = namespace_policies.find(config.namespace_policies, namespace, {"kubernetes.io/metadata.name": namespace})
    defaults = field_policy.defaults(policy)
    patch = mutate(pod, scheduler=config.scheduler_name, managed=managed, inherited=jobs, defaults=defaults)
    record["patch"] = patch
    for operation in patch:
        _apply(pod, operation)
    if pod["spec"]["schedulerName"] != config.scheduler_name:
        record["note"] = f"not changed: namespace {namespace} is not managed"
        if managed:
            record["note"] = f"not changed: the pod names the scheduler {pod['spec']['schedulerName']}"
        return record
    rules = Rules(
        config.scheduler_name,
        gres=config.gres,
        exclusive=config.exclusive,
        partition=config.partition,
        partitions=config.partitions,
    )
    verdict = create(pod, "", rules, scope=Scope(policy=policy, managed=managed))
    if keys := sorted({*verdict.permissions, *(denial.key for denial in verdict.denials)}):
        needed = f"{names.PERMISSION_RESOURCE}.{names.PERMISSION_GROUP}"
        record["needs"] = [f"{names.PERMISSION_VERB} {needed}/{key}" for key in keys]
    if verdict.warnings:
        record["warnings"] = verdict.warnings
    problems = verdict.invalid + verdict.forbidden
    try:
        if not problems:
            asked = translate.request(pod, config, VERSIONS[api], "offline")
            record["slurm"] = {"api": api, "body": job_body(asked, VERSIONS[api])}
    except BridgeError as error:
        problems = [str(error)]
    if problems:
        record["refused"] = problems
    return record


def _apply(pod: dict[str, Any], operation: Mapping[str, Any]) -> None:
    """Apply one operation (``add`` or ``remove``) of a patch of :func:`admission.mutate.mutate`."""
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    target: Any = pod
    for part in path:
        target = target.setdefault(part, {})
    if isinstance(target, list):
        target.append(operation["value"])
    elif operation["op"] == "remove":
        target.pop(last, None)
    else:
        target[last] = operation["value"]
