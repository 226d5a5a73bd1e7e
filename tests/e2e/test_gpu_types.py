"""Several types of GPUs on one node of a real Slurm: each resource of a pod gets its own type, also MIG profiles."""

import re

import pytest

from bridge import names
from cluster.polling import eventually
from cluster.systems import kube
from cluster.systems.slurm import Size

pytestmark = pytest.mark.real

NODE = "k8s-types"
PARTITION = {"partition": "external"}
TABLE = {"nvidia.com/gpu": "gpu:a100", "nvidia.com/mig-1g.5gb": "gpu:1g.5gb", "nvidia.com/mig-3g.20gb": "gpu:3g.20gb"}
COUNTS = {"nvidia.com/gpu": "2", "nvidia.com/mig-1g.5gb": "3", "nvidia.com/mig-3g.20gb": "1"}


@pytest.fixture
def typed(clean):
    """The world with a node of three types of GPUs, which podbridge registers in Slurm."""
    clean.cluster.stop_podbridge()
    clean.cluster.start_podbridge(config_overrides={"gres": TABLE})
    node = kube.node_object(NODE, Size(cpus=16, memory=32_000, gpus=0))
    node["metadata"]["labels"][names.EXTERNAL_NODE_LABEL] = "true"
    node["metadata"]["annotations"][names.EXTERNAL_NODE_PARTITIONS] = "external"
    for part in ("allocatable", "capacity"):
        node["status"][part] |= COUNTS
    clean.api.ensure("/api/v1/nodes", node)
    eventually(lambda: "1g.5gb:3" in shown(clean), f"{NODE} in Slurm", 30)
    yield clean
    clean.clear()
    clean.api.request("DELETE", f"/api/v1/nodes/{NODE}")
    eventually(lambda: not shown(clean), f"{NODE} not in Slurm", 30)
    clean.cluster.stop_podbridge()
    clean.cluster.start_podbridge()


def shown(world):
    """Return the gres of the node in Slurm."""
    found = re.search(r"Gres=(\S+)", world.cluster.run_slurm("scontrol", "show", "node", NODE, check=False))
    return found[1] if found else ""


def pod(world, **limits):
    resources = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {f"nvidia.com/{k}": v for k, v in limits.items()}}
    return world.create(job=PARTITION, containers=[{"name": "main", "image": "none", "resources": resources}])


def given(world, pod):
    """Return the gres of the pod's job: type -> indices, by scontrol."""
    text = world.slurm("scontrol", "show", "job", "-d", str(world.job_of(world.bound(pod))))
    (gres,) = re.findall(r" GRES=(\S+)", text)
    return {kind: indices for kind, _, indices in re.findall(r"gpu:([^:,]+):(\d+)\(IDX:([\d,-]+)\)", gres)}


@pytest.mark.parametrize("world", ["26.05"], indirect=True)
def test_each_resource_gets_its_type_and_no_more_than_there_is(typed):
    small = pod(typed, **{"mig-1g.5gb": "2"})
    both = pod(typed, **{"gpu": "1", "mig-3g.20gb": "1"})
    found = given(typed, small), given(typed, both)
    # Slurm numbers the devices of a node over all types; a claim of a class without a type relies on it
    assert found == ({"1g.5gb": "0-1"}, {"3g.20gb": "3", "a100": "4"})
    more = pod(typed, **{"mig-1g.5gb": "2"})
    large = pod(typed, **{"mig-3g.20gb": "1"})
    fits = pod(typed, **{"mig-1g.5gb": "1"})
    assert set(given(typed, fits)) == {"1g.5gb"}
    for waiting in (more, large):
        typed.labelled(waiting)
        assert not typed.get(waiting)["spec"].get("nodeName")
    typed.delete(small, grace=1)
    assert set(given(typed, more)) == {"1g.5gb"}
