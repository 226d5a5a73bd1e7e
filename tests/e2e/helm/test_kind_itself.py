"""hack/kind.sh with kind: four nodes in podman, a test Slurm, the chart, a first Job; Kueue and NATS; the deletion."""

import json
import os
import subprocess

import pytest

from cluster import helm_images, image, install, kind, kueue_manifests, places

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


@pytest.mark.timeout(2400)  # the builds of the node image and of its programs can be a part of it
def test_kind_sh_with_kind(state_folder, long):
    if not long:
        pytest.skip("runs with --long")
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
        assert workload["status"]["admission"]["clusterQueue"] == "slurm"
        (nats,) = listed("pods", "--namespace=podbridge", "--selector=app.kubernetes.io/component=nats")
        assert nats["status"]["phase"] == "Running"

        script("--existing-cluster", "--delete", *manifests)
        kept = {"masterqueues.vk.io"}  # the chart keeps it
        assert {crd["metadata"]["name"] for crd in listed("customresourcedefinitions")} == kept
        script("--delete")
        assert NAME not in run("kind", "get", "clusters")
