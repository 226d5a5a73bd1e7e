"""What DRA drivers publish, on the nodes of a cluster; no driver runs.

``gpu.example.com`` and ``dra.cpu`` on all four nodes; NVIDIA's driver on two of them, as two of its versions publish.
"""

from __future__ import annotations

from typing import Any

from cluster.world import World

DRA = "/apis/resource.k8s.io/v1"
GPU, CPU, NVIDIA = "gpu.example.com", "dra.cpu", "gpu.nvidia.com"
CPUS, GPUS = 128, 8
NODES = 4
BY_MINOR, BY_INDEX = "node-0", "node-3"
"""The nodes of NVIDIA's driver: the number in the name of a GPU is its minor number, or its index in NVML.

The minor number is that of the file ``/dev/nvidia<number>``. Kernel and NVML may count the GPUs in different orders.
"""

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
    return _create(world, made)


def publish_nvidia(world: World) -> list[str]:
    """Create NVIDIA's class of GPUs and the slices of two nodes; return their paths.

    Source: ``deviceinfo.go`` of kubernetes-sigs/dra-driver-nvidia-gpu. On ``BY_MINOR`` as from version 25.8 on, without
    ``minor`` and ``index``; on ``BY_INDEX`` as version 25.3, and MIG divides the last GPU.
    """
    expression = f"device.driver == '{NVIDIA}' && device.attributes['{NVIDIA}'].type == 'gpu'"
    spec = {"selectors": [{"cel": {"expression": expression}}]}
    new = [nvidia_device(nvidia_name(BY_MINOR, n), n) for n in reversed(range(GPUS))]
    old = [
        nvidia_device(nvidia_name(BY_INDEX, n), n, minor={"int": n}, index={"int": GPUS - 1 - n})
        for n in range(GPUS - 1)
    ]
    old.append(nvidia_device("gpu-0-mig-19-0-1", GPUS - 1, type={"string": "mig"}, index={"int": 0}))
    slices = [resource_slice(node, NVIDIA, devices) for node, devices in ((BY_MINOR, new), (BY_INDEX, old))]
    made: list[tuple[str, Object]] = [(f"{DRA}/deviceclasses", {"metadata": {"name": NVIDIA}, "spec": spec})]
    return _create(world, made + [(f"{DRA}/resourceslices", body) for body in slices])


def nvidia_name(node: str, minor: int) -> str:
    """Return the name of the GPU ``/dev/nvidia<minor>``; on ``BY_INDEX``, NVML counts from the last one."""
    return f"gpu-{minor if node == BY_MINOR else GPUS - 1 - minor}"


def nvidia_device(name: str, number: int, **more: Object) -> Object:
    attributes = {
        "type": {"string": "gpu"},
        "uuid": {"string": f"GPU-00000000-0000-0000-0000-{number:012d}"},
        "productName": {"string": "NVIDIA A100-SXM4-40GB"},
        "brand": {"string": "Nvidia"},
        "architecture": {"string": "Ampere"},
        "cudaComputeCapability": {"version": "8.0.0"},
        "driverVersion": {"version": "580.95.5"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number:02x}"},
    }
    return {"name": name, "attributes": {**attributes, **more}, "capacity": {"memory": {"value": "40Gi"}}}


def _create(world: World, made: list[tuple[str, Object]]) -> list[str]:
    """Create the objects; return their paths."""
    for path, body in made:
        world.api("POST", path, body)
    return [f"{path}/{body['metadata']['name']}" for path, body in made]


def requests(*wanted: tuple[str, int]) -> Object:
    """Return the spec of a claim for devices: (class, number) for each request."""
    exactly = [{"deviceClassName": name, "allocationMode": "ExactCount", "count": count} for name, count in wanted]
    return {"devices": {"requests": [{"name": f"r{n}", "exactly": one} for n, one in enumerate(exactly)]}}
