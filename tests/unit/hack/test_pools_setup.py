import subprocess
import tomllib
from pathlib import Path

import nkeys
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bridge.config import hub
from bridge.site.config import site_config as site_config
from cluster import debian, images, nats, tools
from cluster.__main__ import _parser
from cluster.condor import CondorSetup
from cluster.errors import ClusterError
from cluster.nats import NatsSetup
from cluster.podbridges import submitter
from cluster.pools import DEFAULT_SITES, SITES, Pools
from cluster.sites import toml

plain = st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.lists(st.text()))
keys = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1)


def pools(names=SITES, state=Path("/state"), port=20000):
    return Pools(state, port, names, "24.11", 3)


# --- sites ------------------------------------------------------------------------------------------------------------
def test_no_two_sites_share_a_port_or_a_user():
    made = pools()
    taken = list(range(20000, 20000 + nats.PORTS))
    for site in made.sites.values():
        taken += range(site.first_port, site.first_port + site.ports)
    assert len(taken) == len(set(taken)) == made.ports
    assert len({site.uid for site in made.sites.values()}) == len(SITES)


def test_without_sites_there_is_nothing():
    made = pools(())
    assert (made.ports, made.daemons(), made.settings(1)) == (0, {}, {})
    assert made.needs() == {"slurm": [], "added": [], "machine": []}


def test_a_site_that_there_is_not_is_refused_by_name():
    with pytest.raises(ClusterError, match=r"no site moon; there are slurm-site, local-site"):
        pools(("moon",))


def test_every_daemon_begins_with_its_sites_name():
    made = pools(("slurm-site", "condor-site"))
    nodes = [f"slurm-site-slurmd-node-{number}" for number in range(3)]
    condor = [f"condor-site-{name}" for name in ("collector", "negotiator", "schedd", "startd")]
    assert list(made.daemons()) == ["nats-server", "slurm-site-slurmctld", *nodes, *condor]
    assert submitter("slurm-site") == "slurm-site-submitter"
    assert submitter("slurm-site", 2) == "slurm-site-submitter-2"


def test_only_what_the_chosen_sites_need_is_installed():
    assert pools(("local-site",)).needs()["slurm"] == []
    assert pools(("slurm-site",)).needs()["slurm"] == ["24.11"]
    assert pools(("slurm-site",)).needs()["added"] == []
    assert pools(("condor-site",)).needs()["added"] == ["htcondor"]
    assert pools(("apptainer-site",)).needs()["added"] == ["apptainer"]


def test_podbridge_understands_what_is_said_of_pools():
    settings = {**tools.podbridge_config("http://127.0.0.1:1", 20000), **pools().settings(20003)}
    made = hub.parse(yaml.safe_dump(settings))
    assert made.pools.enabled
    assert made.pools.kubelet_port == 20003
    assert made.managed_namespaces == ["slurm-bridge", "remote"]


@pytest.mark.parametrize("name", SITES)
def test_a_submitter_understands_its_configuration(name, tmp_path, monkeypatch):
    monkeypatch.setattr("os.chown", lambda *_: None)
    made = pools((name,), tmp_path)
    for file in (made.nats.seed(name), made.nats.ca_file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"content of {file.name}")
    (tmp_path / "sites" / name / "home").mkdir(parents=True)
    made.configure(name, {"batch": {"period": 7}})
    read = site_config.parse((tmp_path / "sites" / name / "site.toml").read_text())
    assert (read.pool, read.batch.period) == (name, 7)
    assert read.batch.kind == made.sites[name].batch
    assert read.runtime.kind == made.sites[name].runtime
    assert read.nats.servers == [made.nats.websocket_url]
    seed = tmp_path / "sites" / name / "home" / "seed"
    assert seed.read_bytes() == made.nats.seed(name).read_bytes()
    assert seed.stat().st_mode & 0o077 == 0


@given(st.dictionaries(keys, st.one_of(plain, st.dictionaries(st.text(), plain))))
def test_settings_survive_toml(settings):
    text = toml(settings)
    assert tomllib.loads(text) == settings


