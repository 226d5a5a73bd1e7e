"""A session: a command that runs in a container of a running job, with its input and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from bridge.protocol.model.identifiers import Value

STDIN, STDOUT, STDERR, EXIT, RESIZE = range(5)
"""Channels of a session, with the numbers of Kubernetes where it has one."""
MOST_REACHING = 512
"""Pods at once at a site whose connections to Services have a stream. A cluster has half of them."""


class CommandOptions(Value):
    """A command to run in a container, as ``kubectl exec`` requests it; or ``attach``: its own input and output."""

    container: str
    command: list[str] = Field([])
    attach: bool = False
    stdin: bool = False
    tty: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of the command's output. ``channel`` is :data:`STDOUT`, also of a terminal, or :data:`STDERR`."""

    channel: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of the command: its exit code, or 128 and the number of the signal that killed it."""

    code: int


class Session(Protocol):
    """A running command. One thread receives, one sends; any may close it. Methods may raise SiteError."""

    def receive(self) -> Output | Exit:
        """Wait for the next piece of output, or the end; nothing follows it.

        Raises SiteUnknownOutcomeError if the site is silent or a part was lost, and SiteRefusedError if the site has
        ended the session. Also ends with an error soon after :meth:`close`.
        """

    def send(self, data: bytes) -> None:
        """Send to the command's standard input; wait while the site does not accept more. Ignored after the end."""

    def end_input(self) -> None:
        """End the command's standard input. Ignored after the end."""

    def resize(self, columns: int, rows: int) -> None:
        """Set the size of the command's terminal."""

    def close(self) -> None:
        """End the session, and the command at the site. Idempotent."""


class Connection(Protocol):
    """A connection to a port of a pod. Threads and errors are those of a :class:`Session`."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended. What has arrived can still be received."""

    def receive(self) -> bytes | None:
        """Wait for data of the port; empty: all was received; ``None``: the port has reset the connection.

        Raises SiteRefusedError if there is no connection, or the site has ended it. Also ends soon after :meth:`close`.
        """

    def send(self, data: bytes) -> None:
        """Send to the port; wait while the site does not accept more. Ignored after the end."""

    def end_input(self) -> None:
        """End the direction to the port. Ignored after the end."""

    def close(self) -> None:
        """Close the connection. Idempotent."""
