"""Makes the public key of a site known to the hub's NATS server: that of the chart, or one with a directory of files.

The chart's server reads the keys from a ConfigMap that no release owns, so that an upgrade keeps them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.errors import ConfigError, KubeConflictError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import CONFIGMAPS, PODS, STATEFUL_SETS
from bridge.protocol.nats import nats_files
from bridge.protocol.nats.nats_server_config import Listeners, User, site_permissions, user_text
from bridge.workload import pods

SERVER_LABELS = "app.kubernetes.io/name=podbridge,app.kubernetes.io/component=nats"
OTHER_SERVERS = "for another NATS server, use --nats-dir DIRECTORY or --print nats"


@dataclass(frozen=True, slots=True)
class ReleaseServer:
    """The NATS server of a release: its StatefulSet and its namespace."""

    namespace: str
    name: str
    release: str

    @property
    def config_map(self) -> str:
        """The ConfigMap with the public keys."""
        return f"{self.name}-keys"

    @property
    def labels(self) -> str:
        """The selector of its pod."""
        return f"{SERVER_LABELS},app.kubernetes.io/instance={self.release}"


def find_server(kube: KubeClient, namespace: str) -> ReleaseServer:
    """Return the NATS server of the release in a namespace; raises :class:`ConfigError` if there is not one."""
    found = kube.get(STATEFUL_SETS.path(namespace), {"labelSelector": SERVER_LABELS})["items"]
    if len(found) != 1:
        names = ", ".join(item["metadata"]["name"] for item in found) or "none"
        raise ConfigError(
            f"namespace {namespace}: NATS servers of podbridge's chart: {names}; allowed: one",
            hint=f"name its namespace (--namespace), or set nats.enabled of the chart; {OTHER_SERVERS}",
        )
    metadata, template = found[0]["metadata"], found[0]["spec"]["template"]["spec"]
    server = ReleaseServer(namespace, metadata["name"], metadata["labels"]["app.kubernetes.io/instance"])
    mounted = [(volume.get("configMap") or {}).get("name") for volume in template.get("volumes") or ()]
    if server.config_map not in mounted:
        raise ConfigError(
            f"StatefulSet {namespace}/{server.name} does not read the ConfigMap {server.config_map}",
            hint="upgrade the release to this version of podbridge first",
        )
    return server


def config_map(server: ReleaseServer, pool: str, key: str) -> dict[str, Any]:
    """Return the ConfigMap with the key of one pool."""
    metadata = {"name": server.config_map, "namespace": server.namespace}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {f"{pool}{nats_files.KEY}": key}}


def add_to_release(kube: KubeClient, server: ReleaseServer, pool: str, key: str, *, force: bool, dry_run: bool) -> bool:
    """Write the key of a pool to the ConfigMap; return whether it changed.

    Raises :class:`ConfigError` if the pool has another key, unless ``force``.
    """
    body = config_map(server, pool, key)
    path = CONFIGMAPS.path(server.namespace, server.config_map)
    params = {"dryRun": "All"} if dry_run else None
    try:
        data = kube.get(path).get("data") or {}
    except KubeNotFoundError:
        kube.create(CONFIGMAPS.path(server.namespace), body, params)
        return True
    keys = {name.removesuffix(nats_files.KEY): text.strip() for name, text in data.items()}
    if keys.get(pool) == key:
        return False
    _check_replaces(pool, key, keys, force=force)
    kube.patch(path, {"data": body["data"]}, kind="merge", params=params)
    return True


def is_outdated(kube: KubeClient, server: ReleaseServer) -> bool:
    """Whether the server's pod is older than the keys: an earlier command ended between the write and the restart."""
    written = kube.get(CONFIGMAPS.path(server.namespace, server.config_map))["metadata"]
    times = [str(entry.get("time") or "") for entry in written.get("managedFields") or ()]
    changed = max([*times, str(written.get("creationTimestamp") or "")])
    items = kube.get(PODS.path(server.namespace), {"labelSelector": server.labels})["items"]
    return any(str(pod["metadata"].get("creationTimestamp") or "") < changed for pod in items)  # both of the API server


def restart(kube: KubeClient, server: ReleaseServer, timeout: float) -> None:
    """Replace the server's pod, which reads the keys at its start; return when it is ready.

    The pod is deleted: an annotation in the template would differ from what the release has.
    Raises :class:`ConfigError` after ``timeout`` seconds.
    """
    path = PODS.path(server.namespace)
    old = [pod["metadata"] for pod in kube.get(path, {"labelSelector": server.labels})["items"]]
    for metadata in old:
        with suppress(KubeNotFoundError, KubeConflictError):  # another one replaced it meanwhile
            kube.delete(f"{path}/{metadata['name']}", {"preconditions": {"uid": metadata["uid"]}})
    end, gone = time.monotonic() + timeout, {metadata["uid"] for metadata in old}
    while True:
        current = kube.get(path, {"labelSelector": server.labels})["items"]
        if current and all(
            pods.uid(pod) not in gone and pods.condition(pod, "Ready").get("status") == "True" for pod in current
        ):
            return
        if time.monotonic() > end:
            raise ConfigError(
                f"StatefulSet {server.namespace}/{server.name}: its pod is not ready after {timeout:.0f} s",
                hint=f"kubectl describe pod -n {server.namespace} -l {server.labels}",
            )
        time.sleep(1.0)


def add_to_folder(folder: Path, prefix: str, pool: str, key: str, *, force: bool, dry_run: bool) -> bool:
    """Write the key of a pool to a directory of ``podbridge nats config``; return whether it changed.

    Raises :class:`ConfigError` if the pool has another key or a secret there, unless ``force``.
    """
    if not (folder / nats_files.USERS).exists():
        raise ConfigError(
            f"--nats-dir: {folder} has no {nats_files.USERS}; allowed: a directory of podbridge nats config"
        )
    files = (folder / nats_files.POOLS).glob(f"*{nats_files.KEY}")
    keys = {file.stem: file.read_text().strip() for file in files}
    for suffix in (nats_files.SEED, nats_files.PASSWORD):
        if (secret := folder / nats_files.POOLS / f"{pool}{suffix}").exists():
            keys.setdefault(pool, secret.name)
    changed = keys.get(pool) != key
    if changed:
        _check_replaces(pool, key, keys, force=force)
    if not dry_run:
        nats_files.set_key(folder, pool, key)
        nats_files.write(folder, prefix, [], Listeners())
    return changed


def _check_replaces(pool: str, key: str, keys: Mapping[str, str], *, force: bool) -> None:
    """Raise :class:`ConfigError` if the pool has another key, or another pool this one. ``keys``: by pool."""
    if other := next((name for name, used in keys.items() if used == key and name != pool), ""):
        raise ConfigError(
            f"pool {other} has this key; allowed: a key of its own for each pool",
            hint="podbridge submitter init makes one for each pool",
        )
    if (present := keys.get(pool)) and not force:
        hint = "--force replaces it; the old key stops working"
        raise ConfigError(f"pool {pool} has another key: {present}", hint=hint)


def server_user(prefix: str, pool: str, key: str) -> str:
    """Return the user of a pool for the list ``users`` of a NATS server's account, with the permissions of its site."""
    return user_text(User(f"pool-{pool}", site_permissions(prefix, pool), nkey=key))
