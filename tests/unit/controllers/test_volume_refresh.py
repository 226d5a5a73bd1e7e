"""Volumes follow their objects: what has changed is sent, once, and reads of objects have a limit."""

import pytest

from bridge import names
from bridge.config.hub import Config
from bridge.core.job_lifecycle import Lifecycle, State
from bridge.errors import KubeForbiddenError, KubeUnavailableError, SiteDownError, SiteRefusedError, SiteTooLargeError
from controllers.virtual import virtual_pod_decide
from controllers.virtual.pod_state import Entry
from controllers.virtual.reference_reader import FRESH
from controllers.virtual.volume_act import SHOWN_WITHIN, UNKNOWN_WITHIN, unknown_until
from tests.unit.controllers.test_virtual_act import World, pod

MAP, LOGIN = "/api/v1/namespaces/ns/configmaps/c", "/api/v1/namespaces/ns/secrets/s"
KEY = ("configmaps", "ns", "c")
CONF = {"name": "conf", "configMap": {"name": "c"}}
SECRET = {"name": "login", "secret": {"secretName": "s", "optional": True}}
READY = {"path": "ready", "fieldRef": {"fieldPath": "metadata.annotations['ready']"}}


class Site(World):
    """One pod at a site. ``put`` changes an object, ``sent`` returns the files of the refresh that follows."""

    def submit(self, *volumes, **objects):
        for name, data in objects.items():
            self.put({"c": MAP, "s": LOGIN}[name], data)
        self.pod = pod(volumes=list(volumes))
        self.act(virtual_pod_decide.Submit(self.pod))
        return self

    def put(self, path, data, **more):
        version = str(int(self.version(path) or 0) + 1)
        self.kube.answers[path] = {"metadata": {"uid": "u", "resourceVersion": version}, "data": data, **more}

    def version(self, path):
        return self.kube.answers.get(path, {}).get("metadata", {}).get("resourceVersion", "")

    def changed(self, *keys):
        for key in keys or (KEY,):
            path = {"configmaps": MAP, "secrets": LOGIN}[key[0]]
            self.entry.changed(key, f"u/{self.version(path)}" if path in self.kube.answers else "")
        self.clock.advance(FRESH + 1)

    def sent(self):
        self.pool.refreshed.clear()
        self.pool.kept.clear()
        self.act(virtual_pod_decide.Refresh(self.pod))
        return {file.path: file.data.decode() for file in self.pool.refreshed.get("u1", ())}

    def lists(self):
        return self.pool.kept.get("u1", {})

    def told(self, reason="BridgeFilesKept"):
        return [text for kind, text in self.events.told if kind == reason]


@pytest.fixture
def site():
    return Site()


def test_only_files_that_have_changed_are_sent(site):
    site.submit(CONF, c={"a": "1", "b": "1"})
    assert site.entry.refresh_at is None, "nothing is due until an object has changed"
    site.put(MAP, {"a": "2", "b": "1"})
    site.changed()
    assert (site.sent(), site.lists()) == ({"conf/a": "2"}, {})
    assert site.entry.stale == frozenset()
    assert site.sent() == {} and site.pool.count("refresh") == 1


def test_new_keys_appear_and_keys_that_are_gone_are_removed(site):
    site.submit(CONF, c={"a": "1", "b": "1"})
    site.put(MAP, {"a": "1", "n": "1"})
    site.changed()
    assert (site.sent(), site.lists()) == ({"conf/n": "1"}, {"conf": ["a", "n"]})
    site.put(MAP, {})
    site.changed()
    assert (site.sent(), site.lists()) == ({}, {"conf": []})
    site.put(MAP, {"a": "1"})
    site.changed()
    assert site.sent() == {"conf/a": "1"}, "a key that comes again is sent again"


def test_an_optional_object_appears_and_a_deleted_one_leaves_its_files(site):
    site.submit(SECRET, CONF, c={"a": "1"})
    key = ("secrets", "ns", "s")
    site.put(LOGIN, {"k": "djE="})
    site.changed(key)
    assert site.sent() == {"login/k": "v1"}
    del site.kube.answers[LOGIN], site.kube.answers[MAP]
    site.changed(key, KEY)
    assert site.entry.stale == {key, KEY}
    assert (site.sent(), site.lists(), site.pool.count("refresh")) == ({}, {}, 1)
    assert site.told() == ["files of volumes keep their content at the site: ConfigMap c does not exist"]
    site.put(MAP, {"a": "2"})
    site.changed()
    assert site.sent() == {"conf/a": "2"}


def test_what_podbridge_may_not_read_leaves_its_files(site):
    site.submit(CONF, c={"a": "1"})
    site.put(MAP, {"a": "2"})
    site.changed()
    site.kube.answers[MAP] = KubeForbiddenError(MAP, status=403)
    assert site.sent() == {} and "RoleBinding podbridge-pools is missing" in site.told()[0]


def test_an_api_server_that_does_not_answer_loses_no_change(site, monkeypatch):
    site.submit(CONF, c={"a": "1"})
    site.put(MAP, {"a": "2"})
    site.changed()
    with monkeypatch.context() as patch:
        patch.setattr(site.kube, "get", lambda *_, **__: (_ for _ in ()).throw(KubeUnavailableError("down")))
        with pytest.raises(KubeUnavailableError):
            site.sent()
    site.clock.advance(30)
    assert site.sent() == {"conf/a": "2"}


def test_a_site_that_does_not_answer_loses_no_change(site):
    site.submit(CONF, c={"a": "1"})
    site.put(MAP, {"b": "2"})
    site.changed()
    site.pool.down()
    with pytest.raises(SiteDownError):
        site.sent()
    site.pool.problem = None
    site.clock.advance(FRESH + 30)
    assert (site.sent(), site.lists()) == ({"conf/b": "2"}, {"conf": ["b"]})


