"""The checks of ``podbridge check`` for clocks and for the certificates of the servers that podbridge uses."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from bridge.apps.cli.check.findings import Finding
from bridge.apps.cli.session import CommandSession
from bridge.serving.certificates import expires

CONNECT_TIMEOUT = 5.0
"""Seconds for a connection."""
LARGEST_LAG, MOST_LAG = 5.0, 300.0
"""Seconds by which two clocks may differ before a warning, and before podbridge cannot tell old jobs from new ones."""
FEW_DAYS = 7
DEFAULT_PORTS = {"https": 443, "wss": 443, "tls": 4222}


def clocks(session: CommandSession) -> Iterator[Finding]:
    """Compare the clocks of the API server and of slurmctld with the local one."""
    readers: list[tuple[str, Any]] = [("the API server", session.kube.server_time)]
    if session.config.slurm_rest_api:
        readers.append(("slurmctld", session.slurm.server_time))
    differences = {}
    for what, read in readers:
        before = time.time()
        remote = read()
        # both send whole seconds, rounded down
        differences[what] = remote + 0.5 - (before + time.time()) / 2
    for what, seconds in differences.items():
        if abs(seconds) <= LARGEST_LAG:
            continue
        result = "FAIL" if abs(seconds) > MOST_LAG else "warn"
        direction = "ahead of" if seconds > 0 else "behind"
        text = f"the clock of {what} is {abs(seconds):.0f} s {direction} the local clock"
        yield Finding(result, "clocks", text, f"synchronize both hosts by NTP; podbridge tolerates {MOST_LAG:.0f} s")
    if max(map(abs, differences.values())) <= LARGEST_LAG:
        yield Finding("ok", "clocks", f"{' and '.join(differences)} agree with the local clock within 5 s")


def certificates(session: CommandSession) -> Iterator[Finding]:
    """Read the certificates of the servers, and report those that expire soon. Trust is checked by other checks."""
    servers = [("API server", session.kube.server), ("slurmrestd", session.config.slurm_rest_api or "")]
    servers.append(("webhook", session.config.admission.url or ""))
    pools = session.config.pools
    for kind in pools.kinds:
        for section in pools.sections(kind):
            servers += [(" ".join((section.title, *section.pool_names)), url) for url in section.urls]
    fine = []
    for what, url in servers:
        parts = urlsplit(url)
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
            continue
        try:
            port = parts.port or DEFAULT_PORTS[parts.scheme]
            pem = read_certificate(parts.hostname, port, nats=parts.scheme == "tls")
        except (OSError, ValueError) as error:
            yield Finding("warn", "certificates", f"{what}: {url}: {error}", "check the address and the server")
            continue
        days = (expires(pem.encode()) - time.time()) / 86400
        if days > FEW_DAYS:
            fine.append(f"{what} {days:.0f} days")
        else:
            text = f"{what}: the certificate of {url} " + (f"expires in {days:.1f} days" if days > 0 else "has expired")
            yield Finding("warn" if days > 0 else "FAIL", "certificates", text, "renew the certificate")
    if fine:
        yield Finding("ok", "certificates", f"valid for: {', '.join(fine)}")


def read_certificate(host: str, port: int, *, nats: bool = False) -> str:
    """Return the certificate of a TLS server as PEM, without verification; with ``nats``, after the INFO of NATS.

    Raises OSError, also for a TLS error, and ValueError if the server sends no certificate.
    """
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), timeout=CONNECT_TIMEOUT) as plain:
        if nats:
            _skip_line(plain)
        with context.wrap_socket(plain, server_hostname=host) as secure:
            binary = secure.getpeercert(binary_form=True)
    if not binary:
        raise ValueError("the server sends no certificate")
    return ssl.DER_cert_to_PEM_cert(binary)


def _skip_line(plain: socket.socket) -> None:
    """Read to the end of the first line, which a NATS server sends before TLS."""
    while plain.recv(1) not in (b"\n", b""):
        pass
