import pytest

from bridge.config import hub
from bridge.errors import ConfigError
from bridge.pools import registry
from bridge.pools.registry import PoolContext
from tests.fakes.clock import FakeClock


def made(config):
    return list(registry.make(PoolContext(config, FakeClock()), ["nunet"]).pools())


def parse(section):
    return hub.parse(
        f"{{slurmRestApi: '', pools: {{nunet: [{section}], interlink: [{{name: far, url: 'http://x:1'}}]}}}}"
    )


def test_the_pools_of_a_section():
    found = parse("{name: n, url: 'https://dms.example:9999/', statuses: {Hibernating: queued}}")
    assert found.pools.named == ("far", "n")
    assert made(found) == ["n"]
    groups = parse("{name: n, url: 'http://d', groups: [{name: a, gpuTypes: [none]}, {name: b}]}")
    assert groups.pools.named == ("far", "a", "b")
    assert made(groups) == ["a", "b"]
    assert made(hub.Config()) == []


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ("{name: far, url: 'http://d'}", "more than one pool has the name far"),
        ("{name: n, url: 'http://d', groups: [{name: a}, {name: a}]}", "more than one pool has the name a"),
        ("{name: N, url: 'http://d'}", "pools.nunet.0.name"),
        ("{name: n, url: 'ftp://d'}", "must be http://host:port"),
        ("{name: n, url: 'http://me:pw@d'}", "without user"),
        ("{name: n, url: 'http://d', caFile: /x}", "caFile requires a url"),
        ("{name: n, url: 'https://d', keyFile: /x}", "keyFile requires certFile"),
        ("{name: n, url: 'http://d', cancelPath: /stop}", "must begin with / and contain {job}"),
        ("{name: n, url: 'http://d', cancelPath: 'HEAD /stop/{job}'}", "must begin with / and contain {job}"),
        ("{name: n, url: 'http://d', statuses: {x: dead}}", "pools.nunet.0.statuses.x"),
        ("{name: n, url: 'http://d', peerField: 'a b'}", "pools.nunet.0.peerField"),
        ("{name: n, url: 'http://d', servcies: allow}", "did you mean services?"),
    ],
)
def test_a_wrong_section_is_an_error_that_names_the_key(section, text):
    with pytest.raises(ConfigError) as caught:
        parse(section)
    assert text in str(caught.value)
    assert "me:pw" not in str(caught.value)