@pytest.mark.parametrize("error", [SiteTooLargeError("too large"), SiteRefusedError("bad", reason="BadPath")])
def test_what_cannot_be_sent_is_said_once_and_delays_nothing(site, error):
    site.submit(CONF, c={"a": "1"})
    site.put(MAP, {"a": "2"})
    site.changed()
    site.pool.problem = error
    site.sent()
    assert site.told() == [f"files of volumes keep their content at the site: {error.with_hint}"]
    assert (site.entry.stale, site.entry.failures) == (frozenset(), 0)


def test_labels_and_annotations_cost_no_request_to_the_api_server(site):
    site.submit({"name": "d", "downwardAPI": {"items": [READY]}}, CONF, c={"a": "1"})
    before = list(site.kube.reads)
    site.pod["metadata"]["annotations"] = {"ready": "READY"}
    assert site.sent() == {"d/ready": "READY"}
    assert (site.entry.files.shown, site.kube.reads) == (("READY",), before)
    assert site.entry.refresh_after > site.clock.now, "a label may change many times in a second"


def test_objects_that_never_change_are_not_followed(site):
    site.put(MAP, {"a": "1"}, immutable=True)
    site.submit(CONF, SECRET)
    assert site.entry.files.versions == {("secrets", "ns", "s"): ""}


def test_only_the_volume_with_the_change_is_read(site):
    site.submit(CONF, SECRET, c={"a": "1"}, s={"k": "djE="})
    site.put(LOGIN, {"k": "djI="})
    site.changed(("secrets", "ns", "s"))
    site.kube.reads.clear()
    assert site.sent() == {"login/k": "v2"}
    assert MAP not in site.kube.reads


def test_a_new_leader_sends_everything_once(site):
    site.submit(CONF, c={"a": "1", "b": "2"})
    site.entry = Entry(refresh_at=site.clock.now)
    assert (site.sent(), site.lists()) == ({"conf/a": "1", "conf/b": "2"}, {"conf": ["a", "b"]})
    assert site.entry.refresh_at is None and site.entry.files.versions == {KEY: "u/1"}
    assert site.sent() == {}


def test_when_a_new_leader_sends():
    assert unknown_until(pod(), 5.0) is None
    assert unknown_until(pod(volumes=[{"name": "e", "emptyDir": {}}]), 5.0) is None
    assert 5 <= unknown_until(pod(volumes=[CONF]), 5.0) <= 5 + UNKNOWN_WITHIN
    shows = {"name": "d", "downwardAPI": {"items": [READY]}}
    assert 5 <= unknown_until(pod(volumes=[CONF, shows]), 5.0) <= 5 + SHOWN_WITHIN


@pytest.mark.parametrize("case", ["an earlier leader", "an earlier request"])
def test_a_job_that_was_submitted_before_may_have_older_files(site, case):
    site.put(MAP, {"a": "1"})
    if case == "an earlier leader":
        site.submit(CONF)
        site.pool.set("u1", submitted_at=site.clock.now - 30)
        site.entry = Entry()
    else:
        site.entry.lifecycle = Lifecycle(State.ABSENT, until=site.clock.now)
    site.put(MAP, {"a": "2"})
    site.clock.advance(FRESH + 1)
    site.submit(CONF)
    assert site.entry.files is None
    site.clock.advance(UNKNOWN_WITHIN)
    assert site.sent() == {"conf/a": "2"}


def test_reads_have_a_limit_and_a_turn():
    site = Site(Config.model_validate({"pools": {"volumeReads": 0.1}}))
    site.submit(CONF, c={"a": "1"})
    for text in ("2", "3"):
        site.put(MAP, {"a": text})
        site.changed()
        site.kube.reads.clear()
        if site.sent():
            continue
        assert site.kube.reads == [], "it is not this pod's turn"
        site.clock.advance(site.entry.refresh_after - site.clock.now)
        assert site.sent() == {"conf/a": text}
    assert site.pool.count("refresh") == 2


def test_large_files_have_a_limit_and_a_turn(site):
    """One user may change a large object of many pods again and again."""
    site.submit(CONF, c={"a": "1"})
    for number in range(17):
        site.put(MAP, {"a": str(number % 10) * 2**20})
        site.entry.changed(KEY, f"u/{site.version(MAP)}")
        site.actor._volumes._reader._cache.clear()
        found = site.sent()
        if number < 16:  # of 4 x 256 x 16 KiB at once
            assert len(found["conf/a"]) == 2**20
    assert found == {} and site.entry.stale == {KEY}
    assert 0 < site.entry.refresh_after - site.clock.now <= 0.25
    site.clock.advance(site.entry.refresh_after - site.clock.now)
    assert site.sent() == {"conf/a": "6" * 2**20} and not site.entry.stale


def test_a_namespace_that_takes_its_consent_back_keeps_the_new_secret(site):
    site.submit(SECRET, s={"k": "djE="})
    site.kube.answers["/api/v1/namespaces/ns"] = {"metadata": {"annotations": {names.POOL_SECRETS: "other"}}}
    site.put(LOGIN, {"k": "djI="})
    site.changed(("secrets", "ns", "s"))
    with pytest.raises(Exception, match="does not let Secret s go"):
        site.sent()
    assert site.pool.refreshed == {}


def test_a_pool_that_cannot_replace_files_costs_nothing(site):
    site.pool.refreshes = None
    site.submit(CONF, c={"a": "1"})
    assert (site.entry.files, site.entry.refresh_at) == (None, None)
    site.entry = Entry(refresh_at=0.0)
    site.kube.reads.clear()
    assert site.sent() == {} and site.kube.reads == [] and site.entry.refresh_at is None
