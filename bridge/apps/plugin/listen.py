"""The address that the plugin listens on, and whether its clients must prove their identity there."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import ConfigError

UNIX = "unix://"
ALLOWED = "HOST:PORT, [IPv6]:PORT or unix:///PATH"
DEFAULT_SOCKET = ".interlink/plugin.sock"
"""In the home of the user of the plugin. The directory is created with mode 0700."""
_TCP = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[0-9A-Za-z._-]+)):(?P<port>[0-9]{1,5})")


_HINT = (
    "use --listen unix:///PATH (in SlurmConfig.yaml: Socket: unix:///PATH) and the same URL as SidecarURL of the API "
    "server; or use --token-file; or, if no other user can log in here, --allow-local-users"
)


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


def default(home: Path) -> str:
    """Return the default of ``--listen``, and create its directory; raises :class:`ConfigError`."""
    path = home / DEFAULT_SOCKET
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--listen: cannot create {path.parent}: {error.strerror}", hint=_HINT) from error
    return f"{UNIX}{path}"


def check(address: Address, *, token: bool, client_ca: bool, local_users: bool = False) -> None:
    """Raise :class:`ConfigError` if others than the user of the plugin could use it without a proof of identity.

    ``local_users``: every user of this machine may.
    """
    # the directory or the mode of a socket restricts its clients; each user of a machine can connect to its loopback
    if address.unix is not None or token or client_ca:
        return
    if not address.is_local:
        raise ConfigError(
            f"--listen: {address.host}:{address.port} is not a loopback address, so it requires --token-file or "
            f"--client-ca; without one of them, allowed: unix:///PATH"
        )
    if not local_users:
        raise ConfigError(
            f"--listen: every user of this machine could run pods by {address.host}:{address.port}, as the user of "
            f"this process; allowed without --token-file or --client-ca: unix:///PATH",
            hint=_HINT,
        )
