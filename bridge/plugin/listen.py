"""The address that the plugin listens on, and whether it may do so without a proof of identity of its clients."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ConfigError

DEFAULT = "127.0.0.1:4000"
UNIX = "unix://"
ALLOWED = "HOST:PORT, [IPv6]:PORT or unix:///PATH"
_TCP = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[0-9A-Za-z._-]+)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """``host`` and ``port``, or the path of a Unix domain socket. Port 0 selects a free one."""

    host: str = ""
    port: int = 0
    unix: Path | None = None

    @property
    def is_local(self) -> bool:
        """Whether only processes of this machine can connect."""
        if self.unix is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse(text: str) -> Address:
    """Read the value of ``--listen``; raises :class:`ConfigError`."""
    if text.startswith(UNIX):
        path = Path(text.removeprefix(UNIX))
        # the kernel's limit of sun_path, with its final NUL
        if not path.is_absolute() or len(str(path).encode()) > 107 or "\0" in str(path):
            raise ConfigError(f"--listen: {text!r} is not allowed; allowed: an absolute path of at most 107 bytes")
        return Address(unix=path)
    match = _TCP.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ConfigError(f"--listen: {text!r} is not allowed; allowed: {ALLOWED}")
    return Address(host=match["six"] or match["host"], port=int(match["port"]))


def check(address: Address, *, token: bool, client_ca: bool) -> None:
    """Raise :class:`ConfigError` if other machines could use the plugin without a token or a client certificate."""
    if not address.is_local and not (token or client_ca):
        raise ConfigError(
            f"--listen: {address.host}:{address.port} is not a loopback address, so it requires --token-file or "
            f"--client-ca; without one of them, allowed: 127.0.0.1:PORT, [::1]:PORT, localhost:PORT, unix:///PATH"
        )
