"""Names of GPUs: from the text of a driver to a Kubernetes resource, and back. Pure.

A kind of GPU is ``<brand>.<model>.<VRAM in GiB>gb``, for example ``nvidia.rtx.3080.10gb``. The API server requires a
domain in the name of an extended resource, so the resource is ``nunet.io/gpu.<kind>``. The form that NuNet published,
``nunet.gpu.<kind>``, is accepted in pods that do not come from an API server.
"""

from __future__ import annotations

import re

DOMAIN = "nunet.io"
_RESOURCE = f"{DOMAIN}/gpu."
_DOTTED = "nunet.gpu."
_LONGEST = 63 - len("gpu.")
"""Characters of a kind: the name of a resource has at most 63 after its domain."""
_BRANDS = {"nvidia": "nvidia", "amd": "amd", "ati": "amd", "intel": "intel"}
_FAMILIES = {"radeon": "amd", "instinct": "amd", "firepro": "amd", "arc": "intel", "iris": "intel", "xe": "intel"}
_DROPPED = re.compile(r"geforce|graphics|pcie?|pci-?e|sxm[0-9]*|nvlink|hbm[0-9]*e?|r|tm|[0-9]+gi?b")
"""Words that name the marketing, the bus or the size, as in ``Tesla P100-PCIE-16GB``."""
_KIND = re.compile(r"([a-z0-9]+)\.([a-z0-9][a-z0-9.]*)\.([0-9]{1,5})gb")


def kind_of(name: str, vram: int) -> str:
    """Return the kind of a GPU from its driver's name and its total VRAM in MiB.

    Without a brand in the name, it is that of the family, or nvidia.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    brand = next((_BRANDS[word] for word in words if word in _BRANDS), "")
    brand = brand or next((_FAMILIES[word] for word in words if word in _FAMILIES), "nvidia")
    model = ".".join(word for word in words if word not in _BRANDS and not _DROPPED.fullmatch(word))
    size = min(max(1, round(vram / 1024)), 99_999)
    room = _LONGEST - len(f"{brand}..{size}gb")
    return f"{brand}.{model[:room].rstrip('.') or 'gpu'}.{size}gb"


def kind_in(resource: str) -> str | None:
    """Return the kind of GPU that a resource names; ``None`` if it names none. Raises ``ValueError``."""
    for prefix in (_RESOURCE, _DOTTED):
        if resource.startswith(prefix):
            match = _KIND.fullmatch(resource.removeprefix(prefix).lower())
            if match is None:
                raise ValueError(
                    f"{resource!r} is not allowed; allowed: {_RESOURCE}<brand>.<model>.<VRAM in GiB>gb, for example "
                    f"{_RESOURCE}nvidia.rtx.3080.10gb"
                )
            return f"{match[1]}.{match[2]}.{int(match[3])}gb"
    return None
