"""Devices of ResourceClaims: the gres and CPUs to request from Slurm, and the devices that Slurm has chosen. Pure.

Source of the objects: ``resource.k8s.io/v1``. Slurm identifies a gres by its number on the node and a CPU core by
its socket and its number in the socket. A device of a ResourceSlice has the same identity in its attributes:

- gres: the attribute ``minor`` of the driver's domain, else ``index``, else the number in a name ``<word>-<number>``
  (``gpu-3``, ``device-03``);
- CPU: the attributes ``socketID``, ``coreID`` and ``cpuID`` of the driver's domain (driver ``dra.cpu``).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from bridge.core.grouping import grouped
from bridge.errors import BridgeError, UntranslatableError
from bridge.slurm.job_resources import NodeResources
from bridge.workload.devices import cel, cel_values
from bridge.workload.devices.cel_values import Selector, Value

Object = Mapping[str, Any]
CPU = "cpu"
"""The entry of the configuration (``deviceClasses``) for device classes of CPUs; others are names of gres."""
TAINTED = "a taint"
"""The value of :attr:`Device.unusable` of a device that may become usable."""
_NUMBERED = re.compile(r"[a-z]+-(\d{1,6})", re.ASCII)
_UNUSABLE = {
    "bindingConditions": "binding conditions",
    "consumesCounters": "shared counters",
    "allowMultipleAllocations": "several allocations",
    "nodeSelector": "a node selector of its own",
    "allNodes": "all nodes",
}


class UnsupportedClaimError(UntranslatableError):
    """A claim that Slurm cannot satisfy as it is written."""

    reason = "UnsupportedResourceClaim"


class WrongDevicesError(BridgeError):
    """The devices that Slurm chose are not devices of the claim's class; another job may get others."""

    reason = "WrongDevices"


class DevicesNotReadyError(BridgeError):
    """The devices cannot be allocated yet: another claim has them, or the driver has not published them."""

    reason = "DevicesNotReady"
    retryable = True


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One request of a claim: ``count`` devices of a class."""

    name: str
    device_class: str
    count: int


@dataclass(frozen=True, slots=True)
class Demand:
    """The resources that the claims of a pod need in Slurm: a number of CPUs, and counts of gres (``name[:type]``)."""

    cpus: int
    gres: Mapping[str, int]

    def of(self, kind: str) -> int:
        """Return the number of devices of a kind: ``cpu``, or a gres as in the configuration."""
        return self.cpus if kind == CPU else self.gres.get(kind, 0)


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a ResourceSlice. ``unusable`` names the feature for which podbridge cannot allocate it."""

    driver: str
    pool: str
    name: str
    attributes: Mapping[str, Value]
    unusable: str = ""
    capacity: Mapping[str, Decimal] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """The identity of the device in the cluster."""
        return self.driver, self.pool, self.name


def requests(claim: Object) -> tuple[DeviceRequest, ...]:
    """Return the requests of a claim; raises :class:`UnsupportedClaimError` for a field that Slurm cannot consider."""
    subject, spec = f"ResourceClaim {_name(claim)}", (claim.get("spec") or {}).get("devices") or {}
    if spec.get("constraints"):
        raise UnsupportedClaimError(
            f"{subject}: spec.devices.constraints are not supported: Slurm selects the devices; allowed: none"
        )
    device_requests = []
    for index, entry in enumerate(spec.get("requests") or ()):
        path, exact = f"{subject}: spec.devices.requests[{index}]", entry.get("exactly")
        if not exact:
            raise UnsupportedClaimError(f"{path}: firstAvailable is not supported; allowed: exactly")
        mode = exact.get("allocationMode") or "ExactCount"
        if mode != "ExactCount":
            raise UnsupportedClaimError(f"{path}: allocationMode {mode!r} is not supported; allowed: 'ExactCount'")
        for name in ("selectors", "adminAccess", "tolerations", "capacity"):
            if exact.get(name):
                raise UnsupportedClaimError(
                    f"{path}: {name} is not supported: Slurm selects the devices and does not know it; allowed: a "
                    f"device class that is mapped to a gres of Slurm (configuration: deviceClasses)"
                )
        device_requests.append(DeviceRequest(entry["name"], exact["deviceClassName"], int(exact.get("count") or 1)))
    return tuple(device_requests)


