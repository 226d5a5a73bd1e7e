"""Probes and lifecycle hooks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import ScriptError
from bridge.script.environment import expanded
from bridge.script.quoting import ADDRESS, Allowance, clean

KINDS = ("startup", "liveness", "readiness")
_HEADER_NAME = re.compile(r"[-A-Za-z0-9]+")
"""As an API server allows. curl reads a header that begins with ``@`` from a file of the machine."""
MAX_SERVICE = 8192
"""Bytes of the name of a gRPC service; the message has two bytes for its length."""


@dataclass(frozen=True, slots=True)
class Action:
    """The kind of a probe or hook (``how``) and its words.

    ``exec`` command..., ``http`` host port line..., ``https`` url header..., ``tcp`` host port, ``grpc`` host:port
    service, ``sleep`` seconds.
    """

    how: str
    words: list[str]


@dataclass(frozen=True, slots=True)
class Probe:
    """A probe; times in seconds."""

    kind: str
    action: Action
    initial: float
    period: float
    timeout: float
    success: int
    failure: int
    grace: float


def named_ports(container: Mapping[str, Any]) -> dict[str, int]:
    """Return the container's ports by name."""
    return {str(p["name"]): int(p["containerPort"]) for p in container.get("ports") or () if p.get("name")}


def make(
    container: Mapping[str, Any],
    field_path: str,
    ports: Mapping[str, int],
    grace: float,
    variables: Mapping[str, str],
    allowance: Allowance,
) -> list[Probe]:
    """Return a container's probes. Their commands may use its variables, those of hooks may not (as for a kubelet)."""
    container_probes = []
    for kind in KINDS:
        probe = container.get(f"{kind}Probe")
        if not probe:
            continue
        place = f"{field_path}.{kind}Probe"
        handler_action = action(probe, place, ports)
        if handler_action is None:
            raise ScriptError(f"{place}: no handler is set; allowed: exec, httpGet, tcpSocket, grpc")
        if handler_action.how == "exec":
            handler_action = Action("exec", expanded(handler_action.words, variables, place, allowance))
        container_probes.append(
            Probe(
                kind=kind,
                action=handler_action,
                initial=float(probe.get("initialDelaySeconds") or 0),
                period=float(probe.get("periodSeconds") or 10),
                timeout=float(probe.get("timeoutSeconds") or 1),
                success=int(probe.get("successThreshold") or 1),
                failure=int(probe.get("failureThreshold") or 3),
                grace=float(probe.get("terminationGracePeriodSeconds") or grace),
            )
        )
    return container_probes


def has_commands(container: Mapping[str, Any]) -> bool:
    """Return whether a probe or hook runs a command in the container (``exec``)."""
    lifecycle = container.get("lifecycle") or {}
    handlers = [container.get(f"{kind}Probe") for kind in KINDS] + [
        lifecycle.get("postStart"),
        lifecycle.get("preStop"),
    ]
    return any((handler or {}).get("exec") for handler in handlers)


def action(handler: Mapping[str, Any] | None, field_path: str, ports: Mapping[str, int]) -> Action | None:
    """Return the action of a handler; ``None``: it has none."""
    if not handler:
        return None
    if (inner := handler.get("exec")) is not None:
        command = [clean(str(text), f"{field_path}.exec.command") for text in inner.get("command") or ()]
        if not command:
            raise ScriptError(f"{field_path}.exec.command: must not be empty")
        return Action("exec", command)
    if (inner := handler.get("httpGet")) is not None:
        return _http(inner, f"{field_path}.httpGet", ports)
    if (inner := handler.get("tcpSocket")) is not None:
        return Action("tcp", [_host(inner, field_path), str(_port(inner.get("port"), field_path, ports))])
    if (inner := handler.get("grpc")) is not None:
        port = _port(inner.get("port"), field_path, ports)
        service = clean(str(inner.get("service") or ""), f"{field_path}.grpc.service")
        if len(service.encode()) > MAX_SERVICE:
            raise ScriptError(
                f"{field_path}.grpc.service: {service[:20]!r}... is not allowed; allowed: {MAX_SERVICE} bytes"
            )
        return Action("grpc", [f"{ADDRESS}:{port}", service])
    if (inner := handler.get("sleep")) is not None:
        return Action("sleep", [str(int(inner.get("seconds") or 0))])
    return None


def _http(inner: Mapping[str, Any], field_path: str, ports: Mapping[str, int]) -> Action:
    host, port = _host(inner, field_path), _port(inner.get("port"), field_path, ports)
    address = f"[{host}]" if ":" in host else host
    path = _line(str(inner.get("path") or "/"), f"{field_path}.path").replace(" ", "%20")
    path = path if path.startswith("/") else f"/{path}"
    pod_headers = [
        (
            _header_name(str(header.get("name") or ""), f"{field_path}.httpHeaders[{index}].name"),
            _line(str(header.get("value") or ""), f"{field_path}.httpHeaders[{index}].value"),
        )
        for index, header in enumerate(inner.get("httpHeaders") or ())
    ]
    pod_header_names = {name.lower() for name, _ in pod_headers}
    # a kubelet sends these unless the probe sets them
    default_headers = [("Accept", "*/*"), ("User-Agent", "kube-probe/1")]
    headers = [
        *((name, value) for name, value in default_headers if name.lower() not in pod_header_names),
        *pod_headers,
    ]
    if str(inner.get("scheme") or "HTTP").upper() == "HTTPS":
        url = f"https://{address}:{port}{path}"
        return Action("https", [url, *(f"{k}: {v}".replace("\\", "\\\\").replace('"', '\\"') for k, v in headers)])
    if "host" not in pod_header_names:
        headers.insert(0, ("Host", f"{address}:{port}"))
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "Connection: close"]
    return Action("http", [host, str(port), *lines])


def _header_name(text: str, field_path: str) -> str:
    if not _HEADER_NAME.fullmatch(text):
        raise ScriptError(f"{field_path}: {text!r} is not allowed; allowed: letters, digits and -")
    return text


def _host(inner: Mapping[str, Any], field_path: str) -> str:
    host = _line(str(inner.get("host") or ""), f"{field_path}.host")
    if "/" in host or " " in host:
        raise ScriptError(f"{field_path}.host: {host!r} is not allowed; allowed: a host name or an address")
    return host or ADDRESS


def _port(port: Any, field_path: str, ports: Mapping[str, int]) -> int:
    if isinstance(port, str) and not re.fullmatch("[0-9]{1,9}", port):
        if port not in ports:
            raise ScriptError(f"{field_path}.port: {port!r} is no port of the container")
        return ports[port]
    number = int(port or 0)
    if not 1 <= number <= 65535:
        raise ScriptError(f"{field_path}.port: {number} is not allowed; allowed: 1 to 65535")
    return number


def _line(text: str, field_path: str) -> str:
    clean(text, field_path)
    if any(ord(letter) < 32 and letter != "\t" for letter in text):
        raise ScriptError(f"{field_path}: control characters are not allowed; allowed: one line of text")
    return text
