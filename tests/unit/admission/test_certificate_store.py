import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from admission.certificate_store import CertificateRotator, SecretCertificateStore, read_files, server_names
from admission.webhook_registration import WebhookRegistration
from bridge.config.hub import Config
from bridge.errors import CertificateError, KubeConflictError, KubeError, KubeUnavailableError
from bridge.serving.certificates import Certificates, Pair, authorities, make_pair, needs_renewal, read_pair
from tests.fakes.clock import FakeClock
from tests.fakes.objects_api import FakeApi

NOW = 1_800_000_000.0
CONFIG = Config.model_validate({"admission": {"url": "https://127.0.0.1:9443", "certValidity": 86400}})


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def store(api: FakeApi, clock: FakeClock) -> SecretCertificateStore:
    return SecretCertificateStore(api, CONFIG, clock)  # type: ignore[arg-type]


def test_the_names_of_a_service_and_of_a_url() -> None:
    assert server_names(Config())[0] == "podbridge-admission.podbridge.svc"
    assert server_names(CONFIG) == ["127.0.0.1"]
    assert server_names(Config.model_validate({"admission": {"url": "https://[::1]:9"}})) == ["::1"]
    assert server_names(Config.model_validate({"admission": {"url": "https://Hook.example/x"}})) == ["hook.example"]


def test_the_first_replica_makes_the_pair_and_the_others_take_it(api: FakeApi, clock: FakeClock) -> None:
    first = store(api, clock).ensure(None)
    assert store(api, clock).ensure(None) == first
    assert len(api.writes) == 1


def test_of_two_that_start_at_once_one_wins(api: FakeApi, clock: FakeClock) -> None:
    winner: list[Pair] = []
    api.before_write = lambda: winner.append(store(api, clock).ensure(None))
    assert store(api, clock).ensure(None) == winner[0]
    assert len(api.writes) == 1


def test_of_two_that_renew_at_once_one_wins(api: FakeApi, clock: FakeClock) -> None:
    old = store(api, clock).ensure(None)
    clock.advance(70_000)
    winner: list[Pair] = []
    api.before_write = lambda: winner.append(store(api, clock).ensure(old))
    assert store(api, clock).ensure(old) == winner[0]
    assert len(api.writes) == 2


def test_a_renewed_pair_trusts_the_old_authority_too(api: FakeApi, clock: FakeClock) -> None:
    old = store(api, clock).ensure(None)
    clock.advance(70_000)
    new = store(api, clock).ensure(old)
    assert new.cert != old.cert
    assert set(authorities(old.ca)) < set(authorities(new.ca))


@pytest.mark.parametrize("data", [{}, None, {"tls.crt": "!", "tls.key": "!", "ca.crt": "!"}, {"tls.crt": "eA=="}])
def test_a_spoilt_secret_is_made_anew(api: FakeApi, clock: FakeClock, data: Any) -> None:
    first = store(api, clock).ensure(None)
    (path,) = api.objects
    api.objects[path]["data"] = data
    second = store(api, clock).ensure(first)
    assert not needs_renewal(second, NOW, ["127.0.0.1"])
    assert set(authorities(first.ca)) < set(authorities(second.ca))


def test_it_gives_up_when_others_keep_writing(api: FakeApi, clock: FakeClock) -> None:
    keeps = store(api, clock)

    def conflict(*_: Any) -> dict[str, Any]:
        raise KubeConflictError("again", status=409)

    api.create = conflict  # type: ignore[method-assign]
    with pytest.raises(CertificateError, match="conflicted with another writer"):
        keeps.ensure(None)


def test_files_are_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    pair = make_pair(["a.b"], 86400, now=NOW)
    with pytest.raises(CertificateError, match=r"tls\.crt"):
        read_pair(tmp_path)
    (tmp_path / "tls.crt").write_bytes(pair.cert)
    (tmp_path / "tls.key").write_bytes(pair.key)
    assert read_pair(tmp_path) == Pair(b"", pair.cert, pair.key)
    (tmp_path / "ca.crt").write_bytes(pair.ca)
    assert read_pair(tmp_path) == pair


SERVICE = Config.model_validate({"admission": {"certDir": "/x"}})


def files(folder: Path, pair: Pair) -> Path:
    for name, text in (("tls.crt", pair.cert), ("tls.key", pair.key), ("ca.crt", pair.ca)):
        (folder / name).write_bytes(text)
    return folder


@pytest.mark.parametrize("name", ["podbridge-admission.podbridge.svc", "*.podbridge.svc"])
def test_files_for_the_name_of_the_service_are_used(tmp_path: Path, name: str) -> None:
    pair = make_pair([name, "other"], 86400, now=NOW)
    assert read_files(files(tmp_path, pair), SERVICE) == pair
    (tmp_path / "ca.crt").unlink()
    assert read_files(tmp_path, SERVICE).ca == b""


def test_a_certificate_that_is_its_own_authority_is_used(tmp_path: Path) -> None:
    pair = make_pair(["podbridge-admission.podbridge.svc"], 86400, now=NOW)
    own = dataclasses.replace(pair, ca=pair.cert)
    assert read_files(files(tmp_path, own), SERVICE) == own


@pytest.mark.parametrize("names", [["podbridge.podbridge.svc"], ["127.0.0.1"], ["*.svc"]])
def test_a_certificate_for_another_name_is_not_used(tmp_path: Path, names: list[str]) -> None:
    files(tmp_path, pair := make_pair(names, 86400, now=NOW))
    with pytest.raises(CertificateError, match=r"certDir: .*tls\.crt: .*a certificate for podbridge-admission\."):
        read_files(tmp_path, SERVICE)
    assert read_files(tmp_path, CONFIG) == pair  # behind a proxy


