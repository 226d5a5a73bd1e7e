import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.site.config import site_config as site_config
from cluster.__main__ import _parser
from cluster.errors import ClusterError
from cluster.pools import DEFAULT_SITES, SITES, Pools
from cluster.systems import images, nats
from cluster.systems.condor import CondorSetup
from cluster.systems.sites import toml

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


def test_only_what_the_chosen_sites_need_is_installed():
    assert pools(("local-site",)).needs()["slurm"] == []
    assert pools(("slurm-site",)).needs()["slurm"] == ["24.11"]
    assert pools(("slurm-site",)).needs()["added"] == []
    assert pools(("condor-site",)).needs()["added"] == ["htcondor"]
    assert pools(("apptainer-site",)).needs()["added"] == ["apptainer"]


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


# --- HTCondor ---------------------------------------------------------------------------------------------------------
def test_condor_listens_on_the_network_of_its_machines_and_trusts_one_user():
    text = CondorSetup(Path("/site"), 20000, "someone", 7, cpus=3, memory=100, gpus=2).conf()
    lines = dict(line.split(" = ", 1) for line in text.splitlines() if " = " in line)
    assert lines["NETWORK_INTERFACE"] == "10.78.32.1"
    assert lines["COLLECTOR_HOST"] == "10.78.32.1:20000"
    assert {value for key, value in lines.items() if key.startswith("ALLOW_")} == {"someone@podbridge"}
    assert (lines["NUM_CPUS"], lines["MEMORY"], lines["MACHINE_RESOURCE_GPUS"]) == ("3", "100", "gpu0, gpu1")


# --- images -----------------------------------------------------------------------------------------------------------


def test_without_busybox_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="busybox-static"):
        images.write_busybox(tmp_path / "images")


# --- Debian -----------------------------------------------------------------------------------------------------------
