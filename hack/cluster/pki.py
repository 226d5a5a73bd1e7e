"""The cluster's own certificate authority, key pairs and kubeconfigs."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=365)


class Authority:
    """A certificate authority in ``<name>.crt`` and ``<name>.key``, created at first use."""

    def __init__(self, folder: Path, name: str) -> None:
        self.certificate = folder / f"{name}.crt"
        self._key_file = folder / f"{name}.key"
        if not self._key_file.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            subject = _name(f"podbridge-{name}", ())
            builder = _builder(subject, subject, key.public_key()).add_extension(
                x509.BasicConstraints(True, None), True
            )
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(usage, True)
            self.certificate.write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
            write_key(self._key_file, key)

    def issue(self, name: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> tuple[bytes, bytes]:
        """Return a certificate and key (PEM) for user ``name`` in ``groups``, or for a server at ``hosts``."""
        authority = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        signer = serialization.load_pem_private_key(self._key_file.read_bytes(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)  # noqa: S101  (we wrote it)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name, groups), authority.subject, key.public_key())
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _pem(key)

    def write(self, stem: Path, name: str, groups: Sequence[str] = (), hosts: Sequence[str] = ()) -> tuple[Path, Path]:
        """Write a pair of :meth:`issue` to ``<stem>.crt`` and ``<stem>.key``."""
        certificate, key = stem.with_suffix(".crt"), stem.with_suffix(".key")
        content = self.issue(name, groups, hosts)
        certificate.write_bytes(content[0])
        key.touch(mode=0o600)
        key.write_bytes(content[1])
        return certificate, key


def write_key(file: Path, key: ec.EllipticCurvePrivateKey | None = None) -> None:
    """Write a private key, a new one by default, readable by its owner only."""
    file.touch(mode=0o600)
    file.write_bytes(_pem(key or ec.generate_private_key(ec.SECP256R1())))


def kubeconfig(server: str, authority: Authority, pair: tuple[bytes, bytes], user: str) -> str:
    """Return the text of a kubeconfig with embedded files (JSON is YAML)."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "local",
        "clusters": [
            {
                "name": "local",
                "cluster": {"server": server, "certificate-authority-data": _b64(authority.certificate.read_bytes())},
            }
        ],
        "users": [{"name": user, "user": {"client-certificate-data": _b64(pair[0]), "client-key-data": _b64(pair[1])}}],
        "contexts": [{"name": "local", "context": {"cluster": "local", "user": user, "namespace": "default"}}],
    }
    return json.dumps(content, indent=1) + "\n"


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + VALIDITY)
    )


def _name(user: str, groups: Sequence[str]) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
