"""The actions for Kueue's objects: what a decision returns and :mod:`controllers.queues.queue_loop` carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Object = dict[str, Any]
Kind = Literal["ResourceFlavor", "ClusterQueue", "LocalQueue"]


@dataclass(frozen=True, slots=True)
class Apply:
    """Write an object by server-side apply; ``observed_uid`` is that of the object, empty if there is none."""

    owner: Object
    body: Object
    observed_uid: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an object that belongs to a MasterQueue, and that nothing uses."""

    owner: Object
    kind: Kind
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Evict the workloads of a flavor, whose pool is silent; ``message`` is for users."""

    owner: Object
    flavor: str
    message: str


@dataclass(frozen=True, slots=True)
class SetStatus:
    """Write the status of a MasterQueue."""

    queue: Object
    status: Object


Action = Apply | Delete | Evict | SetStatus
