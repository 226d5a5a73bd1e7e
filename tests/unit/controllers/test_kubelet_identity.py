from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bridge.errors import KubeUnavailableError
from bridge.serving.http_error import AnswerError
from controllers.kubelet.authentication import (
    REMEMBER_KNOWN,
    REMEMBER_UNKNOWN,
    TokenAuthenticator,
    User,
    bearer,
    user_of_certificate,
)
from controllers.kubelet.authorization import REMEMBER_NO, REMEMBER_YES, KubeletAuthorizer, subresources
from tests.fakes.clock import FakeClock


def certificate(name: str, *groups: str, days: float = 1) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    parts += [x509.NameAttribute(NameOID.COMMON_NAME, name)] if name else []
    cert = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(parts))
        .issuer_name(x509.Name(parts))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=2))
        .not_valid_after(now + datetime.timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    return cert.public_bytes(serialization.Encoding.DER)


def test_a_certificates_names() -> None:
    user = user_of_certificate(certificate("alice", "one", "two"), time.time())
    assert user == User("alice", groups=("one", "two"))


@pytest.mark.parametrize("made", [certificate("", "one"), certificate("alice", days=-1), b"rubbish"])
def test_a_certificate_that_names_nobody_now(made: bytes) -> None:
    assert user_of_certificate(made, time.time()) is None


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer abc.def-_~+/=", "abc.def-_~+/="),
        ("bearer  abc", "abc"),
        ("Basic abc", None),
        ("Bearer", None),
        ("Bearer a b", None),
        ("Bearer " + "a" * 20_000, None),
        ("", None),
    ],
)
def test_bearer(header: str, token: str | None) -> None:
    assert bearer(header) == token


class Reviews:
    """What an API server would say, and how often it was asked."""

    def __init__(self, status: dict[str, Any]) -> None:
        self.status = status
        self.asked: list[str] = []
        self.down = False

    def __call__(self, token: str) -> dict[str, Any]:
        self.asked.append(token)
        if self.down:
            raise KubeUnavailableError("down")
        return self.status


GOOD = {"authenticated": True, "user": {"username": "sa", "uid": "7", "groups": ["g"], "extra": {"k": ["v"]}}}


def test_a_good_token_is_asked_about_once_in_a_while() -> None:
    clock, reviews = FakeClock(), Reviews(GOOD)
    tokens = TokenAuthenticator(reviews, clock)
    user = tokens.user("t")
    assert user is not None
    assert user.info == {"username": "sa", "uid": "7", "groups": ["g"], "extra": {"k": ("v",)}}
    clock.advance(REMEMBER_KNOWN - 1)
    assert tokens.user("t") == user
    assert len(reviews.asked) == 1
    reviews.status = {"authenticated": False}
    clock.advance(2)
    assert tokens.user("t") is None


def test_a_bad_token_is_asked_about_again_sooner() -> None:
    clock, reviews = FakeClock(), Reviews({"authenticated": False, "user": {"username": "x"}})
    tokens = TokenAuthenticator(reviews, clock)
    assert tokens.user("t") is None
    assert tokens.user("t") is None
    assert len(reviews.asked) == 1
    reviews.status = GOOD
    clock.advance(REMEMBER_UNKNOWN + 1)
    assert tokens.user("t") is not None


@pytest.mark.parametrize("status", [{}, {"authenticated": True}, {"authenticated": "true", "user": {"username": "x"}}])
def test_an_answer_that_names_nobody_lets_nobody_in(status: dict[str, Any]) -> None:
    assert TokenAuthenticator(Reviews(status), FakeClock()).user("t") is None


def test_silence_of_the_api_server_is_not_remembered() -> None:
    reviews = Reviews(GOOD)
    tokens = TokenAuthenticator(reviews, FakeClock())
    reviews.down = True
    with pytest.raises(KubeUnavailableError):
        tokens.user("t")
    reviews.down = False
    assert tokens.user("t") is not None