def demand(device_requests: Iterable[DeviceRequest], table: Mapping[str, str]) -> Demand:
    """Return the CPUs and gres of requests; raises :class:`UnsupportedClaimError` for a class without a mapping."""
    cpus, gres = 0, dict[str, int]()
    for request in device_requests:
        kind = table.get(request.device_class)
        if kind is None:
            mapped_classes = ", ".join(sorted(table)) or "none"
            raise UnsupportedClaimError(
                f"device class {request.device_class} is not mapped to a gres of Slurm; allowed: {mapped_classes} (key "
                f"deviceClasses of podbridge's configuration)"
            )
        if kind == CPU:
            cpus += request.count
        else:
            gres[kind] = gres.get(kind, 0) + request.count
    return Demand(cpus, gres)


def class_selector(device_class: Object) -> Selector:
    """Return the selector of a DeviceClass; raises :class:`UnsupportedClaimError`.

    A class without selectors matches the devices of all drivers, so it is refused.
    """
    name, selectors = _name(device_class), (device_class.get("spec") or {}).get("selectors") or ()
    if not selectors:
        raise UnsupportedClaimError(f"DeviceClass {name}: spec.selectors is empty; allowed: a selector of the driver")
    try:
        parsed = [cel.parse(((selector or {}).get("cel") or {}).get("expression") or "") for selector in selectors]
    except cel.UnsupportedExpressionError as error:
        raise UnsupportedClaimError(f"DeviceClass {name}: spec.selectors: {error}") from error
    return lambda device: all(is_match(device) for is_match in parsed)


def of_node(slices: Iterable[Object], node: str) -> list[Device]:
    """Return the devices in the ResourceSlices of a node, by the newest generation of each pool.

    Raises :class:`DevicesNotReadyError` while a pool is incomplete: its driver is publishing it.
    """
    there = (entry["spec"] for entry in slices if entry["spec"].get("nodeName") == node)
    pools = grouped(((spec["driver"], spec["pool"]["name"]), spec) for spec in there)
    devices = []
    for (driver, pool), specs in sorted(pools.items()):
        newest = max(int(spec["pool"].get("generation") or 0) for spec in specs)
        specs = [spec for spec in specs if int(spec["pool"].get("generation") or 0) == newest]
        slice_count = int(specs[0]["pool"].get("resourceSliceCount") or 1)
        if len(specs) != slice_count:
            raise DevicesNotReadyError(
                f"node {node}: {len(specs)} of {slice_count} ResourceSlices of pool {pool} of driver {driver} "
                f"are published"
            )
        for spec in specs:
            devices += [
                Device(
                    driver,
                    pool,
                    entry["name"],
                    cel_values.attributes(driver, entry),
                    _unusable(entry),
                    cel_values.capacity(driver, entry),
                )
                for entry in spec.get("devices") or ()
            ]
    return devices


def chosen(devices: Sequence[Device], kind: str, resources: NodeResources) -> list[Device]:
    """Return the devices that Slurm has allocated, in Slurm's order.

    ``devices`` are the node's devices of one class and ``kind`` is that class's entry in the configuration. Raises
    :class:`WrongDevicesError` if a device cannot be identified.
    """
    if kind == CPU:
        return _allocated_cpus(devices, resources)
    name, _, type_ = kind.partition(":")
    indices = sorted(
        {index for gres in resources.gres if gres.name == name and type_ in ("", gres.type) for index in gres.indices}
    )
    by_number: dict[int, Device] = {}
    for device in devices:
        device_number = number(device)
        if device_number is None:
            continue
        if device_number in by_number:
            raise WrongDevicesError(
                f"the devices {by_number[device_number].name} and {device.name} have the number {device_number}: "
                f"Slurm's index does not identify one"
            )
        by_number[device_number] = device
    return [by_number[index] for index in indices if index in by_number]


