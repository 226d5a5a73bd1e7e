"""A peer of the NuNet network, as the DMS reports it, and the resources of a job on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from bridge.pools.nunet.gpus import Kind

CPU, MEMORY, MHZ = "cpu", "memory", "nunet.io/cpu.mhz"


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. ``total`` and ``free``: VRAM in MiB."""

    kind: Kind
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Service:
    """A job on a peer. ``job``: the DMS's id of the job; ``texts``: all texts of the entry, to find a UID in."""

    job: str
    status: str
    log_url: str = ""
    texts: frozenset[str] = frozenset()

    def names(self, uid: str) -> bool:
        """Whether a text contains the UID as a whole word."""
        word = re.compile(rf"(?<![0-9A-Za-z]){re.escape(uid)}(?![0-9A-Za-z])")
        return any(uid in text and word.search(text) for text in self.texts)


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer.

    Parameters
    ----------
    cpus, mhz
        Free CPUs, and the sum of their clock rates.
    memory, disk
        Free bytes; ``disk`` ``None``: the peer does not state it.
    price
        NTX for an hour; ``None``: the peer does not state it.
    localities, channels, latency
        Places and groups of the peer, and its latency in ms. The published peer list does not have them.
    """

    id: str
    available: bool
    cpus: Decimal = Decimal(0)
    mhz: Decimal = Decimal(0)
    memory: int = 0
    disk: int | None = None
    gpus: tuple[Gpu, ...] = ()
    price: float | None = None
    localities: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()
    latency: float | None = None
    services: tuple[Service, ...] = ()

    def resources(self, least_free: float) -> Resources:
        """Return the free resources. A GPU counts if at least the share ``least_free`` of its VRAM is free."""
        kinds = Counter(str(gpu.kind) for gpu in self.gpus if gpu.free >= least_free * gpu.total)
        return Resources(self.cpus, self.memory, self.mhz, self.disk, dict(kinds))


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts: CPUs, bytes, MHz, bytes of disk (``None``: not stated), GPUs by kind."""

    cpus: Decimal = Decimal(0)
    memory: int = 0
    mhz: Decimal = Decimal(0)
    disk: int | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Resources) -> Resources:
        return self._with(other, 1)

    def __sub__(self, other: Resources) -> Resources:
        return self._with(other, -1)

    def _with(self, other: Resources, sign: int) -> Resources:
        gpus = {k: self.gpus.get(k, 0) + sign * other.gpus.get(k, 0) for k in {*self.gpus, *other.gpus}}
        return Resources(
            self.cpus + sign * other.cpus,
            self.memory + sign * other.memory,
            self.mhz + sign * other.mhz,
            None if self.disk is None else self.disk + sign * (other.disk or 0),
            {kind: count for kind, count in sorted(gpus.items()) if count},
        )

    def lacks(self, requested: Resources) -> str:
        """Return what is too small for ``requested``, or an empty text."""
        if requested.cpus > self.cpus:
            return f"cpu {requested.cpus}"
        if requested.memory > self.memory:
            return f"memory {mebibytes(requested.memory)}"
        if requested.mhz > self.mhz:
            return f"{MHZ} {requested.mhz}"
        if requested.disk and self.disk is not None and requested.disk > self.disk:
            return f"disk {mebibytes(requested.disk)}"
        for kind, count in requested.gpus.items():
            if count > self.gpus.get(kind, 0):
                return f"{count} GPU {kind}"
        return ""

    def words(self) -> str:
        """Return the amounts as text, for messages."""
        gpus = [f"{count} GPU {kind}" for kind, count in self.gpus.items()]
        return ", ".join([f"cpu {max(self.cpus, Decimal(0))}", f"memory {mebibytes(max(self.memory, 0))}", *gpus])

    def quantities(self) -> dict[str, str]:
        """Return the amounts as Kubernetes quantities by resource."""
        amounts = {CPU: str(max(int(self.cpus), 0)), MEMORY: mebibytes(max(self.memory, 0))}
        amounts[MHZ] = str(max(int(self.mhz), 0))
        return amounts | {f"nunet.io/gpu.{kind}": str(max(count, 0)) for kind, count in self.gpus.items()}


def mebibytes(amount: int) -> str:
    """Return bytes as a Kubernetes quantity in MiB, rounded down."""
    return f"{amount // 2**20}Mi"
