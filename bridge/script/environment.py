"""The variables of a container, as a kubelet computes them, and the replacement of ``$(NAME)``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from bridge.errors import ScriptError
from bridge.script import references
from bridge.script.quoting import ADDRESS, Allowance, clean
from bridge.script.references import Objects
from bridge.workload import quantity

Environment = dict[str, str]
NAME = re.compile(r"[ -<>-~]+")
"""Names of variables that an API server allows: since Kubernetes 1.34 all printable ASCII but ``=``."""
NAMES_ALLOWED = "printable ASCII characters other than ="
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names that a shell can assign. All others must be set by another program, as the last step before the container's:
bash before 4.4 does not pass what it cannot assign, apptainer reads ``--env-file`` with a shell, and other users see
the arguments of ``env(1)``."""
LONGEST = 2**17
"""Characters that references may add to a text: Linux starts no program with a longer argument or variable."""
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]")
FIELDS = (
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "metadata.labels['<key>']",
    "metadata.annotations['<key>']",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
)
_ADDRESSES = ("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs")


class ContainerVariables(NamedTuple):
    """Variables of a container; ``fields`` has the field of the pod for each, for messages."""

    values: Environment
    fields: dict[str, str]


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by its value and ``$$`` by ``$``; a name that is not set is unchanged.

    Raises ``ScriptError`` for a result that no program can get: thirty variables that each name the one before twice
    would fill the memory.
    """
    if "$" not in text:
        return text
    head, tail = _divided(text)
    if sum(len(environment.get(match[1], "")) for match in _REFERENCE.finditer(head) if match[1]) > LONGEST:
        raise ScriptError(
            f"{text[:50]!r}: the values of the variables in it are too long; allowed: at most {LONGEST} characters"
        )

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        return environment.get(name, match.group())

    return _REFERENCE.sub(replacement, head) + tail.replace("$$", "$")


def _divided(text: str) -> tuple[str, str]:
    """Return the part of a text with references, and the rest.

    In the rest, the expression would search for the end of each reference in vain: hours for a text of 1 MiB, in which
    no other thread runs.
    """
    end = text.rfind(")") + 1
    return text[:end], text[end:]


def expanded(texts: Iterable[str], environment: Mapping[str, str], field_path: str, allowance: Allowance) -> list[str]:
    """Return texts with the values of variables; raises ``ScriptError`` if they are too long."""
    result = []
    for text in texts:
        result.append(expand(text, environment))
        allowance.take(len(result[-1]), field_path)
    return result


def not_set(text: str, environment: Mapping[str, str]) -> list[str]:
    """Return the names in ``$(NAME)`` that :func:`expand` leaves unchanged."""
    references = (match.group(1) for match in _REFERENCE.finditer(_divided(text)[0]))
    return [name for name in references if name is not None and name not in environment]


def field(pod: Mapping[str, Any], path: str, node: str, field_path: str) -> str:
    """Read a field of the pod, as the downward API does."""
    metadata, spec = pod["metadata"], pod["spec"]
    if path in ("metadata.name", "metadata.namespace", "metadata.uid"):
        return str(metadata.get(path[9:]) or "")
    if path == "spec.nodeName":
        return node
    if path == "spec.serviceAccountName":
        return str(spec.get("serviceAccountName") or "default")
    if path in _ADDRESSES:
        return ADDRESS
    if match := _SUBSCRIPT.fullmatch(path):
        return clean(str((metadata.get(match.group(1)) or {}).get(match.group(2), "")), field_path)
    raise ScriptError(f"{field_path}: {path!r} is not allowed; allowed: {', '.join(FIELDS)}")


def resource(
    container: Mapping[str, Any], source: Mapping[str, Any], machine: Mapping[str, Decimal], field_path: str
) -> str:
    """Read a request or limit, divided and rounded up; the default is that of the job (``machine``)."""
    kind, _, name = str(source.get("resource") or "").partition(".")
    if kind not in ("limits", "requests") or not name:
        raise ScriptError(
            f"{field_path}: resource {source.get('resource')!r} is not allowed; allowed: limits.*, requests.*"
        )
    resources = container.get("resources") or {}
    stated = (resources.get(kind) or {}).get(name)
    if stated is None and kind == "requests":
        stated = (resources.get("limits") or {}).get(name)
    try:
        value = quantity.parse(stated or "0")
        if not value and kind == "limits":  # a limit of 0 is none
            value = machine.get(name, Decimal(0))
        divisor = quantity.parse(source.get("divisor") or "1") or Decimal(1)
    except ValueError as error:
        raise ScriptError(f"{field_path}: {error}") from error
    return str(quantity.whole(value / divisor))


def make(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    field_path: str,
    objects: Objects,
    node: str,
    machine: Mapping[str, Decimal],
    allowance: Allowance,
    service: Mapping[str, str] | None = None,
) -> ContainerVariables:
    """Return the variables of ``service``, ``envFrom`` and ``env``, in this order; each may use those before it.

    ``allowance``: what is left for the pod.
    """
    environment: Environment = dict(service or {})
    fields: dict[str, str] = {}
    for index, entry in enumerate(container.get("envFrom") or ()):
        place = f"{field_path}.envFrom[{index}]"
        prefix = str(entry.get("prefix") or "")
        data: dict[str, bytes] | None = None
        for kind in ("secret", "configMap"):
            if source := entry.get(f"{kind}Ref"):
                name, optional = str(source.get("name")), bool(source.get("optional"))
                # as a kubelet: binaryData makes no variables
                data = references.data_of(objects, kind, name, place, optional=optional, binary=False)
        for key, value in sorted((data or {}).items()):
            name, entry_key = prefix + key, f"{place}, key {key!r}"
            fields[accepted(name, entry_key)] = entry_key
            allowance.take(len(value), entry_key)
            environment[name] = _text(value, entry_key)
    for index, entry in enumerate(container.get("env") or ()):
        place = f"{field_path}.env[{index}]"
        name = accepted(str(entry.get("name") or ""), f"{place}.name")
        source = entry.get("valueFrom")
        if not source:
            text = clean(str(entry.get("value") or ""), f"{place}.value")
            (environment[name],) = expanded((text,), environment, f"{place}.value", allowance)
            fields[name] = f"{place}.name"
            continue
        resolved = _from(pod, container, source, place, objects, node, machine)
        if resolved is not None:
            allowance.take(len(resolved), f"{place}.valueFrom")
            environment[name], fields[name] = resolved, f"{place}.name"
    return ContainerVariables(environment, fields)


def accepted(name: str, field_path: str) -> str:
    """Return the name of a variable; raises ``ScriptError`` for one that no API server allows."""
    if not NAME.fullmatch(name):
        raise ScriptError(f"{field_path}: the variable name {name!r} is not allowed; allowed: {NAMES_ALLOWED}")
    return name


def _from(
    pod: Mapping[str, Any],
    container: Mapping[str, Any],
    source: Mapping[str, Any],
    place: str,
    objects: Objects,
    node: str,
    machine: Mapping[str, Decimal],
) -> str | None:
    if inner := source.get("fieldRef"):
        return field(pod, str(inner.get("fieldPath") or ""), node, f"{place}.valueFrom.fieldRef.fieldPath")
    if inner := source.get("resourceFieldRef"):
        return resource(container, inner, machine, f"{place}.valueFrom.resourceFieldRef")
    for kind, title in (("configMap", "ConfigMap"), ("secret", "Secret")):
        if inner := source.get(f"{kind}KeyRef"):
            optional, name = bool(inner.get("optional")), str(inner.get("name"))
            data = references.data_of(objects, kind, name, place, optional=optional, binary=False)
            value = references.one_key(data, str(inner.get("key")), f"{title} {name!r}", place, optional=optional)
            return None if value is None else _text(value, place)
    raise ScriptError(
        f"{place}.valueFrom: {', '.join(sorted(source))} is not allowed; "
        f"allowed: fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef"
    )


def _text(value: bytes, field_path: str) -> str:
    try:
        return clean(value.decode(), field_path)
    except UnicodeDecodeError as error:
        raise ScriptError(f"{field_path}: the value is not UTF-8: it can't be an environment variable") from error
