"""``podbridge token renew``, with a stand-in for ``scontrol`` and for the API server."""

import base64
from pathlib import Path

import pytest
from click.testing import CliRunner

from bridge.apps.cli.main import cli
from bridge.errors import KubeForbiddenError, KubeNotFoundError, SlurmUnavailableError
from bridge.kube.kube_client import KubeClient
from bridge.slurm import auth
from bridge.slurm.auth import claims

PATH = "/api/v1/namespaces/podbridge/secrets/slurm-bridge-token"


class Kube:
    def __init__(self, exists=True):
        self.exists, self.refused, self.calls = exists, None, []

    def patch(self, path, body, *, kind, params=None):
        assert kind == "merge"
        if not self.exists:
            raise KubeNotFoundError(f"PATCH {path}: not found")
        self.calls.append(("patch", path, body["data"], params))

    def create(self, path, body, params=None):
        if self.refused:
            raise self.refused
        self.calls.append(("create", f"{path}/{body['metadata']['name']}", body["data"], params))


@pytest.fixture
def kube(monkeypatch):
    made = Kube()
    monkeypatch.setattr(KubeClient, "load", lambda *args, **settings: made)
    return made


@pytest.fixture
def key(tmp_path):
    file = tmp_path / "key"
    file.write_bytes(b"0123456789abcdef")
    return str(file)


@pytest.fixture
def scontrol(tmp_path, monkeypatch):
    def install(script):
        file = tmp_path / "scontrol"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return install


def renew(*args):
    return CliRunner().invoke(cli, ["token", "renew", *args])


def stored(kube, key="auth-token"):
    return base64.b64decode(kube.calls[0][2][key]).decode()


def test_a_token_by_the_key_is_written_and_its_end_is_printed(kube, key):
    done = renew("--key-file", key, "--lifespan", "3600", "--user", "bridge")
    assert done.exit_code == 0, done.output
    ((verb, path, _, params),) = kube.calls
    assert (verb, path, params) == ("patch", PATH, None)
    found = claims(stored(kube))
    assert found["sun"] == "bridge" and found["exp"] - found["iat"] == 3600
    assert "Secret podbridge/slurm-bridge-token: renewed; it expires at 20" in done.output
    assert stored(kube) not in done.output


def test_a_missing_secret_is_created(kube, key):
    kube.exists = False
    assert renew("--key-file", key, "--secret", "other", "-n", "web", "--key", "jwt").exit_code == 0
    assert kube.calls[0][:2] == ("create", "/api/v1/namespaces/web/secrets/other")
    assert claims(stored(kube, "jwt"))["sun"] == "slurm"


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (KubeNotFoundError("POST /api/v1/namespaces/x/secrets: 404"), "the namespace x does not exist"),
        (KubeForbiddenError("POST: may not create"), "the Secret x/slurm-bridge-token does not exist; POST: may not"),
    ],
)
def test_a_secret_that_cannot_be_created_is_a_clear_error(kube, key, refused, message):
    kube.exists, kube.refused = False, refused
    done = renew("--key-file", key, "-n", "x")
    assert done.exit_code != 0 and kube.calls == []
    assert message in done.output + str(done.exception)


@pytest.mark.parametrize("exists", [True, False])
def test_a_dry_run_writes_nothing(kube, key, exists):
    kube.exists = exists
    done = renew("--key-file", key, "--dry-run")
    assert [call[3] for call in kube.calls] == [{"dryRun": "All"}]
    assert "not written (--dry-run)" in done.output


def test_a_token_of_scontrol_is_written_without_its_prefix(kube, scontrol):
    made = auth.signed(b"k", "slurm", 60, 1_900_000_000)
    scontrol(f'[ "$*" = "token username=slurm lifespan=60" ] && echo SLURM_JWT={made}')
    done = renew("--lifespan", "60")
    assert done.exit_code == 0, done.output
    assert stored(kube) == made
    assert "it expires at 2030-03-17T17:47:40Z" in done.output


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "scontrol is not installed on this host"),
        ("echo Invalid user >&2; exit 1", "scontrol token: Invalid user"),
        ("exit 0", "scontrol token: no token"),
    ],
)
def test_without_a_token_nothing_is_written(kube, scontrol, script, message):
    if script is not None:
        scontrol(script)
    done = renew()
    assert done.exit_code != 0
    assert message in done.output + str(done.exception)
    assert kube.calls == []


def test_a_key_that_can_not_be_read_is_an_error(kube, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.touch()
    for file, message in ((tmp_path / "none", "No such file"), (empty, "is empty")):
        done = renew("--key-file", str(file))
        assert done.exit_code != 0
        assert message in done.output + str(done.exception)
    assert kube.calls == []


def test_the_help_has_examples():
    assert "podbridge token renew --key-file" in renew("--help").output


@pytest.mark.parametrize("accepts", [True, False])
def test_the_slurm_of_the_configuration_must_accept_the_token(kube, key, tmp_path, monkeypatch, accepts):
    tried = []

    class Slurm:
        def __init__(self, config, token, *, pool_size):
            tried.append((config.slurm_rest_api, token))

        def ping(self):
            if not accepts:
                raise SlurmUnavailableError("ping: slurmctld does not accept the token")

    monkeypatch.setattr("bridge.slurm.slurm_client.SlurmClient", Slurm)
    file = tmp_path / "config.yaml"
    file.write_text("slurmRestApi: http://slurm.example.org:6820\n")
    done = renew("--key-file", key, "--config", str(file))
    ((url, token),) = tried
    assert url == "http://slurm.example.org:6820" and claims(token)["sun"] == "slurm"
    if accepts:
        assert done.exit_code == 0 and stored(kube) == token
    else:
        assert done.exit_code != 0 and kube.calls == []
        assert "the new token, which is not written: ping" in done.output + str(done.exception)
        assert token not in done.output + str(done.exception)


def test_without_slurm_in_the_configuration_the_token_is_written_untried(kube, key, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text('slurmRestApi: ""\npools: {nats: {servers: ["nats://127.0.0.1:1"]}}\n')
    done = renew("--key-file", key, "--config", str(file))
    assert done.exit_code == 0, done.output + str(done.exception)
    assert len(kube.calls) == 1
