"""Slurm of one cluster: its configuration, its daemons' command lines, its tokens.

Each of its programs, daemon or tool, runs in a mount namespace (see :mod:`cluster.views`) where ``/srv`` is
the cluster's Slurm folder, in the root folder of its version if it has one. So one configuration fits all versions,
several clusters share a root folder, the folder may be unreadable for the user ``slurm``, nothing has to be
unmounted, and each process that sees the folder at ``/srv`` belongs to this cluster, also the processes of its
jobs.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster import views
from cluster.ports import listening
from cluster.processes import run
from cluster.systems.accounting import Accounting
from cluster.views import SEEN_AS

PORTS = 2
"""Ports besides one for each slurmd and one for slurmdbd."""
ACCOUNTING = "AccountingStorageType=accounting_storage/slurmdbd"
"""The line of slurm.conf that enables slurmdbd and its database."""
SLURM_UID = 64030
"""User ``slurm`` of Debian's packages, in every suite."""
USERS = {"alice": 20001, "bob": 20002}
"""Users of the cluster: name -> uid."""


@dataclass(frozen=True)
class Size:
    """The size of each node, in Slurm and in Kubernetes."""

    cpus: int = 128
    memory: int = 512_000
    """MiB."""
    gpus: int = 8


@dataclass(frozen=True)
class SlurmSetup:
    """One Slurm: its folder, its ports and its options."""

    version: str
    folder: Path
    root: Path
    """Root folder of its packages; ``/`` for the machine's own."""
    nodes: int
    size: Size
    first_port: int
    """Ports: slurmctld, slurmrestd, then one for each slurmd, then slurmdbd."""
    lines: Sequence[str] = ()
    """Lines for slurm.conf; they replace lines with the same key."""
    users: Mapping[str, int] = field(default_factory=lambda: USERS)
    """Users besides those of its root folder: name -> uid."""
    rest: bool = True
    """Whether slurmrestd runs."""
    rest_address: str = ""
    """Address besides the loopback at which slurmrestd listens."""
    first: Size | None = None
    """Size of the first node if it differs from the others."""
    readable: Sequence[Path] = ()
    """Folders that the users of jobs may read although a folder above them is closed."""

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of its programs."""
        return {"SLURM_CONF": f"{SEEN_AS}/etc/slurm.conf"}

    @property
    def own_auth(self) -> bool:
        """Whether this version works without munge."""
        return self.version != "22.05"

    @property
    def enter(self) -> Path:
        """The program that runs another one in a view of this Slurm's files."""
        return self.folder / "enter"

    @property
    def rest_port(self) -> int:
        """Port of slurmrestd."""
        return self.first_port + 1

    @property
    def accounting(self) -> Accounting | None:
        """Its accounting, if a line of slurm.conf enables it."""
        if ACCOUNTING not in self.lines:
            return None
        return Accounting(self.folder, self.enter, self.first_port + PORTS + self.nodes, self._auth())

    def daemons(self) -> dict[str, list[str]]:
        """Return the command line of each daemon, in the order of starting."""
        enter, accounting = str(self.enter), self.accounting
        result: dict[str, list[str]] = {}
        if not self.own_auth:
            key, socket = f"{SEEN_AS}/munge/key", f"{SEEN_AS}/munge/socket"
            files = [f"--{what}-file={SEEN_AS}/munge/munged.{what}" for what in ("pid", "log", "seed")]
            munged = [enter, "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}", *files]
            result["munged"] = munged
        slurmctld = [enter, "slurmctld", "-D"]
        if accounting:
            result |= accounting.daemons()
        result["slurmctld"] = accounting.awaited(slurmctld) if accounting else slurmctld
        for node in node_names(self.nodes):
            result[f"slurmd-{node}"] = [enter, "slurmd", "-D", "-N", node]
        if not self.rest:
            return result
        # slurmrestd refuses to run as root or as SlurmUser; the dbv plugins of 22.05 end it if there is no slurmdbd
        nobody = [
            "setpriv",
            "--reuid=nobody",
            "--regid=nogroup",
            "--clear-groups",
            "env",
            "SLURM_JWT=daemon",
            "SLURMRESTD_JSON=compact",
        ]
        plugins = "openapi/slurmctld" if self.own_auth else "openapi/v0.0.36,openapi/v0.0.37,openapi/v0.0.38"
        options = ["-a", "rest_auth/jwt", "-s", plugins, "-t", "4"]
        addresses = [f"{host}:{self.rest_port}" for host in ("127.0.0.1", self.rest_address) if host]
        result["slurmrestd"] = [enter, *nobody, "slurmrestd", *options, *addresses]
        return result

    def answers(self, name: str) -> bool:
        """Return whether a daemon answers."""
        if name == "munged":
            return (self.folder / "munge" / "socket").exists()
        if name == "slurmctld":
            return "UP" in run([str(self.enter), "scontrol", "ping"], check=False)
        if name == "slurmrestd":
            return listening(self.rest_port)
        if self.accounting and name in self.accounting.daemons():
            return self.accounting.answers(name)
        node = name.removeprefix("slurmd-")
        state = run([str(self.enter), "sinfo", "-h", "-n", node, "-o", "%T"], check=False).strip()
        return not {"", "unknown", "down"} & {state.rstrip("*")} and not state.endswith("*")

    def write(self) -> None:
        """Write configuration, keys, devices and the ``enter`` script into an empty folder."""
        for name in ("etc", "run", "munge", "dev", "state", "spool", "jobs"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        for name in ("state", "run"):
            os.chown(self.folder / name, SLURM_UID, SLURM_UID)
        (self.folder / "jobs").chmod(0o1777)
        etc = self.folder / "etc"
        etc.joinpath("slurm.conf").write_text(self.conf())
        etc.joinpath("gres.conf").write_text(self._gres_conf())
        etc.joinpath("cgroup.conf").write_text("CgroupPlugin=disabled\n" if self.own_auth else "CgroupAutomount=no\n")
        _secret(etc / "jwt_hs256.key", secrets.token_bytes(32), SLURM_UID)
        if self.own_auth:
            _secret(etc / "slurm.key", secrets.token_bytes(1024), SLURM_UID)
        else:
            _secret(self.folder / "munge" / "key", secrets.token_bytes(128), 0)
        # slurmd wants character devices: copies of /dev/null
        for number in range(max(self.size.gpus, self.first.gpus if self.first else 0)):
            os.mknod(self.folder / "dev" / f"gpu{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        views.write_accounts(self.root, etc, self.users)
        self.enter.write_text(self._enter())
        self.enter.chmod(0o755)
        if self.accounting:
            self.accounting.write(SLURM_UID)

    def conf(self) -> str:
        """Return the text of slurm.conf."""
        settings = dict(line.split("=", 1) for line in _BASE.split())
        settings["ClusterName"] = "podbridge"
        settings["SlurmctldPort"] = str(self.first_port)
        settings |= {**self._auth(), "CredType": "cred/slurm" if self.own_auth else "cred/munge"}
        if self.accounting:
            settings |= self.accounting.settings()
        added = []
        for line in self.lines:
            key, _, value = line.partition("=")
            if key in settings:
                settings[key] = value
            else:
                added.append(line)
        first = self.first_port + PORTS
        last = first + self.nodes - 1
        ports = f"[{first}-{last}]" if self.nodes > 1 else str(first)
        names = node_range(self.nodes)
        lines = [f"{key}={value}" for key, value in settings.items()]
        at = "NodeHostname=localhost NodeAddr=127.0.0.1"
        if self.first:
            lines.append(f"NodeName=node-0 {_declared(self.first)} State=UNKNOWN {at} Port={first}{_gres(self.first)}")
        if others := node_range(self.nodes, 1 if self.first else 0):
            ports = ports if not self.first else f"[{first + 1}-{last}]" if self.nodes > 2 else str(last)
            lines.append(f"NodeName=DEFAULT {_declared(self.size)} State=UNKNOWN")
            lines.append(f"NodeName={others} {at} Port={ports}{_gres(self.size)}")
        if self.nodes:
            lines.append(f"PartitionName=main Nodes={names} Default=YES MaxTime=INFINITE State=UP")
        return "\n".join([*lines, *added]) + "\n"

    def _auth(self) -> dict[str, str]:
        if self.own_auth:
            return {"AuthType": "auth/slurm"}
        return {"AuthType": "auth/munge", "AuthInfo": f"socket={SEEN_AS}/munge/socket"}

    def _gres_conf(self) -> str:
        sizes = {node_range(self.nodes, 1 if self.first else 0): self.size}
        if self.first:
            sizes["node-0"] = self.first
        lines = []
        for names, size in sizes.items():
            if names and size.gpus:
                files = f"gpu[0-{size.gpus - 1}]" if size.gpus > 1 else "gpu0"
                lines.append(f"NodeName={names} Name=gpu File={SEEN_AS}/dev/{files}\n")
        return "".join(lines)

    def _enter(self) -> str:
        # each slurmd creates the same socket there: of two that start at once, one fails
        own = 'mkdir -p "$R/run/slurm"; mount -t tmpfs slurmd "$R/run/slurm"'
        first = f'if [ "$1" = slurmd ]; then {own}; fi'
        return views.root_view(self.folder, self.root, self.variables, first=first, readable=self.readable)


def node_names(count: int) -> list[str]:
    """Return the names of the nodes, the same in Slurm and in Kubernetes."""
    return [f"node-{number}" for number in range(count)]


def node_range(count: int, first: int = 0) -> str:
    """Return the names of the nodes from number ``first`` on in Slurm's notation; empty if there is none."""
    if count <= first:
        return ""
    return f"node-[{first}-{count - 1}]" if count > first + 1 else f"node-{first}"


def _declared(size: Size) -> str:
    return f"CPUs={size.cpus} RealMemory={size.memory}"


def _gres(size: Size) -> str:
    return f" Gres=gpu:{size.gpus}" if size.gpus else ""


def make_token(key: bytes, user: str, lifetime: float) -> str:
    """Return a Slurm JWT (HS256) for ``user``, valid for ``lifetime`` seconds (negative: expired)."""
    now = int(time.time())
    claims = {"sun": user, "iat": min(now, int(now + lifetime)), "exp": int(now + lifetime)}
    parts = [_b64url(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    signed = ".".join(parts)
    return f"{signed}.{_b64url(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


def _b64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _secret(file: Path, content: bytes, owner: int) -> None:
    file.touch(mode=0o600)
    file.write_bytes(content)
    os.chown(file, owner, owner)


# sched_*: a job starts within a second of its submission (2.7 s by default). config_overrides: nodes of any size.
# No cgroups, no systemd: linuxproc. Memory is counted, so a job that names none takes a whole node's.
_BASE = f"""
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=slurm
SlurmdUser=root
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={SEEN_AS}/etc/jwt_hs256.key
StateSaveLocation={SEEN_AS}/state
SlurmdSpoolDir={SEEN_AS}/spool/%n
SlurmctldPidFile={SEEN_AS}/run/slurmctld.pid
SlurmdPidFile={SEEN_AS}/run/slurmd-%n.pid
SlurmctldDebug=info
SlurmdDebug=info
SlurmctldSyslogDebug=quiet
SlurmdSyslogDebug=quiet
LogTimeFormat=iso8601_ms,format_stderr
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1,default_queue_depth=1000
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=120
SlurmdTimeout=300
InactiveLimit=0
KillWait=2
MinJobAge=300
MaxJobCount=20000
GresTypes=gpu
"""
