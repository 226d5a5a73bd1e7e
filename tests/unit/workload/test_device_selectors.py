from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.workload import device_selectors
from bridge.workload.device_selectors import UnsupportedSelectorError

VALUES: dict[str, str | int | bool] = {
    "gpu.nvidia.com/type": "gpu",
    "gpu.nvidia.com/minor": 3,
    "gpu.nvidia.com/healthy": True,
}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "gpu.nvidia.com"', True),
        ("device.driver == 'gpu.example.com'", False),
        ("device.driver != 'gpu.example.com'", True),
        # the class of k8s-dra-driver-gpu
        ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'", True),
        ("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'", False),
        ('device.attributes["gpu.nvidia.com"]["minor"] == 3', True),
        ('device.attributes["gpu.nvidia.com"].minor != 3', False),
        ('device.attributes["gpu.nvidia.com"].minor == true', False),
        ('device.attributes["gpu.nvidia.com"].healthy == true', True),
        ('device.attributes["gpu.nvidia.com"].healthy == 1', False),
        ('device.attributes["other.com"].type != "gpu"', False),
        ('\n  device.driver == "gpu.nvidia.com"\n', True),
    ],
)
def test_what_matches(expression: str, expected: bool) -> None:
    assert device_selectors.parse(expression)("gpu.nvidia.com", VALUES) is expected


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        'device.driver == "a" || device.driver == "b"',
        '(device.driver == "a")',
        'device.driver.startsWith("a")',
        'device.driver == "a" &&',
        'device.driver == "a" & device.driver == "a"',
        'device.driver == "a" device.driver == "a"',
        'device.driver == "a\\"b"',
        'device.capacity["a"].memory == "1"',
        '!(device.driver == "a")',
        'device.driver == "a" ? true : false',
        'device.driver == "a"' * 3000,
    ],
)
def test_what_is_outside_the_subset_is_refused(expression: str) -> None:
    with pytest.raises(UnsupportedSelectorError):
        device_selectors.parse(expression)


@given(st.lists(st.sampled_from(["device.driver", "==", "'a'", "&&", "||", " ", "true", "device.attributes['a'].b"])))
def test_an_or_is_never_read_as_an_and(tokens: list[str]) -> None:
    try:
        device_selectors.parse("".join(tokens))
    except UnsupportedSelectorError:
        return
    assert "||" not in tokens


def test_a_name_without_a_domain_is_in_that_of_the_driver() -> None:
    device = {"attributes": {"index": {"int": 1}, "other.com/index": {"string": "x"}, "ok": {"bool": False}, "no": {}}}
    expected = {"d.com/index": 1, "other.com/index": "x", "d.com/ok": False}
    assert device_selectors.attributes("d.com", device) == expected
