from dataclasses import dataclass, field
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.workload.devices import cel, cel_values
from bridge.workload.devices.cel import UnsupportedExpressionError
from bridge.workload.devices.cel_values import Semver, Value


@dataclass
class Gpu:
    driver: str = "gpu.nvidia.com"
    attributes: dict[str, Value] = field(
        default_factory=lambda: {
            "gpu.nvidia.com/type": "gpu",
            "gpu.nvidia.com/minor": 3,
            "gpu.nvidia.com/healthy": True,
            "gpu.nvidia.com/productName": "NVIDIA A100-SXM4-40GB",
            "gpu.nvidia.com/driverVersion": Semver.parse("550.54.15"),
        }
    )
    capacity: dict[str, Decimal] = field(default_factory=lambda: {"gpu.nvidia.com/memory": Decimal(40 * 2**30)})


A, C = 'device.attributes["gpu.nvidia.com"]', 'device.capacity["gpu.nvidia.com"]'


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
        ('device.driver == "a" || device.driver == "gpu.nvidia.com"', True),
        ('(device.driver == "a" || device.driver == "b") && true', False),
        ('device.driver == "a" && device.driver == "b" || device.driver == "gpu.nvidia.com"', True),
        ('!(device.driver == "a")', True),
        ('!!(device.driver == "a")', False),
        (
            'device.driver.startsWith("gpu.") && device.driver.endsWith(".com") && device.driver.contains("nvidia")',
            True,
        ),
        ('device.driver in ["gpu.nvidia.com", "gpu.example.com"]', True),
        (f"{A}.minor in [1, 2]", False),
        (f'"type" in {A}', True),
        (f'"model" in {A}', False),
        (f"has({A}.type) && !has({A}.model)", True),
        (f"{A}.minor > 2 && {A}.minor <= 3 && {A}.minor < 4 && {A}.minor >= -1", True),
        (f'{A}.minor < "4"', False),
        # as Kubernetes' own compiler, with which tests/contract/kube/test_cel.py compares many more
        (f"{A}.healthy > false && {A}.healthy >= true && !({A}.healthy < true)", True),
        (f"!({A}.driverVersion == '550.54.15')", False),
        (f"{A}.driverVersion != '550.54.15'", True),
        (f"!('550.54.15' == {A}.driverVersion)", True),
        (f"!({C}.memory == 1)", False),
        (f'{A}.minor != "3"', True),
        # from the documentation of k8s-dra-driver-gpu
        (f"{A}.productName.lowerAscii().matches('^.*a100.*$')", True),
        (f"{A}.productName.lowerAscii().matches('^.*h100.*$')", False),
        (f"{A}.productName.upperAscii() == 'NVIDIA A100-SXM4-40GB'", True),
        (f"{C}.memory.compareTo(quantity('40Gi')) >= 0", True),
        (f"{C}.memory.compareTo(quantity('80Gi')) >= 0", False),
        (f"{C}.memory.isGreaterThan(quantity('39Gi')) && {C}.memory.isLessThan(quantity('41Gi'))", True),
        (f"{C}.memory == quantity('40Gi')", True),
        (f"{A}.driverVersion.compareTo(semver('550.0.0')) > 0", True),
        (f"{A}.driverVersion.isLessThan(semver('550.54.15'))", False),
        (f"{A}.driverVersion == '550.54.15'", False),
        # an error counts only if the other side does not decide
        (f"{A}.none == 1 || device.driver == 'gpu.nvidia.com'", True),
        (f"{A}.none == 1 || device.driver == 'a'", False),
        (f"!({A}.none == 1)", False),
        (f"!({A}.none == 1 && device.driver == 'a')", True),
        (f"{A}.healthy", True),
        (f"{A}.minor", False),
        (f"{C}.memory.compareTo(semver('1.0.0')) >= 0", False),
    ],
)
def test_what_matches(expression: str, expected: bool) -> None:
    assert cel.parse(expression)(Gpu()) is expected


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "true",
        '"a" == "a"',
        'device.driver == "a" &&',
        'device.driver == "a" & device.driver == "a"',
        'device.driver == "a" device.driver == "a"',
        'device.driver == "a" == true',
        'device.driver == "a\\"b"',
        'device.driver == r"a"',
        'device.driver == "a" ? true : false',
        'device.driver == "a"' * 3000,
        "!" * 33 + "(device.driver == 'a')",
        "(" * 33 + "device.driver == 'a'" + ")" * 33,
        "device.driver" + ".lowerAscii()" * 33 + " == 'a'",
        "device.driver.size() > 1",
        'device.driver in "abc"',
        "device.allowMultipleAllocations",
        'device == "a"',
        f'{A} == "a"',
        f'{A}.exists(k, k == "a")',
        f"{A}.minor == 3u",
        f"{A}.minor == 3.0",
        f"{A}.minor == 0x3",
        f"{A}.minor + 1 == 4",
        f'{C}.memory.compareTo(quantity("4Q")) > 0',
        f'{A}.driverVersion.compareTo(semver("1.2")) > 0',
        'cel.bind(x, device.driver, x == "a")',
        "device.driver.matches('(a+)+b')",
        "device.driver.matches('.*.*.*.*x')",
        "device.driver.matches('a{1,9}')",
        "device.driver.matches('a?a?a?a?b')",
        "device.driver.matches('a**')",
        "device.driver.matches('[[:alpha:]]')",
        "device.driver.matches('[a')",
        "device.driver.matches(device.driver)",
    ],
)
def test_what_is_outside_the_subset_is_refused(expression: str) -> None:
    with pytest.raises(UnsupportedExpressionError):
        cel.parse(expression)


