"""Connects ``kubectl exec`` with a session at a site: streams of the client here, output and input there.

One thread passes on what the client sends; the calling thread what the command writes. If the client disconnects, the
session is closed. If the session ends, the client gets the end of all streams and a Status on the error stream, and
closes the connection. A client that does not receive delays only its own session.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from typing import Any

from bridge.errors import BridgeError
from bridge.logs import kv
from bridge.protocol.model.sessions import STDOUT as STDOUT_CHANNEL
from bridge.protocol.model.sessions import Exit, Session
from bridge.serving.spdy import REFUSED_STREAM, Data, Open, Reset
from bridge.serving.spdy_connection import SpdyConnection
from bridge.serving.streaming import WRITE_TIMEOUT
from bridge.serving.upgrade import ProtocolViolationError
from bridge.serving.websocket_connection import WebSocketConnection
from controllers.kubelet.command_request import ERROR, RESIZE, STDERR, STDIN, STDOUT

log = logging.getLogger(__name__)

OPEN_TIMEOUT = 30.0
"""Seconds for the client to open its streams; the kubelet has the same limit."""
CLOSE_TIMEOUT = WRITE_TIMEOUT
"""Seconds for the client to receive the end and to close the connection. If this server closed it first, the next ping
of the client would reset the connection, and a slow client would lose megabytes of output and the exit code."""
_LONGEST_RESIZE = 1024
_LARGEST_SIZE = 2**16 - 1
Count = Callable[[int], object]


class RemoteCommand:
    """One command of one client. ``streams``: the types of the streams that the client opens.

    ``received`` and ``sent`` are called with each number of bytes of the command's input and output.
    """

    def __init__(
        self,
        connection: SpdyConnection | WebSocketConnection,
        session: Session,
        streams: frozenset[str],
        received: Count,
        sent: Count,
    ) -> None:
        self._connection, self._session = connection, session
        self._expected = streams
        self._count_received, self._count_sent = received, sent
        self._streams: dict[str, int] = {}
        self._types: dict[int, str] = {}
        self._opened = threading.Event()
        self._gone = ""
        self._resize = b""

    def run(self) -> str:
        """Serve until the end; return the exit code, or else what ended the session, for the log."""
        reader = threading.Thread(target=self._receive, name="kubelet-exec-input", daemon=True)
        reader.start()
        try:
            if not self._opened.wait(OPEN_TIMEOUT):
                return "the client opened no streams"
            end = self._send_output()
            if self._gone:
                return self._gone
            self._session.close()
            self._end_streams(_status(end))
            reader.join(CLOSE_TIMEOUT)
            return str(end.code) if isinstance(end, Exit) else str(end)
        except OSError as error:
            return self._gone or f"the client disconnected: {error}"
        finally:
            self._session.close()
            self._connection.abort()
            reader.join()

    def _send_output(self) -> Exit | BridgeError:
        try:
            while not isinstance(output := self._session.receive(), Exit):
                stream = self._streams.get(STDOUT if output.channel == STDOUT_CHANNEL else STDERR)
                if stream is not None:
                    self._connection.send(stream, output.data)
                    self._count_sent(len(output.data))
        except BridgeError as error:
            return error
        return output

    def _end_streams(self, status: bytes) -> None:
        for kind, stream in self._streams.items():
            if kind != ERROR:
                self._connection.send(stream, b"", end=True)
        self._connection.send(self._streams[ERROR], status, end=True)
        self._connection.end()

    # --- the other direction ------------------------------------------------------------------------------------------
    def _receive(self) -> None:
        gone = "the client disconnected"
        try:
            for frame in self._connection.frames():
                if isinstance(frame, Open):
                    self._open(frame)
                elif (kind := self._types.get(frame.stream)) is not None:
                    self._take(kind, frame)
        except OSError as error:
            gone = f"the client disconnected: {error}"
        except ProtocolViolationError as error:
            gone = f"the client violated the protocol: {error}"
        except Exception:
            log.exception("input of a command broken off")
        finally:
            self._gone = gone
            self._opened.set()
            self._session.close()
            self._connection.abort()  # output may wait for the client

    def _open(self, frame: Open) -> None:
        kind = frame.headers.get("streamtype", "")
        if kind not in self._expected or kind in self._streams:
            self._connection.reset(frame.stream, REFUSED_STREAM)
            return
        self._streams[kind] = frame.stream
        self._types[frame.stream] = kind
        self._connection.accept(frame.stream)
        if self._expected == self._streams.keys():
            self._opened.set()

    def _take(self, kind: str, frame: Data | Reset) -> None:
        try:
            if kind == STDIN:
                if isinstance(frame, Data) and frame.data:
                    self._count_received(len(frame.data))
                    self._session.send(frame.data)
                if isinstance(frame, Reset) or frame.end:
                    self._session.end_input()
            elif kind == RESIZE and isinstance(frame, Data):
                sizes, self._resize = terminal_sizes(self._resize + frame.data)
                for columns, rows in sizes:
                    self._session.resize(columns, rows)
        except BridgeError as error:  # receive() raises too, and the client gets its error
            log.debug("input of a command not sent", extra=kv(error=error))
            self._session.close()


def terminal_sizes(text: bytes) -> tuple[list[tuple[int, int]], bytes]:
    """Return the sizes (columns, rows) in lines of JSON, and the incomplete last line. Ignore other lines."""
    *lines, rest = text.split(b"\n")
    sizes = []
    for line in lines:
        try:
            size = json.loads(line)
            columns, rows = size["Width"], size["Height"]
        except (ValueError, LookupError, TypeError, RecursionError):
            continue
        if _is_size(columns) and _is_size(rows):
            sizes.append((columns, rows))
    return sizes, rest if len(rest) <= _LONGEST_RESIZE else b""


def _is_size(value: object) -> bool:
    return isinstance(value, int) and 0 < value <= _LARGEST_SIZE


def _status(end: Exit | BridgeError) -> bytes:
    """Return the Status of an end, from which ``kubectl`` takes its exit code or its message."""
    status: dict[str, Any] = {"metadata": {}, "status": "Failure"}
    if isinstance(end, BridgeError):
        status |= {"message": end.with_hint, "reason": "InternalError", "code": 500}
    elif end.code == 0:
        status["status"] = "Success"
    else:
        code = end.code if 0 < end.code < 256 else 255  # clients read eight bits
        status |= {
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
        }
    return json.dumps(status).encode()
