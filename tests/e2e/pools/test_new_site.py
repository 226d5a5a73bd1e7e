"""A new site: ``podbridge submitter init`` there, ``podbridge pool add`` at the hub; a pod runs from the written files.

NATS is that of the cluster: WebSocket with TLS for the site.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import tomllib

import pytest

from cluster import tools
from cluster.polling import eventually
from cluster.pools import NAMESPACE
from cluster.systems.nats import DAEMON

pytestmark = pytest.mark.real
HOSTS = ("local-site", "slurm-site")
"""The sites whose users, machines and batch systems the new sites have."""


TEST = ("--test", "--pod-namespace", NAMESPACE, "--image", "busybox")


class NewSite:
    """The files and the submitter of a new site, as the user of another one, on the machines of that."""

    def __init__(self, world, host):
        self.world, self.site, self.process = world, world.cluster.sites[host], None
        self.host, self.pool = host, f"new-{host}"
        self.files = self.site.folder / "home" / ".config" / "podbridge" / self.pool
        self.unit = self.site.folder / "home" / ".config" / "systemd" / "user" / f"podbridge-{self.pool}.service"
        self.options = ["--server", world.cluster.nats.websocket_url, "--ca-file", "/srv/home/ca.crt"]
        # jobs run in the root folder of the site's machines, which have another runtime than this one
        self.options += ["--runtime", self.site.runtime, "--set", "volumes.image_dir=/srv/images"]
        self.options += ["--set", "announce.period=1", "--set", "batch.period=1"]
        self.options += ["--batch", "local", "--set", "local.cpus=4"] if self.site.batch == "local" else []
        program = self.site.folder / "bin" / "podbridge"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(tools.PODBRIDGE)} "$@"\n')
        program.chmod(0o755)

    def init(self, *options):
        """Run ``podbridge submitter init``; return its exit status and its report."""
        command = [
            str(self.site.as_user),
            "podbridge",
            "submitter",
            "init",
            "--pool",
            self.pool,
            "-o",
            "json",
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    def start(self):
        """Start the submitter as the unit says."""
        values = [
            line.partition("=")[2] for line in self.unit.read_text().splitlines() if line.startswith("ExecStart=")
        ]
        (command,) = map(shlex.split, values)
        self.process = subprocess.Popen([str(self.site.as_user), *command])

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)
            self.process = None


@pytest.fixture(scope="module", params=HOSTS)
def new_site(pools_world, request):
    made = NewSite(pools_world, request.param)
    yield made
    made.stop()
    nats = pools_world.cluster.nats.folder
    (nats / "pools" / f"{made.pool}.nkey").unlink(missing_ok=True)
    subprocess.run([*tools.PODBRIDGE, "nats", "config", "--out", str(nats)], check=True, capture_output=True)
    os.kill(pools_world.cluster.pid(DAEMON), signal.SIGHUP)
    pools_world.api.request("DELETE", f"/api/v1/nodes/{made.pool}")
    home = made.site.folder / "home"
    for path in (home / ".config", home / "podbridge-jobs"):
        shutil.rmtree(path, ignore_errors=True)


def pool_command(world, *words):
    """Return the command line and the environment of ``podbridge pool``, as the administrator of the hub runs it."""
    config = ["--config", str(world.cluster.state / "podbridge.yaml")]
    return [*tools.PODBRIDGE, "pool", *words, *config], {**os.environ, **world.cluster.env}


def add(new_site, key, *more):
    """Start ``podbridge pool add``."""
    world = new_site.world
    nats = world.cluster.nats.folder
    reload = f"kill -HUP {world.cluster.pid(DAEMON)}"
    words = ["add", new_site.pool, "--key", key, "--nats-dir", str(nats), "--reload", reload, *more]
    command, env = pool_command(world, *words)
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_one_command_on_each_side_and_a_pod_runs_there(pools_world, new_site):
    server = pools_world.cluster.nats.websocket_url
    status, report = new_site.init(*new_site.options)
    assert status == 0, report
    assert tomllib.loads((new_site.files / "site.toml").read_text())["batch"]["kind"] == new_site.site.batch
    (nats,) = (check["found"] for check in report["checks"] if check["what"] == "NATS")
    assert nats == f"{server} answers; it does not know this key yet"
    assert report["start"].startswith(f"systemctl --user enable --now podbridge-{new_site.pool}")
    assert {name.name: name.stat().st_mode & 0o777 for name in new_site.files.iterdir()} == dict.fromkeys(
        ("site.toml", "site.seed", "ca.crt"), 0o600
    )
    assert new_site.files.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_uid for file in (new_site.unit, *new_site.files.iterdir())} == {new_site.site.uid}

    running = add(new_site, report["publicKey"], *TEST, "--timeout", "90")
    new_site.start()
    output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    assert f"pool {new_site.pool}: Ready" in output
    assert f": succeeded: job {new_site.pool}/" in output
    assert "log: a pod of podbridge ran here: " in output
    assert not [pod for pod in pools_world.pods(NAMESPACE) if pod["metadata"]["name"].startswith("podbridge-test-")]
    seed = (new_site.files / "site.seed").read_text().strip()
    assert seed not in output + json.dumps(report)
    hub_files = [path for path in pools_world.cluster.nats.folder.rglob("*") if path.is_file()]
    assert not [path for path in hub_files if seed.encode() in path.read_bytes()]


def test_a_second_run_keeps_the_files_and_the_hub_keeps_the_key(pools_world, new_site):
    before = {path: path.read_bytes() for path in new_site.files.iterdir()}
    status, report = new_site.init("--server", "wss://another.invalid:1")
    assert (status, {file["action"] for file in report["files"]}) == (0, {"kept"})
    assert {path: path.read_bytes() for path in new_site.files.iterdir()} == before
    (nats,) = (check["found"] for check in report["checks"] if check["what"] == "NATS")
    assert nats.endswith("accepts the key")
    again = add(new_site, report["publicKey"])
    output, _ = again.communicate(timeout=60)
    assert again.returncode == 0, output
    assert f"has this key of pool {new_site.pool} already" in output


def test_a_new_key_replaces_the_old_one_only_by_force(pools_world, new_site):
    old_seed = (new_site.files / "site.seed").read_text()
    _, report = new_site.init(*new_site.options, "--force")
    assert (new_site.files / "site.seed").read_text() != old_seed
    assert (new_site.files / "site.toml.old").exists()
    users = pools_world.cluster.nats.folder / "users.conf"
    before = users.read_text()
    refused = add(new_site, report["publicKey"])
    output, _ = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "has another key" in output and "--force" in output
    assert users.read_text() == before
    forced = add(new_site, report["publicKey"], "--force", *TEST)
    output, _ = forced.communicate(timeout=120)
    assert forced.returncode == 0, output
    assert report["publicKey"] in users.read_text()


def test_a_pool_whose_site_is_silent_and_a_namespace_that_is_not_managed(pools_world, new_site):
    new_site.stop()
    eventually(
        lambda: pools_world.readiness(new_site.pool).get("status") != "True", f"{new_site.pool} is not ready", 60
    )
    command, env = pool_command(pools_world, "test", new_site.pool, "--pod-namespace", NAMESPACE, "--timeout", "3")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "the time is over (--timeout)" in done.stderr and "start the submitter" in done.stderr
    command, env = pool_command(pools_world, "test", new_site.host, "--pod-namespace", "default", "--timeout", "30")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "default" in done.stderr
    assert not [pod for pod in pools_world.pods("default") if pod["metadata"]["name"].startswith("podbridge-test-")]
