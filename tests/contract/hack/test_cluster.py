"""The clusters that all other tests stand on: what is started is what is stopped."""

import os
from pathlib import Path

import pytest

from cluster import Cluster, ClusterError
from cluster.polling import eventually
from cluster.processes import inside
from tests.contract.hack.mounts import mounts

pytestmark = pytest.mark.real
VERSIONS = ("26.05", "24.11", "22.05")
PODS = "/api/v1/namespaces/slurm-bridge/pods"


def processes_of(state):
    """Pids of all processes that name the folder, in whatever way."""
    found = inside(state / "slurm", "/srv")
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = entry.joinpath("cmdline").read_bytes().decode()
            except OSError:
                continue
            if str(state) in words:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_is_left_of_a_cluster_and_its_jobs(state_folder, version):
    state = state_folder / f"left {version}"
    mounted = mounts()
    with Cluster(state, slurm=version, nodes=2, kube=False, cpus=64) as cluster:
        script = "#!/bin/sh\nsetsid sleep 4711 &\ntouch running\nwait\n"
        cluster.run_slurm("sbatch", "--uid=alice", "-n1", input=script)
        eventually((state / "slurm" / "jobs" / "running").exists)
        assert processes_of(state)
        cluster.start()  # it runs: nothing to do
        assert "alice" in cluster.run_slurm("squeue", "-h", "-o", "%u")
        assert mounts() == mounted
        with pytest.raises(ClusterError, match="another cluster runs"):
            Cluster(state, slurm=version, nodes=3, kube=False).start()
    eventually(lambda: not processes_of(state), timeout=2)
    assert mounts() == mounted
    cluster.stop()


def test_a_start_that_fails_names_the_daemon_and_leaves_nothing(state_folder):
    state = state_folder / "broken"
    with pytest.raises(ClusterError, match=r"(?s)slurmctld ended at its start.*NoSuchKey"):
        Cluster(state, slurm="26.05", nodes=1, kube=False, slurm_conf=["NoSuchKey=1"]).start()
    eventually(lambda: not processes_of(state), timeout=2)


def test_kwok_ends_pods_as_a_kubelet_does(cluster):
    def pod(name, annotations, **metadata):
        container = {"name": "main", "image": "none"}
        body = {
            "metadata": {"name": name, "annotations": annotations, **metadata},
            "spec": {"nodeName": "node-0", "containers": [container], "terminationGracePeriodSeconds": 30},
        }
        cluster.api("POST", PODS, body)

    def phase(name):
        status, found = cluster.api.request("GET", f"{PODS}/{name}")
        return found["status"]["phase"] if status == 200 else None

    pod("good", {"hack/run-seconds": "0"})
    pod("bad", {"hack/run-seconds": "0", "hack/exit-code": "7"})
    pod("held", {}, finalizers=["example.com/hold"])
    pod("slow", {"hack/stop-seconds": "25"})
    eventually(lambda: (phase("good"), phase("bad"), phase("held"), phase("slow")) == GOOD)
    state = cluster.api("GET", f"{PODS}/bad")["status"]["containerStatuses"][0]["state"]
    assert state["terminated"]["exitCode"] == 7

    for name in ("good", "bad", "held", "slow"):
        cluster.api("DELETE", f"{PODS}/{name}")
    eventually(lambda: (phase("good"), phase("bad"), phase("held")) == (None, None, "Failed"))
    assert phase("slow") == "Running"
    cluster.api("DELETE", f"{PODS}/slow?gracePeriodSeconds=0")
    patch = {"metadata": {"finalizers": None}}
    cluster.api.merge(f"{PODS}/held", patch)
    eventually(lambda: (phase("held"), phase("slow")) == (None, None))


GOOD = ("Succeeded", "Failed", "Running", "Running")
