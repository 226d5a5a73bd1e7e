"""The configuration of the store, and the store that it creates."""

import pytest

from bridge.config import hub
from bridge.errors import ConfigError
from bridge.pools.store.nats_store import NatsStore
from bridge.pools.store.redis_store import RedisStore
from bridge.pools.submitter import submitter_source

NATS = "nats: {servers: ['nats://n:4222']}"


def parse(store):
    return hub.parse(f"pools: {{{NATS}, store: {store}}}")


def opened(store):
    found = parse(store)
    return submitter_source.open_store(found, submitter_source.nats_link(found, "x", "c1"), "c1")


def test_there_is_none_by_default():
    assert opened("{}") is None
    assert opened("{kind: none}") is None


def test_redis_and_nats():
    redis = opened("{kind: redis, redis: {url: 'rediss://h:6380/1', user: u, passwordFile: /p, caFile: /c, prefix: x}}")
    assert isinstance(redis, RedisStore)
    assert str(redis) == "redis at rediss://h:6380/1"
    nats = opened("{kind: nats, nats: {bucket: pods, replicas: 3}}")
    assert isinstance(nats, NatsStore)
    assert str(nats) == "NATS bucket pods"


@pytest.mark.parametrize(
    ("store", "words"),
    [
        ("{kind: etcd}", ["pools.store.kind", "'etcd'", "redis"]),
        ("{kind: redis}", ["pools.store", "redis.url"]),
        ("{redis: {url: 'http://h'}}", ["pools.store.redis.url", "http://h", "rediss://"]),
        (
            "{redis: {url: 'redis://h?ssl_cert_reqs=none'}}",
            ["pools.store.redis.url", "without user, password or options"],
        ),
        *(
            (f"{{redis: {{url: '{url}'}}}}", ["pools.store.redis.url", "redis://host:port/database"])
            for url in ("redis://h/x", "redis://h#x", "redis://", "redis://:1", "redis://h:port", "redis://h:70000")
        ),
        ("{redis: {url: 'redis://h', user: u}}", ["pools.store.redis", "passwordFile"]),
        ("{redis: {url: 'redis://h', caFile: /c}}", ["pools.store.redis", "rediss://"]),
        ("{redis: {prefix: 'a b'}}", ["pools.store.redis.prefix", "'a b'"]),
        ("{redis: {pasword: x}}", ["pools.store.redis.pasword", "did you mean passwordFile?"]),
        ("{nats: {bucket: 'a.b'}}", ["pools.store.nats.bucket", "'a.b'"]),
        ("{nats: {replicas: 0}}", ["pools.store.nats.replicas", "0"]),
    ],
)
def test_bad_values_are_refused_by_name(store, words):
    with pytest.raises(ConfigError) as caught:
        parse(store)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("url", ["redis://:hunter2@h", "redis://user:hunter2@h:1/0", "rediss://u:hun'ter2@h"])
def test_a_password_in_the_url_is_refused_and_not_shown(url):
    with pytest.raises(ConfigError) as caught:
        parse(f'{{redis: {{url: "{url}"}}}}')
    assert "ter2" not in str(caught.value)
    assert "pools.store.redis.url" in str(caught.value)
