from __future__ import annotations

import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.errors import CertificateError
from bridge.serving import certificates
from bridge.serving.certificates import Certificates, Pair, bundle, expires, make_pair, needs_renewal

NOW = 1_800_000_000.0
DAY = 86400.0
NAMES = ["hook.podbridge.svc", "127.0.0.1", "::1"]


def test_a_pair_serves_its_names_and_its_authority_is_trusted() -> None:
    pair = make_pair(NAMES, DAY, now=NOW)
    assert not needs_renewal(pair, NOW, NAMES)
    assert expires(pair.cert) == NOW + DAY


def test_a_pair_needs_a_name() -> None:
    with pytest.raises(CertificateError, match="at least one"):
        make_pair([], DAY, now=NOW)


@pytest.mark.parametrize(
    ("age", "due"), [(0.0, False), (0.5, False), (0.64, False), (0.68, True), (0.99, True), (1.5, True)]
)
def test_renewal_is_due_after_two_thirds(age: float, due: bool) -> None:
    pair = make_pair(NAMES, 90 * DAY, now=NOW)
    assert needs_renewal(pair, NOW + age * 90 * DAY, NAMES) is due


def test_a_short_life_is_not_due_at_once() -> None:
    pair = make_pair(NAMES, 60, now=NOW)
    assert not needs_renewal(pair, NOW + 30, NAMES)
    assert needs_renewal(pair, NOW + 45, NAMES)


def test_another_name_makes_renewal_due() -> None:
    pair = make_pair(NAMES, DAY, now=NOW)
    assert needs_renewal(pair, NOW, [*NAMES, "other.svc"])
    assert not needs_renewal(pair, NOW, NAMES[:1])


def test_what_can_not_be_used_makes_renewal_due() -> None:
    pair, other = make_pair(NAMES, DAY, now=NOW), make_pair(NAMES, DAY, now=NOW)
    assert needs_renewal(replace(pair, key=other.key), NOW, NAMES)
    assert needs_renewal(replace(pair, ca=other.ca), NOW, NAMES)
    assert needs_renewal(Pair(b"x", b"y", b"z"), NOW, NAMES)
    assert needs_renewal(Pair(b"", b"", b""), NOW, NAMES)


def test_the_authority_outlives_its_certificate() -> None:
    pair = make_pair(NAMES, DAY, now=NOW)
    assert expires(pair.ca) > expires(pair.cert)


def test_a_bundle_holds_each_authority_once_and_none_that_expired() -> None:
    old, new = make_pair(NAMES, DAY, now=NOW).ca, make_pair(NAMES, DAY, now=NOW + DAY).ca
    both = bundle(NOW + DAY, new, old, new)
    assert both == new + old
    assert bundle(NOW + 2.5 * DAY, both) == new
    assert bundle(NOW, b"rubbish", old) == old
    assert bundle(NOW, both) == both


def test_a_bundle_is_bounded_and_keeps_the_newest() -> None:
    pems = [make_pair(NAMES, 100 * DAY, now=NOW + n).ca for n in range(10)]
    kept = bundle(NOW + 20, *pems)
    assert kept == b"".join(pems[-certificates.MAX_AUTHORITIES :])


def test_no_key_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates.tempfile, "tempdir", str(tmp_path))
    certificates.context(make_pair(NAMES, DAY, now=NOW))
    with pytest.raises(CertificateError):
        certificates.context(Pair(b"", b"bad", b"bad"))
    assert list(tmp_path.iterdir()) == []


def test_a_bad_pair_changes_nothing() -> None:
    good = make_pair(NAMES, DAY, now=NOW)
    kept = Certificates(good)
    heard: list[ssl.SSLContext] = []
    kept.listen(heard.append)
    with pytest.raises(CertificateError):
        kept.replace(replace(good, key=make_pair(NAMES, DAY, now=NOW).key))
    assert kept.pair == good
    assert kept.ca_bundle == good.ca
    assert len(heard) == 1


def test_an_encrypted_key_fails_instead_of_asking() -> None:
    from cryptography.hazmat.primitives import serialization

    pair = make_pair(NAMES, DAY, now=NOW)
    key = serialization.load_pem_private_key(pair.key, None)
    locked = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret")
    )
    done: list[str] = []

    def use() -> None:
        try:
            certificates.context(replace(pair, key=locked))
        except CertificateError as error:
            done.append(str(error))

    thread = threading.Thread(target=use, daemon=True)
    thread.start()
    thread.join(5)
    assert done


def test_a_bundle_keeps_all_authorities_that_are_needed():
    count = certificates.MAX_AUTHORITIES + 3
    needed = b"".join(make_pair(["a"], 3 * DAY, now=NOW).ca for _ in range(count))
    others = [make_pair(["a"], 3 * DAY, now=NOW + 60 + number).ca for number in range(count)]
    kept = bundle(NOW + 120, needed, *others, needed=needed)
    assert kept == needed + b"".join(others[-certificates.MAX_AUTHORITIES :])
    assert bundle(NOW + 120, kept, needed=needed) == kept
