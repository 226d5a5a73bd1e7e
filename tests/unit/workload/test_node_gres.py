"""Gres are counted from devices, each once, and only if Slurm's numbers identify them."""

from hypothesis import given
from hypothesis import strategies as st

from bridge.workload.devices import node_gres
from bridge.workload.devices.claimed_devices import CPU, TAINTED, Device
from bridge.workload.devices.node_gres import NodeGres

TABLE = {"gpu.x": "gpu", "a100.x": "gpu:a100", "h100.x": "gpu:h100", "cpu.x": CPU}
SELECTORS = {
    "gpu.x": lambda device: device.driver == "x",
    "a100.x": lambda device: device.attributes.get("x/model") == "a100",
    "h100.x": lambda device: device.attributes.get("x/model") == "h100",
    "cpu.x": lambda device: device.driver == "c",
}


def device(number: int, model: str = "", driver: str = "x", unusable: str = "") -> Device:
    attributes = {f"{driver}/index": number, **({f"{driver}/model": model} if model else {})}
    return Device(driver, "p", f"d{number}", attributes, unusable)


def count(*found: Device, **only: str) -> NodeGres:
    return node_gres.count(found, SELECTORS, TABLE | only)


def test_a_device_counts_once_for_its_type() -> None:
    assert count(device(0), device(1)).counts == {"gpu": 2}
    assert count(device(0, "a100"), device(1, "h100"), device(2, "h100")).counts == {"gpu:a100": 1, "gpu:h100": 2}


def test_cpus_and_devices_of_no_class_do_not_count() -> None:
    assert count(device(0, driver="c"), device(0, driver="other")) == NodeGres()


def test_a_device_that_may_become_usable_counts() -> None:
    assert count(device(0, unusable=TAINTED), device(1, unusable="shared counters")).counts == {"gpu": 1}


def test_two_types_of_one_device_are_a_problem() -> None:
    both = node_gres.count([device(0)], SELECTORS | {"h100.x": SELECTORS["gpu.x"], "a100.x": SELECTORS["gpu.x"]}, TABLE)
    assert both == NodeGres(problem="device d0 of driver x is both gpu:a100 and gpu:h100")


def test_types_in_another_order_than_the_numbers_are_a_problem() -> None:
    assert count(device(0, "h100"), device(1, "a100")).problem == (
        "the devices of gres gpu:a100, gpu:h100 have the numbers 1, 0; allowed: 0 to 1 in this order, by which Slurm "
        "identifies them"
    )


def test_a_device_without_a_number_is_a_problem() -> None:
    assert "no number" in count(Device("x", "p", "card", {})).problem


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["", "a100", "h100"])), max_size=8))
def test_counts_are_told_only_if_each_slurm_index_is_one_device(found: list[tuple[int, str]]) -> None:
    result = count(*(device(number, model) for number, model in found))
    if result.problem:
        assert not result.counts
        return
    by_index: list[tuple[int, str]] = []
    for kind, amount in sorted(result.counts.items()):
        first = len(by_index)
        by_index += [(number, kind.partition(":")[2]) for number in range(first, first + amount)]
    assert sorted(by_index) == sorted(found)