def test_up_takes_sites_by_name_and_two_without():
    assert _parser().parse_args(["up", "--pools"]).pools == []
    assert _parser().parse_args(["up", "--pools", "condor-site"]).pools == ["condor-site"]
    assert _parser().parse_args(["up"]).pools is None
    assert set(DEFAULT_SITES) < set(SITES)


# --- nats-server ------------------------------------------------------------------------------------------------------
def test_the_servers_of_a_cluster_are_on_hosts_of_their_own(tmp_path):
    made = NatsSetup(tmp_path / "nats", 20000, ("one",), servers=3)
    made.write()
    assert list(made.daemons) == ["nats-server-n1", "nats-server-n2", "nats-server-n3"]
    assert len(set(made.urls)) == len(set(made.websocket_urls)) == 3
    for command in made.daemons.values():
        subprocess.run([*command[4:], "-t"], check=True, capture_output=True)


def test_nats_server_accepts_the_configuration(tmp_path):
    made = NatsSetup(tmp_path / "nats", 20000, ("one", "two"))
    made.write()
    subprocess.run([*made.daemons["nats-server"], "-t"], check=True, capture_output=True)
    seeds = {user: made.seed(user) for user in ("hub", "one", "two")}
    assert all(file.stat().st_mode & 0o077 == 0 for file in seeds.values())
    conf = (tmp_path / "nats" / "users.conf").read_text()
    for file in seeds.values():
        pair = nkeys.from_seed(bytearray(file.read_bytes().strip()))
        assert pair.public_key.decode().rstrip("=") in conf
        assert file.read_text().strip() not in conf


# --- HTCondor ---------------------------------------------------------------------------------------------------------
def test_condor_listens_on_the_loopback_and_trusts_one_user():
    text = CondorSetup(Path("/site"), 20000, "someone", 7, cpus=3, memory=100, gpus=2).conf()
    lines = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    assert lines["NETWORK_INTERFACE"] == "127.0.0.1"
    assert lines["COLLECTOR_HOST"] == "127.0.0.1:20000"
    assert {value for key, value in lines.items() if key.startswith("ALLOW_")} == {"someone@podbridge"}
    assert (lines["NUM_CPUS"], lines["MEMORY"], lines["MACHINE_RESOURCE_GPUS"]) == ("3", "100", "gpu0, gpu1")


# --- images -----------------------------------------------------------------------------------------------------------
def test_the_image_has_every_applet_of_busybox(tmp_path, monkeypatch):
    program = tmp_path / "busybox"
    program.write_text("#!/bin/sh\nprintf 'busybox\\nls\\nsh\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    images.write_busybox(tmp_path / "images")
    for name in images.NAMES:
        folder = tmp_path / "images" / name / "bin"
        assert (folder / "ls").readlink() == Path("busybox")
        assert not (folder / "busybox").is_symlink()


def test_without_busybox_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="busybox-static"):
        images.write_busybox(tmp_path / "images")


# --- Debian -----------------------------------------------------------------------------------------------------------
def test_a_root_folder_gets_more_packages_and_starts_none_of_their_daemons(tmp_path, monkeypatch):
    monkeypatch.setenv("PODBRIDGE_CACHE", str(tmp_path))
    root = tmp_path / "roots" / "trixie"
    for name in ("etc", "usr/sbin"):
        (root / name).mkdir(parents=True)
    path = tmp_path / "path"
    path.mkdir()
    chroot = path / "chroot"
    chroot.write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin\necho "$*" >> {tmp_path}/calls\n')
    chroot.chmod(0o755)
    monkeypatch.setenv("PATH", str(path))
    debian.ensure_added("htcondor")
    update, installed = (tmp_path / "calls").read_text().splitlines()
    assert update.endswith("update")
    assert installed.endswith("install -y --no-install-recommends htcondor")
    assert (root / "usr/sbin/policy-rc.d").read_text() == "#!/bin/sh\nexit 101\n"
    (root / "usr/sbin/condor_master").touch()
    debian.ensure_added("htcondor")
    assert len((tmp_path / "calls").read_text().splitlines()) == 2