TRUE, FALSE, ERROR = "device.driver == 'gpu.nvidia.com'", "device.driver == 'a'", f"{A}.none == 1"
LOGIC = {TRUE: True, FALSE: False, ERROR: None}
"""``None`` is an error."""


def either(values: list[bool | None], decides: bool) -> bool | None:
    if decides in values:
        return decides
    return None if None in values else not decides


@st.composite
def logic(draw: st.DrawFn, depth: int = 4) -> tuple[str, bool | None]:
    """Return an expression and its value by the rules of CEL."""
    kind = draw(st.sampled_from(["term", "!", "&&", "||"] if depth else ["term"]))
    if kind == "term":
        return draw(st.sampled_from(list(LOGIC.items())))
    if kind == "!":
        text, value = draw(logic(depth - 1))
        return f"!({text})", None if value is None else not value
    parts = draw(st.lists(logic(depth - 1), min_size=2, max_size=3))
    return kind.join(f"({text})" for text, _ in parts), either([value for _, value in parts], kind == "||")


@given(logic())
def test_and_or_and_not_are_those_of_cel(drawn: tuple[str, bool | None]) -> None:
    text, value = drawn
    assert cel.parse(text)(Gpu()) is (value is True)


@given(st.lists(st.sampled_from([TRUE, FALSE, ERROR]), min_size=1, max_size=6), st.data())
def test_and_binds_more_closely_than_or(terms: list[str], data: st.DataObject) -> None:
    text = terms[0] + "".join(f" {data.draw(st.sampled_from(['&&', '||']))} {term}" for term in terms[1:])
    groups = [either([LOGIC[part.strip()] for part in group.split("&&")], False) for group in text.split("||")]
    assert cel.parse(text)(Gpu()) is (either(groups, True) is True)


@given(st.text(max_size=60) | st.text(alphabet="device.attributes[]()\"'!&|<>=in 0-", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        cel.parse(text)(Gpu())
    except UnsupportedExpressionError:
        return


@given(st.from_regex(r"[ab.*+?^$|\[\]]{0,12}", fullmatch=True), st.text("ab", max_size=64))
def test_a_regular_expression_takes_little_time(pattern: str, text: str) -> None:
    try:
        found = cel.parse(f"device.driver.matches('{pattern}')")
    except UnsupportedExpressionError:
        return
    found(Gpu(driver=text))


def test_a_name_without_a_domain_is_in_that_of_the_driver() -> None:
    device = {"attributes": {"index": {"int": 1}, "other.com/index": {"string": "x"}, "ok": {"bool": False}, "no": {}}}
    expected = {"d.com/index": 1, "other.com/index": "x", "d.com/ok": False}
    assert cel_values.attributes("d.com", device) == expected


def test_capacities_and_versions_are_read_and_those_that_are_none_left_out() -> None:
    device = {
        "attributes": {"v": {"version": "1.2.3-rc.1"}, "w": {"version": "1.2"}},
        "capacity": {"memory": {"value": "40Gi"}, "other.com/x": {"value": "1"}, "bad": {"value": "x"}, "none": None},
    }
    assert cel_values.attributes("d.com", device) == {"d.com/v": Semver((1, 2, 3), ("rc", "1"))}
    assert cel_values.capacity("d.com", device) == {"d.com/memory": 40 * 2**30, "other.com/x": 1}


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [("^x$", "x", True), ("^x$", "x\n", False), ("x$|y", "y\n", True), ("[$]$", "a$", True), ("[$]$", "a$\n", False)],
)
def test_the_end_of_a_text_is_not_before_a_newline(pattern, text, expected):
    matches = cel.parse(f"{A}.type.matches('{pattern}')")
    assert matches(Gpu(attributes={"gpu.nvidia.com/type": text})) is expected
