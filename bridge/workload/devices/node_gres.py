"""The gres of a Slurm node without slurmd, counted from the devices of its ResourceSlices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bridge.workload.devices import claimed_devices
from bridge.workload.devices.cel_values import Selector
from bridge.workload.devices.claimed_devices import CPU, Device


@dataclass(frozen=True, slots=True)
class NodeGres:
    """The counts of gres (``name[:type]``) of a node; ``problem`` is why they are not known, empty if they are."""

    counts: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""


def count(devices: Iterable[Device], selectors: Mapping[str, Selector], table: Mapping[str, str]) -> NodeGres:
    """Count the devices of a node by the gres of their class.

    ``selectors`` and ``table`` (the configuration) have the selector and the gres of each DeviceClass. A device of
    classes with and without a type counts for the type. A device that podbridge cannot allocate does not count; one
    with a taint does, as its taint may go.

    It is a problem if a device has several types, or if Slurm would number the devices differently from their driver:
    Slurm numbers the devices of a gres from 0, those of the first type first.
    """
    by_gres: dict[str, list[tuple[int, str]]] = {}
    for device in devices:
        if device.unusable and device.unusable != claimed_devices.TAINTED:
            continue
        kinds = {table[name] for name, matches in selectors.items() if matches(device)}
        for name in sorted({kind.partition(":")[0] for kind in kinds} - {CPU}):
            typed = sorted(kind for kind in kinds if kind.startswith(f"{name}:"))
            if len(typed) > 1:
                return NodeGres(problem=f"device {device.name} of driver {device.driver} is both {' and '.join(typed)}")
            number = claimed_devices.number(device)
            if number is None:
                return NodeGres(
                    problem=f"device {device.name} of driver {device.driver} has no number: neither the attribute "
                    f"index nor minor, nor a name such as gpu-3"
                )
            by_gres.setdefault(typed[0] if typed else name, []).append((number, device.name))
    for name in sorted({kind.partition(":")[0] for kind in by_gres}):
        kinds_of = sorted(kind for kind in by_gres if kind.partition(":")[0] == name)
        numbers = [number for kind in kinds_of for number, _ in sorted(by_gres[kind])]
        if numbers != list(range(len(numbers))):
            shown = ", ".join(map(str, numbers[:16]))
            return NodeGres(
                problem=f"the devices of gres {', '.join(kinds_of)} have the numbers {shown}; allowed: 0 to "
                f"{len(numbers) - 1} in this order, by which Slurm identifies them"
            )
    return NodeGres({kind: len(numbered) for kind, numbered in sorted(by_gres.items())})
