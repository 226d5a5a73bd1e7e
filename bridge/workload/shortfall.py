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


def problems(settings: JobSettings, requests: Resources, table: Mapping[str, str]) -> list[str]:
    """Return the problems of annotations below the pod's ``requests``; ``table`` maps extended resources to gres."""
    messages = []
    cpus = quantity.whole(requests.get("cpu", _ZERO))
    if 0 < settings.get(names.CPU_PER_TASK, 0) < cpus:
        messages.append(_below(names.CPU_PER_TASK, settings[names.CPU_PER_TASK], f"{cpus}, the pod's request for cpu"))
    memory = quantity.mebibytes(requests.get("memory", _ZERO))
    if 0 < settings.get(names.MEM_PER_NODE, 0) < memory:
        least = f"{memory}Mi, the pod's request for memory"
        messages.append(_below(names.MEM_PER_NODE, f"{settings[names.MEM_PER_NODE]}Mi", least))
    annotated_gres = settings.get(names.GRES, ())
    if annotated_gres:
        short = gres.missing(gres.of_parts(annotated_gres), gres.of_requests(requests, table))
        if short:
            least = ",".join(str(Gres(name, kind, count)) for (name, kind), count in sorted(short.items()))
            messages.append(
                _below(names.GRES, ",".join(annotated_gres), f"{least}, the pod's requests for extended resources")
            )
    return messages


def _below(name: str, value: object, least: str) -> str:
    return f"annotation {name}: {value} is below the requests of the pod; allowed: at least {least}"
