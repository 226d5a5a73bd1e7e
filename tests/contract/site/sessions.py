"""Sessions at a site."""

from __future__ import annotations

from typing import Any

from bridge.protocol.model.sessions import STDERR, STDOUT, CommandOptions, Exit, Session


def enter(site: Any, job: str, *command: str, **more: Any) -> Session:
    return site.client.open_session(job, CommandOptions(container="main", command=list(command), **more))


def outcome(session: Session) -> tuple[int, bytes, bytes]:
    """Return exit code, output and error output; close the session."""
    texts = {STDOUT: b"", STDERR: b""}
    try:
        while not isinstance(item := session.receive(), Exit):
            texts[item.channel] += item.data
        return item.code, texts[STDOUT], texts[STDERR]
    finally:
        session.close()
