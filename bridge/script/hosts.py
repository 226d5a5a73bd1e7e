"""The lines of ``/etc/hosts`` that a pod needs at a site: its aliases, and the names of its group's members."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import ScriptError
from bridge.script.quoting import clean
from bridge.workload import remote_gangs

HOSTS_FILE = "/etc/hosts"


@dataclass(frozen=True, slots=True)
class Hosts:
    """``names`` are those of a pod whose group is one job; the site knows the lines of the other members.

    ``aliases`` are lines of the file. Without both, containers see the file of the image or of the machine.
    """

    names: list[str]
    aliases: list[str]

    @property
    def are_needed(self) -> bool:
        """Whether containers get a file of the pod's own."""
        return bool(self.names or self.aliases)


def make(pod: Mapping[str, Any]) -> Hosts:
    """Return the lines; raises ``ScriptError`` for an alias that is no address or no name."""
    names = remote_gangs.host_names(pod) if remote_gangs.place_of(pod) is not None else []
    entries = pod["spec"].get("hostAliases") or ()
    return Hosts(names, [_line(entry, f"spec.hostAliases[{index}]") for index, entry in enumerate(entries)])


def _line(entry: Mapping[str, Any], field_path: str) -> str:
    address = str(entry.get("ip") or "")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise ScriptError(f"{field_path}.ip: {address!r} is not allowed; allowed: an IP address") from None
    names = [clean(str(name), f"{field_path}.hostnames") for name in entry.get("hostnames") or ()]
    for name in names:
        if not name or any(letter.isspace() or letter == "#" for letter in name):
            raise ScriptError(f"{field_path}.hostnames: {name!r} is not allowed; allowed: a host name")
    return "\t".join((address, " ".join(names)))
