"""Access to a server: for clients with the bearer token, with a certificate of the client CA, or with both.

The files are read again when they change, so that a token or a certificate can be replaced without a restart.
"""

from __future__ import annotations

import hmac
import logging
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.errors import CertificateError, ConfigError
from bridge.logs import kv
from bridge.serving.certificates import Certificates, Pair, authorities
from bridge.serving.http_connection import PEER_CERTIFICATE

log = logging.getLogger(__name__)

Stamp = tuple[int, int, int] | None
_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class Files:
    """The files of the server's identity and of its clients. A client CA requires the server's certificate."""

    token: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class OptionNames:
    """The names of the options or keys that a user sets, for error messages."""

    token: str = "--token-file"  # noqa: S105  (the name of an option)
    cert: str = "--tls-cert"
    key: str = "--tls-key"
    client_ca: str = "--client-ca"


class ServerAccess:
    """Checks requests, and keeps the server's certificate current. Raises :class:`ConfigError` for unusable files."""

    def __init__(self, files: Files, options: OptionNames = OptionNames()) -> None:
        if (files.cert is None) != (files.key is None):
            raise ConfigError(f"{options.cert} and {options.key} belong together")
        if files.client_ca is not None and files.cert is None:
            raise ConfigError(f"{options.client_ca} requires {options.cert} and {options.key}")
        self._files, self._options = files, options
        self._lock = threading.Lock()
        self._token: bytes | None = None
        self._token_stamp: Stamp = None
        self._tls_stamps: list[Stamp] = []
        self.certificates: Certificates | None = None
        if files.token is not None:
            _refuse_if_open(files.token, options.token)
            self._read_token()
            if not self._token:
                raise ConfigError(f"{options.token}: {files.token} is empty")
        if files.cert is not None and files.key is not None:
            _refuse_if_open(files.key, options.key)
            self.certificates = Certificates(gauge=None)  # the gauge is that of the webhook
            try:
                self._read_tls()
            except (OSError, CertificateError) as error:
                raise ConfigError(f"{options.cert}, {options.key}, {options.client_ca}: {error}") from error

    def refusal(self, environ: Mapping[str, Any]) -> str | None:
        """Return why a request is refused; ``None`` if it is allowed. ``environ``: its WSGI environment."""
        if self._files.client_ca is not None and environ.get(PEER_CERTIFICATE) is None:
            return "a client certificate is required"
        if self._files.token is None:
            return None
        self._read_token()
        header = str(environ.get("HTTP_AUTHORIZATION", ""))
        presented = header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else ""
        token = self._token
        if not presented or not token or not hmac.compare_digest(presented.encode("utf-8", "replace"), token):
            return "a valid bearer token is required"
        return None

    def refresh(self) -> None:
        """Load the server's certificate and the client CA again if a file has changed; keep the old ones on errors."""
        if self.certificates is None:
            return
        try:
            self._read_tls()
        except (OSError, CertificateError) as error:
            log.warning("certificate files not used", extra=kv(error=error))

    def _read_token(self) -> None:
        path = self._files.token
        if path is None or (stamp := _stamp(path)) == self._token_stamp:
            return
        with self._lock:
            try:
                self._token = path.read_bytes().strip()
            except OSError as error:  # while the file is being replaced, the previous token stays valid
                if self._token is None:
                    raise ConfigError(f"{self._options.token}: cannot read {path}: {error.strerror}") from error
                log.warning("token file not read", extra=kv(error=error.strerror))
                return
            # the stamp from before the read: a file that is replaced during it is read again
            self._token_stamp = stamp

    def _read_tls(self) -> None:
        files, certificates = self._files, self.certificates
        if certificates is None or files.cert is None or files.key is None:
            return
        stamps = [_stamp(path) for path in (files.cert, files.key, files.client_ca) if path is not None]
        if stamps == self._tls_stamps:
            return
        cert, key = files.cert.read_bytes(), files.key.read_bytes()
        clients = files.client_ca.read_bytes() if files.client_ca is not None else b""
        if files.client_ca is not None and not authorities(clients):  # an empty file would accept no client at all
            raise CertificateError(f"{files.client_ca} has no certificate")
        certificates.replace(Pair(b"", cert, key))
        if clients != certificates.clients:
            certificates.trust(clients)
        self._tls_stamps = stamps


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _refuse_if_open(path: Path, option: str) -> None:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror}") from error
    if mode & 0o007:
        raise ConfigError(f"{option}: {path} is open to other users (mode {mode:04o})", hint=f"chmod o= {path}")
