"""The requests to a submitter, for every transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats.messages import (
    CancelMessage,
    Description,
    Files,
    Grant,
    Status,
    SubmitMessage,
    SubmittedMessage,
)
from bridge.protocol.nats.request_client import Page


class Client(Protocol):
    """The requests to a submitter (:class:`bridge.protocol.nats.request_client.PoolClient`)."""

    def submit(self, job: str, submit: SubmitMessage, timeout: float = ...) -> SubmittedMessage:
        """Submit a job."""

    def cancel(self, job: str, cancel: CancelMessage) -> Status:
        """Cancel a job."""

    def status(self, job: str) -> Status:
        """Request the state of one job."""

    def grant(self, job: str, grant: Grant) -> Status:
        """Let the waiting script of a job begin."""

    def describe(self) -> Description:
        """Request the announcement and the BuildConfig."""

    def files(self, job: str, files: Files) -> None:
        """Replace files in volumes of a job."""

    def snapshot(self, after: str = ...) -> Page:
        """Request a page of all jobs."""

    def logs(self, job: str, options: LogOptions) -> Iterator[bytes]:
        """Request a log."""
