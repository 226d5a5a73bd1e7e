"""How the members of a pod's group find each other at a site: ``/etc/hosts``, and what an annotation requests."""

from __future__ import annotations

import ipaddress
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.errors import ScriptError
from bridge.script.quoting import clean
from bridge.workload import remote_gangs, services

HOSTS_FILE = "/etc/hosts"
HOSTFILE = "/etc/podbridge/hostfile"
"""Path in containers of the file with the names of the members, for programs that start MPI jobs."""
_FIRST_PORT, _PORTS = 20_000, 10_000
"""Below the ports that Linux gives to outgoing connections."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """``names`` are those of the pod; the site knows the lines of the other members of its group's job.

    ``aliases`` are lines of the file. ``port`` is that of rank 0, the same for all members; ``None``: the variables of
    PyTorch are not set. ``hostfile``: whether containers have :data:`HOSTFILE`. Without all of these, containers see
    ``/etc/hosts`` of the image or of the machine.
    """

    names: list[str]
    aliases: list[str]
    port: int | None = None
    hostfile: bool = False

    @property
    def files(self) -> list[str]:
        """Paths in containers of the pod's own files."""
        if self.hostfile:
            return [HOSTS_FILE, HOSTFILE]
        return [HOSTS_FILE] if self.names or self.aliases or self.port is not None else []


def make(pod: Mapping[str, Any]) -> Hosts:
    """Return the lines; raises ``ScriptError`` for an alias that is no address or no name."""
    place, ways = remote_gangs.place_of(pod), _rendezvous(pod)
    # a pod with a stable name finds at least itself, as the only node of a TrainJob does
    is_named = place is not None or ways or pod["spec"].get("subdomain")
    own_names = remote_gangs.host_names(pod) if is_named else []
    entries = pod["spec"].get("hostAliases") or ()
    aliases = [_line(entry, f"spec.hostAliases[{index}]") for index, entry in enumerate(entries)]
    aliases += ["\t".join((address, " ".join(found))) for address, found in services.host_names(pod).items()]
    # two groups on one machine have different ports: containers use its network
    job = place.gang if place is not None else str(pod["metadata"].get("uid"))
    port = _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS if "torch" in ways else None
    return Hosts(own_names, aliases, port, "hostfile" in ways)


def _rendezvous(pod: Mapping[str, Any]) -> frozenset[str]:
    """Return what the annotation requests; raises ``ScriptError`` if the pod's group has not one job here."""
    try:
        ways = remote_gangs.rendezvous(pod)
    except ValueError as error:
        raise ScriptError(str(error)) from error
    if ways and remote_gangs.place_of(pod) is None and (size := remote_gangs.group_size(pod)) > 1:
        # each of them would be the first, and run without the others
        raise ScriptError(
            f"annotation {names.RENDEZVOUS} is not allowed here: this site runs each of the {size} pods of the group "
            "as a job of its own; allowed: at a site that runs groups"
        )
    return ways


def _line(entry: Mapping[str, Any], field_path: str) -> str:
    address = str(entry.get("ip") or "")
    try:
        ipaddress.ip_address(address)
    except ValueError:
        raise ScriptError(f"{field_path}.ip: {address!r} is not allowed; allowed: an IP address") from None
    found = [clean(str(name), f"{field_path}.hostnames") for name in entry.get("hostnames") or ()]
    for name in found:
        if not name or any(letter.isspace() or letter == "#" for letter in name):
            raise ScriptError(f"{field_path}.hostnames: {name!r} is not allowed; allowed: a host name")
    return "\t".join((address, " ".join(found)))
