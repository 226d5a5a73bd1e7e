"""Makes the plan of a pod: plain data, with every reference resolved and every field checked."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from bridge import names
from bridge.errors import ScriptError
from bridge.protocol.model.announcement import JobUser
from bridge.script import (
    check,
    environment,
    hosts,
    interlink_rules,
    mounts,
    probes,
    references,
    run_as,
    site_annotations,
    sizing,
    volumes,
)
from bridge.script.plan_types import Container, Plan, Reach
from bridge.script.quoting import Allowance, clean
from bridge.script.references import Objects
from bridge.script.runtimes import runtime_images
from bridge.script.runtimes import runtime_table as runtimes
from bridge.script.settings import BuildSettings
from bridge.script.sizing import Size
from bridge.script.volumes import Volumes
from bridge.workload import remote_gangs, services

TERMINATION_PATH = "/dev/termination-log"


def make(
    pod: Mapping[str, Any], config: BuildSettings, objects: Objects, node: str, jobs: JobUser | None = None
) -> Plan:
    """Return the plan of a pod; raises ``ScriptError`` (not supported) and ``MissingReferenceError``.

    ``jobs``: the user of the site's jobs, if it has announced one.
    """
    problems = check.problems(pod)
    if problems:
        raise ScriptError("; ".join(problems))
    spec, reached = pod["spec"], _reach(pod, config)
    by_flags = config.limits.by_interlink  # of a site that runs no groups
    size = interlink_rules.measure(pod, config) if by_flags else sizing.measure(pod, config, remote_gangs.alike(pod))
    runtime, allowance = runtimes.of(config), Allowance()
    pod_volumes = volumes.make(pod, config, objects, node, size.machine, allowance)
    options = site_annotations.read(pod, config)
    containers = []
    for field_path, container in references.containers(spec):
        planned = _container(pod, container, field_path, config, objects, node, size, pod_volumes, allowance)
        run_as.accept(pod, container, field_path, runtime, config, jobs)
        runtime.accept(planned, field_path, config, options.image_root)
        _reachable(planned, field_path, runtime.has_network(config))
        containers.append(planned)
    deadline = spec.get("activeDeadlineSeconds")
    return Plan(
        containers=containers,
        volumes=pod_volumes,
        restart_policy=str(spec.get("restartPolicy") or "Always"),
        grace=sizing.grace(spec),
        deadline=None if deadline is None else float(deadline),
        pull_secret=site_annotations.pull_secret(pod, objects),
        size=size,
        annotations=options,
        config=config,
        hosts=hosts.make(pod),
        reach=reached,
    )


def _reach(pod: Mapping[str, Any], config: BuildSettings) -> Reach | None:
    """Return the Services that the pod reaches; ``None``: none. Raises ``ScriptError`` if it may not."""
    if not services.is_reaching(pod):
        return None
    if not config.limits.allow_reach:
        raise ScriptError(f"annotation {names.REACH} is not allowed at this site (limits.allow_reach is false)")
    if not runtimes.of(config).has_network(config):
        raise ScriptError(f"annotation {names.REACH} is not allowed at this site, whose containers have no network")
    try:
        targets = services.reached(pod)
    except ValueError as error:
        raise ScriptError(str(error)) from error
    each = ((services.reached_address(pod, target), str(target.local), target.text) for target in targets)
    return Reach([*itertools.chain.from_iterable(each)], alone=remote_gangs.place_of(pod) is None)


def _container(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    field_path: str,
    config: BuildSettings,
    objects: Objects,
    node: str,
    size: Size,
    pod_volumes: Volumes,
    allowance: Allowance,
) -> Container:
    if field_path.startswith("spec.containers"):
        kind = "main"
    else:
        kind = "sidecar" if container.get("restartPolicy") == "Always" else "init"
    variables, fields = environment.make(
        pod,
        container,
        field_path,
        objects,
        node,
        size.machine,
        allowance,
        {**services.variables(pod), **config.api_server.environment},
    )
    lifecycle = container.get("lifecycle") or {}
    context = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    message = str(container.get("terminationMessagePath") or TERMINATION_PATH)
    user = run_as.of_container(pod, container, config)
    ports = probes.named_ports(container)
    written = mounts.written_beside(pod["spec"], container, exec_mounts=runtimes.of(config).exec_mounts)
    return Container(
        name=str(container["name"]),
        kind=kind,
        image=clean(str(container.get("image") or ""), f"{field_path}.image"),
        pull_policy=runtime_images.pull_policy(container),
        command=_texts(container, "command", field_path, variables, allowance),
        args=_texts(container, "args", field_path, variables, allowance),
        directory=clean(str(container.get("workingDir") or ""), f"{field_path}.workingDir"),
        environment={**_hostname(pod), **({"TERM": "xterm"} if container.get("tty") else {}), **variables},
        fields=fields,
        mounts=mounts.make(container, field_path, pod_volumes, variables, message, written),
        memory=sizing.memory_limit(container, field_path) if config.limits.watch_memory else None,
        fallback_to_logs=container.get("terminationMessagePolicy") == "FallbackToLogsOnError",
        read_only_root=bool(context.get("readOnlyRootFilesystem")),
        run_as=user.text,
        non_root=user.non_root,
        probes=probes.make(container, field_path, ports, sizing.grace(pod["spec"]), variables, allowance)
        if config.limits.probes
        else [],
        post_start=probes.action(lifecycle.get("postStart"), f"{field_path}.lifecycle.postStart", ports),
        pre_stop=probes.action(lifecycle.get("preStop"), f"{field_path}.lifecycle.preStop", ports),
        stdin=bool(container.get("stdin")),
        stdin_once=bool(container.get("stdinOnce")),
        tty=bool(container.get("tty")),
    )


def _hostname(pod: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable that a container runtime sets; with ``hostNetwork`` it would be the machine's name."""
    spec = pod["spec"]
    if spec.get("hostNetwork"):
        return {}
    # as a kubelet truncates it: at most 63 characters, without - or . at the end
    return {"HOSTNAME": str(spec.get("hostname") or pod["metadata"]["name"])[:63].rstrip("-.")}


def _reachable(container: Container, field_path: str, has_network: bool) -> None:
    by_network = sorted(container.ways - {"exec", "sleep"})
    if by_network and not has_network:
        raise ScriptError(
            f"{field_path}: a probe or hook by {by_network[0]} is not allowed at this site, whose containers have no "
            f"network; allowed: exec"
        )


def _texts(
    container: Mapping[str, Any], key: str, field_path: str, variables: Mapping[str, str], allowance: Allowance
) -> list[str]:
    texts = (clean(str(text), f"{field_path}.{key}[{index}]") for index, text in enumerate(container.get(key) or ()))
    return environment.expanded(texts, variables, f"{field_path}.{key}", allowance)
