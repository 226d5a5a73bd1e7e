"""``runAsUser`` and ``runAsGroup``: what a site can give is checked before a job is submitted. Pure.

What the hub cannot know, the script checks before it starts the first container (``users_given`` in ``lib/pod.bash``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from bridge.errors import ScriptError
from bridge.protocol.model.announcement import JobUser
from bridge.script import interlink_rules
from bridge.script.runtimes.runtime_interface import Runtime
from bridge.script.settings import BuildSettings


class ContainerUser(NamedTuple):
    """The user of a container: ids, or ``None`` for those that the pod does not set."""

    user: int | None
    group: int | None
    non_root: bool

    @property
    def text(self) -> str:
        """``<user>:<group>``, each a number or empty."""
        return f"{'' if self.user is None else self.user}:{'' if self.group is None else self.group}"


def of_container(pod: Mapping[str, Any], container: Mapping[str, Any], config: BuildSettings) -> ContainerUser:
    """Return the user of a container. With interlink-slurm rules it is that of the whole job, and has no group."""
    outer = pod["spec"].get("securityContext") or {}
    context = {**outer, **(container.get("securityContext") or {})}
    if config.limits.by_interlink:
        return ContainerUser(interlink_rules.run_as(pod["spec"]), None, bool(context.get("runAsNonRoot")))
    return ContainerUser(_id(context, "runAsUser"), _id(context, "runAsGroup"), bool(context.get("runAsNonRoot")))


def accept(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    field_path: str,
    runtime: Runtime,
    config: BuildSettings,
    jobs: JobUser | None,
) -> None:
    """Raise ``ScriptError`` for a user that the site cannot give, unless it ignores the field.

    ``field_path`` is the path of the container in the pod; ``jobs`` is the announced user of the site's jobs.
    """
    requested = of_container(pod, container, config)
    user, group = requested.user, requested.group
    while refusal := runtime.refused_user(user, group, config, jobs):
        field, allowed = refusal
        if config.runtime.run_as_user != "ignore":
            raise ScriptError(
                f"{_place(container, field_path, field, config)}: {user if field == 'runAsUser' else group} is not "
                f"allowed at this site, whose runtime is {runtime.kind}; allowed: {allowed}",
                hint=f"Remove {field}, allow other pools, or set runtime.run_as_user to ignore in site.toml.",
            )
        user, group = (None, group) if field == "runAsUser" else (user, None)
    if requested.non_root and user is None and jobs is not None and jobs.uid == 0 and not runtime.image_user:
        raise ScriptError(
            f"{_place(container, field_path, 'runAsNonRoot', config)}: true is not allowed at this site, "
            f"whose user is root"
        )


def _place(container: Mapping[str, Any], field_path: str, field: str, config: BuildSettings) -> str:
    inner = field in (container.get("securityContext") or {}) and not (
        config.limits.by_interlink and field == "runAsUser"
    )
    return f"{field_path if inner else 'spec'}.securityContext.{field}"


def _id(context: Mapping[str, Any], field: str) -> int | None:
    value = context.get(field)
    return None if value is None else int(value)
