"""Enroot. Source: enroot's own documentation (start, exec, image format)."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from bridge.errors import ScriptError
from bridge.script.buildconfig import BuildConfig
from bridge.script.quoting import array, word
from bridge.script.runtimes import images

if TYPE_CHECKING:
    from bridge.script.plan import Container, Plan

library = "enroot"
_DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


def accept(container: Container, where: str, config: BuildConfig, image_root: str) -> None:
    """Refuse names that are no images, places with blanks, at which enroot splits, and names of variables.

    A shell of the image starts the command, and most drop what they can't assign; ``enroot start --env`` refuses such
    names itself.
    """
    images.accept_image(container, where, config, image_root, library)
    for name in images.foreign(container):
        images.refuse_name(container, name, "enroot", "letters, digits and _, no digit first")
    for mount in container.mounts:
        if any(letter.isspace() for letter in mount.path + mount.sub_path):
            raise ScriptError(f"{where}.volumeMounts: {mount.path!r} is not allowed at this site: blanks in a place")


def login(secret: bytes) -> tuple[str, bytes]:
    """Write the logins as a netrc file."""
    lines = []
    for registry, entry in json.loads(secret)["auths"].items():
        user, _, password = base64.b64decode(entry.get("auth", "")).decode("utf-8", "replace").partition(":")
        host = registry.removeprefix("https://").removeprefix("http://").split("/")[0]
        host = "auth.docker.io" if host in _DOCKER_HUB else host
        if not any(letter.isspace() for letter in host + user + password) and user:
            lines.append(f"machine {host} login {user} password {password}\n")
    return "enroot-credentials", "".join(lines).encode()


def options(plan: Plan) -> list[str]:
    """Give the site's options, in words."""
    own = plan.config.enroot
    return [
        *images.options(plan),
        f"RUNTIME={word(own.executable)}",
        array("OPTIONS", [*own.options, *plan.extras.options]),
    ]
