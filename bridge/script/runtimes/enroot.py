"""Enroot. Source: enroot's own documentation (start, exec, image format)."""

from __future__ import annotations

import base64
import json

from pydantic import Field

from bridge import names
from bridge.errors import ScriptError
from bridge.protocol.model.announcement import JobUser
from bridge.script.plan_types import Container, Plan
from bridge.script.quoting import array, word
from bridge.script.runtimes import runtime_images
from bridge.script.runtimes.runtime_interface import Runtime
from bridge.script.settings import BuildSettings, SettingsPart, Words

_DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io")


class Enroot(SettingsPart):
    """``[enroot]``."""

    executable: str = "enroot"
    options: Words = Field(["--rw"])


class EnrootRuntime(Runtime):
    """``enroot start`` and ``enroot exec``."""

    kind = library = "enroot"
    account_files = True
    settings = Enroot
    option_annotations = (names.ENROOT_MOUNTS, names.ENROOT_OPTIONS)
    secrets = ("run/enroot-credentials", "run/enroot.config")

    def accept(self, container: Container, field_path: str, config: BuildSettings, image_root: str) -> None:
        """Refuse names that are no images, mount paths with blanks, at which enroot splits, and names of variables.

        A shell of the image starts the command, and most shells drop names that they can't assign; ``enroot start
        --env`` refuses such names itself.
        """
        runtime_images.accept_image(container, field_path, config, image_root, self.schemes)
        for name in runtime_images.foreign(container):
            runtime_images.refuse_name(container, name, "enroot", "letters, digits and _, no digit first")
        for mount in container.mounts:
            if any(letter.isspace() for letter in mount.path + mount.sub_path):
                raise ScriptError(
                    f"{field_path}.volumeMounts: {mount.path!r} is not allowed at this site: blanks in a place"
                )

    def refused_user(
        self, user: int | None, group: int | None, config: BuildSettings, jobs: JobUser | None
    ) -> tuple[str, str] | None:
        """Refuse other users than that of the site and 0."""
        return runtime_images.own_user(user, group, jobs, root=True)

    def login(self, secret: bytes) -> tuple[str, bytes]:
        """Return the logins as a netrc file; raises ``ScriptError`` for a password that is a command to enroot."""
        lines = []
        for registry, entry in json.loads(secret)["auths"].items():
            user, _, password = base64.b64decode(entry.get("auth", "")).decode("utf-8", "replace").partition(":")
            host = registry.removeprefix("https://").removeprefix("http://").split("/")[0]
            # enroot gets its tokens for Docker Hub from this host, and looks it up in the file
            host = "auth.docker.io" if host in _DOCKER_HUB else host
            # a netrc file cannot hold the others: it has words between blanks
            if not all(text.isprintable() and text and " " not in text for text in (host, user, password)):
                continue
            if password.startswith("$"):
                # enroot lets a shell expand such a password, and uses what the shell prints
                raise ScriptError(
                    f"spec.imagePullSecrets: the password for {registry!r} is not allowed at this site (runtime "
                    f"{self.kind}); allowed: passwords that do not begin with '$', which enroot executes"
                )
            lines.append(f"machine {host} login {user} password {password}\n")
        return "enroot-credentials", "".join(lines).encode()

    def options(self, plan: Plan) -> list[str]:
        """Return the variables of ``lib/runtime_enroot.bash``."""
        own = plan.config.section(Enroot)
        return [
            *runtime_images.options(plan),
            f"RUNTIME={word(own.executable)}",
            array("OPTIONS", [*own.options, *plan.annotations.options]),
        ]

    def version_command(self, config: BuildSettings) -> list[str]:
        """Return ``enroot version``."""
        return [config.section(Enroot).executable, "version"]
