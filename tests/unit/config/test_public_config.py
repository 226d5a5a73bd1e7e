"""The part of the configuration that users read from the cluster."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from bridge.apps.cli import hub_config
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.config import public_config
from bridge.config.hub import Config
from bridge.errors import ConfigError, KubeForbiddenError, KubeNotFoundError
from tests.fakes.kube_answers import KubeAnswers

SOURCE = "ConfigMap kube-public/podbridge-public"
KEYS = Config.model_json_schema()["properties"].keys()
LATER = st.text("abcdefgh", min_size=1).filter(lambda key: key not in KEYS)


@given(keys=st.dictionaries(LATER, st.integers()), scheduler=st.sampled_from(["hpc", "a.b", "x1"]))
def test_keys_of_a_later_version_are_ignored(keys, scheduler):
    config = public_config.read(yaml.safe_dump({**keys, "schedulerName": scheduler, "slurmRestApi": ""}), SOURCE)
    assert (config.scheduler_name, config.slurm_rest_api) == (scheduler, "")


def test_each_published_key_is_a_key_of_the_configuration():
    assert set(public_config.KEYS) <= KEYS


@pytest.mark.parametrize(
    ("text", "message"),
    [("[", "not YAML"), ("- 1", "must be a mapping"), ("schedulerName: 7", "schedulerName"), ("", "must be a mapping")],
)
def test_what_cannot_be_used_names_the_object(text, message):
    with pytest.raises(ConfigError, match=f"{SOURCE}: .*{message}"):
        public_config.read(text, SOURCE)


NO_FILE = ConnectionOptions(None, None, None)


def test_without_a_file_the_cluster_is_asked(monkeypatch):
    monkeypatch.setenv("PODBRIDGE_INSTALLATION", "hpc")
    kube = KubeAnswers(default={"data": {"config.yaml": "{installation: hpc, schedulerName: hpc-scheduler}"}})
    config, source = hub_config.of(NO_FILE, kube)
    assert (config.scheduler_name, source) == ("hpc-scheduler", "ConfigMap kube-public/hpc-public")
    assert kube.reads == ["/api/v1/namespaces/kube-public/configmaps/hpc-public"]


@pytest.mark.parametrize("error", [KubeForbiddenError, KubeNotFoundError])
def test_a_cluster_that_publishes_nothing_leaves_the_defaults(error):
    config, source = hub_config.of(NO_FILE, KubeAnswers(default=error("GET: refused", status=403)))
    assert config == Config()
    assert source.startswith("defaults; there is no ConfigMap kube-public/podbridge-public")


def test_a_file_is_read_without_a_question(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("schedulerName: mine")
    kube = KubeAnswers(default={})
    assert hub_config.of(ConnectionOptions(file, None, None), kube)[0].scheduler_name == "mine"
    assert kube.reads == []


def test_an_object_without_the_key_is_an_error():
    with pytest.raises(ConfigError, match=r"config\.yaml is missing"):
        hub_config.of(NO_FILE, KubeAnswers(default={"data": None}))
