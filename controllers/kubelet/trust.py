"""The kubelet API's side of TLS: which certificate it shows, and whose certificates it takes.

It shows the files of ``certDir``, or a pair that it makes for itself and keeps in memory: API servers don't check a
kubelet's certificate unless they are started with ``--kubelet-certificate-authority``, and then only files signed by
that authority will do. (The cluster's own signer of kubelets' certificates signs for ``system:node:<name>`` alone, who
must ask in person.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from bridge.clock import Clock
from bridge.errors import BridgeError, CertificateError, KubeNotFoundError
from bridge.kube.client import KubeClient
from bridge.kube.resources import CONFIGMAPS
from bridge.logs import kv
from bridge.serving.certificates import Certificates, Pair, authorities, make_pair, needs_renewal

log = logging.getLogger(__name__)

NAMESPACE, NAME, KEY = "kube-system", "extension-apiserver-authentication", "client-ca-file"
VALIDITY = 90 * 86400.0


def read_client_ca(kube: KubeClient) -> bytes:
    """Read the authorities whose client certificates the API server takes; empty where it takes none.

    Raises ``Kube*`` errors.
    """
    try:
        data = kube.get(CONFIGMAPS.path(NAMESPACE, NAME)).get("data") or {}
    except KubeNotFoundError:
        return b""
    certificates: list[x509.Certificate] = authorities(str(data.get(KEY) or "").encode())
    # in one form, without the remarks that may stand between them
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


class Trust:
    """Keeps both up to date.

    ``names`` are the DNS names and IP addresses of a pair made here; ``read`` gives the authorities of clients.
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
        """Why the client certificates taken may not be the right ones."""

    def serve(self) -> None:
        """Serve the pair that should be served now; raises :class:`CertificateError`, and the old one stays."""
        pair = self._pair()
        if pair != self._certificates.pair:
            self._certificates.replace(pair)
            log.info("kubelet API's certificate changed", extra=kv(source=self._folder or "made here"))

    def authenticate(self) -> None:
        """Take the certificates of the API server's clients; raises ``Kube*`` errors, and the old ones stay."""
        try:
            clients = self._read()
            if clients != self._certificates.clients:
                self._certificates.trust(clients)
                count = len(authorities(clients))
                log.info("authorities of the kubelet API's clients changed", extra=kv(authorities=count))
        except BridgeError as error:
            self.problem = str(error)
            raise
        self.problem = None

    def step(self) -> None:
        """Look after both; what fails is tried again at the next step."""
        for look in (self.serve, self.authenticate):
            try:
                look()
            except BridgeError as error:
                log.warning("kubelet API's TLS not up to date", extra=kv(error=error))

    def _pair(self) -> Pair:
        if self._folder is not None:
            try:
                return Pair(b"", *((self._folder / name).read_bytes() for name in ("tls.crt", "tls.key")))
            except OSError as error:
                raise CertificateError(f"cannot read {error.filename}: {error.strerror}") from error
        pair, now = self._certificates.pair, self._clock.time()
        if pair is None or needs_renewal(pair, now, self._names):
            return make_pair(self._names, VALIDITY, now=now)
        return pair
