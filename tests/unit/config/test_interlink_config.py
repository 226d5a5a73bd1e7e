"""The section ``pools.interlink`` of the configuration: defaults, and errors that name field and value."""

import pytest

from bridge.config import hub
from bridge.errors import ConfigError
from bridge.pools import registry
from bridge.pools.registry import PoolContext
from tests.fakes.clock import FakeClock


def made(parsed):
    return registry.make(PoolContext(parsed, FakeClock())).pools()


def parse(text):
    return hub.parse("slurmRestApi: ''\npools:\n  interlink:\n" + text)


def test_a_pool_needs_a_name_and_a_url():
    parsed = parse("  - {name: far, url: 'https://plugin.test:4000/'}")
    section = parsed.pools.interlink[0]
    assert (section.url, section.api, section.batch, section.create_attempts) == (
        "https://plugin.test:4000",
        "plugin",
        100,
        3,
    )
    assert parsed.pools.enabled
    assert parsed.pools.named == ("far",)
    assert list(made(parsed)) == ["far"]


def test_without_pools_there_is_no_source():
    assert made(hub.Config()) == {}


@pytest.mark.parametrize("url", ["unix:///run/plugin.sock", "http://[::1]:4000", "http://h/a/b"])
def test_addresses(url):
    assert parse(f"  - {{name: far, url: '{url}'}}").pools.interlink[0].url == url


@pytest.mark.parametrize(
    "url",
    ["plugin.test:4000", "ftp://x", "unix://run/x", "unix:///", "http://", "http://u:p@h", "http://h?x=1", "http://h:x",
     "http://h#x", "http://h:0", ""],
)  # fmt: skip
def test_other_addresses_are_refused(url):
    with pytest.raises(ConfigError, match=r"pools\.interlink\.0\.url: .*http://host:port, https://host:port or unix"):
        parse(f"  - {{name: far, url: '{url}'}}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("name: Far", r"pools\.interlink\.0\.name"),
        ("name: far, token: x", r"unknown key pools\.interlink\.0\.token \(did you mean tokenFile\?\)"),
        ("name: far, caFile: /x", "caFile requires a url that begins with https://"),
        ("name: far, certFile: /x", "certFile requires a url that begins with https://"),
        ("name: far, keyFile: /x", "keyFile requires certFile"),
        ("name: far, api: server, buildConfigFile: /x", "buildConfigFile requires api plugin"),
        ("name: far, batch: 0", r"pools\.interlink\.0\.batch.*\(value: 0\)"),
        ("name: far, method: POST", r"unknown key pools\.interlink\.0\.method"),
    ],
)
def test_errors_name_the_field(fields, message):
    with pytest.raises(ConfigError, match=message):
        parse(f"  - {{url: 'http://h:4000', {fields}}}")


def test_names_are_unique():
    with pytest.raises(ConfigError, match="more than one pool has the name far"):
        parse("  - {name: far, url: 'http://a'}\n  - {name: far, url: 'http://b'}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[runtime]\nkind = 'apptainr'", "runtime.kind"),
        ("[runtim]\nkind = 'none'", "runtim: Extra inputs"),
        ("runtime", "Expected"),
        (None, "cannot be read: No such file"),
    ],
)
def test_the_file_of_script_settings(tmp_path, content, message):
    file = tmp_path / "build.toml"
    if content is not None:
        file.write_text(content)
    parsed = parse(f"  - {{name: far, url: 'http://h', buildConfigFile: '{file}'}}")
    with pytest.raises(ConfigError, match=rf"pool far: buildConfigFile {file}: .*{message}"):
        made(parsed)
