"""Client certificates of an authority that a test creates."""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """A certificate authority of clients."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, secrets.token_hex(4))])
        builder = _builder(self.name, self.name, self.key.public_key(), days=1)
        cert = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(self.key, hashes.SHA256())
        self.pem = cert.public_bytes(serialization.Encoding.PEM)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    end = now + datetime.timedelta(days=days)
    return builder.not_valid_before(now - datetime.timedelta(days=2)).not_valid_after(end)


def client_files(
    folder: Path,
    authority: Authority,
    name: str = "alice",
    usage: Any = ExtendedKeyUsageOID.CLIENT_AUTH,
    days: int = 1,
    groups: Sequence[str] = ("staff",),
) -> Path:
    """Write the certificate and key of a client; return the file."""
    key = ec.generate_private_key(ec.SECP256R1())
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    cert = (
        _builder(subject, authority.name, key.public_key(), days)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    file = folder / f"{name}-{cert.serial_number}.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(cert.public_bytes(serialization.Encoding.PEM) + private)
    return file
