"""Sites with real container runtimes: an ordinary user with a home, an image, and a mount namespace for each job."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import views
from cluster.systems import debian, images, install
from tests.contract.script.conftest import NOBODY, Job, Site

SUBORDINATE = 300_000
"""First of the user's subordinate ids: what ``/etc/subuid`` gives users of a site."""
DEVICE = (
    'mount -t tmpfs -o mode=755 fuse "$R/mnt"; mknod -m 666 "$R/mnt/fuse" c 10 229; '
    'mount --bind "$R/mnt/fuse" "$R/dev/fuse"'
)
"""Everybody may open it on most machines, but not on each."""
USER = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]


class Home:
    """The user's folder, and ``enter``: words that become the user, on this machine as it is."""

    kind = ""

    def __init__(self) -> None:
        if os.getuid() != 0:
            pytest.skip("only root can become another user")
        self.folder = Path(tempfile.mkdtemp(prefix="script-home-"))
        self.folder.chmod(0o755)
        install.ensure(machine=("busybox",))
        images.write_busybox(self.folder)
        for name in ("home", "run"):
            (self.folder / name).mkdir(mode=0o700)
            os.chown(self.folder / name, NOBODY, NOBODY)
        self.variables = {
            "HOME": str(self.folder / "home"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "USER": "nobody",
            "PATH": "/usr/bin:/bin",
        }
        self.enter = self.way_in()

    def way_in(self) -> list[str]:
        install.ensure(machine=("podman", "crun", "newuidmap", "ch-run", "bindfs", "fusermount3"))
        (self.folder / "subids").write_text(f"nobody:{SUBORDINATE}:65536\n")
        lines = [f"mount --bind {shlex.quote(str(self.folder / 'subids'))} /etc/sub{kind}" for kind in ("uid", "gid")]
        # no set-user-id programs and no devices where jobs lie: mounts in user namespaces have to keep that
        lines.append("mount --bind /tmp /tmp; mount -o remount,bind,nosuid,nodev /tmp")
        # a machine with half of its cgroups in the old tree is none that the programs know
        lines.append("umount -l /sys/fs/cgroup 2>/dev/null; mount -t cgroup2 none /sys/fs/cgroup")
        lines += [f"R=; {DEVICE}", f'exec {shlex.join(USER)} "$@"']
        return ["unshare", "--mount", "--", "sh", "-c", "; ".join(lines), "sh"]

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class SidHome(Home):
    """The same in the root folder that has apptainer. ``/media`` is that folder once more: an image with programs."""

    def way_in(self) -> list[str]:
        install.ensure(added=("apptainer", "bindfs", "squashfuse", "python3"))
        root = debian.added_root("apptainer")
        (self.folder / "etc").mkdir()
        views.write_accounts(root, self.folder / "etc", {})
        program = self.folder / "enter"
        first = f'mount --bind "$R" "$R/media"; {DEVICE}'
        program.write_text(views.root_view(self.folder, root, {}, run=False, first=first))
        program.chmod(0o755)
        return [str(program), "env", *(f"{name}={value}" for name, value in self.variables.items()), *USER]


class Podman(Home):
    """A home with an image in podman's own store."""

    def __init__(self) -> None:
        super().__init__()
        tar = self.folder / "busybox.tar"
        subprocess.run(["tar", "-C", str(self.folder / "busybox"), "-cf", str(tar), "."], check=True)
        self.run("import", "--quiet", str(tar), "busybox:1")

    def run(self, *words: str) -> str:
        """Run podman as the user."""
        env = {**os.environ, **self.variables}
        done = subprocess.run([*self.enter, "podman", *words], env=env, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        self.forget()
        return done.stdout.strip()

    def forget(self) -> None:
        """End the process that podman keeps for each user: the next job has another mount namespace."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            os.kill(int((self.folder / "run" / "libpod" / "tmp" / "pause.pid").read_text()), signal.SIGKILL)


HOMES = {"podman": Podman, "charliecloud": Home, "apptainer": SidHome, "none": Home}
"""By kind of runtime."""


class Containers(Site):
    """Makes jobs for a site with one of the runtimes."""

    def __init__(self, kind: str, home: Home) -> None:
        super().__init__(NOBODY, home.enter)
        self.kind = kind
        self.own = home

    def job(self, spec: dict[str, Any], config: dict[str, Any] | None = None, **more: Any) -> Job:
        config = dict(config or {})
        own = {"image_dir": str(self.own.folder)} if self.kind != "podman" else {}
        base = {"runtime": {"kind": self.kind}, "volumes": {**own, **config.pop("volumes", {})}}
        if self.kind == "apptainer":
            base["apptainer"] = {"userns": True, **config.pop("apptainer", {})}
        environment = {**self.own.variables, **more.pop("environment", {})}
        return super().job(spec, config={**base, **config}, environment=environment, **more)

    def shell(self, text: str, **container: Any) -> dict[str, Any]:
        return super().shell(text, **{"image": "busybox:1" if self.kind == "podman" else "busybox", **container})

    def close(self) -> None:
        super().close()
        if isinstance(self.own, Podman):
            self.own.forget()
            assert self.own.run("ps", "--all", "--quiet") == ""


def fixtures(*kinds: str) -> tuple[Any, Any]:
    """Return the fixtures ``home`` and ``site`` of a file whose tests run with each of these runtimes."""

    @pytest.fixture(scope="module", params=kinds)
    def home(request: pytest.FixtureRequest) -> Iterator[Home]:
        made = HOMES[request.param]()
        made.kind = request.param
        yield made
        made.close()

    @pytest.fixture
    def site(home: Home) -> Iterator[Containers]:
        made = Containers(home.kind, home)
        yield made
        made.close()

    return home, site
