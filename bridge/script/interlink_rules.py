"""The rules of the interLink Slurm plugin for sizes, flavors, flags and annotations (``limits.rules``). Pure.

Source: README, ``prepare.go`` and ``slurm_script_helpers.go`` of interlink-hq/interlink-slurm-plugin. Where its README
and its code differ, the README holds; ``docs/sites/interlink-slurm.md`` names each case.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

from bridge import names
from bridge.errors import ScriptError
from bridge.script import option_words
from bridge.script.quoting import split_annotation
from bridge.script.settings import BuildSettings, Flavor
from bridge.script.sizing import SLACK, Size, grace
from bridge.workload import quantity

GPUS = ("nvidia.com/gpu", "amd.com/gpu")
_MESH = "EOFMESH"
_PREFIXES = (names.SITE_PREFIX, "slurm-job.knoc.io/")
_ANNOTATIONS = frozenset(
    value for name, value in vars(names).items() if isinstance(value, str) and not name.startswith("_")
)
_BY_CPU, _BY_MEMORY = ("cpus-per-task", "c"), ("mem",)


def measure(pod: Mapping[str, Any], config: BuildSettings) -> Size:
    """Return the largest CPU and memory limit of any container, or the defaults of the flavor, or of the site.

    ``gpus`` is what the flags ask for; GPU limits select a flavor and ask for nothing themselves.
    """
    spec = pod["spec"]
    flavor, _ = choose(pod, config)
    cpu, memory = _largest(spec, "cpu"), _largest(spec, "memory")
    flags = [*(flavor.flags if flavor else ()), *split_annotation(normalized(pod), names.FLAGS)]
    amd = _gpus(spec, "amd.com/gpu") > 0
    deadline = spec.get("activeDeadlineSeconds")
    gpus = gpus_in(flags)
    return Size(
        cpus=quantity.whole(cpu) or (flavor and flavor.cpu) or config.limits.default_cpu,
        memory=quantity.whole(memory)
        or quantity.whole(quantity.parse((flavor and flavor.memory) or config.limits.default_memory)),
        gpus=gpus,
        gpu_resource=("amd.com/gpu" if amd else "nvidia.com/gpu") if gpus else "",
        time_limit=None if deadline is None else float(deadline) + grace(spec) + SLACK,
        flavor=flavor.name if flavor else "",
    )


def choose(pod: Mapping[str, Any], config: BuildSettings) -> tuple[Flavor | None, str]:
    """Return the flavor of a pod, and a warning or an empty text.

    The annotation comes first. A pod with GPU limits gets the first flavor that asks for this number of GPUs, or for
    any, or whose flags mention them; all others get the default flavor. An unknown flavor is no error.
    """
    flavor_by_name = {flavor.name: flavor for flavor in config.flavors}
    name = (pod["metadata"].get("annotations") or {}).get(names.FLAVOR)
    count = sum(_gpus(pod["spec"], name) for name in GPUS)
    chosen, problem = flavor_by_name.get(str(name)), ""
    if name and chosen is None:
        problem = (
            f"annotation {names.FLAVOR}: there is no flavor {name!r} (there are: {', '.join(flavor_by_name) or 'none'})"
        )
    if chosen is None and count:
        with_gpus = [flavor for flavor in config.flavors if gpus_in(flavor.flags)]
        exact = [flavor for flavor in with_gpus if gpus_in(flavor.flags) == count]
        by_name = [flavor for flavor in config.flavors if any("gpu" in word for word in flavor.flags)]
        chosen = next(iter([*exact, *with_gpus, *by_name]), None)
    chosen = chosen or flavor_by_name.get(config.default_flavor)
    all_flags = [*(chosen.flags if chosen else ()), *split_annotation(normalized(pod), names.FLAGS)]
    if count and not gpus_in(all_flags):
        problem = problem or f"{count} GPUs: no flag of flavor or pod asks for them, so the containers see none"
    return chosen, problem


def gpus_in(flags: Sequence[str]) -> int:
    """Return the number of GPUs that the last GPU option asks for: ``--gres=gpu:a100:2``, ``-G 2``; 0: none."""
    count = 0
    for option, value, _ in option_words.read(flags):
        if option == "gres":
            items = [item.partition("(")[0].replace("=", ":").split(":") for item in value.split(",")]
            count = sum(_count(item[-1]) for item in items if item[0] in ("gpu", "gres/gpu"))
        elif option in ("gpus", "gpus-per-node", "gpus-per-task", "G"):
            count = sum(_count(item.rpartition(":")[2]) for item in value.split(","))
    return count


def _count(text: str) -> int:
    """Return the number at the end of ``gpu:a100:2``; 1 if there is none."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 1


