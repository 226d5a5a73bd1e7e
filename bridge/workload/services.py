"""The annotations ``bridge.vk.io/expose`` and ``bridge.vk.io/reach``: Services and pods at a site. Pure.

A Service may name any port of a pod, also one that the pod does not declare; so may ``expose``. ``true`` stands for
all declared TCP ports. For each Service of ``reach``, the pod has an address of its own on the loopback of its machine,
which follows from the pod's UID.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.workload import resources

MOST_EXPOSED = 16
"""Exposed ports of one pod."""
_NUMBER = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_ALL_DECLARED = "true"
MOST_REACHED = 16
"""Ports of Services that one pod reaches."""
_LONGEST = 2048
_LABEL = r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?"
_PORT = "[1-9][0-9]{0,4}"
_REACHED = re.compile(rf"({_LABEL})(?:\.({_LABEL}))?(?::({_PORT}))?:({_PORT})", re.ASCII)
_ALLOWED = {
    names.EXPOSE: f"{_ALL_DECLARED} (all declared TCP ports), or 1 to {MOST_EXPOSED} port numbers from 1 to 65535, "
    "comma separated",
    names.REACH: f"1 to {MOST_REACHED} of NAME:PORT, NAME.NAMESPACE:PORT or NAME:LOCAL-PORT:PORT, comma separated",
}
_CLUSTER_DOMAIN = "cluster.local"
_FIRST_NET, _NETS, _HOSTS = 16, 239, 254
Pod = Mapping[str, Any]


def is_exposed(pod: Pod) -> bool:
    """Return whether the pod has the annotation."""
    return names.EXPOSE in (pod["metadata"].get("annotations") or {})


def exposed_ports(pod: Pod) -> tuple[int, ...]:
    """Return the exposed ports in ascending order; empty without the annotation. Raises ValueError with the problem."""
    text = (pod["metadata"].get("annotations") or {}).get(names.EXPOSE)
    if text is None:
        return ()
    if text.strip() == _ALL_DECLARED:
        numbers = {port["containerPort"] for port in declared_ports(pod)}
        if not 1 <= len(numbers) <= MOST_EXPOSED:
            raise ValueError(_problem(names.EXPOSE, text, f"the pod declares {len(numbers)} TCP ports"))
        return tuple(sorted(numbers))
    words = [word.strip() for word in text[:256].split(",")]
    if len(text) > 256 or not all(_NUMBER.fullmatch(word) and int(word) < 2**16 for word in words):
        raise ValueError(_problem(names.EXPOSE, text))
    if len(words) > MOST_EXPOSED:
        raise ValueError(_problem(names.EXPOSE, text, f"these are {len(words)}"))
    return tuple(sorted(set(map(int, words))))


def declared_ports(pod: Pod) -> Iterator[Mapping[str, Any]]:
    """Yield the declared TCP ports of the containers, then of the sidecars."""
    for container in resources.lasting_containers(pod["spec"]):
        yield from (port for port in container.get("ports") or () if port.get("protocol", "TCP") == "TCP")


def target_port(port: Mapping[str, Any], pod: Pod) -> int:
    """Return the port of the pod that a port of a Service names; 0: none."""
    if port.get("protocol", "TCP") != "TCP":
        return 0
    target = port.get("targetPort") or port["port"]
    if isinstance(target, int):
        return target
    return next((int(each["containerPort"]) for each in declared_ports(pod) if each.get("name") == target), 0)


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


def reached(pod: Pod) -> tuple[Target, ...]:
    """Return the targets in their order; empty without the annotation. Raises ValueError with the problem."""
    text = (pod["metadata"].get("annotations") or {}).get(names.REACH)
    if text is None:
        return ()
    words = [word.strip() for word in text[:_LONGEST].split(",")]
    if len(text) > _LONGEST or len(words) > MOST_REACHED:
        raise ValueError(
            _problem(names.REACH, text, f"these are {len(words)}" if len(words) > MOST_REACHED else "it is too long")
        )
    own = pod["metadata"].get("namespace") or ""
    found: dict[tuple[str, str, int], Target] = {}
    for word in words:
        match = _REACHED.fullmatch(word)
        if match is None:
            raise ValueError(_problem(names.REACH, word))
        service, namespace, local, port = match.groups()
        target = Target(namespace or own, service, int(port), int(local or port))
        if max(target.port, target.local) >= 2**16:
            raise ValueError(_problem(names.REACH, word, "a port is at most 65535"))
        key = target.namespace, target.service, target.local
        if key in found:
            raise ValueError(_problem(names.REACH, word, f"port {target.local} of this Service is there twice"))
        found[key] = target
    return tuple(found.values())


def reached_address(pod: Pod, target: Target) -> str:
    """Return the address at which the pod reaches the Service: pods and Services share none, but by chance."""
    key = f"{pod['metadata'].get('uid')}/{target.namespace}/{target.service}"
    number = zlib.crc32(key.encode()) % (_NETS * 256 * _HOSTS)
    # not below 127.16: the beginning of the loopback has addresses with a meaning
    return f"127.{_FIRST_NET + number // (256 * _HOSTS)}.{number // _HOSTS % 256}.{1 + number % _HOSTS}"


def host_names(pod: Pod) -> dict[str, list[str]]:
    """Return the names of the Services by their addresses, as the DNS of the cluster resolves them for the pod."""
    found: dict[str, list[str]] = {}
    for target in reached(pod):
        own = [target.service] if target.namespace == pod["metadata"]["namespace"] else []
        full = f"{target.service}.{target.namespace}"
        found[reached_address(pod, target)] = [*own, full, f"{full}.svc", f"{full}.svc.{_CLUSTER_DOMAIN}"]
    return found


def variables(pod: Pod) -> dict[str, str]:
    """Return the variables that a kubelet sets for the Services of the pod's namespace, each with its first port."""
    found: dict[str, str] = {}
    for target in reached(pod):
        if target.namespace == pod["metadata"]["namespace"] and pod["spec"].get("enableServiceLinks") is not False:
            prefix = target.service.upper().replace("-", "_")
            found.setdefault(f"{prefix}_SERVICE_HOST", reached_address(pod, target))
            found.setdefault(f"{prefix}_SERVICE_PORT", str(target.local))
    return found


def _problem(name: str, text: str, why: str = "") -> str:
    shown = repr(text if len(text) <= 120 else text[:120] + "...")
    reason = f" ({why})" if why else ""
    return f"annotation {name}: {shown} is not allowed{reason}; allowed: {_ALLOWED[name]}"
