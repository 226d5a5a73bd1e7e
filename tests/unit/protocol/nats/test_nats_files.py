import re
from pathlib import Path

import nkeys  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from bridge.apps.cli.nats_command import nats
from bridge.errors import ConfigError
from bridge.protocol.nats.nats_files import Hub, write
from bridge.protocol.nats.nats_server_config import Listeners, hub_permissions, server_text, site_permissions
from bridge.protocol.nats.user_keys import checked_public_key, new_seed, public_key


def run(*arguments: str) -> str:
    result = CliRunner().invoke(nats, ["config", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_secrets_are_private_and_never_replaced(tmp_path: Path) -> None:
    out = tmp_path / "n"
    run("--pools", "alpha,beta", "--out", str(out))
    files = [path for path in out.rglob("*") if path.is_file()]
    written = "hub.seed nats-server.conf pools/alpha.seed pools/beta.seed users.conf"
    assert sorted(str(path.relative_to(out)) for path in files) == written.split()
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (out, out / "pools")} == {0o700}
    before = {path: path.read_text() for path in out.rglob("*.seed")}
    text = run("--out", str(out), "--add-pool", "gamma", "--pools", "alpha")
    assert {path: path.read_text() for path in before} == before
    assert "kept:" in text
    users = (out / "users.conf").read_text()
    for path in out.rglob("*.seed"):
        assert path.read_text().strip() not in users + text
        assert public_key(path.read_text().strip()) in users


def test_secrets_of_another_folder_are_used_and_not_copied(tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "n"
    (given / "pools").mkdir(parents=True)
    (given / "hub.password").write_text("of-the-hub")
    (given / "pools" / "alpha.seed").write_text(new_seed())
    run("--secrets", str(given), "--out", str(out))
    assert {path.name for path in out.iterdir()} == {"nats-server.conf", "users.conf"}
    users = (out / "users.conf").read_text()
    assert '"of-the-hub"' in users
    assert users.count("nkey:") == 1
    (given / "pools" / "alpha.seed").rename(given / "pools" / "beta.seed")
    run("--secrets", str(given), "--out", str(out))
    assert "pool-alpha" not in (out / "users.conf").read_text()


def test_each_user_must_have_a_secret_in_another_folder(tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "n"
    given.mkdir()
    (given / "hub.password").write_text("of-the-hub")
    with pytest.raises(ConfigError, match=r"pools/alpha: neither alpha.seed nor alpha.password"):
        run("--secrets", str(given), "--out", str(out), "--pools", "alpha")
    with pytest.raises(ConfigError, match="--secrets: not with named hubs"):
        run("--secrets", str(given), "--out", str(out), "--pools", "alpha", "--hub", "a=1")
    assert not out.exists()
    assert [path.name for path in given.iterdir()] == ["hub.password"]


def test_the_server_s_file_is_the_administrator_s(tmp_path: Path) -> None:
    out = tmp_path / "n"
    run("--pools", "alpha", "--out", str(out))
    server = out / "nats-server.conf"
    server.write_text("# mine\n")
    run("--out", str(out), "--listen", "127.0.0.1:5222")
    assert server.read_text() == "# mine\n"
    run("--out", str(out), "--listen", "127.0.0.1:5222", "--force")
    assert 'listen: "127.0.0.1:5222"' in server.read_text()


def test_a_pool_whose_secret_is_taken_away_has_no_user(tmp_path: Path) -> None:
    out = tmp_path / "n"
    run("--pools", "alpha,beta", "--out", str(out))
    (out / "pools" / "beta.seed").unlink()
    run("--out", str(out))
    assert "beta" not in (out / "users.conf").read_text()


def test_passwords(tmp_path: Path) -> None:
    out = tmp_path / "n"
    run("--pools", "alpha", "--out", str(out), "--passwords")
    password = (out / "pools" / "alpha.password").read_text().strip()
    assert len(password) > 30
    assert f'password: "{password}"' in (out / "users.conf").read_text()


@pytest.mark.parametrize("pools", [[], ["Alpha"], ["a.b"], ["*"], ["../x"], ["a", ">"]])
def test_pools_that_can_not_be_change_nothing(tmp_path: Path, pools: list[str]) -> None:
    with pytest.raises(ConfigError):
        write(tmp_path / "n", "bridge.v1", pools, Listeners())
    assert not list((tmp_path / "n").rglob("*.conf")) + list((tmp_path / "n").rglob("*.seed"))


def test_a_secret_that_is_none_is_named(tmp_path: Path) -> None:
    write(tmp_path, "bridge.v1", ["alpha"], Listeners())
    (tmp_path / "pools" / "alpha.seed").write_text("SUAnonsense")
    with pytest.raises(ConfigError, match=r"alpha\.seed: not the seed"):
        write(tmp_path, "bridge.v1", [], Listeners())


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--tls-key"):
        run("--pools", "a", "--out", str(tmp_path), "--tls-cert", "x")


def test_what_is_not_encrypted_is_said(tmp_path: Path) -> None:
    assert "not encrypted" in run("--pools", "a", "--out", str(tmp_path / "1"), "--listen", "0.0.0.0:4222")
    assert "not encrypted" not in run("--pools", "a", "--out", str(tmp_path / "2"))


def test_websocket_and_tls() -> None:
    plain = server_text(Listeners(websocket="127.0.0.1:8080"), "users.conf")
    assert "no_tls: true" in plain
    assert "\ntls:" not in plain
    secure = server_text(Listeners(websocket="0.0.0.0:443", certificate='/a "b"/c', key="/k"), "users.conf")
    assert secure.count(r'{cert_file: "/a \"b\"/c", key_file: "/k"}') == 2
    assert "no_tls" not in secure


def test_a_site_has_nothing_but_its_own() -> None:
    site = site_permissions("bridge.v1", "alpha")
    assert all(subject.startswith("bridge.v1.alpha.") for subject in [*site.publish, *site.subscribe])
    assert not set(site.publish) & set(hub_permissions("bridge.v1").publish)


def test_seeds_are_those_of_users_and_all_different() -> None:
    seeds = {new_seed() for _ in range(50)}
    assert len(seeds) == 50
    for seed in seeds:
        assert seed.startswith("SU")
        assert public_key(seed).startswith("U")
        pair = nkeys.from_seed(bytearray(seed.encode()))
        assert pair.verify(b"x", pair.sign(b"x"))


def test_help_shows_examples() -> None:
    text = CliRunner().invoke(nats, ["config", "--help"]).output
    assert "podbridge nats config --pools alpha,beta" in text
    assert "--add-pool" in text


def test_a_link_to_a_certificate_stays_a_link(tmp_path: Path) -> None:
    """A mounted Secret is a link, and a renewed one is the same link to another directory."""
    (tmp_path / "..data").symlink_to("2026")
    (tmp_path / "2026").mkdir()
    for name in ("tls.crt", "tls.key"):
        (tmp_path / "2026" / name).touch()
        (tmp_path / name).symlink_to(f"..data/{name}")
    out = tmp_path / "n"
    run("--pools", "a", "--out", str(out), "--tls-cert", f"{tmp_path}/tls.crt", "--tls-key", f"{tmp_path}/tls.key")
    assert f'cert_file: "{tmp_path}/tls.crt", key_file: "{tmp_path}/tls.key"' in (out / "nats-server.conf").read_text()


CLUSTER = "n1=10.0.0.1,n2=nats2.example.org,n3=fd00::3"


def test_each_server_of_a_cluster_has_its_file(tmp_path: Path) -> None:
    out = tmp_path / "n"
    pem = [str(tmp_path / name) for name in ("cert", "key", "ca")]
    tls = ["--tls-cert", pem[0], "--tls-key", pem[1], "--tls-ca", pem[2]]
    said = run("--pools", "a", "--out", str(out), "--cluster", CLUSTER, "--jetstream", "--listen", "0.0.0.0:4222", *tls)
    assert not (out / "nats-server.conf").exists()
    assert "replicas: 3" in said
    password = (out / "cluster.password").read_text().strip()
    assert (out / "cluster.password").stat().st_mode & 0o777 == 0o600
    assert password not in said
    second = (out / "nats-server-n2.conf").read_text()
    assert 'server_name: "n2"' in second
    assert f'store_dir: "{out}/jetstream-n2"' in second
    assert f"nats-route://route:{password}@10.0.0.1:6222" in second
    assert f"nats-route://route:{password}@[fd00::3]:6222" in second
    assert "nats2.example.org" not in second
    assert f'ca_file: "{pem[2]}", verify: true' in second
    assert "not encrypted" not in said


def test_the_servers_of_a_cluster_stay(tmp_path: Path) -> None:
    out = tmp_path / "n"
    run("--pools", "a", "--out", str(out), "--cluster", CLUSTER)
    password = (out / "cluster.password").read_text()
    (out / "nats-server-n1.conf").write_text("# mine\n")
    said = run("--out", str(out), "--add-pool", "b")
    assert "kept:" in said
    assert (out / "nats-server-n1.conf").read_text() == "# mine\n"
    assert not (out / "nats-server.conf").exists()
    with pytest.raises(ConfigError, match="holds a cluster"):
        run("--out", str(out), "--force")
    run("--out", str(out), "--force", "--cluster", CLUSTER)
    assert "n1" in (out / "nats-server-n1.conf").read_text()
    assert (out / "cluster.password").read_text() == password


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("n1=a,n2=b", "2 servers"),
        ("n1=a,n2=b,n3=c,n4=d", "4 servers"),
        ("n1=a,n1=b,n3=c", "is used twice"),
        ("n1=a,n2=a,n3=c", "is used twice"),
        ("n1=a,n2,n3=c", "NAME=HOST"),
        ("n1=a,../n2=b,n3=c", "NAME=HOST"),
        ('n1=a,n2=b"x,n3=c', "NAME=HOST"),
    ],
)
def test_servers_that_are_no_cluster_are_refused(tmp_path: Path, words: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        run("--pools", "a", "--out", str(tmp_path / "n"), "--cluster", words)
    assert not (tmp_path / "n").exists()


def test_a_pool_with_a_public_key_alone_has_the_permissions_of_its_pool(tmp_path: Path) -> None:
    out, keys = tmp_path / "n", tmp_path / "keys"
    keys.mkdir()
    run("--pools", "alpha", "--out", str(out))
    seed_user = public_key((out / "pools" / "alpha.seed").read_text().strip())
    beta = public_key(new_seed())
    (keys / "beta.nkey").write_text(beta)
    text = run("--out", str(out), "--keys", str(keys))
    users = (out / "users.conf").read_text()
    assert seed_user in users
    (block,) = re.findall(rf"nkey: {beta}  # pool-beta\n.*?permissions: {{\n(.*?)\n        }}\n", users, re.DOTALL)
    assert block.strip() == site_permissions("bridge.v1", "beta").text("          ")
    assert not (out / "pools" / "beta.seed").exists()
    assert "site beta" in text

    replacing = public_key(new_seed())
    (keys / "alpha.nkey").write_text(replacing + "\n")
    run("--out", str(out), "--keys", str(keys))
    users = (out / "users.conf").read_text()
    assert replacing in users
    assert seed_user not in users


def test_a_folder_of_keys_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    run("--out", str(tmp_path / "n"), "--keys", str(tmp_path / "keys"))
    assert "hub" in (tmp_path / "n" / "users.conf").read_text()
    with pytest.raises(ConfigError, match="none given"):
        run("--out", str(tmp_path / "other"))


@pytest.mark.parametrize("bad", ["", "U", "hub } users: []", "U" + "A" * 55, "SUAA"])
def test_a_bad_key_is_refused_before_users_are_written(tmp_path: Path, bad: str) -> None:
    out, keys = tmp_path / "n", tmp_path / "keys"
    keys.mkdir()
    (keys / "beta.nkey").write_text(bad)
    with pytest.raises(ConfigError, match=r"beta\.nkey"):
        run("--out", str(out), "--keys", str(keys))
    assert not (out / "users.conf").exists()


@given(st.text(max_size=80))
def test_no_text_but_a_public_key_is_one(text: str) -> None:
    with pytest.raises(ConfigError):
        checked_public_key(text)


@given(st.integers(0, 55), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_a_key_with_a_wrong_character_is_refused(place: int, letter: str) -> None:
    key = public_key(new_seed())
    assert checked_public_key(f" {key}\n") == key
    changed = key[:place] + letter + key[place + 1 :]
    if changed != key:
        with pytest.raises(ConfigError):
            checked_public_key(changed)


def test_the_error_about_a_seed_does_not_repeat_it() -> None:
    seed = new_seed()
    with pytest.raises(ConfigError, match="seed, which is secret") as error:
        checked_public_key(seed)
    assert seed not in str(error.value)


def test_named_hubs_keep_their_secrets_and_have_a_bucket_each(tmp_path: Path) -> None:
    first = write(tmp_path, "bridge.v1", ["alpha"], Listeners(), hubs={"a": "uid-a"}).hubs
    assert first == {"a": Hub(tmp_path / "hubs/a.seed", "uid-a")}
    secret = first["a"].secret.read_text()
    both = write(tmp_path, "bridge.v1", [], Listeners(), hubs={"b": "uid-b"}, jetstream=True, bucket="x").hubs
    assert both == {name: Hub(tmp_path / f"hubs/{name}.seed", f"uid-{name}", f"x-{name}") for name in ("a", "b")}
    assert both["a"].secret.read_text() == secret
    users = (tmp_path / "users.conf").read_text()
    assert public_key(secret.strip()) in users
    assert not (tmp_path / "hub.seed").exists()


@pytest.mark.parametrize(
    ("hubs", "problem"),
    [
        ({"A": "u"}, "hub 'A': must be"),
        ({"b": "../u"}, "hub b: UID '../u': must be"),
        ({"a": "uid-b"}, "hub a: its UID is uid-a, not uid-b"),
        ({"b": "uid-a"}, "hubs: a, b have the same UID"),
    ],
)
def test_hubs_that_can_not_be_change_nothing(tmp_path: Path, hubs: dict[str, str], problem: str) -> None:
    write(tmp_path, "bridge.v1", ["alpha"], Listeners(), hubs={"a": "uid-a"})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=problem):
        write(tmp_path, "bridge.v1", ["beta"], Listeners(), hubs=hubs)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
