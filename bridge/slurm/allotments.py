"""What Slurm has given to a job, from the two answers that show it: the job itself, and ``GET resources/{job}``.

The owner of a pending job may make it smaller (``scontrol update``), so the allocation may be less than the request.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge import gres_text
from bridge.slurm import job_resources

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_MEMORY = re.compile(r"mem=([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGTP]?)")


@dataclass(frozen=True, slots=True)
class Allotment:
    """The CPUs, the MiB and the gres of a job on all its nodes together.

    0 CPUs or MiB: the answer does not show them, or Slurm does not count memory. ``gres`` are pairs of a name, with the
    type if it is known (``gpu:a100``), and a count; ``None``: not shown.
    """

    cpus: int = 0
    memory_mib: float = 0
    gres: tuple[tuple[str, int], ...] | None = None

    def count(self, name: str, kind: str) -> int:
        """Return the number of devices of a gres, of a type if ``kind`` is not empty; those without a type count."""
        found = dict(self.gres or ())
        if not kind:
            return sum(count for text, count in found.items() if text.split(":")[0] == name)
        return found.get(f"{name}:{kind}", 0) + found.get(name, 0)


def of_job(cpus: float, nodes: float, tasks: float, texts: Mapping[str, str]) -> Allotment:
    """Return the allotment of an allocated job; ``texts`` are the fields of the job that begin with ``tres_``.

    The devices are those that the job requests: without GPUs in AccountingStorageTRES, no field shows the allocated
    ones. Slurm gives all of them or none.
    """
    memory = _MEMORY.search(texts.get("tres_alloc_str", ""))
    shown = "tres_per_node" in texts
    found: Counter[str] = Counter()
    for field, times in (("tres_per_node", nodes), ("tres_per_job", 1), ("tres_per_task", tasks)):
        for part in gres_text.listed(texts.get(field, "")):
            try:
                one = gres_text.read(part)
            except ValueError:
                shown = False  # an unknown form: the gres are not compared
            else:
                found[one.kind] += one.count * max(1, int(times))
    return Allotment(
        int(cpus),
        float(memory[1]) * _UNITS[memory[2] or "M"] if memory is not None else 0,
        tuple(sorted(found.items())) if shown else None,
    )


def of_nodes(entries: Iterable[Mapping[str, object]], cpus: Mapping[str, int]) -> Allotment | None:
    """Return the allotment from the entries of ``resources/{job}``; ``None`` if one cannot be read.

    The answer shows cores; ``cpus`` are the CPUs of the nodes, to count the threads of a core.
    """
    total, memory, found = 0, 0, Counter[str]()
    try:
        for entry in entries:
            node = job_resources.read(entry)
            cores = max(1, node.sockets * node.cores_per_socket)
            total += len(node.cores) * max(1, cpus.get(str(entry.get("node")), 0) // cores)
            memory += job_resources.count(entry.get("mem_alloc"))
            listed = entry.get("gres")
            for one in listed if isinstance(listed, list) else ():
                kind = f":{one['type']}" if one.get("type") else ""
                found[f"{one.get('name') or ''}{kind}"] += job_resources.count(one.get("count"))
    except (ValueError, TypeError, AttributeError):
        return None
    return Allotment(total, memory, tuple(sorted(found.items())))
