"""The peers of the NuNet network: their resources and GPUs, those of a virtual node, and the choice of one. Pure.

Podbridge's own rules for a virtual node, because the published example contradicts its input: only available peers
count, and the amounts are sums. A pod runs on one peer, so the largest amounts of a single peer are labels of the node.

A kind of GPU is ``<brand>.<model>.<VRAM in GiB>gb``, for example ``nvidia.rtx.3080.10gb``. The API server requires a
domain in the name of an extended resource, so the resource is ``nunet.io/gpu.<kind>``. The form that NuNet published,
``nunet.gpu.<kind>``, is accepted in pods that do not come from an API server.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from bridge.config.nunet import NunetGroupSection
from bridge.errors import ScriptError, SiteDownError
from bridge.workload import quantity

CPU, MEMORY, MHZ = "cpu", "memory", "nunet.io/cpu.mhz"
_PUBLISHED = {CPU: ("nunet.cpu.cores", 1), MHZ: ("nunet.cpu.mhz", 1), MEMORY: ("nunet.ram.gb", 2**30)}
_MOST_NAMED = 5
_RESOURCE = "nunet.io/gpu."
_DOTTED = "nunet.gpu."
_LONGEST = 63 - len("gpu.")
"""Characters of a kind: the name of a resource has at most 63 after its domain."""
_BRANDS = {"nvidia": "nvidia", "amd": "amd", "ati": "amd", "intel": "intel"}
_FAMILIES = {"radeon": "amd", "instinct": "amd", "firepro": "amd", "arc": "intel", "iris": "intel", "xe": "intel"}
_DROPPED = re.compile(r"geforce|graphics|pcie?|pci-?e|sxm[0-9]*|nvlink|hbm[0-9]*e?|r|tm|[0-9]+gi?b")
"""Words that name the marketing, the bus or the size, as in ``Tesla P100-PCIE-16GB``."""
_KIND = re.compile(r"([a-z0-9]+)\.([a-z0-9][a-z0-9.]*)\.([0-9]{1,5})gb")


@dataclass(frozen=True, slots=True)
class Service:
    """A job on a peer. ``job``: the DMS's id of the job; ``texts``: all texts of the entry, to find a UID in."""

    job: str
    status: str
    log_url: str = ""
    texts: frozenset[str] = frozenset()

    def names(self, uid: str) -> bool:
        """Whether a text contains the UID as a whole word."""
        texts = [text for text in self.texts if uid in text]  # peers may state a million services
        return any(re.search(rf"(?<![0-9A-Za-z]){re.escape(uid)}(?![0-9A-Za-z])", text) for text in texts)


@dataclass(frozen=True, slots=True)
class Resources:
    """Amounts: CPUs, bytes, MHz, bytes of disk, GPUs by kind. Peers do not state their disk: 0 in the example."""

    cpus: Decimal = Decimal(0)
    memory: int = 0
    mhz: Decimal = Decimal(0)
    disk: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Resources) -> Resources:
        return total([self, other])

    def __sub__(self, other: Resources) -> Resources:
        gpus = {kind: -count for kind, count in other.gpus.items()}
        return total([self, Resources(-other.cpus, -other.memory, -other.mhz, gpus=gpus)])

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
        # the most frequent first: a virtual node has a limited number of resources
        kinds = sorted(self.gpus.items(), key=lambda entry: (-entry[1], entry[0]))
        return amounts | {f"nunet.io/gpu.{kind}": str(max(count, 0)) for kind, count in kinds}


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


