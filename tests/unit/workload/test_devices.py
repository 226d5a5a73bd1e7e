from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm.job_resources import GresIndices, NodeResources
from bridge.workload.devices import claimed_devices
from bridge.workload.devices.claimed_devices import (
    Demand,
    Device,
    DeviceRequest,
    DevicesNotReadyError,
    UnsupportedClaimError,
    WrongDevicesError,
)

GPU, CPU = "gpu.example.com", "dra.cpu"
TABLE = {GPU: "gpu", "a100.example.com": "gpu:a100", CPU: "cpu"}


def claim(**exactly: Any) -> dict[str, Any]:
    one = {"name": "r0", "exactly": {"deviceClassName": GPU, "count": 2, **exactly}}
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": [one]}}}


def gpus(count: int) -> list[Device]:
    return [Device(GPU, "n", f"card-{n}", {f"{GPU}/index": n}) for n in reversed(range(count))]


def given_gpus(*indices: int, kind: str = "") -> NodeResources:
    return NodeResources(1, 8, (), (GresIndices("gpu", kind, indices),))


def published(node: str = "n", **pool: Any) -> dict[str, Any]:
    whole = {"name": "p", "generation": 1, "resourceSliceCount": 1, **pool}
    return {"spec": {"driver": GPU, "nodeName": node, "pool": whole, "devices": [{"name": f"g{whole['generation']}"}]}}


def test_requests_of_a_claim() -> None:
    assert claimed_devices.requests(claim()) == (DeviceRequest("r0", GPU, 2),)
    assert claimed_devices.requests(claim(count=None)) == (DeviceRequest("r0", GPU, 1),)


@pytest.mark.parametrize(
    ("exactly", "word"),
    [
        ({"allocationMode": "All"}, "'All'"),
        ({"selectors": [{"cel": {"expression": "true"}}]}, "selectors"),
        ({"adminAccess": True}, "adminAccess"),
        ({"capacity": {"requests": {}, "x": 1}}, "capacity"),
        ({"tolerations": [{}]}, "tolerations"),
    ],
)
def test_what_slurm_does_not_know_is_refused_by_field(exactly: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedClaimError, match=word):
        claimed_devices.requests(claim(**exactly))


def test_alternatives_and_constraints_are_refused() -> None:
    body = claim()
    body["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": [{}]}]
    with pytest.raises(UnsupportedClaimError, match="firstAvailable"):
        claimed_devices.requests(body)
    body["spec"]["devices"]["constraints"] = [{"matchAttribute": "a/b"}]
    with pytest.raises(UnsupportedClaimError, match="constraints"):
        claimed_devices.requests(body)


def test_demand_is_the_sum_by_gres() -> None:
    asked = [DeviceRequest("r", *each) for each in ((GPU, 2), (GPU, 1), ("a100.example.com", 1), (CPU, 4))]
    assert claimed_devices.demand(asked, TABLE) == Demand(4, {"gpu": 3, "gpu:a100": 1})
    with pytest.raises(UnsupportedClaimError, match=r"mig\.nvidia\.com.*allowed: a100"):
        claimed_devices.demand([DeviceRequest("a", "mig.nvidia.com", 1)], TABLE)


def test_a_class_without_a_driver_is_refused() -> None:
    with pytest.raises(UnsupportedClaimError, match="empty"):
        claimed_devices.class_selector({"metadata": {"name": "all"}, "spec": {}})
    selectors = [{"cel": {"expression": "true"}}]
    with pytest.raises(UnsupportedClaimError, match="CEL"):
        claimed_devices.class_selector({"metadata": {"name": "x"}, "spec": {"selectors": selectors}})


def test_only_the_newest_complete_generation_counts() -> None:
    found = claimed_devices.of_node([published(), published(generation=2), published("other")], "n")
    assert [d.name for d in found] == ["g2"]
    with pytest.raises(DevicesNotReadyError, match="1 of 2"):
        claimed_devices.of_node([published(), published(generation=2, resourceSliceCount=2)], "n")


def test_slurms_index_selects_the_device() -> None:
    assert [d.name for d in claimed_devices.chosen(gpus(8), "gpu", given_gpus(2, 5))] == ["card-2", "card-5"]
    named = [Device("d", "n", f"gpu-{n}", {}) for n in range(4)]
    assert [d.name for d in claimed_devices.chosen(named, "gpu", given_gpus(3))] == ["gpu-3"]
    padded = [Device("d", "n", f"device-{n:02d}", {}) for n in range(12)]
    assert [d.name for d in claimed_devices.chosen(padded, "gpu", given_gpus(1, 11))] == ["device-01", "device-11"]
    for name in ("gpu-1-129", "gpu0", "0000-03-00"):
        assert claimed_devices.number(Device("d", "n", name, {})) is None
    minors = [Device("d", "n", "x", {"d/minor": 3})]
    assert claimed_devices.chosen(minors, "gpu", given_gpus(3)) == minors
    both = [Device("d", "n", f"gpu-{n}", {"d/index": n, "d/minor": 3 - n}) for n in range(4)]
    assert [d.name for d in claimed_devices.chosen(both, "gpu", given_gpus(0))] == ["gpu-3"]
    assert claimed_devices.chosen([Device("d", "n", "gpu-0-mig-1g", {})], "gpu", given_gpus(0)) == []
    with pytest.raises(WrongDevicesError, match="number 0"):
        claimed_devices.chosen([*named, Device("d", "n", "gpu-00", {})], "gpu", given_gpus(0))


