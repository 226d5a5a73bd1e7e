"""hack/kind.sh on a cluster that exists: a test Slurm in a pod, the chart, a first Job."""

import json
import os
import subprocess

import pytest

from cluster import Cluster, helm, image, places
from cluster.containerd import CLIENT

pytestmark = pytest.mark.real


@pytest.mark.timeout(900)  # the build of both images can be a part of it
def test_kind_sh_on_an_existing_cluster(state_folder, long):
    if not long:
        pytest.skip("runs with --long")
    with Cluster(state_folder / "kind", nodes=1, real_node=True, helm=True) as cluster:
        archives = [
            f"--image-archive={image.build().archive}",
            f"--slurm-archive={image.build(recipe=image.SLURM).archive}",
        ]
        values = state_folder / "values.json"
        values.write_text(json.dumps({"extraEnv": helm.values(cluster)["extraEnv"]}))
        load = " ".join([str(cluster.real_node.enter), *CLIENT, "images", "import"])

        def kind(*args):
            words = [str(places.CHECKOUT / "hack" / "kind.sh"), "--existing-cluster", "--no-services", *args]
            done = subprocess.run(words, env={**os.environ, **cluster.env}, capture_output=True, text=True, timeout=400)
            assert done.returncode == 0, done.stderr[-2000:]
            return done.stdout

        label = "scheduler.slinky.slurm.net/slurm-bridge=worker"
        cluster.kubectl("label", "nodes", "--all", label)
        arguments = [word for pair in archives for word in pair.split("=", 1)]
        first = kind("--pools", "--load", load, *arguments, "--", "--values", str(values))
        assert "hello from hello-" in first and "JobId=1" in first
        kind("--delete")
        assert not json.loads(helm.Release(cluster).helm("list", "--output=json"))
