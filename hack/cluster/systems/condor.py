"""A personal HTCondor: all its daemons, and its jobs, are processes of one ordinary user in a root folder.

Each startd is a machine: it and its jobs have a host name and an address of their own.
There is no ``condor_master``: the cluster starts, stops and restarts each daemon.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cluster.hosts import Hosts
from cluster.processes import run
from cluster.views import SEEN_AS

TOOLS = ("condor_submit", "condor_q", "condor_rm", "condor_history", "condor_status", "condor_version", "condor_hold")
DAEMONS = ("collector", "negotiator", "schedd")
MACHINES = ("condor-0", "condor-1")


@dataclass(frozen=True)
class CondorSetup:
    """One HTCondor: its directories, its port and the size of each machine."""

    folder: Path
    port: int
    user: str
    uid: int
    cpus: int
    memory: int
    """MiB."""
    gpus: int = 0

    @property
    def variables(self) -> dict[str, str]:
        """Return the environment variables of its programs."""
        return {"CONDOR_CONFIG": f"{SEEN_AS}/etc/condor_config"}

    @property
    def hosts(self) -> Hosts:
        """The machines; the other daemons run at the own address of their network."""
        return Hosts(self.port, MACHINES)

    def daemons(self, enter: Path) -> dict[str, list[str]]:
        """Return the command line of each daemon; ``enter`` runs a program in the root folder."""
        as_user, hosts = self._as_user(enter), self.hosts
        result = {name: [*as_user, f"condor_{name}", "-f"] for name in DAEMONS}
        result["collector"] += ["-port", str(self.port)]  # the others choose a port and report it to the collector
        for name in MACHINES:
            named = ["unshare", "--uts", "sh", "-ec", 'hostname "$0"; exec "$@"', name]
            own = {"NETWORK_HOSTNAME": name, "NETWORK_INTERFACE": hosts.address(name), "LOCAL_DIR": _local_dir(name)}
            variables = [f"_CONDOR_{key}={value}" for key, value in own.items()]
            result[f"startd-{name}"] = [*hosts.enter(name), *named, "env", *variables, *as_user, "condor_startd", "-f"]
        return result

    def answers(self, enter: Path, name: str) -> bool:
        """Return whether a daemon answers."""
        ask = self._as_user(enter)
        if name == "schedd":
            return "Total for query" in run([*ask, "condor_q", "-totals"], check=False)
        known = run([*ask, "condor_status", "-any", "-af", "MyType", "Machine"], check=False)
        machine = name.removeprefix("startd-")
        return f"Machine {machine}\n" in known if machine in MACHINES else f"{name.capitalize()} " in known

    def write(self) -> None:
        """Write the configuration and make the daemons' folders."""
        folders = [self.folder / "condor" / name for name in ("", *MACHINES)]
        folders += [folder / name for folder in folders for name in ("log", "spool", "execute", "lock", "run")]
        for folder in folders:
            folder.mkdir(parents=True)
            os.chown(folder, self.uid, self.uid)
        (self.folder / "etc" / "condor_config").write_text(self.conf())

    def conf(self) -> str:
        """Return the text of the configuration. The machine's own configuration is not read."""
        lines = [line for line in _BASE.strip().splitlines() if not line.startswith("#")]
        own = f"{self.user}@podbridge"
        lines += [f"ALLOW_{what} = {own}" for what in ("READ", "WRITE", "ADMINISTRATOR", "DAEMON", "NEGOTIATOR")]
        address = self.hosts.own_address
        lines += [f"NETWORK_INTERFACE = {address}", f"CONDOR_HOST = {address}"]
        lines.append(f"COLLECTOR_HOST = {address}:{self.port}")
        lines += [f"NUM_CPUS = {self.cpus}", f"MEMORY = {self.memory}"]
        # parallel universe: a scheduler of a personal HTCondor has the name of its user
        lines.append(f'DedicatedScheduler = "DedicatedScheduler@{self.user}@localhost"')
        if self.gpus:
            lines.append("MACHINE_RESOURCE_GPUS = " + ", ".join(f"gpu{number}" for number in range(self.gpus)))
        return "\n".join(lines) + "\n"

    def _as_user(self, enter: Path) -> list[str]:
        ids = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        return [str(enter), "setpriv", *ids]


def _local_dir(machine: str = "") -> str:
    return f"{SEEN_AS}/condor/{machine}".rstrip("/")


# The intervals: a job starts within some three seconds of its submission (a minute by default). A negotiator that is
# faster than the updates of the startds assigns a slot twice, and the schedd then drops both claims of a parallel job.
# SCHEDD_SEND_RESCHEDULE: a schedd and a negotiator that connect to each other at once both wait for 20 s.
# CLASSAD_LIFETIME: seconds after which a killed startd is forgotten (15 minutes by default).
# FS: a client proves its user by a file in /tmp. No benchmarks and no cron jobs: they cost CPU time.
_BASE = f"""
RELEASE_DIR = /usr
BIN = /usr/bin
SBIN = /usr/sbin
LIBEXEC = /usr/libexec/condor
SHARE = /usr/share/condor
LOCAL_DIR = {_local_dir()}
LOG = $(LOCAL_DIR)/log
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
LOCK = $(LOCAL_DIR)/lock
RUN = $(LOCAL_DIR)/run
LOCAL_CONFIG_FILE =
LOCAL_CONFIG_DIR =
NETWORK_HOSTNAME = localhost
BIND_ALL_INTERFACES = False
ENABLE_IPV6 = False
USE_SHARED_PORT = False
UID_DOMAIN = podbridge
FILESYSTEM_DOMAIN = podbridge
TRUST_UID_DOMAIN = True
SEC_DEFAULT_AUTHENTICATION = REQUIRED
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
SEC_DEFAULT_INTEGRITY = REQUIRED
SEC_USE_FAMILY_SESSION = False
SLOT_TYPE_1 = cpus=100%
SLOT_TYPE_1_PARTITIONABLE = True
NUM_SLOTS_TYPE_1 = 1
START = True
SUSPEND = False
PREEMPT = False
KILL = False
RANK = 0
STARTD_ATTRS = $(STARTD_ATTRS) DedicatedScheduler
UNUSED_CLAIM_TIMEOUT = 60
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_MIN_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 2
NEGOTIATOR_UPDATE_INTERVAL = 2
SCHEDD_INTERVAL = 1
SCHEDD_MIN_INTERVAL = 1
SCHEDD_SEND_RESCHEDULE = False
UPDATE_INTERVAL = 5
CLASSAD_LIFETIME = 30
PERIODIC_EXPR_INTERVAL = 5
STARTD_CRON_JOBLIST =
SCHEDD_CRON_JOBLIST =
BENCHMARKS_JOBLIST =
RunBenchmarks = False
"""
