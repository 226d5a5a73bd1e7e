"""Serving certificates: creation, checks, and replacement while a server runs.

Each pair is signed by its own certificate authority, whose key is discarded after this signature, so that a reader of
the pair cannot sign another certificate. Each rotation therefore creates a new authority. Clients must trust the new
authority before the pair is served, and the old one as long as a replica serves the old pair: see :func:`bundle`.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from prometheus_client import Gauge

from bridge.errors import CertificateError
from bridge.telemetry import metrics

CERT, KEY, CA = "tls.crt", "tls.key", "ca.crt"
"""Names of files, and of the keys of a Secret."""
RENEW_AT = 2 / 3
"""Fraction of the validity after which a certificate is renewed; the rest is a reserve for failed renewals."""
MAX_AUTHORITIES = 6
"""Maximum number of authorities in a bundle beside those that are needed; the newest are kept."""
_SKEW = timedelta(minutes=5)
_CA_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    crl_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The authorities to trust, the certificate chain and its private key, all as PEM."""

    ca: bytes
    cert: bytes
    key: bytes


def read_pair(folder: Path) -> Pair:
    """Read a pair from files, as cert-manager writes them; ``ca.crt`` may be missing. Raises CertificateError."""
    try:
        ca = (folder / CA).read_bytes() if (folder / CA).exists() else b""
        return Pair(ca, (folder / CERT).read_bytes(), (folder / KEY).read_bytes())
    except OSError as error:
        raise CertificateError(f"cannot read {error.filename}: {error.strerror}") from error


def check_authority(pair: Pair) -> None:
    """Raise CertificateError unless the chain of ``pair`` leads to one of its authorities; without any, do nothing."""
    trusted, chain = authorities(pair.ca), authorities(pair.cert)
    known = any(cert in trusted or any(_signed(cert, authority) for authority in trusted) for cert in chain)
    if pair.ca and not known:
        raise CertificateError(f"{CA}: no certificate in it has signed {CERT}; allowed: its authority, or no {CA}")


def check_name(pair: Pair, name: str) -> None:
    """Raise CertificateError unless the certificate is for this DNS name, also by a wildcard for its first part."""
    try:
        sans = _first(pair.cert).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        listed = sans.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:
        listed = []
    if name not in listed and f"*.{name.partition('.')[2]}" not in listed:
        names = ", ".join(listed[:10]) or "none"
        raise CertificateError(f"{CERT}: its DNS names are {names}; allowed: a certificate for {name}")


