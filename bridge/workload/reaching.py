"""The annotation ``bridge.vk.io/reach``: the Services that a pod at a site reaches. Pure.

For each Service, the pod has an address of its own on the loopback of its machine, which follows from the pod's UID.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names

MOST = 16
"""Ports of Services of one pod."""
_LONGEST = 2048
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_PORT = "[1-9][0-9]{0,4}"
_TARGET = re.compile(rf"({_LABEL})(?:\.({_LABEL}))?(?::({_PORT}))?:({_PORT})", re.ASCII)
_ALLOWED = f"1 to {MOST} of NAME:PORT, NAME.NAMESPACE:PORT or NAME:LOCAL-PORT:PORT, comma separated"
_CLUSTER_DOMAIN = "cluster.local"
_FIRST_NET, _NETS, _HOSTS = 16, 239, 254
Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A port of a Service. ``local`` is the port at which the pod reaches it."""

    namespace: str
    service: str
    port: int
    local: int

    @property
    def text(self) -> str:
        """What the site sends for a connection."""
        return f"{self.service}.{self.namespace}:{self.port}"


def is_reaching(pod: Pod) -> bool:
    """Return whether the pod has the annotation."""
    return names.REACH in (pod["metadata"].get("annotations") or {})


def targets(pod: Pod) -> tuple[Target, ...]:
    """Return the targets in their order; empty without the annotation. Raises ValueError with the problem."""
    text = (pod["metadata"].get("annotations") or {}).get(names.REACH)
    if text is None:
        return ()
    words = [word.strip() for word in text[:_LONGEST].split(",")]
    if len(text) > _LONGEST or len(words) > MOST:
        raise ValueError(_problem(text, f"these are {len(words)}" if len(words) > MOST else "it is too long"))
    own = pod["metadata"].get("namespace") or ""
    found: dict[tuple[str, str, int], Target] = {}
    for word in words:
        match = _TARGET.fullmatch(word)
        if match is None:
            raise ValueError(_problem(word))
        service, namespace, local, port = match.groups()
        target = Target(namespace or own, service, int(port), int(local or port))
        if max(target.port, target.local) >= 2**16:
            raise ValueError(_problem(word, "a port is at most 65535"))
        key = target.namespace, target.service, target.local
        if key in found:
            raise ValueError(_problem(word, f"port {target.local} of this Service is there twice"))
        found[key] = target
    return tuple(found.values())


def address(pod: Pod, target: Target) -> str:
    """Return the address at which the pod reaches the Service: pods and Services share none, but by chance."""
    key = f"{pod['metadata'].get('uid')}/{target.namespace}/{target.service}"
    number = zlib.crc32(key.encode()) % (_NETS * 256 * _HOSTS)
    # not below 127.16: the beginning of the loopback has addresses with a meaning
    return f"127.{_FIRST_NET + number // (256 * _HOSTS)}.{number // _HOSTS % 256}.{1 + number % _HOSTS}"


def host_names(pod: Pod) -> dict[str, list[str]]:
    """Return the names of the Services by their addresses, as the DNS of the cluster resolves them for the pod."""
    found: dict[str, list[str]] = {}
    for target in targets(pod):
        own = [target.service] if target.namespace == pod["metadata"]["namespace"] else []
        full = f"{target.service}.{target.namespace}"
        found[address(pod, target)] = [*own, full, f"{full}.svc", f"{full}.svc.{_CLUSTER_DOMAIN}"]
    return found


def variables(pod: Pod) -> dict[str, str]:
    """Return the variables that a kubelet sets for the Services of the pod's namespace, each with its first port."""
    found: dict[str, str] = {}
    for target in targets(pod):
        if target.namespace == pod["metadata"]["namespace"] and pod["spec"].get("enableServiceLinks") is not False:
            prefix = target.service.upper().replace("-", "_")
            found.setdefault(f"{prefix}_SERVICE_HOST", address(pod, target))
            found.setdefault(f"{prefix}_SERVICE_PORT", str(target.local))
    return found


def _problem(text: str, why: str = "") -> str:
    shown = repr(text if len(text) <= 120 else text[:120] + "...")
    reason = f" ({why})" if why else ""
    return f"annotation {names.REACH}: {shown} is not allowed{reason}; allowed: {_ALLOWED}"