def test_a_type_selects_its_own_indices() -> None:
    given = NodeResources(1, 8, (), (GresIndices("gpu", "a100", (0, 1)), GresIndices("gpu", "h100", (4,))))
    assert [d.name for d in claimed_devices.chosen(gpus(8), "gpu:h100", given)] == ["card-4"]
    assert [d.name for d in claimed_devices.chosen(gpus(8), "gpu", given)] == ["card-0", "card-1", "card-4"]
    assert claimed_devices.chosen(gpus(8), "fpga", given) == []


def cpu(number: int, socket: int, core: int) -> Device:
    return Device(CPU, "n", f"cpu{number}", {f"{CPU}/socketID": socket, f"{CPU}/coreID": core, f"{CPU}/cpuID": number})


def test_cores_are_identified_by_rank_in_their_socket() -> None:
    # two sockets, CPUs numbered alternately, core ids with a gap, two threads a core
    found = [cpu(n, n % 2, (0, 8)[(n // 2) % 2]) for n in range(8)]
    given = NodeResources(2, 2, ((0, 1), (1, 0)), ())
    assert [d.name for d in claimed_devices.chosen(found, "cpu", given)] == ["cpu2", "cpu6", "cpu1", "cpu5"]


def test_cpus_that_slurm_counts_otherwise_are_refused() -> None:
    with pytest.raises(WrongDevicesError, match="2 sockets with 2 cores"):
        claimed_devices.chosen([cpu(n, 0, n) for n in range(3)], "cpu", NodeResources(2, 2, (), ()))
    grouped = [Device(CPU, "n", "numa0", {f"{CPU}/numaNodeID": 0})]
    with pytest.raises(WrongDevicesError, match="individual mode"):
        claimed_devices.chosen(grouped, "cpu", NodeResources(1, 1, (), ()))


def test_too_few_and_taken_devices_are_told_apart() -> None:
    offered = claimed_devices.chosen(gpus(8), "gpu", given_gpus(1, 2))
    with pytest.raises(WrongDevicesError, match="needs 3"):
        claimed_devices.pick(DeviceRequest("r", GPU, 3), offered, (), "n")
    with pytest.raises(DevicesNotReadyError, match="card-1"):
        claimed_devices.pick(DeviceRequest("r", GPU, 2), offered, {(GPU, "n", "card-1")}, "n")
    with pytest.raises(WrongDevicesError, match="a taint"):
        claimed_devices.pick(DeviceRequest("r", GPU, 1), [Device(GPU, "n", "x", {}, "a taint")], (), "n")


@given(
    st.lists(st.sets(st.integers(0, 15)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=12),
)
def test_no_device_is_picked_twice_and_all_are_slurms(shares: list[set[int]], asked: list[tuple[int, int]]) -> None:
    """Jobs get disjoint devices from Slurm; the pods of a job share those of the job."""
    jobs = [share - set().union(*shares[:n]) for n, share in enumerate(shares)]
    taken: set[tuple[str, str, str]] = set()
    for job, count in asked:
        own = jobs[job % len(jobs)]
        offered = claimed_devices.chosen(gpus(16), "gpu", given_gpus(*own))
        assert {d.attributes[f"{GPU}/index"] for d in offered} == own
        free = len(own) - sum(d.key in taken for d in offered)
        try:
            picked = claimed_devices.pick(DeviceRequest("r", GPU, count), offered, taken, "n")
        except (WrongDevicesError, DevicesNotReadyError):
            assert free < count
            continue
        assert len(picked) == count
        assert not taken & {d.key for d in picked}
        assert {d.attributes[f"{GPU}/index"] for d in picked} <= own
        taken |= {d.key for d in picked}


def test_the_allocation_has_the_configuration_of_class_and_claim() -> None:
    body, opaque = claim(), {"driver": GPU, "parameters": {}}
    body["spec"]["devices"]["config"] = [{"requests": ["r0"], "opaque": opaque}]
    classes = {"r0": {"spec": {"config": [{"opaque": opaque}]}}}
    found = claimed_devices.allocation({"r0": gpus(1)}, body, classes, "n", "2026-01-01T00:00:00Z")
    sources = [(one["source"], one["requests"]) for one in found["devices"]["config"]]
    assert sources == [("FromClass", ["r0"]), ("FromClaim", ["r0"])]
    assert claimed_devices.results({"status": {"allocation": found}}) == [(GPU, "n", "card-0")]
