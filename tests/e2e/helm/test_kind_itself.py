"""hack/kind.sh with kind: four nodes in podman, a test Slurm, the chart, a first Job; Kueue and NATS; the deletion."""

import base64
import json
import os
import subprocess
from contextlib import contextmanager

import pytest

from cluster import places, tools
from cluster.polling import eventually
from cluster.ports import free_block
from cluster.systems import helm_images, image, install, kind, kueue_manifests

pytestmark = pytest.mark.real
NAME = f"podbridge-{os.getpid()}"


def kueue(folder):
    """Write the manifests of a release of Kueue with the image that the tests build; return their file."""
    module = install.kueue_module()
    kubectl = install.binaries(["kubectl"])["kubectl"]
    image_name = f"{helm_images.REGISTRY}/{helm_images.KUEUE}:{helm_images.TAG}"
    objects = kueue_manifests.release(module.folder, kubectl, image_name)
    file = folder / "kueue.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return file


@contextmanager
def running(log, *words, **options):
    """Run a program until the end of the block."""
    with log.open("wb") as output, subprocess.Popen(words, stdout=output, stderr=output, **options) as process:
        try:
            yield process
        finally:
            process.terminate()


@contextmanager
def site(folder, port, secret):
    """Run a submitter of the pool alpha; ``secret``: that of the pool's user, from the chart."""
    folder.mkdir()
    user, password = (base64.b64decode(secret["data"][key]).decode() for key in ("username", "password"))
    (folder / "password").touch(0o600)
    (folder / "password").write_text(password)
    (folder / "site.toml").write_text(
        f'pool = "alpha"\nfolder = "{folder}/jobs"\n[batch]\nkind = "local"\n[runtime]\nkind = "none"\n[nats]\n'
        f'servers = ["ws://127.0.0.1:{port}"]\nuser = "{user}"\npassword_file = "{folder}/password"\n'
    )
    with running(folder / "log", *tools.PODBRIDGE, "submitter", "--config", str(folder / "site.toml")):
        yield


REMOTE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "remote", "namespace": "slurm-bridge", "annotations": {"bridge.vk.io/pools": "alpha"}},
    "spec": {
        "restartPolicy": "Never",
        "containers": [{"name": "main", "image": "busybox", "command": ["sh", "-c", "echo from the site; sleep 20"]}],
    },
}


@pytest.mark.long_only
@pytest.mark.timeout(2400)  # the builds of the node image and of its programs can be a part of it
def test_kind_sh_with_kind(state_folder):
    node_image = kind.node_image()
    install.ensure(modules=(install.kueue_module(),))
    images = {"--image-archive": image.build(), "--slurm-archive": image.build(recipe=image.SLURM)}
    install_options = ["--node-image", node_image]
    for option, built in images.items():
        install_options += [option, str(built.archive)]
    values = state_folder / "values.json"
    values.write_text(json.dumps(helm_images.values()))
    others = helm_images.write(state_folder / "images", ["nats", helm_images.KUEUE])
    manifests = ("--kueue-manifests", str(kueue(state_folder)))
    with kind.engine(state_folder / "kind") as env:

        def run(*words):
            done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=900, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            return done.stdout

        def script(*options):
            return run(str(places.CHECKOUT / "hack" / "kind.sh"), "--name", NAME, *options)

        def listed(*words):
            return json.loads(run("kubectl", "get", *words, "--output=json"))["items"]

        first = script(*install_options)
        assert "hello from hello-" in first
        assert "JobId=1" in first
        nodes = listed("nodes")
        assert len(nodes) == 4
        label = "scheduler.slinky.slurm.net/slurm-bridge"
        managed = {node["metadata"]["name"] for node in nodes if label in node["metadata"]["labels"]}
        pods = listed("pods", "--namespace=slurm-bridge")
        assert {pod["spec"]["nodeName"] for pod in pods} <= managed

        run("kind", "load", "image-archive", "--name", NAME, str(others))
        again = script(*install_options, "--pools", "--kueue", *manifests, "--", "--values", str(values))
        assert "hello from hello-" in again
        assert "JobId=3" in again
        (workload,) = listed("workloads.kueue.x-k8s.io", "--namespace=slurm-bridge")
        assert workload["metadata"]["ownerReferences"][0]["name"] == "hello"
        assert workload["spec"]["queueName"] == "slurm"
        admitted = [event for event in listed("events", "--namespace=slurm-bridge") if event["reason"] == "Admitted"]
        assert [event["involvedObject"]["name"] for event in admitted] == [workload["metadata"]["name"]]

        port = free_block(1)
        forward = ("kubectl", "port-forward", "--namespace=podbridge", "service/podbridge-nats", f"{port}:8080")
        names = ("get", "secret", "podbridge-nats-pool-alpha", "--namespace=podbridge", "--output=json")
        secret = json.loads(run("kubectl", *names))
        with running(state_folder / "forward.log", *forward, env=env), site(state_folder / "site", port, secret):
            run("kubectl", "wait", "--for=create", "node/alpha", "--timeout=60s")
            run("kubectl", "wait", "--for=condition=Ready", "node/alpha", "--timeout=60s")
            pod = state_folder / "pod.json"
            pod.write_text(json.dumps(REMOTE))
            run("kubectl", "apply", f"--filename={pod}")
            remote = ("pod/remote", "--namespace=slurm-bridge")
            run("kubectl", "wait", "--for=jsonpath={.status.phase}=Running", *remote, "--timeout=60s")
            said = ("kubectl", "logs", *remote)
            eventually(lambda: run(*said) == "from the site\n", "the logs of the remote pod")
            run("kubectl", "wait", "--for=jsonpath={.status.phase}=Succeeded", *remote, "--timeout=60s")
            run("kubectl", "delete", *remote)

        script("--existing-cluster", "--delete", *manifests)
        kept = {"masterqueues.vk.io"}  # the chart keeps it
        assert {crd["metadata"]["name"] for crd in listed("customresourcedefinitions")} == kept
        script("--delete")
        assert NAME not in run("kind", "get", "clusters")
