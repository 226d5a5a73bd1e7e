"""TLS of the kubelet API: its serving certificate, and the CAs of its clients.

It serves the certificate in ``certDir``, or else a self-signed one that it keeps in memory. An API server verifies the
certificate of a kubelet only if it runs with ``--kubelet-certificate-authority``; ``certDir`` must then have a
certificate of that CA. (The cluster's own signer for kubelets accepts requests of ``system:node:<name>`` only.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bridge.clock import Clock
from bridge.errors import BridgeError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import CONFIGMAPS
from bridge.logs import kv
from bridge.serving.certificates import Certificates, Pair, authorities, make_pair, needs_renewal, read_pair

log = logging.getLogger(__name__)

NAMESPACE, NAME, KEY = "kube-system", "extension-apiserver-authentication", "client-ca-file"
VALIDITY = 90 * 86400.0


def read_client_ca(kube: KubeClient) -> bytes:
    """Return the CAs whose client certificates the API server accepts; empty if it accepts none.

    Raises ``Kube*`` errors.
    """
    try:
        # the API server publishes the file of its --client-ca-file there
        data = kube.get(CONFIGMAPS.path(NAMESPACE, NAME)).get("data") or {}
    except KubeNotFoundError:
        return b""
    certificates: list[x509.Certificate] = authorities(str(data.get(KEY) or "").encode())
    # normalized: the file may contain comments
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


class Trust:
    """Keeps the serving certificate and the CAs of clients up to date.

    ``names``: DNS names and IP addresses of a self-signed certificate. ``read`` returns the CAs of clients.
    """

    def __init__(
        self,
        certificates: Certificates,
        read: Callable[[], bytes],
        names: Iterable[str],
        clock: Clock,
        folder: Path | None = None,
    ) -> None:
        self._certificates = certificates
        self._read = read
        self._names = sorted(set(names))
        self._clock = clock
        self._folder = folder
        self.problem: str | None = "not read yet"
        """Why the CAs of clients may be out of date; ``None`` if they are not."""

    def serve(self) -> None:
        """Update the serving certificate; raise :class:`CertificateError` on failure, which keeps the old one."""
        pair = self._pair()
        if pair != self._certificates.pair:
            self._certificates.replace(pair)
            log.info("kubelet API's certificate changed", extra=kv(source=self._folder or "self-signed"))

    def authenticate(self) -> None:
        """Update the CAs of clients; raise ``Kube*`` errors on failure, which keeps the old ones."""
        try:
            clients = self._read()
            if clients != self._certificates.clients:
                self._certificates.trust(clients)
                count = len(authorities(clients))
                log.info("CAs of the kubelet API's clients changed", extra=kv(authorities=count))
        except BridgeError as error:
            self.problem = str(error)
            raise
        self.problem = None

    def step(self) -> None:
        """Update both. A failure is logged, and repeated at the next step."""
        for update in (self.serve, self.authenticate):
            try:
                update()
            except BridgeError as error:
                log.warning("kubelet API's TLS not up to date", extra=kv(error=error))

    def _pair(self) -> Pair:
        if self._folder is not None:
            return read_pair(self._folder)
        pair, now = self._certificates.pair, self._clock.time()
        if pair is None or needs_renewal(pair, now, self._names):
            return make_pair(self._names, VALIDITY, now=now)
        return pair