def pick(
    request: DeviceRequest, offered: Sequence[Device], taken: Collection[tuple[str, str, str]], node: str
) -> list[Device]:
    """Return the devices of a request: the first of those that Slurm allocated and that no claim has.

    Raises :class:`WrongDevicesError` if Slurm allocated too few, :class:`DevicesNotReadyError` if other claims have
    them.
    """
    if unusable := next((device for device in offered if device.unusable), None):
        raise WrongDevicesError(
            f"device {unusable.name} of driver {unusable.driver} on node {node} has {unusable.unusable}, which is not "
            f"supported"
        )
    if len(offered) < request.count:
        names = ", ".join(device.name for device in offered) or "none"
        raise WrongDevicesError(
            f"request {request.name} needs {request.count} devices of class {request.device_class} on node {node}; of "
            f"the devices that Slurm allocated, the ResourceSlices have {names}"
        )
    free = [device for device in offered if device.key not in taken]
    if len(free) < request.count:
        held = ", ".join(device.name for device in offered if device.key in taken)
        raise DevicesNotReadyError(
            f"Slurm allocated {held} on node {node}, but other ResourceClaims still have them: they are waited for"
        )
    return free[: request.count]


def results(claim: Object) -> list[tuple[str, str, str]]:
    """Return the keys of the devices that are allocated to a claim, except for administrative access."""
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return [
        (result["driver"], result["pool"], result["device"])
        for result in devices.get("results") or ()
        if not result.get("adminAccess")
    ]


def allocation(
    picked: Mapping[str, Sequence[Device]], claim: Object, classes: Mapping[str, Object], node: str, now: str
) -> dict[str, Any]:
    """Return ``status.allocation`` as the Kubernetes scheduler writes it.

    ``picked`` holds the devices by request name, ``classes`` the DeviceClass by request name. ``now`` is a Kubernetes
    Time.
    """
    claim_config = ((claim.get("spec") or {}).get("devices") or {}).get("config") or ()
    config = [
        {"source": "FromClass", "requests": [name], **entry}
        for name, device_class in classes.items()
        for entry in (device_class.get("spec") or {}).get("config") or ()
    ] + [{"source": "FromClaim", **entry} for entry in claim_config]
    device_results = [
        {"request": name, "driver": device.driver, "pool": device.pool, "device": device.name}
        for name, devices in picked.items()
        for device in devices
    ]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": device_results, **({"config": config} if config else {})},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        "allocationTimestamp": now,
    }


def _allocated_cpus(devices: Sequence[Device], resources: NodeResources) -> list[Device]:
    """Return the CPUs of the allocated cores. Slurm numbers sockets and cores by rank, Linux by id."""
    sockets: dict[int, dict[int, list[tuple[int, Device]]]] = {}
    for device in devices:
        socket, core, cpu = (device.attributes.get(f"{device.driver}/{key}") for key in ("socketID", "coreID", "cpuID"))
        if not (isinstance(socket, int) and isinstance(core, int) and isinstance(cpu, int)):
            raise WrongDevicesError(
                f"device {device.name} of driver {device.driver} has no integer attributes socketID, coreID and cpuID: "
                f"one device for each CPU is needed (dra.cpu: individual mode)"
            )
        sockets.setdefault(socket, {}).setdefault(core, []).append((cpu, device))
    ranked = [[cores[core] for core in sorted(cores)] for _, cores in sorted(sockets.items())]
    if len(ranked) != resources.sockets or any(len(cores) != resources.cores_per_socket for cores in ranked):
        shape = f"{len(ranked)} sockets with {sorted({len(cores) for cores in ranked})} cores"
        raise WrongDevicesError(
            f"Slurm counts {resources.sockets} sockets with {resources.cores_per_socket} cores, the ResourceSlices "
            f"{shape}: Slurm's cores do not identify CPUs (reserved CPUs, or CPUs= without Sockets= in slurm.conf)"
        )
    return [
        device
        for socket, core in resources.cores
        for _, device in sorted(ranked[socket][core], key=lambda pair: pair[0])
    ]


def number(device: Device) -> int | None:
    """Return the number by which Slurm identifies the device on its node; ``None`` if it has none."""
    # versions of NVIDIA's driver that publish both: index is NVML's, gres.conf lists the files /dev/nvidia<minor>
    for key in ("minor", "index"):
        value = device.attributes.get(f"{device.driver}/{key}")
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    match = _NUMBERED.fullmatch(device.name)
    return int(match[1]) if match else None


def _unusable(entry: Object) -> str:
    if any(taint.get("effect") in ("NoSchedule", "NoExecute") for taint in entry.get("taints") or ()):
        return TAINTED
    return next((words for field, words in _UNUSABLE.items() if entry.get(field)), "")


def _name(obj: Object) -> str:
    metadata = obj.get("metadata") or {}
    return str(metadata.get("name") or metadata.get("generateName") or "")