def make_pair(names: Iterable[str], validity: float, *, now: float) -> Pair:
    """Create an authority, and a pair for DNS names and IP addresses that it signs; ``validity`` in seconds.

    The authority outlives the pair. Its key is discarded.
    """
    subjects = sorted(set(names))
    if not subjects:
        raise CertificateError("a certificate needs at least one DNS name or IP address")
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # clients find the issuer by name, so each authority needs a unique one
    ca_name = _name(f"podbridge-ca-{secrets.token_hex(4)}")
    ca = (
        _certificate(ca_name, ca_name, ca_key.public_key(), _life(now, validity * 2))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_CA_USAGE, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    # VERIFY_X509_STRICT, Python's default from 3.13 on, refuses certificates without key identifiers
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    cert = (
        _certificate(_name("podbridge"), ca_name, key.public_key(), _life(now, validity))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in subjects]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(authority_id, critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(_pem(ca), _pem(cert), private)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    return builder.not_valid_before(life[0]).not_valid_after(life[1])


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(serialization.Encoding.PEM)


def expires(pem: bytes) -> float:
    """Return the expiry of the first certificate in ``pem``, in seconds since the epoch."""
    return _first(pem).not_valid_after_utc.timestamp()


def needs_renewal(pair: Pair, now: float, names: Iterable[str]) -> bool:
    """Whether the pair is unusable, not signed by its authorities, lacks a name, or has passed :data:`RENEW_AT`.

    IP addresses in ``names`` must be in normal form.
    """
    try:
        context(pair)
        cert = _first(pair.cert)
        sans = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (CertificateError, x509.ExtensionNotFound):
        return True
    if not set(names) <= {str(name.value) for name in sans}:
        return True
    # with an authority that has not signed the certificate, every review would fail
    if not any(_signed(cert, authority) for authority in authorities(pair.ca)):
        return True
    begin, end = cert.not_valid_before_utc.timestamp(), cert.not_valid_after_utc.timestamp()
    return now >= begin + (end - begin) * RENEW_AT


def bundle(now: float, *pems: bytes, needed: bytes = b"") -> bytes:
    """Join the authorities of PEM texts in order: those of ``needed``, and the newest of the others.

    Duplicates and expired authorities are left out.
    """
    unexpired: dict[bytes, x509.Certificate] = {}
    for pem in pems:
        for cert in authorities(pem):
            if cert.not_valid_after_utc.timestamp() > now:
                unexpired.setdefault(_pem(cert), cert)
    always = set(authorities(needed))
    others = [pem for pem, cert in unexpired.items() if cert not in always]
    newest = sorted(others, key=lambda pem: unexpired[pem].not_valid_before_utc, reverse=True)[:MAX_AUTHORITIES]
    return b"".join(pem for pem, cert in unexpired.items() if cert in always or pem in newest)


def authorities(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates in a PEM text; empty for unreadable text."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


class ServerContext(ssl.SSLContext):
    """A server's TLS context with the accepted authorities of clients (PEM; empty: none is requested)."""

    clients: bytes = b""


def context(pair: Pair, clients: bytes = b"") -> ServerContext:
    """Create the server's TLS context (1.2 or newer); raises :class:`CertificateError` for an unusable pair.

    With ``clients`` (PEM), the server requests a certificate of one of these authorities. The client may send none; an
    invalid certificate fails the handshake.

    ``ssl`` reads certificates only from files. They exist in a private directory during this call.
    """
    made = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    if clients:
        try:
            made.load_verify_locations(cadata=clients.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise CertificateError(f"the client authorities cannot be used: {error}") from error
        # accept an intermediate authority without its root
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        made.verify_mode = ssl.CERT_OPTIONAL
        made.clients = clients
    with tempfile.TemporaryDirectory(prefix="podbridge-tls-") as folder:
        cert, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        for path, content in ((cert, pair.cert), (key, pair.key)):
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
        try:
            # with a password, an encrypted key fails instead of prompting on the terminal
            made.load_cert_chain(cert, key, password="")
        except (ssl.SSLError, ValueError, OSError) as error:
            raise CertificateError(f"certificate and key cannot be used: {error}") from error
    return made


class Certificates:
    """The current pair, the accepted authorities of clients, and the listeners for changes.

    ``gauge`` is set to the expiry of the pair.
    """

    def __init__(self, pair: Pair | None = None, *, gauge: Gauge | None = metrics.CERTIFICATE_EXPIRY) -> None:
        self._lock = threading.Lock()
        self._listeners: list[Callable[[ssl.SSLContext], None]] = []
        self._context: ServerContext | None = None
        self._gauge = gauge
        self.pair: Pair | None = None
        self.clients = b""
        if pair is not None:
            self.replace(pair)

    @property
    def ca_bundle(self) -> bytes:
        """The authorities that clients must trust; empty before the first pair."""
        return self.pair.ca if self.pair else b""

    def replace(self, pair: Pair) -> None:
        """Serve ``pair`` on new connections; for an unusable pair raise CertificateError and change nothing."""
        self._change(pair, self.clients)
        if self._gauge is not None:
            with contextlib.suppress(CertificateError):
                self._gauge.set(expires(pair.cert))

    def trust(self, clients: bytes) -> None:
        """Accept client certificates of these authorities (PEM; empty: none); raises CertificateError.

        An idle connection is closed at its next request; the client then opens a new one.
        """
        if self.pair is None:
            raise CertificateError("no certificate is served yet")
        self._change(self.pair, clients)

    def _change(self, pair: Pair, clients: bytes) -> None:
        ready = context(pair, clients)
        with self._lock:
            self.pair, self.clients, self._context = pair, clients, ready
            listeners = list(self._listeners)
        for listener in listeners:
            listener(ready)

    def listen(self, listener: Callable[[ssl.SSLContext], None]) -> None:
        """Call ``listener`` with the TLS context: now, if there is one, and at each change."""
        with self._lock:
            self._listeners.append(listener)
            ready = self._context
        if ready is not None:
            listener(ready)


def _first(pem: bytes) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise CertificateError(f"not a PEM certificate: {error}") from error


def _signed(cert: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        cert.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _life(now: float, validity: float) -> tuple[datetime, datetime]:
    # begins in the past for clients with a slow clock, but at most by a tenth of the validity
    begin = datetime.fromtimestamp(now, UTC)
    length = timedelta(seconds=validity)
    return begin - min(_SKEW, length / 10), begin + length


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
