"""Sites of one cluster: each has a folder, credentials, an ordinary user and a batch system.

The folder is at ``/srv`` for every process of a site, in each root folder: the submitter and the jobs
see the same paths. The user has no account on the machine, only in that view; its
uid is derived from the site's ports, so that all processes of a site are found by it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from cluster import places, tools, views
from cluster.errors import ClusterError
from cluster.hosts import Hosts
from cluster.processes import kill_inside, kill_user, run
from cluster.systems import debian, slurm
from cluster.systems.condor import TOOLS as CONDOR_TOOLS
from cluster.systems.condor import CondorSetup
from cluster.systems.slurm import Size, SlurmSetup
from cluster.views import SEEN_AS

USER = "podbridge-site"
FIRST_UID = 100_000
SLURM_TOOLS = ("sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
SIZE = Size(cpus=64, memory=64_000, gpus=2)
"""CPUs and MiB of each node of a site, whatever the machine has: jobs are small."""


@dataclass(frozen=True)
class Site:
    """One site; this one runs jobs as plain processes (``local``)."""

    name: str
    folder: Path
    first_port: int
    readable: Sequence[Path] = field(default=(), kw_only=True)
    """Folders that its user may read although a folder above them is closed, besides those of podbridge."""

    batch: ClassVar[str] = "local"

    @property
    def ports(self) -> int:
        """Number of its ports; at least one, from which the uid is derived."""
        return 1

    @property
    def uid(self) -> int:
        """The uid and gid of its submitter and its jobs."""
        return FIRST_UID + self.first_port

    @property
    def work(self) -> Path:
        """The submitter's folder, ``folder`` of its configuration, as seen by root: ``<work>/jobs/<uid>``."""
        return self.folder / "home" / "podbridge"

    @property
    def hosts(self) -> Hosts:
        """Its machines that are hosts of their own."""
        return Hosts(self.first_port, ())

    @property
    def images(self) -> Path:
        """Folder of container images (``volumes.image_dir``), as seen by root."""
        return self.folder / "images"

    @property
    def root(self) -> Path:
        """Root folder that jobs see."""
        return Path("/")

    @property
    def runtime(self) -> str:
        """The container runtime."""
        return "apptainer" if debian.has(self.root, "apptainer") else "none"

    @property
    def tools(self) -> tuple[str, ...]:
        """Tools of the batch system that are on the submitter's PATH."""
        return ()

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of these tools."""
        return {}

    def describe(self) -> str:
        """Return a description."""
        return f"{self.name}: {self.batch}, containers by {self.runtime}"

    def daemons(self) -> dict[str, list[str]]:
        """Command line of each daemon of its batch system, in the order of starting."""
        return {}

    def answers(self, daemon: str) -> bool:
        """Return whether a daemon answers."""
        raise ClusterError(f"{self.name} has no {daemon}")

    def settings(self) -> dict[str, Any]:
        """Return its part of ``site.toml``."""
        return {"batch": {"kind": "local", "period": 0.2}, "local": {"cpus": 32, "memory": "32Gi", "gpus": 0}}

    def write(self) -> None:
        """Write all but credentials and configuration into an empty folder."""
        for name in ("etc", "mnt", "bin", "run", "home", "images"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        home = self.folder / "home"
        home.chmod(0o700)
        os.chown(home, self.uid, self.uid)
        users = {USER: self.uid}
        for root, prefix in ((Path("/"), views.MACHINE), (self.root, "")):
            views.write_accounts(root, self.folder / "etc", users, prefix, self.hosts.lines)
        needed = [Path(sys.prefix), Path(sys.base_prefix), places.CHECKOUT, *self.readable]
        if self.root != Path("/"):
            needed.append(self.root)
        own = {"PATH": f"{SEEN_AS}/bin:/usr/bin:/bin", "HOME": f"{SEEN_AS}/home", "USER": USER, "LOGNAME": USER}
        variables = {**own, "LANG": "C.UTF-8", **self.variables}
        _program(self.as_user, views.user_view(self.folder, self.uid, needed, variables, self.root))
        if self.tools:
            view = views.tool_view(self.root, self.uid, self.variables)
            _program(self.folder / "tool", view)
            for name in self.tools:
                (self.folder / "bin" / name).symlink_to("../tool")

    @property
    def as_user(self) -> Path:
        """The program that runs another one as the site's user; it also runs the submitter."""
        return self.folder / "as-user"

    def configure(self, servers: Sequence[str], seed: Path, authority: Path, overrides: Mapping[str, Any]) -> None:
        """Write the submitter's configuration and credentials."""
        for source, name in ((seed, "seed"), (authority, "ca.crt")):
            target = self.folder / "home" / name
            shutil.copyfile(source, target)
            os.chown(target, self.uid, self.uid)
            target.chmod(0o600)
        home = f"{SEEN_AS}/home"
        settings = {
            "pool": self.name,
            "folder": f"{home}/podbridge",
            "nats": {"servers": list(servers), "seed_file": f"{home}/seed", "ca_file": f"{home}/ca.crt"},
            "runtime": {"kind": self.runtime},
            "volumes": {"image_dir": f"{SEEN_AS}/images"},
            "announce": {"period": 2},
            **self.settings(),
        }
        (self.folder / "site.toml").write_text(toml(tools.merged(settings, overrides)))

    def submitter(self, env: Mapping[str, str], module: str = "") -> list[str]:
        """Return the command line of the submitter; ``env`` adds variables, ``module`` runs in place of podbridge."""
        words = [f"{key}={value}" for key, value in env.items()]
        command = tools.module(module) if module else [*tools.PODBRIDGE, "submitter"]
        options = ["--pool", self.name, "--config", f"{SEEN_AS}/site.toml"]
        return [str(self.as_user), "env", *words, *command, *options]

    def run(self, *argv: str, input: str | None = None, check: bool = True) -> str:
        """Run a program as the site's user, with its tools on PATH; return its output."""
        return run([str(self.as_user), *argv], input, check)

    def run_root(self, *argv: str, input: str | None = None, check: bool = True) -> str:
        """Run a program as root where jobs run."""
        raise ClusterError(f"{self.name} runs jobs on this machine itself")


