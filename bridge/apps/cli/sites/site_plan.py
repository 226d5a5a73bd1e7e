"""Decides the content of a site's files: ``site.toml``, the seed and the systemd unit. No I/O."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge.config.base import has_host
from bridge.config.documents import toml_document
from bridge.errors import ConfigError
from bridge.protocol.model.identifiers import POOL_PATTERN
from bridge.site.config.sample import documented
from bridge.site.config.site_config import SiteConfig, parse, validated

CONFIG, SEED, AUTHORITY = "site.toml", "site.seed", "ca.crt"
_UNIT_TEXT = re.compile(r"[\w/.+@=,:~ -]+")
"""Characters of a path in a unit. systemd gives a meaning to ``%``, ``$``, quotes and backslashes."""
_KEY = re.compile(r"[a-z_]+(\.[a-z_]+)?")
_OWN_OPTION = {
    "pool": "--pool",
    "folder": "--folder",
    "batch.kind": "--batch",
    "runtime.kind": "--runtime",
    "nats.servers": "--server",
    "nats.ca_file": "--ca-file",
    "nats.seed_file": "--out",
}


@dataclass(frozen=True, slots=True)
class SiteChoices:
    """What a site decides. ``directory``: of the files. ``folder``: of the jobs (``folder`` of ``site.toml``).

    ``own_ca``: whether ``ca.crt`` in ``directory`` has the CA of the NATS server, instead of the system's.
    ``settings``: more keys of ``site.toml`` with their values, for example ``slurm.partition``.
    """

    pool: str
    servers: Sequence[str]
    batch: str
    runtime: str
    folder: Path
    directory: Path
    own_ca: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


def checked_pool(name: str, option: str = "--pool") -> str:
    """Return the name of a pool; raises :class:`ConfigError` if it is not allowed."""
    if not re.fullmatch(POOL_PATTERN, name) or name.endswith("\n"):
        raise ConfigError(
            f"{option}: {name!r} is not allowed; allowed: 1 to 63 of a-z, 0-9 and -, without - at the beginning or end"
        )
    return name


def checked_server(url: str) -> str:
    """Return the URL of a NATS server; raises :class:`ConfigError` if it is not allowed."""
    allowed = "allowed: wss://HOST:PORT, tls://HOST:PORT, ws://HOST:PORT or nats://HOST:PORT, without user and password"
    if not re.fullmatch(r"(wss|tls|ws|nats)://[^\s@\x00-\x1f]+", url):
        raise ConfigError(f"--server: {url.rpartition('@')[2]!r} is not allowed; {allowed}")
    if not has_host(url):
        raise ConfigError(f"--server: {url!r} is not allowed; {allowed}")
    return url


def checked_settings(assignments: Sequence[str]) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` of ``--set``: a value of TOML, else a text; raises :class:`ConfigError` for a bad key."""
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"--set: {assignment!r} is not allowed; allowed: KEY=VALUE, e.g. slurm.partition=batch")
        if key in _OWN_OPTION:
            raise ConfigError(f"--set: {key} is not allowed; allowed: the option {_OWN_OPTION[key]}")
        settings[key] = _value(text)
    return settings


def _value(text: str) -> Any:
    try:
        document = toml_document(f"value = {text}", "--set")
    except ConfigError:
        return text
    value = document["value"]
    # another key is a line break in the text; dates and times are no value of site.toml
    return value if len(document) == 1 and isinstance(value, str | bool | int | float | list | dict) else text


def site_toml(choices: SiteChoices) -> str:
    """Return the text of ``site.toml``; raises :class:`ConfigError`, which names every wrong key and value."""
    nats: dict[str, Any] = {"servers": list(choices.servers), "seed_file": str(choices.directory / SEED)}
    if choices.own_ca:
        nats["ca_file"] = str(choices.directory / AUTHORITY)
    values: dict[str, Any] = {
        "pool": choices.pool,
        "folder": str(choices.folder),
        "nats": nats,
        "batch": {"kind": choices.batch},
        "runtime": {"kind": choices.runtime},
    }
    for key, value in choices.settings.items():
        section, dot, name = key.partition(".")
        if dot and isinstance(values.setdefault(section, {}), dict):
            values[section][name] = value
        elif dot:
            raise ConfigError(f"--set: {key} is not allowed; {section} has no keys")
        else:
            values[section] = value
    notes = [
        "Written by podbridge submitter init; you can change it.",
        "podbridge submitter config prints all keys with their defaults.",
    ]
    meant = validated(values, CONFIG)
    text = documented(values, notes)
    if parse(text, CONFIG) != meant:
        raise ConfigError(f"{CONFIG}: these values cannot be written: {text}")
    return text


def unit_name(pool: str) -> str:
    """Return the name of a pool's systemd unit."""
    return f"podbridge-{pool}.service"


def unit(config: SiteConfig, program: Path, config_file: Path, path_variable: str, account: str = "") -> str:
    """Return the systemd unit that runs a submitter: of a user, or with ``account`` of the system.

    ``path_variable``: ``PATH`` of the submitter. A service manager's own often lacks the programs of the batch system.
    Raises :class:`ConfigError` if a path has a character that systemd interprets.
    """
    for path in (str(program), str(config_file), path_variable, account or "-"):
        if not _UNIT_TEXT.fullmatch(path):
            raise ConfigError(
                f"{path!r} cannot be written into a systemd unit; allowed in paths, PATH and names of users: letters, "
                "digits, spaces and /.+@=,:~_-",
                hint="use another directory (--out), or write the unit yourself (--unit none)",
            )
    lines = [
        "# Written by podbridge submitter init.",
        "[Unit]",
        f"Description=podbridge submitter of pool {config.pool}",
        *(["After=network-online.target", "Wants=network-online.target"] if account else []),
        "",
        "[Service]",
        *([f"User={account}"] if account else []),
        f'Environment="PATH={path_variable}"',
        f'ExecStart="{program}" submitter --config "{config_file}"',
        "Restart=always",
        "RestartSec=2",
        '# jobs of the batch system "local" are no part of the service: they outlive it',
        "KillMode=process",
        "",
        "[Install]",
        f"WantedBy={'multi-user' if account else 'default'}.target",
    ]
    return "\n".join(lines) + "\n"


def start_command(pool: str, kind: str, directory: Path) -> str:
    """Return the command that starts the submitter with the unit of this kind: ``user``, ``system`` or ``none``."""
    name = unit_name(pool)
    if kind == "user":
        return f"systemctl --user enable --now {name} && loginctl enable-linger"
    if kind == "system":
        install = f"sudo install -m 644 {_word(directory / name)} /etc/systemd/system/{name}"
        return f"{install} && sudo systemctl enable --now {name}"
    return f"podbridge submitter --config {_word(directory / CONFIG)}"


def _word(path: Path) -> str:
    return shlex.quote(str(path))
