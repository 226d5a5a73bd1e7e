"""Annotations that request less from Slurm than the pod requests. They are refused. Pure.

The kubelet reserves the pod's requests on the node, whatever Slurm has allocated to the job. It would take the
difference from other jobs on the node. An annotation may request more. A pod runs on one node, so any number of nodes
is enough for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from bridge import names
from bridge.gres_text import Gres
from bridge.workload import quantity
from bridge.workload.annotations import JobSettings
from bridge.workload.devices import gres
from bridge.workload.resources import Resources

_ZERO = Decimal(0)


def problems(settings: JobSettings, asked: Resources, table: Mapping[str, str]) -> list[str]:
    """Return the problems of annotations below the requests ``asked``; ``table`` maps extended resources to gres."""
    found = []
    cpus = quantity.whole(asked.get("cpu", _ZERO))
    if 0 < settings.get(names.CPU_PER_TASK, 0) < cpus:
        found.append(_below(names.CPU_PER_TASK, settings[names.CPU_PER_TASK], f"{cpus}, the pod's request for cpu"))
    memory = quantity.mebibytes(asked.get("memory", _ZERO))
    if 0 < settings.get(names.MEM_PER_NODE, 0) < memory:
        least = f"{memory}Mi, the pod's request for memory"
        found.append(_below(names.MEM_PER_NODE, f"{settings[names.MEM_PER_NODE]}Mi", least))
    given = settings.get(names.GRES, ())
    if given:
        short = gres.missing(gres.of_parts(given), gres.of_requests(asked, table))
        if short:
            least = ",".join(str(Gres(name, kind, count)) for (name, kind), count in sorted(short.items()))
            found.append(_below(names.GRES, ",".join(given), f"{least}, the pod's requests for extended resources"))
    return found


def _below(name: str, value: object, least: str) -> str:
    return f"annotation {name}: {value} is below the requests of the pod; allowed: at least {least}"
