"""``podbridge pool``: the key of a site at the hub, and a pod on the pool, with a stand-in for the API server."""

import io

import pytest
import yaml
from click.testing import CliRunner

from bridge.apps.cli.main import cli
from bridge.apps.cli.sites import pool_keys, pool_run
from bridge.apps.cli.sites.pool_run import OUTPUT, PodTest, PodTestError
from bridge.errors import ConfigError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.protocol.nats.nats_server_config import site_permissions
from bridge.protocol.nats.user_keys import new_seed, public_key
from tests import builders

KEY, OTHER = public_key(new_seed()), public_key(new_seed())
MAP = "/api/v1/namespaces/podbridge/configmaps/podbridge-nats-keys"
PODS = "/api/v1/namespaces/podbridge/pods"


def stateful_set(volumes=({"name": "keys", "configMap": {"name": "podbridge-nats-keys", "optional": True}},)):
    labels = {"app.kubernetes.io/instance": "podbridge"}
    return {
        "metadata": {"name": "podbridge-nats", "labels": labels},
        "spec": {"template": {"spec": {"volumes": list(volumes)}}},
    }


def moment(number):
    return f"2026-12-01T10:00:{number:02}Z"


def server_pod(uid):
    return {
        "metadata": {"name": "podbridge-nats-0", "uid": f"uid-{uid}", "creationTimestamp": moment(uid)},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


class Kube:
    """A release with a NATS server whose pod comes back after its deletion."""

    def __init__(self):
        self.sets, self.maps, self.uid, self.writes = [stateful_set()], {}, 1, []
        self.interrupted = False

    def get(self, path, params=None):
        if path.endswith("/statefulsets"):
            assert params["labelSelector"] == pool_keys.SERVER_LABELS
            return {"items": self.sets}
        if path == PODS:
            assert params["labelSelector"].endswith(",app.kubernetes.io/instance=podbridge")
            return {"items": [server_pod(self.uid)]}
        if path in self.maps:
            return self.maps[path]
        raise KubeNotFoundError(path)

    def create(self, path, body, params=None):
        self.writes.append(("create", params))
        if params is None:
            metadata = body["metadata"] | {"managedFields": [{"time": moment(self.uid)}, {}]}
            self.maps[f"{path}/{body['metadata']['name']}"] = body | {"metadata": metadata}
        return body

    def patch(self, path, body, *, kind, params=None):
        assert kind == "merge"
        self.writes.append(("patch", params))
        if params is None:
            self.maps[path]["data"] |= body["data"]
            self.maps[path]["metadata"]["managedFields"].append({"time": moment(self.uid)})

    def delete(self, path, body=None):
        if self.interrupted:
            raise KeyboardInterrupt
        assert (path, body) == (f"{PODS}/podbridge-nats-0", {"preconditions": {"uid": f"uid-{self.uid}"}})
        self.uid += 1


@pytest.fixture
def kube(monkeypatch):
    made = Kube()
    monkeypatch.setattr(KubeClient, "load", lambda *args, **settings: made)
    return made


def add(*words, key=KEY, pool="site-a"):
    return CliRunner().invoke(cli, ["pool", "add", pool, "--key", key, *map(str, words)])


def test_the_key_is_written_and_the_server_restarted(kube):
    done = add()
    assert done.exit_code == 0, done.exception
    assert kube.maps[MAP]["data"] == {"site-a.nkey": KEY}
    assert kube.uid == 2
    assert add(pool="site-b", key=OTHER).exit_code == 0
    assert kube.maps[MAP]["data"] == {"site-a.nkey": KEY, "site-b.nkey": OTHER}
    assert "restarted" in done.output


def test_the_same_key_again_changes_nothing(kube):
    add()
    done = add()
    assert (done.exit_code, kube.uid) == (0, 2)
    assert "has this key of pool site-a already" in done.output


@pytest.mark.parametrize("before", [False, True])
def test_a_server_that_has_not_read_the_key_is_restarted_by_the_same_command(kube, before):
    if before:
        add(pool="site-b", key=OTHER)
    kube.uid, kube.interrupted = 5, True
    assert add().exit_code != 0
    kube.interrupted = False
    kube.maps[MAP]["metadata"]["managedFields"][-1] = {"time": moment(6)}
    done = add()
    assert (done.exit_code, kube.uid) == (0, 6)
    assert "has this key of pool site-a already" in done.output
    assert "restarted" in done.output
    assert "restarted" not in add().output


def test_another_key_needs_force(kube):
    add()
    done = add(key=OTHER)
    assert isinstance(done.exception, ConfigError) and "--force" in done.exception.hint
    assert kube.maps[MAP]["data"] == {"site-a.nkey": KEY}
    assert add("--force", key=OTHER).exit_code == 0
    assert kube.maps[MAP]["data"] == {"site-a.nkey": OTHER}


def test_two_pools_have_different_keys(kube, tmp_path):
    add()
    assert "pool site-a has this key" in str(add("--force", pool="site-b").exception)
    assert kube.maps[MAP]["data"] == {"site-a.nkey": KEY}
    out = tmp_path / "nats"
    CliRunner().invoke(cli, ["nats", "config", "--pools", "x", "--out", str(out)])
    assert add("--nats-dir", out).exit_code == 0
    users = (out / "users.conf").read_text()
    assert "pool site-a has this key" in str(add("--nats-dir", out, "--force", pool="site-b").exception)
    (out / "pools" / "site-b.nkey").write_text(KEY)  # by hand: the server would not start
    again = CliRunner().invoke(cli, ["nats", "config", "--out", str(out)])
    assert "pool-site-a and pool-site-b have the same key" in str(again.exception)
    assert (out / "users.conf").read_text() == users


def test_a_dry_run_lets_the_api_server_check_and_restarts_nothing(kube):
    assert "would have the key" in add("--dry-run").output
    assert (kube.writes, kube.uid, kube.maps) == ([("create", {"dryRun": "All"})], 1, {})


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ([], "none; allowed: one"),
        ([stateful_set(), stateful_set()], "allowed: one"),
        ([stateful_set(volumes=())], "does not read the ConfigMap podbridge-nats-keys"),
    ],
)
def test_a_namespace_without_a_server_that_reads_keys(kube, sets, message):
    kube.sets = sets
    assert message in str(add().exception)
    assert kube.writes == []


