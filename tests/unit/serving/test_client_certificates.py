from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import flask
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from bridge.errors import CertificateError
from bridge.serving.certificates import Certificates, make_pair
from bridge.serving.http_connection import PEER_CERTIFICATE
from bridge.serving.https import Server
from tests.fakes.client_certificate import Authority, client_files

PAIR = make_pair(["127.0.0.1"], 86400.0, now=time.time())
CA, OTHER = Authority(), Authority()


def app() -> flask.Flask:
    made = flask.Flask("who")

    @made.get("/who")
    def who() -> str:
        certificate = flask.request.environ.get(PEER_CERTIFICATE)
        return x509.load_der_x509_certificate(certificate).subject.rfc4514_string() if certificate else "nobody"

    return made


@pytest.fixture
def serve(run_server: Callable[[Server], Server]) -> Callable[[Certificates], Server]:
    return lambda certificates: run_server(
        Server(app(), "127.0.0.1", 0, threads=2, drain=0.02, certificates=certificates)
    )


def trusting(*cas: Authority) -> Certificates:
    certificates = Certificates(PAIR, gauge=None)
    certificates.trust(b"".join(ca.pem for ca in cas))
    return certificates


def make_context(file: Path | None = None, newest: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=PAIR.ca.decode())
    if file is not None:
        context.load_cert_chain(file)
    if newest is not None:
        context.maximum_version = newest
    return context


def connect(server: Server, file: Path | None = None, newest: ssl.TLSVersion | None = None) -> Any:
    return connect_with(server, make_context(file, newest))


def connect_with(server: Server, context: ssl.SSLContext) -> Any:
    return http.client.HTTPSConnection("127.0.0.1", server.port, timeout=5, context=context)


def who(connection: Any) -> str:
    connection.request("GET", "/who", headers={"podbridge.peer-certificate": "x", PEER_CERTIFICATE: "x"})
    return str(connection.getresponse().read().decode())


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_certificate_of_the_authority_names_its_owner(
    serve: Callable[..., Server], tmp_path: Path, newest: ssl.TLSVersion
) -> None:
    server = serve(trusting(CA))
    connection = connect(server, client_files(tmp_path, CA), newest)
    for _ in range(3):  # also on the same connection
        assert who(connection) == "CN=alice,O=staff"


def test_no_certificate_is_lost_among_many_handshakes_at_once(serve: Callable[..., Server], tmp_path: Path) -> None:
    server = serve(trusting(CA))
    context = make_context(client_files(tmp_path, CA))
    with ThreadPoolExecutor(16) as threads:
        owners = list(threads.map(lambda _: who(connect_with(server, context)), range(200)))
    assert set(owners) == {"CN=alice,O=staff"}


def test_no_certificate_is_needed_and_no_header_stands_for_one(serve: Callable[..., Server]) -> None:
    assert who(connect(serve(trusting(CA)))) == "nobody"


@pytest.mark.parametrize("kind", ["other authority", "server certificate", "expired"])
def test_a_certificate_that_is_no_good_gets_no_connection(
    serve: Callable[..., Server], tmp_path: Path, kind: str
) -> None:
    server = serve(trusting(CA))
    files = {
        "other authority": client_files(tmp_path, OTHER),
        "server certificate": client_files(tmp_path, CA, usage=ExtendedKeyUsageOID.SERVER_AUTH),
        "expired": client_files(tmp_path, CA, days=-1),
    }
    with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
        who(connect(server, files[kind]))


def test_a_server_that_trusts_no_authority_asks_for_no_certificate(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    server = serve(Certificates(PAIR, gauge=None))
    assert who(connect(server, client_files(tmp_path, OTHER))) == "nobody"


def test_an_authority_that_is_no_longer_trusted_is_out_at_the_next_request(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    certificates = trusting(CA)
    server = serve(certificates)
    connection = connect(server, client_files(tmp_path, CA))
    assert who(connection) == "CN=alice,O=staff"
    certificates.trust(OTHER.pem)
    with pytest.raises((OSError, http.client.HTTPException)):
        who(connection)
    certificates.trust(OTHER.pem + CA.pem)
    assert who(connect(server, client_files(tmp_path, CA))) == "CN=alice,O=staff"
    assert who(connect(server, client_files(tmp_path, OTHER, "bob"))) == "CN=bob,O=staff"


def test_a_new_serving_pair_keeps_connections_and_the_trust_in_clients(
    serve: Callable[..., Server], tmp_path: Path
) -> None:
    certificates = trusting(CA)
    server = serve(certificates)
    connection = connect(server, client_files(tmp_path, CA))
    assert who(connection) == "CN=alice,O=staff"
    before = connection.sock
    certificates.replace(make_pair(["127.0.0.1"], 86400.0, now=time.time()))
    assert who(connection) == "CN=alice,O=staff"
    assert connection.sock is before
    assert certificates.clients == CA.pem


def test_authorities_that_are_none_change_nothing() -> None:
    certificates = trusting(CA)
    with pytest.raises(CertificateError, match="client authorities"):
        certificates.trust(b"rubbish")
    assert certificates.clients == CA.pem
