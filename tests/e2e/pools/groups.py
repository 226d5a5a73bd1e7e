"""Indexed Jobs at the sites, whose pods start together unless their Job says otherwise."""

from cluster.polling import eventually
from cluster.pools import NAMESPACE

SIZE = 3
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


GANG = {"bridge.vk.io/gang": "true"}


def start(world, name, site, script, annotations=None, container=None, of_job=GANG, **spec):
    """Create an Indexed Job with the annotations ``of_job``; return its pods once all are there."""
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", script], **(container or {})}
    container |= {"resources": {"requests": {"cpu": "1", "memory": "32Mi"}}}
    # at the HTCondor, a slot for each pod, on two machines: a group on one slot is an ordinary job
    per_node = 1 if site == "condor-site" else SIZE
    annotations = {"bridge.vk.io/pools": site, "bridge.vk.io/members-per-node": str(per_node), **(annotations or {})}
    pod = {"restartPolicy": "Never", "containers": [container], "subdomain": name, "terminationGracePeriodSeconds": 1}
    body = {
        "metadata": {"name": name, "annotations": of_job},
        "spec": {
            "parallelism": SIZE,
            "completions": SIZE,
            "completionMode": "Indexed",
            "backoffLimit": 6,
            "template": {"metadata": {"annotations": annotations}, "spec": pod},
            **spec,
        },
    }
    world.api("POST", JOBS, body)
    return eventually(lambda: len(found := members(world, name)) >= SIZE and found, f"{SIZE} pods", 30)


def members(world, name):
    """Return the pods of a Job, in the order of their indexes."""
    found = world.pods(NAMESPACE, f"job-name={name}")
    return sorted(
        found, key=lambda pod: int(pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"])
    )


def delete(world, name):
    world.api("DELETE", f"{JOBS}/{name}", {"propagationPolicy": "Background"})


def nothing_left(world, site):
    """Wait until the site has no directory of a pod, nor of the job of a group."""
    eventually(lambda: not world.jobs_at(site), f"no job left at {site}", 60)
