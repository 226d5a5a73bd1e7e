"""The CronJob of the chart writes a new Slurm token, and podbridge uses it."""

import base64
import re
import subprocess
import time

import pytest
import requests

from bridge.slurm.auth import claims
from cluster.polling import eventually
from cluster.systems import helm, install

pytestmark = pytest.mark.real

KEY = "slurm-key"
JOB = "renewal-now"
WHERE = ("-n", helm.NAMESPACE)
ACCOUNT = f"system:serviceaccount:{helm.NAMESPACE}:podbridge-token-renewal"


@pytest.fixture
def renewal(clean):
    """A release with the CronJob, and a Job of its template that runs now."""
    world, release, _ = clean
    secrets = f"/api/v1/namespaces/{helm.NAMESPACE}/secrets"
    key = base64.b64encode(world.cluster.jwt_key).decode()
    world.api("POST", secrets, {"metadata": {"name": KEY}, "data": {"jwt_hs256.key": key}})
    release.install({"slurm": {"tokenRenewal": {"enabled": True, "existingSecret": KEY}}})
    world.cluster.kubectl("create", "job", JOB, "--from=cronjob/podbridge-token-renewal", *WHERE)
    yield world, release
    world.cluster.kubectl("delete", "job", JOB, *WHERE)
    world.api("DELETE", f"{secrets}/{KEY}")
    release.install()


def seen(release, part):
    """Return the time at which the token that a part uses expires, in seconds since the epoch."""
    (pod, *_) = release.pods(part)
    metrics = requests.get(f"http://{pod['status']['podIP']}:8080/metrics", timeout=10).text
    return float(re.findall(r"(?m)^podbridge_slurm_token_expiry_timestamp_seconds(?:\{.*\})? (\S+)$", metrics)[0])


def allowed(cluster, *words):
    """Return whether the account of the CronJob may do this."""
    command = [str(install.binaries()["kubectl"]), f"--kubeconfig={cluster.kubeconfig}", "auth", "can-i", *words]
    done = subprocess.run([*command, f"--as={ACCOUNT}", *WHERE], capture_output=True, text=True)
    assert done.stdout.strip() in ("yes", "no"), done.stderr
    return done.stdout.strip() == "yes"


@pytest.mark.timeout(400)  # a kubelet writes a changed Secret to running pods within about a minute
def test_the_cron_job_renews_the_token_and_podbridge_uses_it(renewal):
    world, release = renewal
    cluster, begun = world.cluster, time.time()
    path = f"/apis/batch/v1/namespaces/{helm.NAMESPACE}/jobs/{JOB}"
    eventually(lambda: world.api("GET", path)["status"].get("succeeded") == 1, "the Job complete", 90)
    log = cluster.kubectl("logs", f"job/{JOB}", *WHERE)
    assert f"Secret {helm.NAMESPACE}/{helm.SECRET}: renewed; it expires at" in log
    secret = world.api("GET", f"/api/v1/namespaces/{helm.NAMESPACE}/secrets/{helm.SECRET}")
    token = base64.b64decode(secret["data"]["auth-token"]).decode()
    found = claims(token)
    assert found["sun"] == "slurm" and found["exp"] - found["iat"] == 7776000
    assert abs(found["iat"] - begun) < 120 and token not in log
    for part in ("scheduler", "controllers"):
        eventually(lambda part=part: seen(release, part) == found["exp"], f"{part}: the new token", 150)
    pod = world.create(cpu="5m", memory="8Mi", script="sleep 1")
    world.running(pod, 60)


def test_a_token_that_slurm_does_not_accept_is_not_written(renewal):
    world, _ = renewal
    cluster = world.cluster
    path = f"/apis/batch/v1/namespaces/{helm.NAMESPACE}/jobs/{JOB}"
    eventually(lambda: world.api("GET", path)["status"].get("succeeded") == 1, "the Job complete", 90)
    secret = f"/api/v1/namespaces/{helm.NAMESPACE}/secrets"
    before = world.api("GET", f"{secret}/{helm.SECRET}")["data"]
    other = base64.b64encode(b"the key of another Slurm, long enough").decode()
    world.api("PATCH", f"{secret}/{KEY}", {"data": {"jwt_hs256.key": other}}, "application/merge-patch+json")
    cluster.kubectl("create", "job", "wrong-key", "--from=cronjob/podbridge-token-renewal", *WHERE)
    try:
        refused = "Slurm did not accept the new token, which is not written"
        eventually(
            lambda: refused in cluster.kubectl("logs", "-l", "job-name=wrong-key", *WHERE, check=False), "refused", 90
        )
    finally:
        cluster.kubectl("delete", "job", "wrong-key", *WHERE)
    assert world.api("GET", f"{secret}/{helm.SECRET}")["data"] == before


def test_the_account_of_the_cron_job_may_patch_one_secret(renewal):
    world, _ = renewal
    assert allowed(world.cluster, "patch", f"secret/{helm.SECRET}")
    for words in (
        ("get", f"secret/{helm.SECRET}"),
        ("patch", f"secret/{KEY}"),
        ("create", "secrets"),
        ("list", "pods"),
    ):
        assert not allowed(world.cluster, *words), words
