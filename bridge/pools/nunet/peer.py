"""A peer of the NuNet network, as the DMS reports it, and amounts of resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

CPU, MEMORY, MHZ = "cpu", "memory", "nunet.io/cpu.mhz"


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
class Resources:
    """Amounts: CPUs, bytes, MHz, bytes of disk, GPUs by kind. Peers do not state their disk: 0 in the example."""

    cpus: Decimal = Decimal(0)
    memory: int = 0
    mhz: Decimal = Decimal(0)
    disk: int = 0
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
            gpus={kind: count for kind, count in sorted(gpus.items()) if count},
        )

    def lacks(self, requested: Resources) -> str:
        """Return what is too small for ``requested``, or an empty text."""
        if requested.cpus > self.cpus:
            return f"cpu {requested.cpus}"
        if requested.memory > self.memory:
            return f"memory {mebibytes(requested.memory)}"
        if requested.mhz > self.mhz:
            return f"{MHZ} {requested.mhz}"
        gpus = (f"{count} GPU {kind}" for kind, count in requested.gpus.items() if count > self.gpus.get(kind, 0))
        return next(gpus, "")

    def words(self) -> str:
        """Return the amounts as text, for messages."""
        gpus = [f"{count} GPU {kind}" for kind, count in self.gpus.items()]
        return ", ".join([f"cpu {max(self.cpus, Decimal(0))}", f"memory {mebibytes(max(self.memory, 0))}", *gpus])

    def quantities(self) -> dict[str, str]:
        """Return the amounts as Kubernetes quantities by resource."""
        amounts = {CPU: str(max(int(self.cpus), 0)), MEMORY: mebibytes(max(self.memory, 0))}
        amounts[MHZ] = str(max(int(self.mhz), 0))
        return amounts | {f"nunet.io/gpu.{kind}": str(max(count, 0)) for kind, count in self.gpus.items()}


@dataclass(frozen=True, slots=True)
class Peer:
    """One peer. ``gpu_kinds``: of all GPUs, also of those that are not ``free``. ``price``: NTX for an hour."""

    id: str
    available: bool
    free: Resources = Resources()
    gpu_kinds: frozenset[str] = frozenset()
    price: float | None = None
    services: tuple[Service, ...] = ()

    @property
    def short_name(self) -> str:
        """The id, cut for messages."""
        return f"peer {self.id if len(self.id) <= 20 else f'{self.id[:8]}..{self.id[-6:]}'}"


def mebibytes(amount: int) -> str:
    """Return bytes as a Kubernetes quantity in MiB, rounded down."""
    return f"{amount // 2**20}Mi"
