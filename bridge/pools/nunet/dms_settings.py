"""The settings of a NuNet pool, from its section of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge.pools.nunet.capacity import Group
from bridge.pools.nunet.dms_logs import LogAccess
from bridge.pools.nunet.pod_request import RequestSettings
from bridge.pools.nunet.statuses import State
from bridge.pools.polled.polled_pool import PollSettings


@dataclass(frozen=True, slots=True)
class NunetSettings:
    """Values of the configuration.

    Parameters
    ----------
    groups, index
        The groups of all virtual nodes of the DMS, and the number of this pool's own.
    least_free
        Share of the VRAM of a GPU that must be free.
    owner
        Part of the states of jobs: the cluster.
    lookup
        ``status``: the DMS answers about a job under the ``job_id`` of its request. ``services``: it does not, and only
        the entries of the peers show a job whose id is not known.
    interlink
        Pods come from an interLink client, not from a hub.
    """

    polls: PollSettings
    request: RequestSettings
    logs: LogAccess
    groups: tuple[Group, ...] = (Group(),)
    index: int = 0
    least_free: float = 0.9
    words: Mapping[str, State] | None = None
    lookup: str = "services"
    peer_field: str = "peer_id"
    gpu_count_field: str = ""
    cancel_method: str = "DELETE"
    cancel_path: str = ""
    submit_timeout: float = 60.0
    labels: Mapping[str, str] | None = None
    taints: tuple[str, ...] = ()
    interlink: bool = False