def test_tokens_are_not_kept() -> None:
    tokens = TokenAuthenticator(Reviews(GOOD), FakeClock())
    tokens.user("very-secret")
    assert "very-secret" not in repr(vars(tokens._reviews))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/containerLogs/n/p/c", ("proxy",)),
        ("/exec/n/p/c", ("proxy",)),
        ("/pods", ("pods", "proxy")),
        ("/runningpods/", ("pods", "proxy")),
        ("/healthz", ("healthz", "proxy")),
        ("/configz", ("configz", "proxy")),
        ("/stats/summary", ("stats",)),
        ("/metrics/resource", ("metrics",)),
        ("/metrics", ("metrics",)),
        ("/logs/", ("log",)),
        ("/spec/", ("spec",)),
        ("/", ("proxy",)),
        ("/statsx", ("proxy",)),
        ("/./stats", ("proxy",)),
    ],
)
def test_a_kubelets_mapping(path: str, expected: tuple[str, ...]) -> None:
    assert subresources(path) == expected


class Rights:
    """Who may what: (user, verb, subresource, node)."""

    def __init__(self, *allowed: tuple[str, str, str, str]) -> None:
        self.allowed = set(allowed)
        self.asked: list[tuple[str, str, str, str]] = []

    def __call__(self, user: User, verb: str, subresource: str, node: str) -> bool:
        self.asked.append((user.name, verb, subresource, node))
        return (user.name, verb, subresource, node) in self.allowed


ALICE = User("alice")


def test_a_right_on_one_node_is_no_right_on_another() -> None:
    access = KubeletAuthorizer(Rights(("alice", "get", "proxy", "one")), FakeClock())
    access.check(ALICE, "GET", "/containerLogs/n/p/c", "one")
    for method, node in (("GET", "two"), ("GET", ""), ("POST", "one"), ("TRACE", "one")):
        with pytest.raises(AnswerError) as refused:
            access.check(ALICE, method, "/containerLogs/n/p/c", node)
        assert refused.value.status == 403
        assert "alice" in refused.value.text


def test_lists_hold_the_nodes_that_are_allowed() -> None:
    access = KubeletAuthorizer(Rights(("alice", "get", "pods", "one")), FakeClock())
    assert access.nodes(ALICE, "GET", "/pods", ["one", "two"]) == {"one"}
    with pytest.raises(AnswerError):
        access.nodes(ALICE, "GET", "/pods", ["two"])


def test_who_may_on_any_node_is_asked_about_once() -> None:
    rights = Rights(("alice", "get", "stats", ""))
    access = KubeletAuthorizer(rights, FakeClock())
    assert access.nodes(ALICE, "GET", "/stats/summary", ["one", "two", "three"]) == {"one", "two", "three"}
    assert len(rights.asked) == 1


def test_yes_and_no_are_remembered_each_for_its_time() -> None:
    clock, rights = FakeClock(), Rights(("alice", "get", "stats", "one"))
    access = KubeletAuthorizer(rights, clock)
    access.check(ALICE, "GET", "/stats/summary", "one")
    rights.allowed.clear()
    clock.advance(REMEMBER_YES - 1)
    access.check(ALICE, "GET", "/stats/summary", "one")
    clock.advance(2)
    with pytest.raises(AnswerError):
        access.check(ALICE, "GET", "/stats/summary", "one")
    rights.allowed.add(("alice", "get", "stats", "one"))
    clock.advance(REMEMBER_NO - 1)
    with pytest.raises(AnswerError):
        access.check(ALICE, "GET", "/stats/summary", "one")
    clock.advance(2)
    access.check(ALICE, "GET", "/stats/summary", "one")


def test_same_name_other_groups_is_another_question() -> None:
    rights = Rights()
    access = KubeletAuthorizer(rights, FakeClock())
    for user in (ALICE, User("alice", groups=("admins",)), User("alice", extra={"scopes": ("few",)})):
        with pytest.raises(AnswerError):
            access.check(user, "GET", "/stats/summary", "one")
    assert len(rights.asked) == 3
