"""Reads the machine of a site: its batch system and runtime, and whether a configuration works there."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bridge.apps.cli.check.findings import Finding
from bridge.clock import SystemClock
from bridge.core.threads import Supervisor
from bridge.errors import BridgeError
from bridge.script.buildconfig import BuildConfig
from bridge.script.runtimes import runtime_table
from bridge.site.batch.batch_table import SYSTEMS
from bridge.site.config.site_config import SiteConfig, make_batch_system
from bridge.site.jobs.site_folder import Folder
from bridge.site.service import nats_link

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to NATS."""
Which = Callable[[str], str | None]


def detect_batch(which: Which = shutil.which) -> str:
    """Return the first batch system whose program is on ``PATH``, else the one that needs none: ``local``."""
    for kind, system in SYSTEMS.items():
        if system.submit_program and which(system.submit_program):
            return kind
    return next(kind for kind, system in SYSTEMS.items() if system.one_machine)


def detect_runtime(which: Which = shutil.which) -> str:
    """Return the first container runtime whose program is on ``PATH``, else the one that needs none: ``none``."""
    commands = {kind: runtime.version_command(BuildConfig()) for kind, runtime in runtime_table.RUNTIMES.items()}
    for kind, command in commands.items():
        if command and which(command[0]):
            return kind
    return next(kind for kind, command in commands.items() if not command)


def check(config: SiteConfig) -> Iterator[Finding]:
    """Check the folder, the batch system, the runtime and the NATS server of a valid configuration."""
    steps: tuple[tuple[str, Callable[[SiteConfig], Finding]], ...] = (
        ("folder", _folder),
        ("batch system", _batch),
        ("runtime", _runtime),
        ("NATS", _nats),
    )
    for what, step in steps:
        try:
            yield step(config)
        except BridgeError as error:
            yield Finding("FAIL", what, str(error), error.hint or "see docs/sites/sites.md")


def _folder(config: SiteConfig) -> Finding:
    Folder(Path(config.folder), sync=config.sync).prepare(config.pool)
    return Finding("ok", "folder", config.folder)


def _batch(config: SiteConfig) -> Finding:
    system = make_batch_system(config, SystemClock())
    version = system.version()
    if problem := system.gang_problem():
        return Finding("warn", "batch system", f"{version}: {problem}", "nothing, if the site is to run no groups")
    return Finding("ok", "batch system", version)


def _runtime(config: SiteConfig) -> Finding:
    command = runtime_table.of(config).version_command(config)
    if command and shutil.which(command[0]) is None:
        fix = "nothing, if the machines that run jobs have it"
        return Finding("warn", "runtime", f"{command[0]} is not on this machine", fix)
    return Finding("ok", "runtime", config.runtime.kind)


def _nats(config: SiteConfig) -> Finding:
    """Connect as the submitter does. A server that refuses the key has been reached over the connection it needs."""
    logging.getLogger("bridge.protocol.nats").setLevel(logging.ERROR)  # the finding has the error
    supervisor = Supervisor()
    link = nats_link(config, "podbridge submitter init")
    servers = ", ".join(config.nats.servers)
    try:
        link.start(supervisor)
        end = time.monotonic() + CONNECT_TIMEOUT
        while not link.connected and time.monotonic() < end and supervisor.failure is None:
            if "authorization" in (link.problem() or "").lower():
                return Finding("ok", "NATS", f"{servers} answers; it does not know this key yet")
            time.sleep(0.05)
        if problem := link.problem():
            fix = "check the URL, the CA certificate (--ca-file) and the network; then run the same command again"
            return Finding("FAIL", "NATS", problem, fix)
        return Finding("ok", "NATS", f"{servers} accepts the key")
    finally:
        link.close()
        supervisor.stop()
        supervisor.join(2)