@dataclass(frozen=True, slots=True)
class PeerList:
    """The peers of the network, or those of a group. ``requested_at``: monotonic time at which they were requested."""

    peers: tuple[Peer, ...]
    requested_at: float


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a job runs. ``at``: monotonic time of the submission; lists of peers from before do not show the job."""

    peer: str
    resources: Resources
    at: float


# --- a virtual node -------------------------------------------------------------------------------------------------
def members(peers: Iterable[Peer], groups: Sequence[NunetGroupSection], name: str) -> list[Peer]:
    """Return the peers of a group: a peer is in the first group that selects it."""
    return [peer for peer in peers if next((each.name for each in groups if _selects(each, peer)), None) == name]


def _selects(group: NunetGroupSection, peer: Peer) -> bool:
    kinds = peer.gpu_kinds or {"none"}
    return (not group.peers or peer.id in group.peers) and (
        not group.gpu_types
        or any(fnmatch.fnmatchcase(kind, text.lower()) for kind in kinds for text in group.gpu_types)
    )


def total(amounts: Iterable[Resources]) -> Resources:
    """Return the sum, in one pass: thousands of peers may each have other kinds of GPU."""
    cpus, memory, mhz, gpus = Decimal(0), 0, Decimal(0), Counter[str]()
    for each in amounts:
        cpus, memory, mhz = cpus + each.cpus, memory + each.memory, mhz + each.mhz
        for kind, count in each.gpus.items():
            gpus[kind] += count
    return Resources(cpus, memory, mhz, gpus={kind: count for kind, count in sorted(gpus.items()) if count})


def labels(amounts: Mapping[str, Resources]) -> dict[str, str]:
    """Return the labels of a virtual node with these peers: the largest single peer, and the type of GPU.

    A label has one value: ``gpu-type`` is the type with the most GPUs.
    """
    peers, counts = amounts.values(), total(amounts.values()).gpus
    node_labels = {
        "type": "virtual-kubelet",
        "nunet.io/largest-peer-cpu": str(int(max((each.cpus for each in peers), default=0))),
        "nunet.io/largest-peer-memory": mebibytes(max((each.memory for each in peers), default=0)),
        "nunet.io/largest-peer-gpus": str(max((sum(each.gpus.values()) for each in peers), default=0)),
    }
    return node_labels | ({"gpu-type": max(sorted(counts), key=lambda kind: counts[kind])} if counts else {})


def flat(quantities: Mapping[str, str]) -> dict[str, int]:
    """Return the answer of a plugin's ``GET /resources``: whole numbers, with the names that NuNet published.

    Resources without such a name are left out. ``nunet.ram.gb`` is in GiB, as its name says; the published example has
    MB.
    """
    amounts: dict[str, int] = {}
    for name, text in sorted(quantities.items()):
        kind = kind_in(name) if name.startswith(_RESOURCE) else None
        published = _PUBLISHED.get(name) if kind is None else (f"nunet.gpu.{kind}", 1)
        if published is not None and (count := int(quantity.parse(text)) // published[1]) >= 0:
            amounts[published[0]] = count
    return amounts


def choose(
    peers: Sequence[Peer],
    free: Mapping[str, Resources],
    requested: Resources,
    values: Mapping[str, Any],
    held: Sequence[Placed],
) -> Peer:
    """Return the cheapest peer that has room, of equal ones that with the least left over; ``free`` is by peer.

    ``values``: see :func:`refusal`. ``held``: the jobs of this pool that have not ended. Raises SiteDownError if the
    pod fits when such a job has ended, otherwise ScriptError; both name what is free.
    """
    fitting: list[Peer] = []
    reasons: list[str] = []
    may_fit_later = False
    for peer in sorted(peers, key=lambda peer: peer.id):
        if reason := refusal(peer, values):
            reasons.append(f"{peer.short_name}: {reason}")
        elif lacking := free[peer.id].lacks(requested):
            reasons.append(f"{peer.short_name}: less than {lacking}; free: {free[peer.id].words()}")
            own = total(placed.resources for placed in held if placed.peer == peer.id)
            may_fit_later = may_fit_later or not (free[peer.id] + own).lacks(requested)
        else:
            fitting.append(peer)
    if fitting:
        return min(fitting, key=lambda peer: _order(peer, free[peer.id] - requested))
    more = f"; and {len(reasons) - _MOST_NAMED} more peers" if len(reasons) > _MOST_NAMED else ""
    summary = "; ".join(reasons[:_MOST_NAMED]) + more if reasons else "there is no peer"
    text = f"no peer takes the pod ({requested.words()}): {summary}"
    if may_fit_later:
        raise SiteDownError(f"{text}; it fits when a job of this pool has ended")
    raise ScriptError(text)


def refusal(peer: Peer, values: Mapping[str, Any]) -> str:
    """Return why a peer cannot take a pod with these values of annotations, or an empty text.

    A peer that states no price is not excluded: the DMS checks the price in the request.
    """
    if not peer.available:
        return "not available"
    if "peers" in values and peer.id not in values["peers"]:
        return "not among the allowed peers"
    if peer.price is not None and peer.price > values.get("max-price-per-hour", math.inf):
        return f"price {peer.price:g} NTX an hour"
    return ""


def _order(peer: Peer, left: Resources) -> tuple[float, int, float, int, str]:
    price = math.inf if peer.price is None else peer.price
    return price, sum(left.gpus.values()), float(left.cpus), left.memory, peer.id


# --- names of GPUs --------------------------------------------------------------------------------------------------
def kind_of(name: str, vram: int) -> str:
    """Return the kind of a GPU from its driver's name and its total VRAM in MiB.

    Without a brand in the name, it is that of the family, or nvidia.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    known = [*(_BRANDS.get(word) for word in words), *(_FAMILIES.get(word) for word in words), "nvidia"]
    brand = next(filter(None, known))
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


def mebibytes(amount: int) -> str:
    """Return bytes as a Kubernetes quantity in MiB, rounded down."""
    return f"{amount // 2**20}Mi"
