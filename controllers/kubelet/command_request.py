"""The requests to run a command in a container, and to change the protocol, validated as in a kubelet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs

from werkzeug.datastructures import Headers

from bridge.protocol.model.sessions import CommandOptions
from bridge.serving.http_error import AnswerError
from bridge.serving.upgrade import negotiate
from bridge.serving.websocket_connection import V4, V5, WEBSOCKET, handshake

PROTOCOL_HEADER = "X-Stream-Protocol-Version"
SPDY = "SPDY/3.1"
PORT_PROTOCOL = "portforward.k8s.io"
MOST_PORTS = 64
"""Ports of one WebSocket, whose streams have numbers of one byte, two for each port."""
ERROR, STDIN, STDOUT, STDERR, RESIZE = "error", "stdin", "stdout", "stderr", "resize"
_PARAMETERS = {STDIN: "input", STDOUT: "output", STDERR: "error"}
"""The kubelet's names of the query parameters; the API server's names are those of the streams."""


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command, and the types of the streams that the client opens for it."""

    options: CommandOptions
    streams: frozenset[str]


def command_request(query: bytes, container: str, *, attach: bool = False) -> CommandRequest:
    """Parse the query of a request. Raises :class:`AnswerError` 400 for a command that cannot run.

    ``attach``: to the container itself, which needs no command.
    """
    try:
        values = parse_qs(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except UnicodeDecodeError as error:
        raise AnswerError(400, "the query is not valid UTF-8") from error
    command = [] if attach else values.get("command", [])
    if not (command or attach):
        raise AnswerError(400, "a command is required")
    if any("\0" in argument for argument in command):
        raise AnswerError(400, "an argument of the command has a null byte")
    tty = _flag(values, "tty")
    streams = {name for name, parameter in _PARAMETERS.items() if _flag(values, parameter) or _flag(values, name)}
    if tty:
        streams.discard(STDERR)
    if not streams:
        raise AnswerError(400, "you must specify at least 1 of stdin, stdout, stderr")
    stdin = STDIN in streams
    streams |= {ERROR, RESIZE} if tty else {ERROR}
    options = CommandOptions(container=container, command=command, attach=attach, stdin=stdin, tty=tty)
    return CommandRequest(options, frozenset(streams))


@dataclass(frozen=True, slots=True)
class StreamForm:
    """The form of a command's streams: the protocol of the connection, and the headers of the answer."""

    upgrade: str
    headers: dict[str, str]


def stream_form(method: str, headers: Headers) -> StreamForm:
    """Return the form that the client asks for. Raises :class:`AnswerError` for one that this server does not know.

    The API server sends POST and SPDY for a client that offers ``v5.channel.k8s.io``. The WebSocket of an older one,
    such as Airflow's, goes through to the kubelet, with GET.
    """
    if headers.get("Upgrade", "").lower() == WEBSOCKET:
        return StreamForm(WEBSOCKET, handshake(headers, (V5, V4)))
    # the newest form over SPDY, where v5 does not differ: the exit code is in a Status
    return _spdy_form(method, headers, V4)


def port_form(method: str, headers: Headers) -> StreamForm:
    """Return the form of the streams of ``kubectl port-forward``. Raises :class:`AnswerError` for another one.

    The API server sends POST and SPDY also for a client that offers ``SPDY/3.1+portforward.k8s.io`` in a WebSocket.
    That of other clients, such as Python's, goes through to the kubelet, with GET.
    """
    if headers.get("Upgrade", "").lower() == WEBSOCKET:
        return StreamForm(WEBSOCKET, handshake(headers, (V4,)))
    return _spdy_form(method, headers, PORT_PROTOCOL)


def requested_ports(values: Sequence[str]) -> tuple[int, ...]:
    """Return the ports of the query parameters ``port`` of a WebSocket. Raises :class:`AnswerError` 400."""
    words = [word.strip() for value in values for word in value.split(",")]
    if not 1 <= len(words) <= MOST_PORTS:
        raise AnswerError(400, f'query parameter "port" has {len(words)} ports; allowed: 1 to {MOST_PORTS}')
    if wrong := [word for word in words if not is_port(word)]:
        raise AnswerError(400, f'query parameter "port": {wrong[0][:40]!r}: must be a number from 1 to 65535')
    return tuple(map(int, words))


def is_port(text: str) -> bool:
    """Return whether a text is the number of a port."""
    return text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 2**16


def _spdy_form(method: str, headers: Headers, protocol: str) -> StreamForm:
    if method != "POST":
        raise AnswerError(405, "this needs POST, or a WebSocket")
    upgrade = headers.get("Upgrade", "").lower()
    if "upgrade" not in headers.get("Connection", "").lower() or SPDY.lower() not in upgrade:
        raise AnswerError(400, f"the request must upgrade its connection to {SPDY}")
    return StreamForm(SPDY, {PROTOCOL_HEADER: negotiate(headers.get(PROTOCOL_HEADER, ""), (protocol,))})


def _flag(values: Mapping[str, Sequence[str]], name: str) -> bool:
    return values.get(name, ("",))[0] in ("1", "true")
