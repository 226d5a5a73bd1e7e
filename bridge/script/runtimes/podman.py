"""Podman, rootless. Source: podman-run(1), podman-exec(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bridge.script.buildconfig import BuildConfig
from bridge.script.quoting import array, word
from bridge.script.runtimes import images

if TYPE_CHECKING:
    from bridge.script.plan import Container, Plan

library = "podman"
login = images.login


def accept(container: Container, where: str, config: BuildConfig, image_root: str) -> None:
    """Refuse names that are no images, and variables that podman itself would obey."""
    images.accept_image(container, where, config, image_root, library)
    images.accept_lines(container)
    for name, value in container.environment.items():
        if name.startswith(" "):
            # it would be another name: podman drops blanks before names
            images.refuse_name(container, name, "podman", "no blank at its beginning")
        if name.endswith("*") and not images.is_line(name, value):
            # --env 'a*' would hand on all variables of the machine that begin with a
            images.refuse_name(
                container, name, "podman", "no * at its end, or no # before it and a short value of one line"
            )


def options(plan: Plan) -> list[str]:
    """Give the site's options, in words."""
    own = plan.config.podman
    words = ["--cap-drop", "all", "--security-opt", "no-new-privileges"]
    return [
        *images.options(plan),
        "declare -a INNER",
        f"RUNTIME={word(own.executable)}",
        f"NETWORK={plan.config.runtime.network}",
        array("OPTIONS", [*words, *own.options]),
    ]
