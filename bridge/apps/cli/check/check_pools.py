"""The checks of ``podbridge check`` for pools: NATS, the store, the virtual nodes and the kubelet port."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.clock import SystemClock
from bridge.config.pool_kind import PoolKindSection
from bridge.core.threads import Supervisor
from bridge.pools import registry
from bridge.pools.polled.polled_pool import PolledPool
from bridge.pools.pool_interface import Pool
from bridge.pools.registry import PoolContext
from bridge.pools.store.synchronizer import StoreError
from bridge.pools.submitter.submitter_source import nats_link, open_store
from bridge.protocol.nats.nats_link import Link
from bridge.workload import pool_selection
from bridge.workload.eligibility import readiness

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection to NATS or to the kubelet port."""
ELSEWHERE = "Run podbridge check on the host of podbridge, with its configuration and its files"


def nats(session: CommandSession) -> Iterator[Finding]:
    """Connect to NATS as the hub does, and read the store."""
    if not session.config.pools.nats.servers:
        yield Finding("ok", "NATS", "not configured: no pools over NATS")
        return
    supervisor = Supervisor()
    link = nats_link(session.config, "podbridge check", session.cluster)
    try:
        link.start(supervisor)
        end = time.monotonic() + CONNECT_TIMEOUT
        while not link.connected and time.monotonic() < end and supervisor.failure is None:
            time.sleep(0.05)
        problem = link.problem()
        if problem:
            fix = f"check pools.nats.servers, seedFile and caFile. {ELSEWHERE}"
            yield Finding("FAIL", "NATS", problem, fix)
        else:
            yield Finding("ok", "NATS", ", ".join(session.config.pools.nats.servers))
        if not problem or session.config.pools.store.kind == "redis":
            yield from _store(session, link)
    finally:
        link.close()
        supervisor.stop()
        supervisor.join(2)


def _store(session: CommandSession, link: Link) -> Iterator[Finding]:
    kind = session.config.pools.store.kind
    store = open_store(session.config, link, session.cluster)
    if store is None:
        yield Finding("ok", "store", "none: after a restart, the hub knows a pool after its next announcement")
        return
    try:
        yield Finding("ok", "store", f"{kind} contains {len(store.load('pools'))} pools")
    except StoreError as error:
        fix = f"check that the {kind} server runs and that this user has access; see pools.store in "
        yield Finding("FAIL", "store", str(error), error.hint or f"{fix}docs/reference/keys.md")
    finally:
        store.close()


def configured(session: CommandSession) -> Iterator[Finding]:
    """Ping each pool that the configuration defines, as the hub does."""
    kinds, context = session.config.pools.kinds, PoolContext(session.config, SystemClock())
    for kind in kinds:
        if any(section.pool_names for section in session.config.pools.sections(kind)):
            for pool in registry.make(context, [kind.key]).pools().values():
                yield from _ping(kind.section, pool)


def _ping(section: type[PoolKindSection], pool: Pool) -> Iterator[Finding]:
    if isinstance(pool, PolledPool):
        pool.ping()
    announced, title = pool.announced(), section.title
    problem = announced[0].problem if announced is not None else "no answer"
    if announced is None or problem or not pool.ready().ok:
        text = f"{pool.name}: {problem or pool.ready().message}"
        yield Finding("FAIL", title, text, f"see docs/{section.page}. {ELSEWHERE}")
        return
    missing = [name for name in ("cpu", "memory") if name not in announced[0].capacity]
    yield Finding("ok", title, f"{pool.name}: {announced[0].batch}")
    if missing:
        text = f"{pool.name}: the site does not report {' and '.join(missing)}, so pods that request it wait"
        yield Finding("warn", title, text, f"set capacity of the pool: {', '.join(missing)}")


def pools(session: CommandSession) -> Iterator[Finding]:
    """Check the Ready condition of each virtual node, and connect to the kubelet port."""
    if not session.config.pools.enabled:
        return
    nodes = [node for node in session.nodes() if pool_selection.is_virtual(node)]
    if not nodes:
        fix = "start podbridge submitter at a site; its log says whether it is connected to NATS"
        if session.config.pools.named:
            fix = "start podbridge controllers: it creates the virtual nodes of the configured pools"
        yield Finding("warn", "pools", "there is no virtual node", fix)
        return
    for node in nodes:
        name, ready = node["metadata"]["name"], readiness(node)
        if ready.get("status") == "True":
            yield Finding("ok", "pools", f"{name} is Ready")
        else:
            text = f"{name} is not Ready: {ready.get('reason', 'unknown')}: {ready.get('message', '')}"
            fix = "check the log of the submitter or the plugin at the site, and the batch system"
            yield Finding("FAIL", "pools", text, fix)
    yield _kubelet_port(nodes[0])


def _kubelet_port(node: Mapping[str, Any]) -> Finding:
    """Connect to the kubelet port without a client certificate; podbridge answers 401.

    The check does not use the API server's node proxy, because the proxy refuses loopback addresses, while
    ``kubectl logs`` does not.
    """
    status = node.get("status") or {}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", 0)
    host = next((a["address"] for a in status.get("addresses") or () if a.get("type") == "InternalIP"), "")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT, context=context)
    try:
        connection.request("GET", "/healthz")
        status_code = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        fix = (
            "kubectl logs fails for pods on pools: check that podbridge controllers runs and that pools.nodeAddress is "
            "its address. Outside the cluster's network the port may be unreachable"
        )
        return Finding("FAIL", "kubelet port", f"{host}:{port} does not answer: {error}", fix)
    finally:
        connection.close()
    if status_code != HTTPStatus.UNAUTHORIZED:
        fix = "another server uses this port: check pools.nodeAddress and pools.kubeletPort"
        text = f"{host}:{port} answers {status_code} without a client certificate; expected: 401"
        return Finding("FAIL", "kubelet port", text, fix)
    return Finding("ok", "kubelet port", f"{host}:{port} answers")
