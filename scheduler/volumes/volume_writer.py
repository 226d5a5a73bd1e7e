"""Writes the node or the claim that binds an unbound PersistentVolumeClaim; others then provision and bind."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from bridge.kube.kube_client import KubeClient
from bridge.kube.prune import prune_claim, prune_volume
from bridge.kube.resources import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES
from bridge.logs import kv
from scheduler.volumes.storage import Storage
from scheduler.volumes.volume_nodes import ClaimVolume, SelectNode, Write

log = logging.getLogger(__name__)


class VolumeWriter:
    """Sends the writes of a decision and stores the answers, so that the next decision sees them; ``kube`` is fenced.

    Each write has the UID and the resource version of the object as preconditions. Raises ``Kube*`` errors.
    """

    def __init__(self, kube: KubeClient, storage: Storage) -> None:
        self._kube = kube
        self._storage = storage

    def write(self, writes: Iterable[Write]) -> None:
        """Send the writes, one for each claim."""
        # a kill in between is harmless: the next decision keeps the written nodes and volumes, and writes the rest
        for write in writes:
            if isinstance(write, SelectNode):
                claim = write.claim["metadata"]
                path = PERSISTENT_VOLUME_CLAIMS.path(claim["namespace"], claim["name"])
                answer = prune_claim(self._kube.patch(path, write.patch, kind="merge"))
                log.info("node selected", extra=kv(claim=f"{claim['namespace']}/{claim['name']}", node=write.node))
            else:
                answer = self._claim_volume(write)
            self._storage.changed("update", None, answer)

    def _claim_volume(self, write: ClaimVolume) -> dict[str, object]:
        claim, name = write.claim["metadata"], write.volume["metadata"]["name"]
        answer = prune_volume(self._kube.patch(PERSISTENT_VOLUMES.path(name=name), write.patch, kind="merge"))
        log.info("volume claimed", extra=kv(claim=f"{claim['namespace']}/{claim['name']}", volume=name))
        return answer
