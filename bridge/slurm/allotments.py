"""What Slurm has given to a job, from the two answers that show it: the job itself, and ``GET resources/{job}``.

The owner of a pending job may make it smaller (``scontrol update``), so the allocation may be less than the request, or
divided unevenly between the nodes. The job itself shows its nodes one by one in Slurm 22.05; later, only an answer of
more than 20 kB for each node does.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge import gres_text
from bridge.gres_text import Gres
from bridge.slurm import job_resources

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_MEMORY = re.compile(r"mem=([0-9]{1,15}(?:\.[0-9]{1,6})?)([KMGTP]?)")


@dataclass(frozen=True, slots=True)
class Allotment:
    """The CPUs, the MiB and the gres of a job on all its nodes together, or on one of them.

    0 CPUs or MiB: the answer does not show them, or Slurm does not count memory. ``gres`` are pairs of a name, with the
    type if it is known (``gpu:a100``), and a count; ``None``: not shown. ``nodes`` are the names of several nodes with
    what the job has on each; empty for one node, or if the answer does not show them.
    """

    cpus: int = 0
    memory_mib: float = 0
    gres: tuple[tuple[str, int], ...] | None = None
    nodes: tuple[tuple[str, Allotment], ...] = ()

    def count(self, name: str, kind: str) -> int:
        """Return the number of devices of a gres, of a type if ``kind`` is not empty; those without a type count."""
        found = dict(self.gres or ())
        if not kind:
            return sum(count for text, count in found.items() if text.split(":")[0] == name)
        return found.get(f"{name}:{kind}", 0) + found.get(name, 0)


def of_job(
    cpus: float, nodes: float, tasks: float, texts: Mapping[str, str], each: tuple[tuple[str, Allotment], ...] = ()
) -> Allotment:
    """Return the allotment of an allocated job; ``texts`` are the fields of the job that begin with ``tres_``.

    The devices are those that the job requests: without GPUs in AccountingStorageTRES, no field shows the allocated
    ones. Slurm gives all of them or none. ``each`` is what it has on each of several nodes (:func:`of_each`).
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
        each,
    )


def of_each(resources: object, details: object, cpus: float) -> tuple[tuple[str, Allotment], ...]:
    """Return what a job has on each of its nodes, from its ``job_resources`` and ``gres_detail`` in Slurm 22.05.

    The answer shows cores; ``cpus`` are the CPUs of the job, to count the threads of a core. Empty for one node, and if
    the answer cannot be read.
    """
    found: dict[str, Allotment] = {}
    try:
        listed = resources["allocated_nodes"]  # type: ignore[index]
        cores = {one["nodename"]: sum(len(own["cores"]) for own in one["sockets"].values()) for one in listed}
        threads = math.ceil(cpus / sum(cores.values())) or 1
        texts = details if isinstance(details, list) and len(details) == len(listed) else [None] * len(listed)
        for one, text in zip(listed, texts, strict=True):
            gres = None if text is None else _counts(map(gres_text.read, gres_text.listed(text)))
            found[one["nodename"]] = Allotment(
                cores[one["nodename"]] * threads, job_resources.count(one["memory_allocated"]), gres
            )
    except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
        return ()
    return tuple(found.items()) if len(found) > 1 else ()


def of_nodes(entries: Iterable[Mapping[str, object]], cpus: Mapping[str, int], total: int = 0) -> Allotment | None:
    """Return the allotment from the entries of ``resources/{job}``; ``None`` if one cannot be read.

    The answer shows cores. To count the threads of a core, ``cpus`` are the CPUs of the nodes, and ``total`` those of
    the job, for nodes that are not known.
    """
    each: dict[str, Allotment] = {}
    try:
        read = [(str(entry.get("node")), job_resources.read(entry), entry) for entry in entries]
        others = math.ceil(total / max(1, sum(len(node.cores) for _, node, _ in read)))
        for name, node, entry in read:
            threads = cpus[name] // max(1, node.sockets * node.cores_per_socket) if name in cpus else others
            listed = entry.get("gres")
            given = [
                Gres(one.get("name") or "", one.get("type") or "", job_resources.count(one.get("count")))
                for one in (listed if isinstance(listed, list) else ())
            ]
            memory = job_resources.count(entry.get("mem_alloc"))
            each[name] = Allotment(len(node.cores) * max(1, threads), memory, _counts(given))
    except (ValueError, TypeError, AttributeError):
        return None
    devices: Counter[str] = Counter()
    for one in each.values():
        devices.update(dict(one.gres or ()))
    return Allotment(
        sum(one.cpus for one in each.values()),
        sum(one.memory_mib for one in each.values()),
        tuple(sorted(devices.items())),
        tuple(each.items()) if len(each) > 1 else (),
    )


def _counts(found: Iterable[Gres]) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    for one in found:
        counts[one.kind] += one.count
    return tuple(sorted(counts.items()))
