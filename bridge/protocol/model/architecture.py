"""The architecture of this machine as Kubernetes names it: that of Go, in the label ``kubernetes.io/arch``."""

from __future__ import annotations

import platform

LABEL = "kubernetes.io/arch"
_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "i386": "386", "i686": "386"}


def kubernetes_name(machine: str) -> str:
    """Return Kubernetes' name of a machine of uname(2); most others have the same name."""
    return _NAMES.get(machine, machine)


HERE = kubernetes_name(platform.machine())
