import contextlib
import os

import pytest

from bridge.apps.plugin import listen
from bridge.apps.plugin.listen import Address
from bridge.errors import ConfigError
from bridge.serving.certificates import make_pair
from bridge.serving.client_access import Files, ServerAccess
from bridge.serving.http_connection import PEER_CERTIFICATE
from bridge.telemetry.metrics import CERTIFICATE_EXPIRY
from tests.fakes.client_certificate import Authority

NOW = 1_790_000_000.0


def private(path, content):
    path.write_bytes(content)
    path.chmod(0o600)
    return path


@pytest.fixture
def token(tmp_path):
    return private(tmp_path / "token", b"first-token\n")


def bearer(text):
    return {"HTTP_AUTHORIZATION": f"Bearer {text}"}


def test_without_files_every_request_is_allowed():
    assert ServerAccess(Files()).refusal({}) is None


@pytest.mark.parametrize("environ", [{}, bearer("wrong"), bearer(""), {"HTTP_AUTHORIZATION": "Basic first-token"}])
def test_a_request_without_the_token_is_refused(token, environ):
    refusal = ServerAccess(Files(token=token)).refusal(environ)
    assert refusal is not None
    assert "first-token" not in refusal


def test_a_new_token_is_valid_at_once_and_the_old_one_is_not(token):
    access = ServerAccess(Files(token=token))
    assert access.refusal(bearer("first-token")) is None
    fresh = private(token.with_name("fresh"), b"second-token")
    os.replace(fresh, token)
    assert access.refusal(bearer("first-token")) is not None
    assert access.refusal({"HTTP_AUTHORIZATION": "bearer second-token"}) is None


def test_while_the_token_file_is_absent_the_last_token_is_valid(token):
    access = ServerAccess(Files(token=token))
    token.unlink()
    assert access.refusal(bearer("first-token")) is None


def test_an_emptied_token_file_allows_nothing(token):
    access = ServerAccess(Files(token=token))
    token.write_bytes(b"\n")
    assert access.refusal(bearer("")) is not None
    assert access.refusal({}) is not None


@pytest.mark.parametrize(
    ("mode", "content", "why"),
    [(0o644, b"t", "open to other users"), (0o600, b"", "is empty"), (0o600, b" \n", "is empty")],
)
def test_a_token_file_that_is_refused(token, mode, content, why):
    token.write_bytes(content)
    token.chmod(mode)
    with pytest.raises(ConfigError, match=why):
        ServerAccess(Files(token=token))


def tls_files(folder, **more):
    pair = make_pair(["localhost"], 3600, now=NOW)
    cert = private(folder / "tls.crt", pair.cert)
    return Files(cert=cert, key=private(folder / "tls.key", pair.key), **more)


def test_a_client_without_a_certificate_is_refused(tmp_path, token):
    ca = private(tmp_path / "ca.crt", Authority().pem)
    access = ServerAccess(tls_files(tmp_path, client_ca=ca))
    assert access.refusal({}) is not None
    assert access.refusal({PEER_CERTIFICATE: b"der"}) is None
    both = ServerAccess(tls_files(tmp_path, client_ca=ca, token=token))
    assert both.refusal({PEER_CERTIFICATE: b"der"}) is not None
    assert both.refusal(bearer("first-token")) is not None
    assert both.refusal({PEER_CERTIFICATE: b"der", **bearer("first-token")}) is None


def test_a_replaced_certificate_is_served_and_a_bad_one_changes_nothing(tmp_path):
    files = tls_files(tmp_path)
    access = ServerAccess(files)
    before = access.certificates.pair
    access.refresh()
    assert access.certificates.pair.cert == before.cert
    tls_files(tmp_path)
    access.refresh()
    replaced = access.certificates.pair
    assert replaced.cert != before.cert
    files.cert.write_bytes(b"no certificate")
    access.refresh()
    assert access.certificates.pair == replaced


@pytest.mark.parametrize("text", [b"", b"no certificate"])
def test_an_authority_of_clients_without_a_certificate_is_refused(tmp_path, text):
    ca = private(tmp_path / "ca.crt", text)
    with pytest.raises(ConfigError, match=r"--client-ca: .*ca\.crt has no certificate"):
        ServerAccess(tls_files(tmp_path, client_ca=ca))
    ca.write_bytes(Authority().pem)
    access = ServerAccess(tls_files(tmp_path, client_ca=ca))
    before = access.certificates.clients
    ca.write_bytes(text)
    access.refresh()  # the file is being written
    assert access.certificates.clients == before


def test_files_that_do_not_fit_are_refused(tmp_path):
    files = tls_files(tmp_path)
    for wrong in (Files(cert=files.cert), Files(key=files.key), Files(client_ca=files.cert)):
        with pytest.raises(ConfigError):
            ServerAccess(wrong)
    files.cert.write_bytes(b"no certificate")
    with pytest.raises(ConfigError, match="--tls-cert"):
        ServerAccess(files)


# --- the address ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "address", "local"),
    [
        ("127.0.0.1:4000", Address("127.0.0.1", 4000), True),
        ("localhost:0", Address("localhost", 0), True),
        ("[::1]:4000", Address("::1", 4000), True),
        ("0.0.0.0:4000", Address("0.0.0.0", 4000), False),  # noqa: S104
        ("[::]:4000", Address("::", 4000), False),
        ("login1.example.org:4000", Address("login1.example.org", 4000), False),
    ],
)
def test_addresses(text, address, local):
    found = listen.parse(text)
    assert (found, found.is_local) == (address, local)


def test_a_unix_socket(tmp_path):
    found = listen.parse(f"unix://{tmp_path}/s")
    assert (found.unix, found.is_local) == (tmp_path / "s", True)


@pytest.mark.parametrize(
    "text", ["", "4000", ":4000", "h:70000", "h:x", "unix://relative", "unix:///" + "x" * 120, "::1:4"]
)
def test_other_addresses_are_refused_with_what_is_allowed(text):
    with pytest.raises(ConfigError, match="allowed: "):
        listen.parse(text)


@pytest.mark.parametrize(
    ("text", "local_users_suffice"),
    [("0.0.0.0:4000", False), ("127.0.0.1:4000", True), ("[::1]:4000", True), ("localhost:4000", True)],
)
def test_a_port_needs_a_token_or_a_certificate(text, local_users_suffice):
    address = listen.parse(text)
    with pytest.raises(ConfigError, match="--token-file or --client-ca"):
        listen.check(address, token=False, client_ca=False)
    listen.check(address, token=True, client_ca=False)
    listen.check(address, token=False, client_ca=True)
    with contextlib.nullcontext() if local_users_suffice else pytest.raises(ConfigError):
        listen.check(address, token=False, client_ca=False, local_users=True)


def test_a_socket_needs_no_token(tmp_path):
    listen.check(listen.parse(listen.default(tmp_path)), token=False, client_ca=False)


def test_its_certificate_is_not_reported_as_that_of_the_webhook(tmp_path):
    pair = make_pair(["a.example"], 86400, now=NOW)
    cert, key = private(tmp_path / "cert", pair.cert), private(tmp_path / "key", pair.key)
    before = CERTIFICATE_EXPIRY._value.get()
    assert ServerAccess(Files(cert=cert, key=key)).certificates is not None
    assert CERTIFICATE_EXPIRY._value.get() == before