def test_the_config_map_is_printed_for_gitops(kube):
    printed = yaml.safe_load(add("--print", "yaml").output)
    assert printed["metadata"] == {"name": "podbridge-nats-keys", "namespace": "podbridge"}
    assert printed["data"] == {"site-a.nkey": KEY}
    assert kube.writes == []


def test_the_user_of_another_server_has_the_permissions_of_the_pool_alone():
    text = add("--print", "nats").output
    assert f"nkey: {KEY}  # pool-site-a\n" in text
    assert site_permissions("bridge.v1", "site-a").text("    ") in text


@pytest.mark.parametrize("pool", ["a}", 'a"', "a b", "*", ">", "a\nb", "a.b", "Hub"])
def test_a_pool_that_could_be_syntax_of_the_server_is_refused(kube, pool):
    done = add("--print", "nats", pool=pool)
    assert isinstance(done.exception, ConfigError) and "POOL" in str(done.exception)
    assert done.output == ""


def test_a_seed_instead_of_a_key_is_refused_and_not_repeated(kube):
    seed = new_seed()
    done = add(key=seed)
    assert "is a seed, which is secret" in str(done.exception)
    assert seed not in str(done.exception) + done.output


def test_a_directory_of_nats_config(tmp_path):
    out = tmp_path / "nats"
    runner = CliRunner()
    assert runner.invoke(cli, ["nats", "config", "--pools", "site-a,site-b", "--out", str(out)]).exit_code == 0
    conf = (out / "nats-server.conf").read_text()
    done = add("--nats-dir", out)
    assert "another key: site-a.seed" in str(done.exception)
    done = add("--nats-dir", out, "--force", "--reload", "true")
    assert done.exit_code == 0, done.exception
    users = (out / "users.conf").read_text()
    assert users.count("nkey:") == 3 and f"nkey: {KEY}  # pool-site-a" in users
    assert not (out / "pools" / "site-a.seed").exists()
    assert (out / "pools" / "site-a.nkey").stat().st_mode & 0o777 == 0o600
    assert (out / "nats-server.conf").read_text() == conf
    assert "--reload: false: exit status 1" in str(add("--nats-dir", out, "--reload", "false").exception)
    # no shell reads the command
    assert add("--nats-dir", out, "--reload", f"true; touch {tmp_path}/ran").exit_code != 0
    assert not (tmp_path / "ran").exists()


