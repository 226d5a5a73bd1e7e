"""Podman, rootless. Source: podman-run(1), podman-exec(1), containers-transports(5)."""

from __future__ import annotations

import json
import re

from pydantic import Field

from bridge.errors import ScriptError
from bridge.protocol.model.announcement import JobUser
from bridge.script.plan_types import Container, Plan
from bridge.script.quoting import array, word
from bridge.script.runtimes import runtime_images
from bridge.script.runtimes.runtime_interface import Runtime
from bridge.script.settings import BuildSettings, SettingsPart, Words

_TRANSPORT = re.compile(
    r"(atomic|containers-storage|dir|docker-archive|docker-daemon|oci|oci-archive|ostree|sif|tarball):.*"
)
"""Names that podman reads as paths of the machine, not as names at a registry."""


class Podman(SettingsPart):
    """``[podman]``: rootless."""

    executable: str = "podman"
    options: Words = Field([])


class PodmanRuntime(Runtime):
    """``podman run`` and ``podman exec``."""

    kind = library = "podman"
    account_files = True
    image_user = True
    settings = Podman
    supports_mpi = False

    def accept(self, container: Container, field_path: str, config: BuildSettings, image_root: str) -> None:
        """Refuse names that are no images, and variables that podman itself would obey."""
        target, field = runtime_images.accept_image(container, field_path, config, image_root, self.schemes)
        if _TRANSPORT.fullmatch(target.removeprefix("docker://")):
            raise ScriptError(
                f"{field}: {target!r} is not allowed; allowed: names with a registry, <registry>/{target}"
            )
        runtime_images.accept_lines(container)
        if container.command and _is_list(container.command[0]):
            raise ScriptError(
                f"{field_path}.command[0]: {container.command[0]!r} is not allowed at this site: podman reads it as a "
                f"list; allowed: the name of a program"
            )
        for name, value in container.environment.items():
            if name.startswith(" "):
                # it would be another name: podman drops blanks before names
                runtime_images.refuse_name(container, name, "podman", "no blank at its beginning")
            if name.endswith("*") and not runtime_images.is_line(name, value):
                # --env 'a*' would hand on all variables of the machine that begin with a
                runtime_images.refuse_name(
                    container, name, "podman", "no * at its end, or no # before it and a short value of one line"
                )

    def refused_user(
        self, user: int | None, group: int | None, config: BuildSettings, jobs: JobUser | None
    ) -> tuple[str, str] | None:
        """Refuse ids that the user namespace of the site's user does not have. Root needs none."""
        if jobs is None or jobs.uid == 0:
            return None
        for field, value, most, file in (
            ("runAsUser", user, jobs.most_uid, "subuid"),
            ("runAsGroup", group, jobs.most_gid, "subgid"),
        ):
            if value is not None and most is not None and value > most:
                return field, f"0 to {most}, by /etc/{file} of the site"
        return None

    def options(self, plan: Plan) -> list[str]:
        """Return the variables of ``lib/runtime_podman.bash``."""
        own = plan.config.section(Podman)
        words = ["--cap-drop", "all", "--security-opt", "no-new-privileges"]
        return [
            *runtime_images.options(plan),
            "declare -a INNER",
            f"RUNTIME={word(own.executable)}",
            f"NETWORK={plan.config.runtime.network}",
            array("OPTIONS", [*words, *own.options]),
        ]

    def version_command(self, config: BuildSettings) -> list[str]:
        """Return ``podman --version``."""
        return [config.section(Podman).executable, "--version"]


def _is_list(program: str) -> bool:
    """Return whether ``--entrypoint`` takes the text for a list of words, or for none."""
    try:
        return program == "" or isinstance(json.loads(program), list | None)
    except RecursionError:
        return True
    except ValueError:
        return False
