"""hack/kind.sh with kind: four nodes in podman, a test Slurm, the chart and a first Job; again, and the deletion."""

import json
import os
import subprocess

import pytest

from cluster import image, kind, places

pytestmark = pytest.mark.real
NAME = f"podbridge-{os.getpid()}"


@pytest.mark.timeout(2400)  # the builds of the node image and of its programs can be a part of it
def test_kind_sh_with_kind(state_folder, long):
    if not long:
        pytest.skip("runs with --long")
    node_image = kind.node_image()
    images = {"--image-archive": image.build(), "--slurm-archive": image.build(recipe=image.SLURM)}
    install = ["--node-image", node_image]
    for option, built in images.items():
        install += [option, str(built.archive)]
    with kind.engine(state_folder / "kind") as env:

        def run(*words):
            done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=900, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            return done.stdout

        def script(*options):
            return run(str(places.CHECKOUT / "hack" / "kind.sh"), "--name", NAME, *options)

        first = script(*install)
        assert "hello from hello-" in first
        assert "JobId=1" in first
        nodes = json.loads(run("kubectl", "get", "nodes", "--output=json"))["items"]
        assert len(nodes) == 4
        label = "scheduler.slinky.slurm.net/slurm-bridge"
        managed = {node["metadata"]["name"] for node in nodes if label in node["metadata"]["labels"]}
        pods = json.loads(run("kubectl", "get", "pods", "--namespace=slurm-bridge", "--output=json"))["items"]
        assert {pod["spec"]["nodeName"] for pod in pods} <= managed
        again = script(*install)
        assert "hello from hello-" in again
        assert "JobId=3" in again
        script("--delete")
        assert NAME not in run("kind", "get", "clusters")
