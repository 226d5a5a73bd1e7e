"""hack/kind.sh on a cluster that exists: a test Slurm in a pod and the chart; again with NATS and a first Job.

The local cluster has no kube-proxy: the name of the Service of NATS is a host alias of podbridge's pods, for a relay at
the pods' gateway. It starts while the script waits for the release.
"""

import ipaddress
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from cluster import Cluster, helm, helm_images, image, places
from cluster.containerd import CLIENT
from cluster.kube import is_ready
from cluster.polling import eventually
from cluster.tools import merged
from tests.fakes.relay import Relay

pytestmark = pytest.mark.real


@pytest.mark.long_only
@pytest.mark.timeout(900)  # the build of both images can be a part of it
def test_kind_sh_on_an_existing_cluster(state_folder):
    with Cluster(state_folder / "kind", nodes=1, real_node=True, helm=True) as cluster:
        archives = [
            f"--image-archive={image.build().archive}",
            f"--slurm-archive={image.build(recipe=image.SLURM).archive}",
        ]
        values = state_folder / "values.json"
        gateway = str(next(ipaddress.ip_network(cluster.real_node.addresses).hosts()))
        own = {
            "extraEnv": helm.values(cluster)["extraEnv"],
            "hostAliases": [{"ip": gateway, "hostnames": [f"podbridge-nats.{helm.NAMESPACE}.svc"]}],
        }
        values.write_text(json.dumps(merged(helm_images.prepare(cluster), own)))
        load = " ".join([str(cluster.real_node.enter), *CLIENT, "images", "import"])

        def kind(*args):
            words = [str(places.CHECKOUT / "hack" / "kind.sh"), "--existing-cluster", "--no-services", *args]
            done = subprocess.run(words, env={**os.environ, **cluster.env}, capture_output=True, text=True, timeout=400)
            assert done.returncode == 0, done.stderr[-2000:]
            return done.stdout

        label = "scheduler.slinky.slurm.net/slurm-bridge=worker"
        cluster.kubectl("label", "nodes", "--all", label)
        arguments = [word for pair in archives for word in pair.split("=", 1)]
        release = helm.Release(cluster)

        def nats():
            """Return the address of the pod of NATS, once it is ready."""
            return next((pod["status"]["podIP"] for pod in release.pods("nats") if is_ready(pod)), None)

        def slurm():
            """Return the UID of the namespace of the test Slurm."""
            return cluster.api("GET", "/api/v1/namespaces/slurm")["metadata"]["uid"]

        install = ("--load", load, *arguments, "--", "--values", str(values))
        assert "hello" not in kind("--core", *install)
        assert release.ready()
        core = slurm()
        with ThreadPoolExecutor(1) as other:
            asked = other.submit(kind, "--recreate", "--pools", *install)
            relay = Relay((gateway, 4222), (eventually(nats, "the pod of NATS is ready", 300), 4222))
            first = asked.result()
            relay.close()
        assert "hello from hello-" in first and "JobId=1" in first
        assert slurm() != core
        kind("--delete")
        assert not json.loads(helm.Release(cluster).helm("list", "--output=json"))
