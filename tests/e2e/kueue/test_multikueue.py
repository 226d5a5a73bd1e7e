"""A manager cluster copies Jobs to a worker with podbridge, as docs/admins/kueue.md describes."""

import os
from pathlib import Path

import pytest

from cluster import Cluster, places
from cluster.polling import eventually
from cluster.systems import kueue
from cluster.world import NAMESPACE
from tests.docs_blocks import Block, Shell, command, commands
from tests.e2e.kueue.conftest import KueueWorld

pytestmark = [pytest.mark.real, pytest.mark.long_only]  # a cluster of its own
FOLDER = Path(__file__).parent
ORIGIN = "kueue.x-k8s.io/multikueue-origin"
WORKER, QUEUE = "worker", "batch"
"""Name of the worker and of the queues in the manifests."""


CONNECT = Block(
    "test_multikueue.py",
    0,
    """\
token=$(kubectl create token multikueue --namespace kueue-system --duration 1h)
export KUBECONFIG=worker.kubeconfig
kubectl config set-cluster worker --server https://worker.example.org:6443 --certificate-authority ca.crt --embed-certs
kubectl config set-credentials multikueue --token "$token"
kubectl config set-context worker --cluster worker --user multikueue
kubectl config use-context worker
""",
    "",
)
"""Kueue accepts only a kubeconfig that contains its certificates."""


def manifest(name):
    """Return the manifests of this cluster, for the namespace and the site of the tests."""
    text = (FOLDER / f"multikueue_{name}.yaml").read_text()
    return text.replace("^site-", "-site$").replace("research", NAMESPACE)


def shell(world, folder):
    """Return a shell for the page's commands, with the addresses of the worker and the node of the local cluster."""
    worker = world.cluster
    own = {
        "https://worker.example.org:6443": f"https://127.0.0.1:{worker.kube_port}",
        "ca.crt": str(worker.state / "kube" / "ca.crt"),
        "local-0 local-1": kueue.LOCAL_NODE,
        "config/": f"{places.CHECKOUT}/config/",
    }
    return Shell({**os.environ, **worker.env}, folder, own)


def condition(item, kind):
    found = (item.get("status") or {}).get("conditions") or ()
    return next((c["status"] for c in found if c["type"] == kind), None)


@pytest.fixture(scope="module")
def manager(world, state_folder, tmp_path_factory):
    """A second cluster, with Kueue and without podbridge, whose queue sends Jobs to the first one."""
    world.cluster.kubectl("apply", "-f", "-", input=manifest("worker"))
    eventually(lambda: len(world.offered(QUEUE)) == 3, "the queue of the worker has its flavors")
    version = world.cluster.options.kueue_version
    with Cluster(state_folder / "manager", slurm=None, nodes=0, kueue=True, kueue_version=version) as cluster:
        made = KueueWorld(cluster)
        cluster.kubectl("delete", "secret", WORKER, f"--namespace={kueue.NAMESPACE}", "--ignore-not-found")
        folder = tmp_path_factory.mktemp("worker")
        shell(world, folder).run(CONNECT)
        file = folder / "worker.kubeconfig"
        secret = ("create", "secret", "generic", WORKER, f"--namespace={kueue.NAMESPACE}")
        cluster.kubectl(*secret, f"--from-file=kubeconfig={file}")
        cluster.kubectl("apply", "-f", "-", input=manifest("manager"))
        path = f"{kueue.API}/multikueueclusters/{WORKER}"
        eventually(lambda: condition(made.api("GET", path), "Active") == "True", "the worker is connected", 60)
        path = f"{kueue.API}/clusterqueues/{QUEUE}"
        eventually(lambda: condition(made.api("GET", path), "Active") == "True", "the queue is active", 60)
        yield made
    world.api("DELETE", f"/apis/vk.io/v1/masterqueues/{QUEUE}")
    eventually(lambda: not world.offered(QUEUE), "its queue is garbage", 60)


def copied(world, job):
    """Wait until the copy of a Job is admitted and its pod runs; return the copy, its flavor and the pod."""
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job['metadata']['name']}"
    eventually(lambda: world.api.request("GET", path)[0] == 200, "the copy of the Job", 60)
    copy = world.api("GET", path)
    assert copy["metadata"]["labels"][ORIGIN]
    flavor = world.admitted(copy)
    (pod,) = world.running_members(copy, 1, 60)
    return copy, flavor, pod


def status(manager, job):
    return manager.api("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job['metadata']['name']}")["status"]


def gone(world, copy):
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{copy['metadata']['name']}"
    eventually(lambda: world.api.request("GET", path)[0] == 404, "the copy is deleted", 60)


def test_the_first_steps_of_the_page(world, tmp_path):
    reader = shell(world, tmp_path)
    assert "customresourcedefinition.apiextensions.k8s.io/masterqueues.vk.io" in reader.run(
        command("admins/kueue.md", "config/crds.yaml")
    )
    assert "labeled" in reader.run(command("admins/kueue.md", "kubectl label node"))
    world.cluster.kubectl("label", "node", kueue.LOCAL_NODE, "example.com/place-")
    assert len(commands("admins/kueue.md")) == 2


def test_a_job_of_the_manager_runs_at_a_site_of_the_worker_and_its_end_comes_back(world, manager):
    gate = f"manager-{next(manager.counts)}"
    script = f"until [ -e /srv/home/{gate} ]; do sleep 0.1; done"
    job = manager.queued(QUEUE, script=script, tolerations=[kueue.TOLERATION])
    copy, flavor, pod = copied(world, job)
    assert flavor == f"{QUEUE}-sites-local-site"
    assert world.remote_job(pod).startswith("local-site/")
    eventually(lambda: status(manager, job).get("active") == 1, "the manager knows that it runs")
    assert not manager.members(job), "its pod is at the worker alone"
    world.let_go(gate)
    manager.completed(job, 60)
    eventually(lambda: manager.told(job, "Finished") == "True", "the Workload of the manager is finished")
    assert status(manager, job)["succeeded"] == 1
    gone(world, copy)


def test_a_job_without_the_toleration_runs_on_slurm_and_ends_with_the_job_of_the_manager(world, manager):
    job = manager.queued(QUEUE, run="600", terminationGracePeriodSeconds=1)
    copy, flavor, pod = copied(world, job)
    assert flavor == f"{QUEUE}-gpu"
    slurm_job = world.job_of(pod)
    assert world.job(slurm_job)["Partition"] == world.partition
    manager.delete_gang(job)
    gone(world, copy)
    eventually(lambda: slurm_job not in world.queue(), "its Slurm job is gone", 40)


def test_a_job_that_fails_at_the_worker_has_failed_at_the_manager(world, manager):
    job = manager.queued(QUEUE, script="exit 3", tolerations=[kueue.TOLERATION])
    eventually(lambda: condition({"status": status(manager, job)}, "Failed") == "True", "the Job has failed", 60)
    assert not status(manager, job).get("succeeded")