def flags(pod: Mapping[str, Any], config: BuildSettings, words: Sequence[str]) -> list[str]:
    """Return the user's words without options that the pod's limits set, and with the user of the job."""
    spec = pod["spec"]
    limit_options = (*(_BY_CPU if _largest(spec, "cpu") else ()), *(_BY_MEMORY if _largest(spec, "memory") else ()))
    user_flags = option_words.without(option_words.read(words), limit_options)
    flavor, _ = choose(pod, config)
    user = None if config.runtime.run_as_user == "ignore" else run_as(spec)
    for candidate in (user, flavor.uid if flavor else None, config.limits.default_uid):
        if candidate is not None:
            return [*user_flags, f"--uid={int(candidate)}"]
    return user_flags


def run_as(spec: Mapping[str, Any]) -> int | None:
    """Return the user that the pod asks for; users of single containers and all groups are ignored."""
    user = (spec.get("securityContext") or {}).get("runAsUser")
    return None if user is None else int(user)


def normalized(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the annotations with their historical names replaced, and all that runs before the job as one script.

    Upstream's order: address of the pod, tunnel, then the pod's commands. Their failure does not end the job.
    """
    pod_annotations = {key: str(value) for key, value in (pod["metadata"].get("annotations") or {}).items() if value}
    annotations = {key: value for key, value in pod_annotations.items() if key.startswith(names.SITE_PREFIX)}
    if names.FLAGS not in annotations and names.KNOC_FLAGS in pod_annotations:
        annotations[names.FLAGS] = pod_annotations[names.KNOC_FLAGS]
    before = [
        pod_annotations[key]
        for key in (names.INTERLINK_WSTUNNEL, names.SINGULARITY_COMMANDS, names.PRE_EXEC)
        if key in pod_annotations
    ]
    if any(_MESH in text for text in before):
        raise ScriptError(
            f"annotation {names.PRE_EXEC}: a full mesh network (heredoc {_MESH}) is not possible at this site; "
            f"allowed: annotation interlink.eu/mesh-network: disabled"
        )
    if before and (address := pod_annotations.get(names.INTERLINK_POD_IP)):
        before.insert(0, f"export POD_IP={shlex.quote(address)}")
    if before:
        annotations[names.PRE_EXEC] = "\n".join([*before, ":"])
    annotations.pop(names.SINGULARITY_COMMANDS, None)
    return annotations


def warnings(pod: Mapping[str, Any], config: BuildSettings) -> list[str]:
    """Return what a pod asks for and does not get."""
    _, problem = choose(pod, config)
    texts = [problem] if problem else []
    annotations = pod["metadata"].get("annotations") or {}
    if names.NO_CLEAN_WORKDIR in annotations:
        texts.append(f"annotation {names.NO_CLEAN_WORKDIR}: ignored; the folder of a job is removed with its pod")
    texts += [
        f"annotation {key}: unknown, ignored"
        for key in annotations
        if key.startswith(_PREFIXES) and key not in _ANNOTATIONS
    ]
    users = {
        user
        for container in _containers(pod["spec"], init=True)
        if (user := (container.get("securityContext") or {}).get("runAsUser")) is not None
    }
    if users - {(pod["spec"].get("securityContext") or {}).get("runAsUser")}:
        texts.append("runAsUser of a container: ignored; the job runs as one user, that of the pod's securityContext")
    return texts


def _largest(spec: Mapping[str, Any], resource: str) -> Decimal:
    return max((_limit(container, resource) for container in _containers(spec, init=True)), default=Decimal(0))


def _gpus(spec: Mapping[str, Any], resource: str) -> int:
    return sum(quantity.whole(_limit(container, resource)) for container in _containers(spec, init=False))


def _containers(spec: Mapping[str, Any], *, init: bool) -> list[Mapping[str, Any]]:
    return [*((spec.get("initContainers") or ()) if init else ()), *(spec.get("containers") or ())]


def _limit(container: Mapping[str, Any], resource: str) -> Decimal:
    text = ((container.get("resources") or {}).get("limits") or {}).get(resource)
    try:
        return quantity.parse(text) if text is not None else Decimal(0)
    except ValueError as error:
        raise ScriptError(f"spec.containers: resources: {resource}: {error}") from error
