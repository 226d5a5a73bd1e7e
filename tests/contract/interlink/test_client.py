"""The interLink client over real HTTP: connections, credentials, and a plugin with faults."""

import socket
import ssl
import threading
import time

import pytest

from bridge.clock import SystemClock
from bridge.config.interlink import InterlinkSection
from bridge.errors import SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.pools.interlink.interlink_pool import InterlinkPool, make_pool
from bridge.protocol.model.requests import LogOptions
from tests.builders import NO_OBJECTS
from tests.builders import site_pod as pod
from tests.fakes.interlink_plugin import FakePlugin
from tests.fakes.server_certificate import certificates


def pool_of(plugin: FakePlugin, **fields) -> InterlinkPool:
    section = InterlinkSection.model_validate({"name": "far", "url": plugin.url, "timeout": 5, **fields})
    return make_pool(section, fields.get("submit", 5), SystemClock())


@pytest.fixture
def plugin():
    with FakePlugin() as running:
        yield running


def test_a_unix_socket(tmp_path):
    with FakePlugin(unix=tmp_path / "plugin.sock") as plugin:
        pool = pool_of(plugin)
        assert (pool.submit(pod("a"), NO_OBJECTS).job_id, pool.status(pod("a")).phase) == ("1", "running")
        nobody = pool_of(plugin, url=f"{plugin.url}-none")
        with pytest.raises(SiteDownError, match="No such file"):
            nobody.submit(pod("b"), NO_OBJECTS)


def test_https_with_a_client_certificate(tmp_path):
    ca, cert, key = certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(ca))
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    with FakePlugin(tls=context) as plugin:
        files = {"caFile": str(ca), "certFile": str(cert), "keyFile": str(key)}
        assert pool_of(plugin, **files).submit(pod("a"), NO_OBJECTS).job_id == "1"
        for lacking in ({"caFile": str(ca)}, {"certFile": str(cert), "keyFile": str(key)}):
            with pytest.raises(SiteError):
                pool_of(plugin, **lacking).submit(pod("b"), NO_OBJECTS)
    assert plugin.creates == ["a"]


def test_a_token_that_is_replaced(plugin, tmp_path):
    plugin.token, file = "second", tmp_path / "token"
    file.write_text("first")
    pool = pool_of(plugin, tokenFile=str(file))
    with pytest.raises(SiteRefusedError) as raised:
        pool.submit(pod("a"), NO_OBJECTS)
    assert raised.value.reason == "CredentialsRefused"
    file.write_text("second")
    assert pool.submit(pod("a"), NO_OBJECTS).job_id == "1"


def test_a_plugin_behind_an_oauth2_proxy(plugin):
    plugin.refuse = (302, "", {"Location": "https://sso.test/oauth2/start"})
    pool = pool_of(plugin)
    pool.ping()
    assert "tokenFile" in pool.ready().message


def test_nobody_listens(plugin):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        plugin.port = taken.getsockname()[1]
        pool = pool_of(plugin)
        with pytest.raises(SiteDownError, match="Connection refused"):
            pool.submit(pod("a"), NO_OBJECTS)


@pytest.mark.parametrize(
    ("fault", "created"), [("drop-before", 0), ("drop-after", 1), ("garble", 1), ("repeat", 1), ("502-after", 1)]
)
def test_a_create_without_a_usable_answer_is_unknown_and_is_not_sent_twice(plugin, fault, created):
    plugin.fault = lambda method, path: fault if path == "/create" else None
    pool = pool_of(plugin)
    with pytest.raises(SiteUnknownOutcomeError):
        pool.submit(pod("a"), NO_OBJECTS)
    assert len(plugin.creates) == created
    plugin.fault = lambda method, path: None
    pool.submit(pod("a"), NO_OBJECTS)
    assert plugin.creates == ["a"]


