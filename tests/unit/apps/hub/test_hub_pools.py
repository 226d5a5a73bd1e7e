import pytest

from bridge.apps.hub import hub_pools
from bridge.config import hub
from bridge.pools.submitter.submitter_source import nats_link


@pytest.mark.parametrize(
    ("given", "pod_ip", "server", "address"),
    [
        ("10.1.1.1", "10.2.2.2", "https://127.0.0.1:6443", "10.1.1.1"),
        (None, "10.2.2.2", "https://127.0.0.1:6443", "10.2.2.2"),
        (None, None, "https://127.0.0.1:6443", "127.0.0.1"),
        (None, None, "https://[::1]:6443", "::1"),
        (None, None, "https://name.invalid", "127.0.0.1"),
    ],
)
def test_a_nodes_address(monkeypatch, given, pod_ip, server, address):
    monkeypatch.delenv("POD_IP", raising=False)
    if pod_ip:
        monkeypatch.setenv("POD_IP", pod_ip)
    found = hub.Config.model_validate({"pools": {"nodeAddress": given}})
    assert hub_pools.node_address(found, server) == address


@pytest.mark.parametrize(
    ("given", "pod_ip", "address"),
    [
        ("10.1.1.1", "10.2.2.2", "10.1.1.1"),
        (None, "10.2.2.2", "10.2.2.2"),
        (None, None, None),
        ("127.0.0.1", "10.2.2.2", None),
    ],
)
def test_the_address_of_endpoints(monkeypatch, given, pod_ip, address):
    monkeypatch.delenv("POD_IP", raising=False)
    if pod_ip:
        monkeypatch.setenv("POD_IP", pod_ip)
    found = hub.Config.model_validate({"pools": {"expose": {"address": given}}})
    assert hub_pools.endpoint_address(found) == address


@pytest.mark.parametrize(("address", "host"), [("10.1.1.1", "0.0.0.0"), ("fd00::7", "::")])  # noqa: S104
def test_the_kubelet_api_listens_on_the_family_of_its_address(address, host):
    settings = hub_pools.kubelet_settings(hub.parse("pools: {kubeletPort: 0}"), address)
    assert (settings.host, settings.port, settings.addresses) == (host, 0, (address,))


def test_the_link_is_as_configured(tmp_path):
    text = f"pools: {{nats: {{servers: ['nats://n:4222'], seedFile: {tmp_path}/seed, inboxPrefix: _INBOX.me}}}}"
    (tmp_path / "seed").write_text("SU\n")
    link = nats_link(hub.parse(text), "podbridge x", "c1")
    assert link._section.servers == ["nats://n:4222"]
    options = link._options("nats://n:4222")
    assert (options["name"], options["nkeys_seed_str"], options["user"]) == ("podbridge x", "SU", None)
    assert link._inbox_prefix == "_INBOX.me.c1"