@dataclass(frozen=True)
class SlurmSite(Site):
    """A site with a Slurm of its own."""

    version: str
    nodes: int

    batch: ClassVar[str] = "slurm"

    @property
    def ports(self) -> int:
        """Number of its ports."""
        return slurm.PORTS + self.nodes

    @property
    def setup(self) -> SlurmSetup:
        """Its Slurm, in the site's own folder."""
        return SlurmSetup(
            self.version,
            self.folder,
            debian.slurm_root(self.version),
            self.nodes,
            SIZE,
            self.first_port,
            users={USER: self.uid},
            rest=False,
            readable=self.readable,
        )

    @property
    def root(self) -> Path:
        """Root folder that jobs see."""
        return debian.slurm_root(self.version)

    @property
    def tools(self) -> tuple[str, ...]:
        """Tools of the batch system that are on the submitter's PATH."""
        return SLURM_TOOLS

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of these tools."""
        return self.setup.variables

    def describe(self) -> str:
        """Return a description."""
        return f"{self.name}: Slurm {self.version}, {self.nodes} nodes, containers by {self.runtime}"

    def daemons(self) -> dict[str, list[str]]:
        """Command line of each daemon of its batch system, in the order of starting."""
        return self.setup.daemons()

    def answers(self, daemon: str) -> bool:
        """Return whether a daemon answers."""
        return self.setup.answers(daemon)

    def settings(self) -> dict[str, Any]:
        """Return its part of ``site.toml``."""
        return {"batch": {"kind": "slurm", "period": 1}}

    def write(self) -> None:
        """Write all but credentials and configuration into an empty folder."""
        super().write()
        self.setup.write()

    def run_root(self, *argv: str, input: str | None = None, check: bool = True) -> str:
        """Run a program as root where jobs run."""
        return run([str(self.setup.enter), "env", f"--chdir={SEEN_AS}/jobs", *argv], input, check)


@dataclass(frozen=True)
class CondorSite(Site):
    """A site with a personal HTCondor."""

    batch: ClassVar[str] = "htcondor"

    @property
    def setup(self) -> CondorSetup:
        """Its HTCondor, in the site's own folder."""
        return CondorSetup(self.folder, self.first_port, USER, self.uid, SIZE.cpus, SIZE.memory, SIZE.gpus)

    @property
    def hosts(self) -> Hosts:
        """Its machines."""
        return self.setup.hosts

    @property
    def root(self) -> Path:
        """Root folder that jobs see."""
        return debian.added_root("htcondor")

    @property
    def tools(self) -> tuple[str, ...]:
        """Tools of the batch system that are on the submitter's PATH."""
        return CONDOR_TOOLS

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of these tools."""
        return self.setup.variables

    @property
    def enter(self) -> Path:
        """Program that runs another one, as root, where jobs run."""
        return self.folder / "enter"

    def describe(self) -> str:
        """Return a description."""
        return f"{self.name}: HTCondor, {len(self.hosts.names)} machines, containers by {self.runtime}"

    def daemons(self) -> dict[str, list[str]]:
        """Command line of each daemon of its batch system, in the order of starting."""
        return self.setup.daemons(self.enter)

    def answers(self, daemon: str) -> bool:
        """Return whether a daemon answers."""
        return self.setup.answers(self.enter, daemon)

    def settings(self) -> dict[str, Any]:
        """Return its part of ``site.toml``."""
        return {"batch": {"kind": "htcondor", "period": 1}}

    def write(self) -> None:
        """Write all but credentials and configuration into an empty folder."""
        super().write()
        self.setup.write()
        _program(self.enter, views.root_view(self.folder, self.root, self.variables, readable=self.readable))

    def run_root(self, *argv: str, input: str | None = None, check: bool = True) -> str:
        """Run a program as root where jobs run."""
        return run([str(self.enter), *argv], input, check)


def end(folder: Path) -> None:
    """Remove the remains of the site in ``folder``: jobs, their containers and daemons."""
    kill_inside(folder, SEEN_AS)
    with contextlib.suppress(FileNotFoundError):  # its start did not reach this step
        uid = (folder / "home").stat().st_uid
        if uid >= FIRST_UID:
            kill_user(uid)


def toml(settings: Mapping[str, Any]) -> str:
    """Write settings as TOML: plain values first, then one table for each mapping. ``None`` is no value."""
    plain = [f"{key} = {_value(value)}" for key, value in settings.items() if not isinstance(value, Mapping)]
    tables = [
        f"\n[{name}]\n"
        + "\n".join(f"{_text(key)} = {_value(value)}" for key, value in table.items() if value is not None)
        for name, table in settings.items()
        if isinstance(table, Mapping)
    ]
    return "\n".join([*plain, *tables]) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)} = {_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    # JSON's escapes are valid in TOML, except surrogate pairs; DEL must be escaped
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _program(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)
