"""Where the webhook's certificate comes from, and how the next one takes over.

Several replicas share one Secret. Whoever finds it missing, or two thirds through its life, writes the next pair; the
API server lets one of them win (the name when it is made, the resource version when it is changed) and the others take
the winner's. The order in which a new pair takes over makes it so that no review is refused:

1. The new authority joins ``caBundle``, beside the old one, which stays there until it expires.
2. A moment passes, until every API server has seen that.
3. The new pair is served. A replica that is late still serves the old one, and is still trusted.
"""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from bridge import names
from bridge.clock import Clock, SystemClock
from bridge.config import Config
from bridge.errors import BridgeError, CertificateError, KubeConflictError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.client import KubeClient
from bridge.kube.resources import SECRETS
from bridge.logs import kv
from bridge.serving.certificates import Certificates, Pair, bundle, make_pair, needs_renewal

log = logging.getLogger(__name__)

PERIOD = 10.0
"""Seconds between two looks at the Secret or the files."""
SETTLE = 5.0
"""Seconds for a changed ``caBundle`` to reach every API server (they watch: well under a second each)."""
TRIES = 5
CERT, KEY, CA = "tls.crt", "tls.key", "ca.crt"
_SYSTEM_CLOCK = SystemClock()


def server_names(config: Config) -> list[str]:
    """Give the names under which the API server reaches the webhook."""
    settings = config.admission
    if settings.url is None:
        service = f"{settings.service_name}.{settings.service_namespace}"
        return [f"{service}.svc", f"{service}.svc.cluster.local", service]
    host = urlsplit(settings.url).hostname or "localhost"
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        return [host]


class CertificateStore(Protocol):
    """Where the pair is kept."""

    def ensure(self, serving: Pair | None, *, renew: bool = False) -> Pair:
        """Give the pair to serve; ``serving`` is the one served now, ``renew`` asks for another in any case."""


class SecretCertificateStore:
    """Keeps self-made pairs in a Secret."""

    def __init__(self, client: KubeClient, config: Config, clock: Clock = _SYSTEM_CLOCK) -> None:
        self._client = client
        self._namespace, self._name = config.admission.service_namespace, config.admission.secret_name
        self._names = server_names(config)
        self._validity = config.admission.cert_validity
        self._clock = clock

    def ensure(self, serving: Pair | None, *, renew: bool = False) -> Pair:
        """Read the pair; make and write the next one if it is time. Raises ``Kube*`` errors."""
        for _ in range(TRIES):
            secret = self._read()
            pair = None if secret is None else _pair(secret.get("data") or {})
            now = self._clock.time()
            if pair is not None and not needs_renewal(pair, now, self._names) and not (renew and pair == serving):
                return pair
            old = [each.ca for each in (serving, pair) if each is not None]
            fresh = make_pair(self._names, self._validity, now=now)
            fresh = dataclasses.replace(fresh, ca=bundle(now, fresh.ca, *old))
            try:
                self._write(secret, fresh)
            except KubeConflictError:
                continue  # another replica was faster: take its pair
            log.info("certificate made", extra=kv(secret=self._name, names=",".join(self._names)))
            return fresh
        raise CertificateError(
            f"secret {self._namespace}/{self._name}: changed by somebody else {TRIES} times in a row"
        )

    def _read(self) -> dict[str, Any] | None:
        try:
            return self._client.get(SECRETS.path(self._namespace, self._name))
        except KubeNotFoundError:
            return None

    def _write(self, secret: dict[str, Any] | None, pair: Pair) -> None:
        data = {
            key: base64.b64encode(value).decode() for key, value in ((CERT, pair.cert), (KEY, pair.key), (CA, pair.ca))
        }
        if secret is not None:
            try:
                self._client.replace(SECRETS.path(self._namespace, self._name), {**secret, "data": data})
            except KubeNotFoundError as error:
                raise KubeConflictError(str(error), status=409) from error
            return
        metadata = {"name": self._name, "labels": {"app.kubernetes.io/name": names.COMPONENT}}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "kubernetes.io/tls",
            "data": data,
        }
        try:
            self._client.create(SECRETS.path(self._namespace), body)
        except KubeForbiddenError as error:
            raise CertificateError(
                f"secret {self._namespace}/{self._name} does not exist, and may not be created by podbridge",
                hint="kubectl apply -f helm/rbac.yaml creates it, empty",
            ) from error


class FileCertificateStore:
    """Reads a pair that others keep in files, such as cert-manager. Without ``ca.crt`` they keep caBundle too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ensure(self, serving: Pair | None, *, renew: bool = False) -> Pair:
        """Read the files; raises :class:`CertificateError`."""
        try:
            ca = (self._folder / CA).read_bytes() if (self._folder / CA).exists() else b""
            return Pair(ca, (self._folder / CERT).read_bytes(), (self._folder / KEY).read_bytes())
        except OSError as error:
            raise CertificateError(f"cannot read {error.filename}: {error.strerror}") from error


class CertificateRotator:
    """Has the pair of the store served, after ``trust(authorities)`` has told the API server."""

    def __init__(
        self,
        store: CertificateStore,
        certificates: Certificates,
        trust: Callable[[bytes], object],
        *,
        settle: float = SETTLE,
    ) -> None:
        self._store = store
        self._certificates = certificates
        self._trust = trust
        self._settle = settle
        self._lock = threading.Lock()

    def step(self, stop: threading.Event, *, renew: bool = False) -> None:
        """Look once, and change over if there is another pair. Raises :class:`BridgeError`; the old pair then stays."""
        with self._lock:
            serving = self._certificates.pair
            pair = self._store.ensure(serving, renew=renew)
            if pair == serving:
                self._trust(pair.ca)
                return
            # a pair that is no good must not come as far as caBundle
            Certificates(pair)
            self._trust(pair.ca)
            if serving is not None and stop.wait(self._settle):
                return
            self._certificates.replace(pair)
            log.info("certificate changed")

    def run(self, stop: threading.Event) -> None:
        """Look every few seconds until ``stop``."""
        while not stop.wait(PERIOD):
            try:
                self.step(stop)
            except BridgeError as error:
                log.warning("the certificate could not be looked after; the old one stays", extra=kv(error=error))


def _pair(data: dict[str, Any]) -> Pair | None:
    try:
        cert, key, ca = (base64.b64decode(data[name], validate=True) for name in (CERT, KEY, CA))
    except (KeyError, TypeError, ValueError):
        return None
    return Pair(ca, cert, key)
