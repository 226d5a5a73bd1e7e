"""The resources that Slurm has allocated to a job, from the job itself or from ``GET resources/{job}``.

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
from functools import lru_cache

from bridge import gres_text
from bridge.gres_text import Gres
from bridge.slurm import job_resources

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_COUNTS = re.compile(r"\b(cpu|node)=([0-9]{1,9})")
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
        count_by_kind = dict(self.gres or ())
        if not kind:
            return sum(count for text, count in count_by_kind.items() if text.split(":")[0] == name)
        return count_by_kind.get(f"{name}:{kind}", 0) + count_by_kind.get(name, 0)


def of_job(
    cpus: float,
    nodes: float,
    tasks: float,
    tres_texts: Mapping[str, str],
    by_node: tuple[tuple[str, Allotment], ...] = (),
) -> Allotment:
    """Return the allotment of an allocated job; ``tres_texts`` are the fields of the job that begin with ``tres_``.

    The devices are those that the job requests: without GPUs in AccountingStorageTRES, no field shows the allocated
    ones. Slurm gives all of them or none. ``by_node`` is what it has on each of several nodes (:func:`of_job_nodes`).
    """
    memory = _MEMORY.search(tres_texts.get("tres_alloc_str", ""))
    is_shown = "tres_per_node" in tres_texts
    counts: Counter[str] = Counter()
    for field, times in (("tres_per_node", nodes), ("tres_per_job", 1), ("tres_per_task", tasks)):
        for part in gres_text.listed(tres_texts.get(field, "")):
            try:
                gres = gres_text.read(part)
            except ValueError:
                is_shown = False  # an unknown form: the gres are not compared
            else:
                counts[gres.kind] += gres.count * max(1, int(times))
    return Allotment(
        int(cpus),
        float(memory[1]) * _UNITS[memory[2] or "M"] if memory is not None else 0,
        tuple(sorted(counts.items())) if is_shown else None,
        by_node,
    )


@lru_cache(maxsize=1024)  # the jobs of one array or Job ask for the same, and each list of jobs has them all
def of_request(requested: str, per_node: str, per_job: str) -> Allotment:
    """Return what a job asks for on all its nodes, from the fields of a job that podbridge has submitted.

    ``requested`` is ``tres_req_str``, which has the memory that Slurm adds itself: ``cpu=1,mem=500G,node=1,billing=1``.
    """
    counts = {name: int(count) for name, count in _COUNTS.findall(requested)}
    devices = {"tres_per_node": per_node, "tres_per_job": per_job}
    return of_job(counts.get("cpu", 0), counts.get("node", 1), 1, {"tres_alloc_str": requested, **devices})


def of_job_nodes(resources: object, details: object, cpus: float) -> tuple[tuple[str, Allotment], ...]:
    """Return the resources of a job on each of its nodes, from ``job_resources`` and ``gres_detail`` in Slurm 22.05.

    The answer shows cores; ``cpus`` are the CPUs of the job, to count the threads of a core. Empty for one node, and if
    the answer cannot be read.
    """
    by_node: dict[str, Allotment] = {}
    try:
        node_entries = resources["allocated_nodes"]  # type: ignore[index]
        cores = {
            node["nodename"]: sum(len(socket["cores"]) for socket in node["sockets"].values()) for node in node_entries
        }
        threads = math.ceil(cpus / sum(cores.values())) or 1
        texts = (
            details if isinstance(details, list) and len(details) == len(node_entries) else [None] * len(node_entries)
        )
        for node, text in zip(node_entries, texts, strict=True):
            gres = None if text is None else _counts(map(gres_text.read, gres_text.listed(text)))
            by_node[node["nodename"]] = Allotment(
                cores[node["nodename"]] * threads, job_resources.count(node["memory_allocated"]), gres
            )
    except (ValueError, TypeError, KeyError, AttributeError, ZeroDivisionError):
        return ()
    return tuple(by_node.items()) if len(by_node) > 1 else ()


def of_nodes(entries: Iterable[Mapping[str, object]], cpus: Mapping[str, int], total: int = 0) -> Allotment | None:
    """Return the allotment from the entries of ``resources/{job}``; ``None`` if one cannot be read.

    The answer shows cores. To count the threads of a core, ``cpus`` are the CPUs of the nodes, and ``total`` those of
    the job, for nodes that are not known.
    """
    by_node: dict[str, Allotment] = {}
    try:
        read = [(str(entry.get("node")), job_resources.read(entry), entry) for entry in entries]
        threads_elsewhere = math.ceil(total / max(1, sum(len(node.cores) for _, node, _ in read)))
        for name, node, entry in read:
            threads = cpus[name] // max(1, node.sockets * node.cores_per_socket) if name in cpus else threads_elsewhere
            gres_entries = entry.get("gres")
            node_gres = [
                Gres(item.get("name") or "", item.get("type") or "", job_resources.count(item.get("count")))
                for item in (gres_entries if isinstance(gres_entries, list) else ())
            ]
            memory = job_resources.count(entry.get("mem_alloc"))
            by_node[name] = Allotment(len(node.cores) * max(1, threads), memory, _counts(node_gres))
    except (ValueError, TypeError, AttributeError):
        return None
    devices: Counter[str] = Counter()
    for allotment in by_node.values():
        devices.update(dict(allotment.gres or ()))
    return Allotment(
        sum(allotment.cpus for allotment in by_node.values()),
        sum(allotment.memory_mib for allotment in by_node.values()),
        tuple(sorted(devices.items())),
        tuple(by_node.items()) if len(by_node) > 1 else (),
    )


def _counts(items: Iterable[Gres]) -> tuple[tuple[str, int], ...]:
    counts: Counter[str] = Counter()
    for gres in items:
        counts[gres.kind] += gres.count
    return tuple(sorted(counts.items()))
