"""From the values of the NATS plugin's chart ``interlink-all-in-one`` to values of the chart ``helm/podbridge``. Pure.

Source: ``charts/interlink-all-in-one`` of landerlini/interlink-condorce-plugin. Its values have no names of pools,
since a provider brings its own, and no namespaces: both are parameters. Passwords are not copied; podbridge's chart
creates one for each pool.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml

from bridge.apps.conversion.values_reader import Converted, Note, Object, ValuesReader, mapping_of, put
from bridge.config import hub as configuration
from bridge.errors import ConfigError

_POOL = re.compile(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?")
_RESOURCES = {
    "redisCpuRequest": "requests.cpu",
    "redisMemoryRequest": "requests.memory",
    "redisCpuLimit": "limits.cpu",
    "redisMemoryLimit": "limits.memory",
}
HUB_SECRET = "podbridge-nats-hub"  # noqa: S105  (its name)
_DROPPED = {
    r"server[A-Z].*": "podbridge has no interLink API server",
    r"virtualKubelet(Allocatable|Node).*": "a site announces the capacity, labels and taints of its node: site.toml",
    r"virtualKubelet.*": "podbridge has no virtual kubelet",
    r"nodeName": "each pool is a virtual node of its own",
    r"plugin(Git|Image|Shutdown|Liveness).*": "the code of podbridge is in its image",
    r"pluginNatsSubject": "podbridge has a protocol and subjects of its own",
    r"plugin.*": "podbridge has no such plugin",
    r"natsBastion.*": "sites connect by WebSocket, without SSH",
    r"natsClusterIssuer.*": "podbridge's chart creates no ClusterIssuer",
    r"redisNode.*|redisHostPath": "the data of redis is in a PersistentVolumeClaim",
    r"shubProxy.*": "each site has a cache of images",
}
"""Pattern of values without a place in podbridge's chart, and the reason. The first match counts."""


def convert(text: str, source: str, pools: Sequence[str], namespaces: Sequence[str]) -> Converted:
    """Convert the text of a ``values.yaml`` of ``interlink-all-in-one``; ``source`` names the file in errors.

    ``pools`` are the names of the providers (their option ``--pool``), ``namespaces`` those whose pods may run on
    pools. Raises :class:`ConfigError` if a value has the wrong type, or a name is not allowed.
    """
    for pool in pools:
        if pool == "hub" or not _POOL.fullmatch(pool):
            allowed = "1 to 32 of a-z, 0-9 and -, without - at the beginning or end, and not hub"
            raise ConfigError(f"--pools: {pool!r} is not allowed; allowed: {allowed}")
    reader = ValuesReader(mapping_of(text, source), source)
    values: Object = {"config": {"slurmRestApi": "", "managedNamespaces": list(namespaces)}}
    notes = [Note("changed", "config.slurmRestApi", "empty: the NATS plugin has no Slurm beside the kubelets")]
    if namespaces:
        values["rbac"] = {"poolNamespaces": list(namespaces)}
    else:
        notes.append(
            Note("to do", "config.managedNamespaces", "name the namespaces whose pods use pools: --namespaces research")
        )
    _server(reader, values, notes, pools)
    _redis(reader, values, notes)
    if reader.take("kueueNatsEnabled", "yes or no") is not False:
        put(values, "config.queues.enabled", True)
        notes.append(
            Note("to do", "config.queues.enabled", "stop kueue-nats before podbridge starts; convert its queues")
        )
    port = reader.take("kubeletPort", "count")
    if port is not None:
        put(values, "config.pools.kubeletPort", port)
    if reader.take("pluginLogLevel", "text") in ("debug", "trace"):
        put(values, "config.logging.level", "debug")
    for path in reader.rest():
        why = next((why for pattern, why in _DROPPED.items() if re.fullmatch(pattern, path.partition(".")[0])), "")
        notes.append(Note("dropped", path, why or "podbridge's chart has no such value"))
    _check(values, source)
    return Converted((values,), tuple(notes))


def _server(reader: ValuesReader, values: Object, notes: list[Note], pools: Sequence[str]) -> None:
    """Convert the NATS server: that of the release, or another one."""
    own = reader.take("natsEnabled", "yes or no") is not False
    address = reader.take("pluginNatsServer", "text")
    users = reader.take("natsUsers", "list")
    if not own:
        host = (address or "nats:4222").rpartition("@")[2].removeprefix("nats://")
        put(values, "config.pools.nats.servers", [f"nats://{host}"])
        put(values, "nats.client.existingSecret", HUB_SECRET)
        text = f"create it with the key hub.seed of podbridge nats config, and give {host} the new users.conf"
        notes.append(Note("to do", "nats.client.existingSecret", text))
        return
    if not pools:
        raise ConfigError(
            f"{reader.source}: natsEnabled: true needs the names of the pools, which are not in this file; "
            "add for example --pools alpha,beta"
        )
    put(values, "nats.enabled", True)
    put(values, "nats.pools", list(pools))
    if users:
        text = "replaced by one user for each pool, pool-NAME, with a new password"
        notes.append(Note("changed", "natsUsers", text))
    _ingress(reader, values, notes)


def _ingress(reader: ValuesReader, values: Object, notes: list[Note]) -> None:
    host = reader.take("hostname", "text")
    prefix = reader.take("natsWebSocketPrefix", "text")
    certificate = reader.take("certManagerEnabled", "yes or no")
    if not host:
        text = "not set: the server has no Ingress; set nats.ingress or nats.service.type for the sites"
        notes.append(Note("to do", "hostname", text))
        return
    annotations = {
        "nginx.ingress.kubernetes.io/rewrite-target": "/",
        "nginx.ingress.kubernetes.io/proxy-body-size": "0",
    }
    ingress: Object = {"enabled": True, "className": "nginx", "host": host, "path": f"/{prefix or ''}"}
    if certificate:
        # the chart names this issuer whatever natsClusterIssuerName is
        annotations["cert-manager.io/cluster-issuer"] = "lets-issuer"
        ingress["tlsSecret"] = "podbridge-nats-ingress"
        text = "the ClusterIssuer lets-issuer must exist after the plugin's chart has been uninstalled"
        notes.append(Note("to do", "nats.ingress.annotations", text))
    else:
        notes.append(Note("to do", "nats.ingress.tlsSecret", f"name the Secret with the certificate of {host}"))
    put(values, "nats.ingress", {**ingress, "annotations": annotations})
    if not prefix:
        text = "not set: the path of sites is / instead of the name of the plugin's release"
        notes.append(Note("changed", "natsWebSocketPrefix", text))


def _redis(reader: ValuesReader, values: Object, notes: list[Note]) -> None:
    """Convert redis, which podbridge needs only as a store of pools."""
    password = reader.take("redisDefaultPassword", "text")
    resources = {target: reader.take(name, "text") for name, target in _RESOURCES.items()}
    if not password:
        return
    put(values, "redis.enabled", True)
    notes.append(Note("changed", "redisDefaultPassword", "not copied: podbridge's chart creates a password"))
    for target, amount in resources.items():
        if amount is not None:
            put(values, f"redis.resources.{target}", amount)


def _check(values: Object, source: str) -> None:
    """Check the configuration as the chart will complete it; raises :class:`ConfigError`."""
    config = values["config"]
    nats = {"servers": ["nats://server:4222"], "user": "hub", "passwordFile": "password"}
    pools = {**config.get("pools", {}), "nats": nats}
    configuration.parse(yaml.safe_dump({**config, "pools": pools}), source)