@pytest.mark.parametrize("other", [b"", b"no certificate"])
def test_an_authority_of_another_certificate_is_not_used(tmp_path: Path, other: bytes) -> None:
    pair = make_pair(["podbridge-admission.podbridge.svc"], 86400, now=NOW)
    wrong = other or make_pair(["x"], 86400, now=NOW).ca  # also for a moment, while an administrator copies the files
    files(tmp_path, dataclasses.replace(pair, ca=wrong))
    for config in (SERVICE, CONFIG):
        with pytest.raises(CertificateError, match=r"certDir: .*ca\.crt: no certificate in it has signed tls\.crt"):
            read_files(tmp_path, config)


# --- rotation ---------------------------------------------------------------------------------------------------------
class Scene:
    """A rotator that records its steps in order."""

    def __init__(self, pair: Pair) -> None:
        self.next = pair
        self.told: list[tuple[str, bytes]] = []
        self.fail: KubeError | None = None
        self.certificates = Certificates()
        self.certificates.listen(lambda _: self.told.append(("serve", self.certificates.ca_bundle)))
        self.rotator = CertificateRotator(self.ensure, self.certificates, self.trust, settle=0)

    def ensure(self, serving: Pair | None) -> Pair:
        return self.next

    def trust(self, ca: bytes) -> None:
        if self.fail is not None:
            raise self.fail
        self.told.append(("trust", ca))

    def step(self) -> None:
        self.rotator.step(threading.Event())


def test_a_new_authority_is_trusted_before_its_certificate_is_served() -> None:
    first, second = (make_pair(["a.b"], 86400, now=NOW) for _ in range(2))
    scene = Scene(first)
    scene.step()
    scene.next = second
    scene.step()
    scene.step()
    assert scene.told == [
        ("trust", first.ca),
        ("serve", first.ca),
        ("trust", second.ca),
        ("serve", second.ca),
        ("trust", second.ca),
    ]


def test_what_can_not_be_trusted_is_not_served() -> None:
    first, second = (make_pair(["a.b"], 86400, now=NOW) for _ in range(2))
    scene = Scene(first)
    scene.step()
    scene.next, scene.fail = second, KubeUnavailableError("down")
    with pytest.raises(KubeUnavailableError):
        scene.step()
    assert scene.certificates.pair == first


def test_a_bad_pair_comes_neither_to_the_api_server_nor_to_clients() -> None:
    first, second = (make_pair(["a.b"], 86400, now=NOW) for _ in range(2))
    scene = Scene(first)
    scene.step()
    scene.next = dataclasses.replace(second, key=first.key)
    before = list(scene.told)
    with pytest.raises(CertificateError):
        scene.step()
    assert scene.told == before
    assert scene.certificates.pair == first


# --- registration, with the same fake ---------------------------------------------------------------------------------
def trusted(api: FakeApi, name: str) -> int:
    import base64

    (path,) = [path for path in api.objects if path.endswith(name)]
    bundles = {w["clientConfig"]["caBundle"] for w in api.objects[path]["webhooks"]}
    assert len(bundles) == 1
    return len(authorities(base64.b64decode(bundles.pop())))


def test_replicas_with_different_authorities_do_not_fight(api: FakeApi, clock: FakeClock) -> None:
    cas = [make_pair(["a.b"], 86400, now=NOW).ca for _ in range(2)]
    registration = WebhookRegistration(api, CONFIG, [], clock)  # type: ignore[arg-type]
    registration.ensure(cas[0], create=True)
    registration.ensure(cas[1], create=True)
    writes = len(api.writes)
    for _ in range(3):
        for ca in cas:
            registration.ensure(ca, create=True)
    assert len(api.writes) == writes
    assert trusted(api, "podbridge-mutate") == trusted(api, "podbridge-validate") == 2
    clock.advance(3 * 86400)
    registration.ensure(make_pair(["a.b"], 86400, now=clock.time()).ca, create=True)
    assert trusted(api, "podbridge-mutate") == 1


def test_a_removed_configuration_comes_back_only_when_asked(api: FakeApi, clock: FakeClock) -> None:
    registration = WebhookRegistration(api, CONFIG, [], clock)  # type: ignore[arg-type]
    ca = make_pair(["a.b"], 86400, now=NOW).ca
    assert registration.ensure(ca, create=False) == ["podbridge-mutate", "podbridge-validate"]
    assert registration.ensure(ca, create=True) == []
    assert registration.remove() == ["podbridge-mutate", "podbridge-validate"]
    assert registration.remove() == []
    assert api.objects == {}


def test_a_write_in_between_is_not_lost(api: FakeApi, clock: FakeClock) -> None:
    registration = WebhookRegistration(api, CONFIG, [], clock)  # type: ignore[arg-type]
    ca = make_pair(["a.b"], 86400, now=NOW).ca
    registration.ensure(ca, create=True)
    path = next(path for path in api.objects if path.endswith("podbridge-mutate"))
    api.objects[path]["webhooks"] = []

    def label() -> None:
        api.objects[path]["metadata"]["labels"]["theirs"] = "yes"
        api.objects[path]["metadata"]["resourceVersion"] = "999"

    api.before_write = label
    registration.ensure(ca, create=True)
    assert api.objects[path]["metadata"]["labels"]["theirs"] == "yes"
    assert len(api.objects[path]["webhooks"]) == 2
