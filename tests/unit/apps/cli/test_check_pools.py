"""``podbridge check`` for pools that the configuration defines."""

from types import SimpleNamespace

from bridge.apps.cli.check import check_pools
from bridge.config import hub
from cluster.systems.dms import FakeDms
from tests.fakes.interlink_plugin import FakePlugin


def findings(*sections):
    text = "\n".join(f"    - {{name: pool{number}, url: '{url}'}}" for number, url in enumerate(sections))
    parsed = hub.parse(f"slurmRestApi: ''\npools:\n  interlink:\n{text}")
    return [(each.result, each.found) for each in check_pools.configured(SimpleNamespace(config=parsed))]


def test_no_pool_is_no_finding():
    assert list(check_pools.configured(SimpleNamespace(config=hub.Config()))) == []


def test_each_plugin_is_pinged():
    with FakePlugin() as plugin:
        plugin.ping = 200, '{"resources": {"cpu": "4"}}'
        found = findings(plugin.url, "http://127.0.0.1:1")
    assert found[0] == ("ok", f"pool0: interLink plugin at {plugin.url}")
    assert found[1] == ("warn", "pool0: the site does not report memory, so pods that request it wait")
    assert found[2][0] == "FAIL"
    assert "Connection refused" in found[2][1]


def test_a_login_page_is_reported_with_what_to_set():
    with FakePlugin() as plugin:
        plugin.refuse = (302, "", {"Location": "https://sso.test/oauth2"})
        ((result, found),) = findings(plugin.url)
    assert result == "FAIL"
    assert "tokenFile" in found


def test_the_peers_of_a_dms_are_requested():
    with FakeDms() as dms:
        parsed = hub.parse(f"slurmRestApi: ''\npools: {{nunet: [{{name: far, url: '{dms.url}'}}]}}")
        session = SimpleNamespace(config=parsed)
        (found,) = check_pools.configured(session)
        assert (found.result, found.what) == ("ok", "NuNet")
        assert found.found.startswith("far: NuNet DMS, 2 of ")
        for peer in dms.peers:
            peer["is_available"] = False
        (found,) = check_pools.configured(session)
    assert (found.result, found.fix.split(".")[0]) == ("FAIL", "see docs/admins/nunet")
    assert "peers of the pool is available" in found.found
