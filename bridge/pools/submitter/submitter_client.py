"""The requests to a submitter, for every transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats import messages
from bridge.protocol.nats.request_client import Page


class Client(Protocol):
    """The requests to a submitter (:class:`bridge.protocol.nats.request_client.PoolClient`)."""

    def submit(self, job: str, submit: messages.SubmitMessage, timeout: float = ...) -> messages.SubmittedMessage:
        """Submit a job."""

    def cancel(self, job: str, cancel: messages.CancelMessage) -> messages.Status:
        """Cancel a job."""

    def status(self, job: str) -> messages.Status:
        """Request the state of one job."""

    def grant(self, job: str, grant: messages.Grant) -> messages.Status:
        """Let the waiting script of a job begin."""

    def describe(self) -> messages.Description:
        """Request the announcement and the BuildConfig."""

    def files(self, job: str, files: messages.Files) -> None:
        """Replace files in volumes of a job."""

    def snapshot(self, after: str = ...) -> Page:
        """Request a page of all jobs."""

    def logs(self, job: str, options: LogOptions) -> Iterator[bytes]:
        """Request a log."""
