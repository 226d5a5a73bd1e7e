"""The choice of a peer for a job: by fit, price, place, channel and latency. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bridge.pools.nunet.peer import Peer, Resources

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class PeerRequirements:
    """What a pod requires of its peer beyond resources; an empty value requires nothing.

    Parameters
    ----------
    frequency
        Least clock rate of a CPU in MHz.
    max_price
        NTX for an hour. A peer that states no price is not excluded: the DMS checks the price in the request.
    localities, channels
        The peer must have one of them.
    max_latency
        ms.
    peers
        Ids of the allowed peers.
    """

    frequency: int = 0
    max_price: float | None = None
    localities: frozenset[str] = frozenset()
    channels: frozenset[str] = frozenset()
    max_latency: float | None = None
    peers: frozenset[str] = frozenset()

    def refusal(self, peer: Peer) -> str:
        """Return why a peer does not satisfy them, or an empty text."""
        if not peer.available:
            return "not available"
        if self.peers and peer.id not in self.peers:
            return "not among the allowed peers"
        if self.localities and not self.localities & peer.localities:
            return f"locality {_either(peer.localities)}"
        if self.channels and not self.channels & peer.channels:
            return f"channel {_either(peer.channels)}"
        if self.max_latency is not None and (peer.latency is None or peer.latency > self.max_latency):
            return f"latency {'not stated' if peer.latency is None else f'{peer.latency:g} ms'}"
        if self.max_price is not None and peer.price is not None and peer.price > self.max_price:
            return f"price {peer.price:g} NTX an hour"
        if self.frequency and (not peer.cpus or peer.mhz / peer.cpus < self.frequency):
            return f"CPUs of {peer.mhz / peer.cpus:.0f} MHz" if peer.cpus else "CPUs not stated"
        return ""


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen peer; ``None``: no peer takes the job now.

    ``reason``: why no peer takes it, with what is free. ``may_fit_later``: a peer takes it once jobs of this pool have
    ended.
    """

    peer: Peer | None
    reason: str = ""
    may_fit_later: bool = False


def choose(
    peers: Iterable[Peer],
    free: Mapping[str, Resources],
    held_by_peer: Mapping[str, Resources],
    requested: Resources,
    requirements: PeerRequirements,
) -> Choice:
    """Return the cheapest peer that has room; of those, the nearest, then the one with the least left over.

    ``free``: resources by peer id. ``held_by_peer``: resources that jobs of this pool hold, by peer id.
    """
    fitting: list[Peer] = []
    reasons: list[str] = []
    may_fit_later = False
    for peer in sorted(peers, key=lambda peer: peer.id):
        free_at_peer = free.get(peer.id, Resources())
        if refusal := requirements.refusal(peer):
            reasons.append(f"{short(peer.id)}: {refusal}")
            continue
        if not (lacking := free_at_peer.lacks(requested)):
            fitting.append(peer)
            continue
        reasons.append(f"{short(peer.id)}: less than {lacking}; free: {free_at_peer.words()}")
        may_fit_later = may_fit_later or not (free_at_peer + held_by_peer.get(peer.id, Resources())).lacks(requested)
    if fitting:
        return Choice(min(fitting, key=lambda peer: _order(peer, free[peer.id], requested)))
    remainder = f"; and {len(reasons) - _MOST_NAMED} more peers" if len(reasons) > _MOST_NAMED else ""
    summary = "; ".join(reasons[:_MOST_NAMED]) + remainder if reasons else "there is no peer"
    return Choice(None, f"no peer takes the pod ({requested.words()}): {summary}", may_fit_later)


def _order(peer: Peer, free: Resources, requested: Resources) -> tuple[float, float, int, float, int, str]:
    leftover = free - requested
    price = math.inf if peer.price is None else peer.price
    latency = math.inf if peer.latency is None else peer.latency
    return price, latency, sum(leftover.gpus.values()), float(leftover.cpus), leftover.memory, peer.id


def _either(values: Iterable[str]) -> str:
    return ", ".join(sorted(values)) or "not stated"


def short(peer: str) -> str:
    """Return the id of a peer, cut for messages."""
    return f"peer {peer if len(peer) <= 20 else f'{peer[:8]}..{peer[-6:]}'}"