def test_a_directory_of_something_else_is_refused(tmp_path):
    assert "allowed: a directory of podbridge nats config" in str(add("--nats-dir", tmp_path).exception)
    assert list(tmp_path.iterdir()) == []
    assert "requires --nats-dir" in str(add("--reload", "true").exception)


class Cluster:
    """An API server: the pool is ready at the second read; the pod has one state after the other."""

    def __init__(self, states, log=f"{OUTPUT}: n1\n", scheduler="podbridge"):
        self.states, self.output, self.scheduler = list(states), log, scheduler
        self.reads, self.deleted = 0, False

    def get(self, path, params=None):
        if "/nodes/" in path:
            self.reads += 1
            if self.reads == 1:
                raise KubeNotFoundError(path)
            ready = {"type": "Ready", "status": "True"}
            return {"metadata": {"labels": {"bridge.vk.io/pool": "site-a"}}, "status": {"conditions": [ready]}}
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    def create(self, path, body, params=None):
        assert path == "/api/v1/namespaces/research/pods"
        assert body["metadata"]["annotations"] == {"bridge.vk.io/pools": "site-a"}
        assert body["spec"]["automountServiceAccountToken"] is False
        return {"metadata": {"name": "t"}, "spec": {"schedulerName": self.scheduler}}

    def text(self, path, params, *, idle_timeout):
        return io.BytesIO(self.output.encode())

    def delete(self, path, body=None):
        self.deleted = True


def pod(phase, node="site-a", **status):
    made = builders.pod("uid-1", node=node, phase=phase, metadata={"name": "t", "namespace": "research"})
    made["spec"]["containers"] = [{"name": "main"}]
    return {**made, "status": made["status"] | status}


def run(cluster, **changes):
    said = []
    test = PodTest("site-a", "research", "podbridge", "busybox", **({"timeout": 5} | changes))
    pool_run.run(cluster, test, said.append, wait=lambda seconds: None)
    return said


def test_the_pod_ran_and_is_deleted():
    cluster = Cluster([pod("Pending", node=""), pod("Running"), pod("Succeeded")])
    said = run(cluster)
    assert said[0] == "pool site-a: no message from its site yet"
    assert said[1] == "pool site-a: Ready"
    assert said[-1] == f"log: {OUTPUT}: n1"
    assert cluster.deleted
    kept = Cluster([pod("Succeeded")])
    run(kept, keep=True)
    assert not kept.deleted


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            pod("Failed", reason="BatchSystemRefused", message="no such partition"),
            "BatchSystemRefused: no such partition",
        ),
        (pod("Succeeded", node="node-1"), "it ran on node-1, not on site-a"),
        (pod("Pending"), "the time is over"),
    ],
)
def test_a_pod_that_did_not_run_there_is_an_error_and_deleted(state, message):
    cluster = Cluster([state])
    with pytest.raises(PodTestError, match=message):
        run(cluster, timeout=0.05)
    assert cluster.deleted


def test_a_log_that_does_not_come_is_an_error(monkeypatch):
    monkeypatch.setattr(pool_run, "LOG_TIMEOUT", 0.05)
    with pytest.raises(PodTestError, match="its log cannot be read"):
        run(Cluster([pod("Succeeded")], log=""))


def test_a_namespace_of_another_scheduler_is_named_and_the_pod_deleted():
    cluster = Cluster([pod("Succeeded")], scheduler="default-scheduler")
    with pytest.raises(ConfigError, match="podbridge does not schedule its pods"):
        run(cluster)
    assert cluster.deleted
