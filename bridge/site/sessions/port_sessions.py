"""Connections to ports of running pods: what must hold, and the exchange of data with a two-way stream."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

from bridge.errors import SiteError, SiteRefusedError
from bridge.protocol.model.sessions import EXIT, STDIN, STDOUT
from bridge.protocol.nats.two_way import StreamClosedError, TwoWay
from bridge.relay import multiplexer, pod_processes, programs
from bridge.relay.relayed import RelayedConnection
from bridge.site.batch.batch_interface import BatchSystem
from bridge.site.config.site_config import SiteConfig
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_record import JobRecord
from bridge.site.sessions import command_process, connector
from bridge.site.sessions.connector_process import Connectors
from bridge.site.sessions.container_sessions import entrance_of, require_entrance


def program() -> str:
    """Return the connector as one text."""
    return programs.text(multiplexer, pod_processes, connector)


_PROGRAM = program()


class PortSessions:
    """The connections to all pods."""

    def __init__(self) -> None:
        self._connectors = Connectors()

    def open(
        self, job_folder: JobFolder, record: JobRecord, port: int, batch: BatchSystem, config: SiteConfig
    ) -> Callable[[TwoWay], None]:
        """Return the function that connects to the port. Raises SiteRefusedError if this is not possible."""
        if not config.limits.allow_ports:
            text = "this site forwards no ports (limits.allow_ports is false)"
            raise SiteRefusedError(text, reason="PortsNotAllowed")
        require_entrance(batch, record)
        if not _is_running(record):
            raise SiteRefusedError("no container of the pod is running", reason="NotRunning")
        entrance = entrance_of(job_folder, record, batch, tty=False)
        # a group may have several pods on one machine
        alone = "" if record.meta.place is not None else "alone"
        script = ["bash", str(job_folder.path / "job.sh"), "connector", _PROGRAM, alone, sys.executable]

        def start() -> command_process.Started:
            words = [*entrance.words, *script]
            return command_process.start(words, str(job_folder.path), entrance.environment, stdin=True, tty=False)

        def is_over() -> bool:
            current_record = job_folder.read()
            return current_record is None or not _is_running(current_record)

        def run(stream: TwoWay) -> None:
            exchange(self._connectors.open(job_folder.uid, start, is_over, port), stream)

        return run


def exchange(connection: RelayedConnection, stream: TwoWay) -> None:
    """Pass on data in both directions, until both have ended or one side is gone."""
    input_ended = threading.Event()

    def pass_input() -> None:
        try:
            while True:
                head, data = stream.receive()
                if head.channel == STDIN:
                    connection.send(data)
                    if head.end:
                        connection.end_input()
                        input_ended.set()
        except (StreamClosedError, SiteError):
            connection.close()
        finally:
            input_ended.set()

    reader = threading.Thread(target=pass_input, name="session-input", daemon=True)
    reader.start()
    try:
        while data := connection.receive():
            stream.send(STDOUT, data)
        if data is None:
            stream.send(EXIT, end=True)  # reset
        else:
            stream.send(STDOUT, end=True)
            input_ended.wait()
    finally:
        connection.close()
        stream.stop_receiving()
        reader.join()


def _is_running(record: JobRecord) -> bool:
    return not record.final and any(state.get("state") == "running" for state in dict(record.containers).values())
