"""Hosts of a cluster: network namespaces on one bridge, each with an address; each can be cut off."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import signal
from collections.abc import Sequence

from cluster.errors import ClusterError
from cluster.processes import run


class Hosts:
    """``names`` are hosts of one network that this machine is part of; ``number`` is unique on the machine.

    The network is a /24 of 10.0.0.0/8; no packet leaves the machine.
    """

    def __init__(self, number: int, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._bridge = f"pb{number}"
        self._network = ipaddress.ip_network((0x0A000000 | number << 8, 24))

    def address(self, name: str) -> str:
        """Return the IP address of a host."""
        return str(self._network[11 + self.names.index(name)])

    @property
    def own_address(self) -> str:
        """The address of this machine in the network."""
        return str(self._network[1])

    @property
    def lines(self) -> str:
        """Lines of /etc/hosts for all hosts and this machine."""
        addresses = {self.own_address: os.uname().nodename} | {self.address(name): name for name in self.names}
        return "".join(f"{address} {name}\n" for address, name in addresses.items()) if self.names else ""

    def enter(self, name: str) -> list[str]:
        """Return the prefix of a command that runs on a host."""
        return [_ip(), "netns", "exec", self.namespace(name)]

    def start(self) -> None:
        """Make the network and its hosts."""
        self.stop()
        _run("link", "add", self._bridge, "type", "bridge")
        _run("addr", "add", f"{self.own_address}/24", "dev", self._bridge)
        _run("link", "set", self._bridge, "up")
        for name in self.names:
            space, outside = self.namespace(name), self._link(name)
            _run("netns", "add", space)
            _run("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
            _run("link", "set", outside, "master", self._bridge, "up")
            _run("-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _run("-n", space, "link", "set", "eth0", "up")
            _run("-n", space, "link", "set", "lo", "up")
            # programs ask for the source address of a route to find the address of their machine
            _run("-n", space, "route", "add", "default", "dev", "eth0")

    def stop(self) -> None:
        """Remove the network; safe to repeat. Processes on the hosts must have ended."""
        for name in self.names:
            with contextlib.suppress(ClusterError):
                _run("link", "del", self._link(name))  # the kernel removes the ends inside the namespaces later
            with contextlib.suppress(ClusterError):
                _run("netns", "del", self.namespace(name))
        with contextlib.suppress(ClusterError):
            _run("link", "del", self._bridge)

    def cut(self, name: str) -> None:
        """Cut a host off: packets to it and from it are dropped silently."""
        _run("link", "set", self._link(name), "nomaster")

    def mend(self, name: str) -> None:
        """Connect a host again."""
        _run("link", "set", self._link(name), "master", self._bridge)

    def kill(self, name: str) -> None:
        """Kill all processes of a host."""
        while pids := run([_ip(), "netns", "pids", self.namespace(name)]).split():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def namespace(self, name: str) -> str:
        """Return the name of a host's network namespace."""
        return f"{self._bridge}-{name}"

    def _link(self, name: str) -> str:
        return f"{self._bridge}{name}"


def _run(*words: str) -> None:
    run([_ip(), *words])


def _ip() -> str:
    found = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if found is None:
        raise ClusterError("no ip command: apt-get install iproute2")
    return found
