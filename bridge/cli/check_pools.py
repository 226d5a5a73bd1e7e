"""What ``podbridge check`` finds out about pools: NATS, the store, the virtual nodes and the kubelet port."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from bridge.cli.findings import Finding
from bridge.cli.remote import link_settings, open_store
from bridge.cli.session import Session
from bridge.store.port import StoreError
from bridge.threads import Supervisor
from bridge.wire.connection import Link
from bridge.workload import pool_selection
from bridge.workload.eligibility import readiness

PATIENCE = 5.0
"""Seconds that a connection to NATS may take."""
ELSEWHERE = "run podbridge check where podbridge runs, with its configuration and its files"


def nats(session: Session) -> Iterator[Finding]:
    """Connect to NATS as the hub does, and ask the store over it."""
    if not session.config.pools.enabled:
        yield Finding("ok", "NATS", "no servers are configured: no pools")
        return
    supervisor = Supervisor()
    link = Link(link_settings(session.config, "podbridge check", session.cluster))
    try:
        link.start(supervisor)
        end = time.monotonic() + PATIENCE
        while not link.connected and time.monotonic() < end and supervisor.failure is None:
            time.sleep(0.05)
        problem = link.problem()
        if problem:
            mend = f"is pools.nats.servers reachable from here, and are seedFile and caFile of this NATS? {ELSEWHERE}"
            yield Finding("FAIL", "NATS", problem, mend)
        else:
            yield Finding("ok", "NATS", ", ".join(session.config.pools.nats.servers))
        if not problem or session.config.pools.store.kind == "redis":
            yield from _store(session, link)
    finally:
        link.close()
        supervisor.stop()
        supervisor.join(2)


def _store(session: Session, link: Link) -> Iterator[Finding]:
    kind = session.config.pools.store.kind
    store = open_store(session.config, link, session.cluster)
    if store is None:
        yield Finding("ok", "store", "none: after a restart pools are known when they announce themselves")
        return
    try:
        known = store.load("pools")
        yield Finding("ok", "store", f"{kind} remembers {len(known)} pools")
    except StoreError as error:
        mend = error.hint or f"is the {kind} server up, and may this user use it? See pools.store in docs/reference.md"
        yield Finding("FAIL", "store", str(error), mend)
    finally:
        store.close()


def pools(session: Session) -> Iterator[Finding]:
    """Look at each virtual node, and connect to the kubelet port."""
    if not session.config.pools.enabled:
        return
    nodes = [node for node in session.nodes() if pool_selection.is_virtual(node)]
    if not nodes:
        mend = "start podbridge submitter at a site; its log says whether it reaches NATS"
        yield Finding("warn", "pools", "no site has announced itself", mend)
        return
    for node in nodes:
        name, ready = node["metadata"]["name"], readiness(node)
        if ready.get("status") == "True":
            yield Finding("ok", "pools", f"{name} is Ready")
        else:
            found = f"{name} is not Ready: {ready.get('reason', 'unknown')}: {ready.get('message', '')}"
            yield Finding("FAIL", "pools", found, "look at the submitter's log at the site, and at its batch system")
    yield _kubelet_port(nodes[0])


def _kubelet_port(node: Mapping[str, Any]) -> Finding:
    """Connect as the API server does for ``kubectl logs``, but without its certificate: the answer is 401.

    Not through the API server: its proxy for nodes refuses loopback addresses, where ``kubectl logs`` does not.
    """
    status = node.get("status") or {}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", 0)
    host = next((a["address"] for a in status.get("addresses") or () if a.get("type") == "InternalIP"), "")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
    try:
        connection.request("GET", "/healthz")
        answered = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        mend = (
            "kubectl logs fails for pods on pools: does podbridge controllers run, and does pools.nodeAddress lead to "
            "it? From outside the cluster's network the port need not be reachable"
        )
        return Finding("FAIL", "kubelet port", f"{host}:{port} does not answer: {error}", mend)
    finally:
        connection.close()
    if answered != HTTPStatus.UNAUTHORIZED:
        mend = "something else than podbridge controllers listens there: check pools.nodeAddress and pools.kubeletPort"
        return Finding("FAIL", "kubelet port", f"{host}:{port} answers {answered} to a stranger, not 401", mend)
    return Finding("ok", "kubelet port", f"{host}:{port} answers")