def test_a_create_that_the_plugin_answers_with_an_error_is_looked_for_at_once(plugin):
    plugin.fault = lambda method, path: "500-after" if path == "/create" else None
    assert pool_of(plugin).submit(pod("a"), NO_OBJECTS).phase == "running"
    assert plugin.creates == ["a"]


def test_a_create_that_takes_too_long_is_unknown(plugin):
    plugin.fault = lambda method, path: time.sleep(1) if path == "/create" else None
    section = InterlinkSection.model_validate({"name": "far", "url": plugin.url})
    pool = make_pool(section, 0.3, SystemClock())
    with pytest.raises(SiteUnknownOutcomeError, match="timed out"):
        pool.submit(pod("a"), NO_OBJECTS)


@pytest.mark.parametrize("fault", ["drop-before", "drop-after", "garble", "repeat", "500-before", "502-after"])
def test_a_faulty_answer_to_status_changes_nothing(plugin, fault):
    pool = pool_of(plugin)
    pods = [pod("a"), pod("b", name="other")]
    for each in pods:
        pool.submit(each, NO_OBJECTS)
        pool.follows.add(each)
    pool.poll()
    before = pool.jobs()
    plugin.fault = lambda method, path: fault if path == "/status" else None
    plugin._last["/status"] = b'[{"name": "x", "UID": "x", "namespace": "x", "containers": []}]'
    pool.poll()
    assert pool.jobs() == before
    if fault != "repeat":
        with pytest.raises(SiteError):
            pool.status(pods[0])
    assert pool.jobs() == before


def test_states_of_many_pods(plugin):
    pool = pool_of(plugin)
    pods = [pod(f"u{number}", name=f"p{number}") for number in range(250)]
    for each in pods:
        pool.submit(each, NO_OBJECTS)
        pool.follows.add(each)
    plugin.requests.clear()
    assert pool.poll() == 0
    assert plugin.paths() == [("GET", "/status")] * 3
    assert {job.phase for job in pool.jobs().values()} == {"running"}


def test_a_plugin_that_answers_for_one_pod_with_post_and_takes_lists(plugin):
    plugin.first_only, plugin.method, plugin.list_body = True, "POST", True
    plugin.ping = 500, "IndexError"
    pool = pool_of(plugin)
    pods = [pod("a"), pod("b", name="other")]
    pool.ping()
    assert pool.ready().ok
    for each in pods:
        pool.submit(each, NO_OBJECTS)
        pool.follows.add(each)
    pool.poll()
    assert {job.phase for job in pool.jobs().values()} == {"running"}
    assert b"".join(pool.logs(pods[0], LogOptions(container="main"))) == b"hello\n"
    plugin.requests.clear()
    pool.poll()
    assert plugin.paths() == [("POST", "/status")] * 2, "what works is remembered"


def test_an_answer_that_does_not_end_is_given_up(plugin):
    plugin.ping = 200, "x" * (80 << 20)
    pool = pool_of(plugin)
    assert pool.ping() == 1
    assert "more than" in pool.announced()[0].problem


def test_a_followed_log_arrives_in_pieces_and_ends_at_the_plugin_when_it_is_closed(plugin):
    plugin.log = lambda body: (200, [f"{number}\n".encode() for number in range(10_000)], 0.05)
    pool = pool_of(plugin)
    pieces = pool.logs(pod("a"), LogOptions(container="main", follow=True))
    assert next(pieces) == b"0\n"
    threading.Timer(0.3, pieces.close).start()
    began = time.monotonic()
    assert len(list(pieces)) < 50
    assert time.monotonic() - began < 3
    assert plugin.hung_up.wait(5)


def test_a_log_that_waits_is_closed_by_another_thread(plugin):
    plugin.log = lambda body: (200, [b"begin\n", b"end\n"], 5)
    pool = pool_of(plugin)
    pieces = pool.logs(pod("a"), LogOptions(container="main", follow=True))
    assert next(pieces) == b"begin\n"
    threading.Timer(0.2, pieces.close).start()
    began = time.monotonic()
    assert list(pieces) == []
    assert time.monotonic() - began < 3
