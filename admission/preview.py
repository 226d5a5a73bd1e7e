"""What admission would do with a pod that a template makes, before a controller creates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from admission import field_policy, pool_rules
from admission.group_reader import BARE, GroupReader
from admission.mutate import mutate, needs_group
from admission.validate import Scope, Verdict, create
from bridge.config.hub import Config, pools_only
from bridge.errors import BridgeError

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Preview:
    """The patch of the pod, and what its validation finds; ``None`` if it stays with another scheduler.

    ``problem`` is that of its group, without which there is neither.
    """

    patch: Sequence[Json] = ()
    verdict: Verdict | None = None
    problem: str = ""


def preview(pod: Json, inherited: Mapping[str, str], config: Config, groups: GroupReader, scope: Scope) -> Preview:
    """Return what admission would do with a pod; its patch is applied to the pod.

    ``inherited`` are the annotations of the pod's owners.
    """
    namespace, group = pod["metadata"]["namespace"], BARE
    is_ours = scope.managed or pod["spec"]["schedulerName"] == config.scheduler_name
    default_nodes, only = config.default_scheduler_nodes, pools_only(config)
    if is_ours and needs_group(pod, "", config.scheduler_name, inherited, scope.pools, default_nodes, pools_only=only):
        try:
            group = groups.find(pod, namespace, inherited, {})
        except BridgeError as error:
            return Preview(problem=str(error))
    patch = mutate(
        pod,
        scheduler=config.scheduler_name,
        managed=scope.managed,
        inherited={**pool_rules.inherited(scope.annotations), **group.inherited, **inherited},
        pools=scope.pools,
        defaults=field_policy.defaults(scope.policy, pod, inherited),
        pools_only=only,
        default_nodes=default_nodes,
        group=group.value,
    )
    for operation in patch:
        _apply(pod, operation)
    if pod["spec"]["schedulerName"] != config.scheduler_name:
        return Preview(patch)
    return Preview(patch, create(pod, "", config, scope=scope))


def warnings(kind: str, name: str, preview: Preview) -> list[str]:
    """Return the warnings about the pods of an object: what will be refused, then what validation warns of."""
    subject = f"pods of {kind} {name}"
    if preview.problem:
        return [f"{subject} will be refused: {preview.problem}"]
    verdict = preview.verdict or Verdict()
    refused = [*verdict.invalid, *verdict.forbidden]
    refused += [f"{denial.problem}; allowed: {denial.allowed}" for denial in verdict.denials]
    certain = [f"{subject} will be refused: {text}" for text in refused]
    return certain + [f"{subject}: {text}" for text in verdict.warnings]


def _apply(pod: Json, operation: Mapping[str, Any]) -> None:
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
