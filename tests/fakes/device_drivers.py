"""What the DRA drivers ``gpu.example.com`` and ``dra.cpu`` publish, on the four nodes of a cluster; no driver runs."""

from __future__ import annotations

from typing import Any

from cluster.world import World

DRA = "/apis/resource.k8s.io/v1"
GPU, CPU = "gpu.example.com", "dra.cpu"
CPUS, GPUS = 128, 8
NODES = 4

Object = dict[str, Any]


def device_class(name: str) -> Object:
    expression = f'device.driver == "{name}"'
    config = [{"opaque": {"driver": name, "parameters": {"kind": "Test"}}}]
    return {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": expression}}], "config": config}}


def resource_slice(node: str, driver: str, devices: list[Object]) -> Object:
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def cpu_device(number: int) -> Object:
    # Slurm counts 128 sockets with one core: the cluster's slurm.conf has CPUs=128 alone
    attributes = {"socketID": {"int": number}, "coreID": {"int": 0}, "cpuID": {"int": number}}
    return {"name": f"cpudev{number:03d}", "attributes": attributes}


def publish(world: World, extended: str = "") -> list[str]:
    """Create the classes and the slices of each node; return their paths. Device names do not show the index.

    ``extended`` is the extended resource of the class of GPUs.
    """
    made: list[tuple[str, Object]] = []
    for name, more in ((GPU, {"extendedResourceName": extended} if extended else {}), (CPU, {})):
        body = device_class(name)
        body["spec"] |= more
        made.append((f"{DRA}/deviceclasses", body))
    for number in range(NODES):
        node = f"node-{number}"
        gpus = [{"name": f"card-{7 - n}", "attributes": {"index": {"int": n}}} for n in range(GPUS)]
        made.append((f"{DRA}/resourceslices", resource_slice(node, GPU, gpus)))
        made.append((f"{DRA}/resourceslices", resource_slice(node, CPU, [cpu_device(n) for n in range(CPUS)])))
    for path, body in made:
        world.api("POST", path, body)
    return [f"{path}/{body['metadata']['name']}" for path, body in made]


def requests(*wanted: tuple[str, int]) -> Object:
    """Return the spec of a claim for devices: (class, number) for each request."""
    exactly = [{"deviceClassName": name, "allocationMode": "ExactCount", "count": count} for name, count in wanted]
    return {"devices": {"requests": [{"name": f"r{n}", "exactly": one} for n, one in enumerate(exactly)]}}
