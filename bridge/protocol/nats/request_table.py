"""The requests of a hub to the submitters of one pool, one row each.

The client, the server, the subjects, and the permissions of hub and site follow from this table. A new request is a
row, the models of its messages, and the method of :class:`bridge.site.submitter.Submitter` that answers it.
A hub sends requests for its own cluster; the submitters of the pool answer them. All are idempotent by pod UID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from bridge.protocol.model.requests import LogOptions
from bridge.protocol.model.sessions import CommandOptions, Connection, Session
from bridge.protocol.nats import messages
from bridge.protocol.nats.messages import Empty, Message, Status

B = TypeVar("B", bound=Message)
A = TypeVar("A", bound=Message)
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class RequestKind(Generic[B, A]):
    """A row of the table.

    Parameters
    ----------
    name
        The name in the subject, and of the method that answers the request: owner, UID of the pod and body, to answer.
    body, answer
        The models of the messages.
    timeout
        Seconds for which the hub waits for the answer.
    threads
        Threads at the site for this kind, so that no kind delays another.
    of_job
        The request concerns one job: its subject ends with the UID of the pod.
    label
        Returns a further part of the subject before the UID: who watches the server sees the pod.
    """

    name: str
    body: type[B]
    answer: type[A]
    timeout: float = 10.0
    threads: int = 4
    of_job: bool = True
    label: Callable[[B], str] | None = None

    @property
    def part_count(self) -> int:
        """Number of :meth:`parts`."""
        return self.of_job + (self.label is not None)

    def parts(self, job: str, body: B) -> list[str]:
        """Return what follows the owner in the subject of a request."""
        return [*([self.label(body)] if self.label else []), *([job] if self.of_job else [])]

    def handler(self, method: Callable[[S, str, str, B], A]) -> Callable[[S, str, str, B], A]:
        """Return a method that answers this request, as it is; mypy checks its types. Raise TypeError for its name."""
        if method.__name__ != self.name:
            raise TypeError(f"{method.__qualname__} cannot answer {self.name!r}: it needs the name of the request")
        return method

    def handler_of(self, handlers: object) -> Callable[[str, str, B], A]:
        """Return the method of ``handlers`` that answers this request; raise AttributeError if there is none."""
        method: Callable[[str, str, B], A] = getattr(handlers, self.name)
        return method


SUBMIT = RequestKind(
    "submit",
    messages.SubmitMessage,
    messages.SubmittedMessage,
    timeout=60.0,
    threads=8,
    label=lambda body: f"{body.namespace}-{body.name}",
)
CANCEL = RequestKind("cancel", messages.CancelMessage, Status, timeout=30.0)
STATUS = RequestKind("status", Empty, Status)
LOGS = RequestKind("logs", messages.Logs, Empty)
FILES = RequestKind("files", messages.Files, Empty, threads=2)
GRANT = RequestKind("grant", messages.Grant, Status)
SNAPSHOT = RequestKind("snapshot", messages.Snapshot, messages.SnapshotPage, timeout=30.0, threads=1, of_job=False)
DESCRIBE = RequestKind("describe", Empty, messages.Description, threads=1, of_job=False)
EXEC = RequestKind("exec", messages.Exec, Empty, timeout=30.0)
USAGE = RequestKind("usage", messages.UsageRequest, messages.UsageAnswer, timeout=4.0, threads=1, of_job=False)
CONNECT = RequestKind("connect", messages.Connect, Empty, timeout=30.0)
REACH = RequestKind("reach", messages.Reach, Empty, timeout=30.0)
REQUESTS: dict[str, RequestKind[Any, Any]] = {
    kind.name: kind for kind in list(globals().values()) if isinstance(kind, RequestKind)
}


class SubmitterClient(Protocol):
    """Sends requests to a submitter, over NATS or in the same process. Its methods may raise SiteError."""

    def call(self, kind: RequestKind[B, A], job: str, body: B, timeout: float | None = None) -> A:
        """Send a request, and return the answer. ``job``: the pod's UID; empty for a request that is not of a job."""

    def logs(self, job: str, options: LogOptions) -> Iterator[bytes]:
        """Request a log; return its pieces."""

    def open_session(self, job: str, options: CommandOptions) -> Session:
        """Run a command in a container; return its session."""

    def connect(self, job: str, port: int) -> Connection:
        """Connect to a port of a pod."""

    def reach(self, job: str) -> Session:
        """Open the stream of a pod's connections to Services."""
