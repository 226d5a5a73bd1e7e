"""A DMS behind interLink's REST API: the process ``podbridge plugin --nunet``, and requests over real HTTP."""

import json
import os
import signal
import subprocess
import sys

import pytest

from cluster.polling import eventually
from cluster.ports import free_block
from cluster.systems.dms import SECONDS, FakeDms
from tests.contract.interlink.plugin_process import CHECKOUT, Client

UID = "0d1c34d6-0b5a-4f0f-9f3c-0c8f2b0a7a11"
CONFIG = """\
slurmRestApi: ""
pools:
  nunet:
    - {{name: nunet, url: "{url}", pingPeriod: 0.3, cancelPath: "/api/v1/job/{{job}}"}}
"""


def pod(uid=UID, seconds="1"):
    """A pod as interLink sends it: the token of its service account is a projected volume, variables are literal."""
    name = f"p-{uid[-4:]}"
    container = {
        "name": "main",
        "image": "busybox",
        "args": ["x"],
        "env": [{"name": SECONDS, "value": seconds}, {"name": "PRICE", "value": "5$ $(HOME)"}],
        "resources": {"limits": {"cpu": "1", "nunet.gpu.nvidia.rtx.3080.10gb": 1}},
        "volumeMounts": [{"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}],
    }
    volumes = [{"name": "kube-api-access-x", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]
    return {
        "metadata": {"name": name, "namespace": "remote", "uid": uid},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes},
    }


def body(found):
    token = {"metadata": {"name": "kube-api-access-x"}, "data": {"token": "t0ken"}}
    return {"pod": found, "container": [{"name": "main", "projectedvolumemaps": [token]}]}


@pytest.fixture(scope="module")
def site():
    with FakeDms() as running:
        yield running


@pytest.fixture(scope="module")
def api(site, tmp_path_factory):
    file = tmp_path_factory.mktemp("plugin") / "hub.yaml"
    file.write_text(CONFIG.format(url=site.url))
    address = f"127.0.0.1:{free_block(1)}"
    command = [sys.executable, "-c", "from bridge.apps.cli.main import main; main()"]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        [*command, "plugin", "--nunet", str(file), "--listen", address, "--allow-local-users"], env=env
    )
    client = Client(address)

    def up():
        assert process.poll() is None
        try:
            return client.call("GET", "/resources")[0] == 200
        except OSError:
            return False

    try:
        eventually(up, "the plugin answers", 20)
        yield client
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_the_free_resources_are_a_flat_map(api):
    told = json.loads(api.call("GET", "/resources")[1])
    assert told["nunet.gpu.nvidia.rtx.3080.10gb"] == 4
    assert (told["nunet.cpu.cores"], told["nunet.ram.gb"]) == (18, 115)
    accelerators = {
        a["resourceType"]: a["available"] for a in api.good("GET", "/status", [])["resources"]["accelerators"]
    }
    assert accelerators["nunet.io/gpu.nvidia.rtx.3080.10gb"] == "4"


def test_a_pod_of_interlink_runs_ends_and_has_a_log(api, site):
    found = pod()
    assert api.good("POST", "/create", body(found)) == {"PodUID": UID, "PodJID": "nunet-1"}
    assert api.good("POST", "/create", body(found))["PodJID"] == "nunet-1"
    assert len(site.jobs_of(UID)) == 1
    sent = site.jobs["nunet-1"].body
    assert sent["jobenv"]["PRICE"] == "5$ $(HOME)"
    assert "t0ken" not in str(sent)

    def state():
        return api.good("GET", "/status", [found])[0]["containers"][0]["state"]

    assert "running" in state()
    assert eventually(lambda: state().get("terminated"), "the end", 10)["exitCode"] == 0
    request = {"Namespace": "remote", "PodUID": UID, "PodName": "p-7a11", "ContainerName": "main", "Opts": {}}
    assert b"image busybox" in api.call("GET", "/getLogs", request)[1]


def test_a_pod_of_interlink_is_deleted_and_what_cannot_be_sent_is_refused(api, site):
    uid = UID.replace("7a11", "7a12")
    found = pod(uid, "600")
    api.good("POST", "/create", body(found))
    api.good("POST", "/delete", found)
    assert [job.state for job in site.jobs_of(uid)] == ["cancelled"]
    api.good("POST", "/delete", found)  # the job has ended: the pool forgets it
    status, text = api.call("POST", "/create", body(found))
    assert (status, b"the pod was deleted" in text) == (409, True)
    assert [job.state for job in site.jobs_of(uid)] == ["cancelled"]
    bad = pod(UID.replace("7a11", "7a13"))
    bad["spec"]["containers"][0]["workingDir"] = "/x"
    status, text = api.call("POST", "/create", body(bad))
    assert (status, b"spec.containers[0].workingDir" in text) == (422, True)
