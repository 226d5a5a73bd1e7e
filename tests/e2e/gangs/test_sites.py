"""Groups of the real controllers at a site: one job there, whose members find each other by the controllers' names."""

import json
import time

import pytest

from cluster.polling import eventually
from cluster.pools import NAMESPACE
from cluster.ports import free_block
from tests.e2e.rendezvous import container, lines

pytestmark = pytest.mark.real

POOL = "local-site"
ANNOTATIONS = {"bridge.vk.io/pools": POOL, "bridge.vk.io/members-per-node": "4"}
TRAINER = "trainer.kubeflow.org/v1alpha1"


def create(world, version, plural, kind, name, spec, annotations=None):
    path = f"/apis/{version}/namespaces/{NAMESPACE}/{plural}"
    metadata = {"name": name, "annotations": annotations or {}}
    world.api("POST", path, {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    return f"{path}/{name}"


def template(main, **spec):
    spec = {"terminationGracePeriodSeconds": 2, "restartPolicy": "Never", "containers": [main], **spec}
    return {"metadata": {"annotations": ANNOTATIONS}, "spec": spec}


def replicated(name, replicas, size, pod, **more):
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "backoffLimit": 0, "template": pod}
    return {"name": name, "replicas": replicas, "template": {**more, "spec": spec}}


def awaits(name):
    """Return an init container that ends once a name is known."""
    lookup = f"until python3 -c 'import socket; socket.getaddrinfo(\"{name}\", 1)'; do sleep 0.1; done"
    requests = {"cpu": "1", "memory": "32Mi"}
    command = ["sh", "-c", lookup]
    return {"name": "wait", "image": "busybox", "command": command, "resources": {"requests": requests}}


def met(world, label, address, size):
    """Wait until as many pods with a label have met; return their job."""
    wanted = lines(address, size)

    def look():
        pods = world.pods(NAMESPACE, label)
        # at the site: four commands of kubectl take longer than the pods
        logs = [file for pod in pods for file in (world.job_folder(pod, POOL) / "logs").glob("*.log")]
        said = sorted(line for file in logs for line in file.read_text().splitlines() if " met " in line)
        return pods if said == wanted and all(map(world.remote_job, pods)) else None

    pods = eventually(look, f"{size} pods met", 90)
    (job,) = {world.remote_job(pod) for pod in pods}
    return job


def has_condition(world, path, kind):
    found = world.api("GET", path).get("status", {}).get("conditions") or ()
    return any(entry["type"] == kind and entry["status"] == "True" for entry in found)


def test_a_job_set_is_one_job_and_so_is_its_restart(world):
    """A launcher and workers that request more, each with an init container that waits for a name of the others.

    A member of the first attempt fails: the next attempt begins once the job of the first one is over.
    """
    name, size = "mesh", 4
    address, worker, runs = f"{name}-launcher-0-0.{name}", f"{name}-w-0-2.{name}", f"{name}-{time.time_ns()}"
    home = f"/srv/home/{runs}"
    # one of the first attempt ends slowly; the second attempt would find its file
    end = f"trap 'sleep 1; rm {home}.runs; exit' TERM; touch {home}.runs; sleep 60 & wait"
    fails = f"until [ -e {home}.go ]; do sleep 0.1; done; exit 1"
    then = f"{{ [ -e {home}.go ] || case $PODBRIDGE_GROUP_RANK in 1) {end};; 3) {fails};; *) sleep 60;; esac; }}"
    main = container(address, free_block(1), "$PODBRIDGE_GROUP_RANK", size, then, first=f"ls {home}.runs 2>/dev/null")
    workers = {**main, "resources": {"requests": {"cpu": "2", "memory": "64Mi"}}}
    jobs = [
        replicated("launcher", 1, 1, template(main, initContainers=[awaits(worker)])),
        replicated("w", 1, 3, template(workers, initContainers=[awaits(address)])),
    ]
    spec = {"failurePolicy": {"maxRestarts": 1}, "replicatedJobs": jobs}
    path = create(world, "jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", name, spec, {"bridge.vk.io/gang": "all"})
    label = f"jobset.sigs.k8s.io/jobset-name={name},jobset.sigs.k8s.io/restart-attempt="
    old = met(world, f"{label}0", address, size)
    site = world.cluster.sites[POOL]
    assert json.loads((site.work / "local" / f"{old.partition('/')[2]}.json").read_text())["cpus"] == 1 + 3 * 2
    file = site.folder / "home" / f"{runs}.runs"
    eventually(file.exists, "one of the first attempt ends slowly")
    site.run("touch", f"{home}.go")
    new = met(world, f"{label}1", address, size)
    assert new != old
    logs = [world.logs(pod) for pod in world.pods(NAMESPACE, f"{label}1")]
    assert not [log for log in logs if ".runs" in log]
    assert not file.exists()
    eventually(lambda: has_condition(world, path, "Completed"), "the JobSet is complete", 60)
    assert world.api("GET", path)["status"]["restarts"] == 1


def test_a_leader_worker_set_is_one_job_and_so_is_its_restart(world):
    """The container of a worker ends: the controller creates the leader and all workers again."""
    name, size = "serving", 3
    address = f"{name}-0.{name}.{NAMESPACE}"
    then = f"if [ $LWS_WORKER_INDEX = 2 ] && mkdir /srv/home/{name}-{time.time_ns()}; then exit 1; fi; sleep 600"
    main = container("$LWS_LEADER_ADDRESS", free_block(1), "$LWS_WORKER_INDEX", "$LWS_GROUP_SIZE", then)
    pod = template(main, restartPolicy="Always")
    spec = {"size": size, "restartPolicy": "RecreateGroupOnPodRestart", "workerTemplate": pod}
    path = create(
        world,
        "leaderworkerset.x-k8s.io/v1",
        "leaderworkersets",
        "LeaderWorkerSet",
        name,
        {"replicas": 1, "leaderWorkerTemplate": spec},
    )
    label = f"leaderworkerset.sigs.k8s.io/name={name}"
    first = eventually(lambda: len(found := world.pods(NAMESPACE, label)) == size and found, "its pods", 60)
    old = {pod["metadata"]["uid"] for pod in first}

    def restarted():
        pods = world.pods(NAMESPACE, label)
        return len(pods) == size and not old & {pod["metadata"]["uid"] for pod in pods}

    eventually(restarted, "the group is created again", 90)
    met(world, label, address, size)
    eventually(lambda: world.api("GET", path).get("status", {}).get("readyReplicas") == 1, "the replica is ready", 30)


def test_the_nodes_of_a_train_job_meet_by_the_variables_of_the_trainer(world):
    main = container("$PET_MASTER_ADDR", "$PET_MASTER_PORT", "$PET_NODE_RANK", "$PET_NNODES", name="node")
    step = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}}
    node = replicated("node", 1, 1, template(main), **step)
    runtime = {
        "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": 1}},
        "template": {"spec": {"replicatedJobs": [node]}},
    }
    create(world, TRAINER, "trainingruntimes", "TrainingRuntime", "torch", runtime)
    reference = {"name": "torch", "kind": "TrainingRuntime", "apiGroup": "trainer.kubeflow.org"}
    sizes = {"fine": 3, "solo": 1}
    paths = [
        create(world, TRAINER, "trainjobs", "TrainJob", name, {"runtimeRef": reference, "trainer": {"numNodes": size}})
        for name, size in sizes.items()
    ]
    for name, size in sizes.items():
        met(world, f"jobset.sigs.k8s.io/jobset-name={name}", f"{name}-node-0-0.{name}", size)
    for path in paths:
        eventually(lambda path=path: has_condition(world, path, "Complete"), "the TrainJob is complete", 40)
