"""The storage of the webhook's certificate, and its rotation.

Several replicas share one Secret. A replica that finds no certificate, or one that has reached two thirds of its
validity, writes the next pair. The API server accepts one writer (by the name of a new Secret, by the resource version
of an existing one), and the other replicas use its pair. The rotation interrupts no review:

1. The new authority is added to ``caBundle``. The old one stays there until it expires.
2. The replica waits until every API server has read the new ``caBundle``.
3. The replica serves the new pair. Other replicas may still serve the old pair, which is still trusted.
"""

from __future__ import annotations

import base64
import dataclasses
import ipaddress
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bridge import names
from bridge.clock import SYSTEM_CLOCK, Clock
from bridge.config.hub import Config
from bridge.errors import BridgeError, CertificateError, KubeConflictError, KubeForbiddenError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import SECRETS
from bridge.logs import kv
from bridge.serving.certificates import (
    CA,
    CERT,
    KEY,
    Certificates,
    Pair,
    bundle,
    check_authority,
    check_name,
    make_pair,
    needs_renewal,
    read_pair,
)

log = logging.getLogger(__name__)

PERIOD = 10.0
"""Seconds between two reads of the Secret or the files."""
SETTLE = 5.0
"""Seconds until every API server has read a changed ``caBundle`` (by watch: less than a second each)."""
TRIES = 5


def server_names(config: Config) -> list[str]:
    """Return the host names or the IP address that the API server uses for the webhook."""
    settings = config.admission
    if settings.url is None:
        service = f"{settings.service_name}.{settings.service_namespace}"
        return [f"{service}.svc", f"{service}.svc.cluster.local", service]
    host = urlsplit(settings.url).hostname or "localhost"
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        return [host]


def read_files(folder: Path, config: Config) -> Pair:
    """Read the pair of ``admission.certDir``. Raises CertificateError also for one with which every review would fail.

    With ``admission.url``, a proxy may have the certificate that the API server sees.
    """
    pair = read_pair(folder)
    try:
        check_authority(pair)
        if config.admission.url is None:
            check_name(pair, server_names(config)[0])
    except CertificateError as error:
        raise CertificateError(f"admission.certDir: {folder}: {error}") from error
    return pair


class SecretCertificateStore:
    """Creates pairs and stores them in a Secret."""

    def __init__(self, client: KubeClient, config: Config, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._namespace, self._name = config.admission.service_namespace, config.admission.secret_name
        self._names = server_names(config)
        self._validity = config.admission.cert_validity
        self._clock = clock

    def ensure(self, serving: Pair | None) -> Pair:
        """Read the pair; create and write the next one if it is due. Raises ``Kube*`` errors."""
        for _ in range(TRIES):
            secret = self._read()
            pair = None if secret is None else _pair(secret.get("data") or {})
            now = self._clock.time()
            if pair is not None and not needs_renewal(pair, now, self._names):
                return pair
            old_authorities = [existing.ca for existing in (serving, pair) if existing is not None]
            fresh = make_pair(self._names, self._validity, now=now)
            fresh = dataclasses.replace(fresh, ca=bundle(now, fresh.ca, *old_authorities, needed=fresh.ca))
            try:
                self._write(secret, fresh)
            except KubeConflictError:
                continue  # another replica has written a pair: use that
            log.info("certificate created", extra=kv(secret=self._name, names=",".join(self._names)))
            return fresh
        raise CertificateError(
            f"secret {self._namespace}/{self._name}: {TRIES} updates in a row conflicted with another writer"
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
                # the Secret was deleted after the read: the next try creates it
                raise KubeConflictError(str(error), status=409) from error
            return
        metadata = {"name": self._name, "labels": {"app.kubernetes.io/name": names.COMPONENT}}
        head = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}
        body = {**head, "type": "kubernetes.io/tls", "data": data}
        try:
            self._client.create(SECRETS.path(self._namespace), body)
        except KubeForbiddenError as error:
            raise CertificateError(
                f"secret {self._namespace}/{self._name} does not exist, and podbridge is not allowed to create it",
                hint="kubectl apply -f config/rbac.yaml creates an empty one",
            ) from error


class CertificateRotator:
    """Serves a pair after ``trust(authorities)`` has added its authorities to ``caBundle``.

    ``ensure`` gets the pair that is served, and returns the one to serve: see :class:`SecretCertificateStore`.
    """

    def __init__(
        self,
        ensure: Callable[[Pair | None], Pair],
        certificates: Certificates,
        trust: Callable[[bytes], object],
        *,
        settle: float = SETTLE,
    ) -> None:
        self._ensure = ensure
        self._certificates = certificates
        self._trust = trust
        self._settle = settle
        self._lock = threading.Lock()

    def step(self, stop: threading.Event) -> None:
        """Read the pair once and serve a new pair. Raises :class:`BridgeError`; the old pair is then still served."""
        with self._lock:
            serving = self._certificates.pair
            pair = self._ensure(serving)
            # also without a new pair: `helm upgrade --force` empties the webhook configurations
            if pair == serving:
                self._trust(pair.ca)
                return
            # raises for an unusable pair before its authorities reach caBundle
            Certificates(pair, gauge=None)
            self._trust(pair.ca)
            if serving is not None and stop.wait(self._settle):
                return
            self._certificates.replace(pair)
            log.info("new certificate served")

    def run(self, stop: threading.Event) -> None:
        """Call :meth:`step` every :data:`PERIOD` seconds until ``stop`` is set."""
        while not stop.wait(PERIOD):
            try:
                self.step(stop)
            except BridgeError as error:
                log.warning("certificate not read or renewed; the old one is still served", extra=kv(error=error))


def _pair(data: dict[str, Any]) -> Pair | None:
    try:
        cert, key, ca = (base64.b64decode(data[name], validate=True) for name in (CERT, KEY, CA))
    except (KeyError, TypeError, ValueError):
        return None
    return Pair(ca, cert, key)
