"""``podbridge render``: prints the webhook's patch and the job request of a manifest's pods, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import click
import yaml

from admission import templates
from admission.group_reader import GroupReader
from admission.preview import preview
from admission.validate import Scope
from bridge import names
from bridge.config import hub as configuration
from bridge.config import policies
from bridge.config.documents import yaml_documents
from bridge.errors import BridgeError, ConfigError
from bridge.slurm.models import JobRequest
from bridge.slurm.parsers import job_body
from bridge.slurm.versions import VERSIONS, ApiVersion
from bridge.workload import links, pool_selection, translate
from bridge.workload.groups import Membership
from scheduler import member_places


def run(manifest: IO[str], config_file: Path | None, api: str | None, form: str) -> int:
    """Print a record for each pod of the manifest; return the exit status, 1 if admission would refuse a pod."""
    config = configuration.load(config_file)
    name = api or config.slurm_api_version or next(reversed(VERSIONS))
    if name not in VERSIONS:
        raise ConfigError(f"--api {name}: unknown; allowed: {', '.join(VERSIONS)}")
    documents = [document for document in yaml_documents(manifest, manifest.name) if document]
    try:
        objects = templates.objects(documents, next(iter(config.managed_namespaces), "default"))
    except ConfigError as error:
        raise ConfigError(f"{manifest.name}: {error}") from error
    pods = list(templates.pods(objects))
    if not pods:
        raise ConfigError(f"{manifest.name}: contains no Pod and no object with a pod template")
    groups = GroupReader(templates.read_from(objects))
    records = [_record(pod, owner, config, groups) for pod, owner in pods]
    for record, (pod, _) in zip(records, pods, strict=True):
        on_slurm = config.slurm_rest_api and pool_selection.of(pod).local
        if "note" not in record and "refused" not in record and on_slurm:
            _add_request(record, pod, [other for other, _ in pods if links.key(other) == links.key(pod)], config, name)
    if form == "json":
        click.echo(json.dumps(records, indent=2))
    else:
        click.echo(yaml.safe_dump_all(records, sort_keys=False), nl=False)
    return 1 if any(record.get("refused") for record in records) else 0


def _record(
    pod: dict[str, Any], inherited: Mapping[str, str], config: configuration.Config, groups: GroupReader
) -> dict[str, Any]:
    """Return the record of one pod: patch, permissions, warnings, problems; apply the patch to the pod."""
    namespace = pod["metadata"]["namespace"]
    record: dict[str, Any] = {"pod": f"{namespace}/{pod['metadata']['name']}"}
    managed = config.managed_namespace_selector is not None or namespace in config.managed_namespaces
    policy = policies.find(config.namespace_policies, namespace, {"kubernetes.io/metadata.name": namespace})
    scope = Scope(policy=policy, managed=managed)
    seen = preview(pod, inherited, config, groups, scope)
    if seen.problem:
        return record | {"refused": [seen.problem]}
    record["patch"], verdict = list(seen.patch), seen.verdict
    if verdict is None:
        record["note"] = f"not changed: namespace {namespace} is not managed"
        reason = (pod["metadata"].get("annotations") or {}).get(names.DEFAULT_SCHEDULER_REASON)
        if managed and reason:
            record["note"] = f"the pod keeps the scheduler {pod['spec']['schedulerName']}: {reason}"
        elif managed:
            record["note"] = f"not changed: the pod names the scheduler {pod['spec']['schedulerName']}"
        return record
    if keys := sorted({*verdict.permissions, *(denial.key for denial in verdict.denials)}):
        needed = f"{names.PERMISSION_RESOURCE}.{names.PERMISSION_GROUP}"
        record["needs"] = [f"{names.PERMISSION_VERB} {needed}/{key}" for key in keys]
    if verdict.warnings:
        record["warnings"] = verdict.warnings
    if problems := verdict.invalid + verdict.forbidden:
        record["refused"] = problems
    return record


def _add_request(
    record: dict[str, Any], pod: dict[str, Any], members: list[dict[str, Any]], config: configuration.Config, api: str
) -> None:
    """Add the request for the job of the pod to its record; ``members`` are the pods of the manifest in its group."""
    version, member = VERSIONS[api], links.membership(pod)
    try:
        if member is None:
            request = translate.request(pod, config, version, "offline")
        else:
            record["group"] = {"kind": member.key.kind, "name": member.key.name, "index": member.key.index}
            record["group"] |= {"size": member.size, "minimum": member.minimum, "slot": member.slot}
            request = _of_group(members, member, config, version)
        record["slurm"] = {"api": api, "body": job_body(request, _newest_release(version))}
    except BridgeError as error:
        record["refused"] = [str(error)]


def _of_group(
    members: list[dict[str, Any]], member: Membership, config: configuration.Config, version: ApiVersion
) -> JobRequest:
    """Return the request for the job of a group.

    ``members`` are in the manifest, one for each pod template: a template has the slots up to that of the next one.
    """
    shape = translate.GangShape(member.key, member.size, member.minimum, member.together)
    parts = list(links.by_shape(members).values())
    if len(parts) == 1:
        return translate.gang_request(members, shape, config, version, "offline")
    slots = sorted({slot for pod in members if (slot := _slot(pod)) is not None})
    counts: dict[int | None, int] = {s: after - s for s, after in zip(slots, [*slots[1:], member.size], strict=True)}
    requests = []
    for part in parts:
        count = sum([counts.get(_slot(pod), 1) for pod in part])
        shape_of_part = replace(shape, size=count, minimum=count, together=member_places.together(part))
        requests.append(translate.gang_request(part, shape_of_part, config, version, "offline"))
    return translate.heterogeneous(requests, config, _newest_release(version))


def _slot(pod: Mapping[str, Any]) -> int | None:
    member = links.membership(pod)
    return member.slot if member is not None else None


def _newest_release(version: ApiVersion) -> ApiVersion:
    return replace(version, external_components=version.external_jobs)
