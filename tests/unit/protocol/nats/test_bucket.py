"""`podbridge nats config --jetstream`: the hub's user has its bucket; no other user has access to JetStream."""

from pathlib import Path

import pytest

from bridge.errors import ConfigError
from bridge.protocol.nats.nats_server_config import hub_permissions, site_permissions
from tests.unit.protocol.nats.test_nats_files import run


def test_without_it_nothing_of_jetstream_is_there(tmp_path: Path) -> None:
    run("--pools", "alpha", "--out", str(tmp_path))
    text = (tmp_path / "users.conf").read_text() + (tmp_path / "nats-server.conf").read_text()
    assert "jetstream" not in text
    assert "$" not in text
    assert not (tmp_path / "jetstream").exists()


def test_the_hub_gets_its_bucket_and_nobody_else(tmp_path: Path) -> None:
    text = run("--pools", "alpha", "--out", str(tmp_path), "--jetstream", "--bucket", "mine")
    assert "{kind: nats, nats: {bucket: mine}}" in text
    hub, _, site = (tmp_path / "users.conf").read_text().partition("# pool-alpha")
    assert '"$JS.API.STREAM.CREATE.KV_mine"' in hub
    assert '"$KV.mine.>"' in hub
    assert "$" not in site
    assert f'store_dir: "{tmp_path}/jetstream"' in (tmp_path / "nats-server.conf").read_text()
    assert (tmp_path / "jetstream").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "bucket").stat().st_mode & 0o777 == 0o600


def test_it_stays_on_and_keeps_its_name(tmp_path: Path) -> None:
    run("--pools", "alpha", "--out", str(tmp_path), "--jetstream", "--bucket", "mine")
    run("--out", str(tmp_path), "--add-pool", "beta")
    assert "KV_mine" in (tmp_path / "users.conf").read_text()
    run("--out", str(tmp_path), "--jetstream")
    assert "KV_mine" in (tmp_path / "users.conf").read_text()
    (tmp_path / "bucket").unlink()
    run("--out", str(tmp_path))
    assert "KV_" not in (tmp_path / "users.conf").read_text()


def test_a_server_s_file_that_does_not_switch_it_on_is_pointed_out(tmp_path: Path) -> None:
    run("--pools", "alpha", "--out", str(tmp_path))
    assert "does not enable JetStream" in run("--out", str(tmp_path), "--jetstream")
    assert "does not enable JetStream" not in run("--out", str(tmp_path), "--jetstream", "--force")


def test_a_name_that_can_not_be_changes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "n"
    with pytest.raises(ConfigError):
        run("--pools", "a", "--out", str(out), "--jetstream", "--bucket", "a.>")
    assert not out.exists()


def test_no_permission_is_wider_than_the_bucket() -> None:
    added = set(hub_permissions("bridge.v1", "mine").publish) - set(hub_permissions("bridge.v1").publish)
    assert all("KV_mine" in subject or subject == "$KV.mine.>" for subject in added)
    assert hub_permissions("bridge.v1", "mine").subscribe == hub_permissions("bridge.v1").subscribe
    site = site_permissions("bridge.v1", "alpha")
    assert not any(subject.startswith("$") for subject in [*site.publish, *site.subscribe])


@pytest.mark.parametrize("text", ["a b\n", "*", "$KV\n"])
def test_a_file_that_names_no_bucket_is_refused(tmp_path: Path, text: str) -> None:
    run("--pools", "alpha", "--out", str(tmp_path))
    (tmp_path / "bucket").write_text(text)
    with pytest.raises(ConfigError):
        run("--out", str(tmp_path))
