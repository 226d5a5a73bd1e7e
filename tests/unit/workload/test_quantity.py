import contextlib
import time
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.workload import quantity


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2", Decimal(2)),
        ("500m", Decimal("0.5")),
        ("1.5Gi", Decimal(3 * 2**29)),
        ("2e3", Decimal(2000)),
        ("1E3", Decimal(1000)),
        ("1E", Decimal(10**18)),
        (".5", Decimal("0.5")),
        ("100n", Decimal("1e-7")),
        (4, Decimal(4)),
        # as apimachinery reads them, which tests/contract/kube/test_readers.py compares for many more
        ("1e0003", Decimal(1000)),
        ("5e0009", Decimal(5 * 10**9)),
        ("1e+0000000003", Decimal(1000)),
        ("1.5e-10", Decimal("1e-9")),
        ("-0.1n", Decimal("-1e-9")),
        ("10Ei", Decimal(2**63 - 1)),
        ("1.", Decimal(1)),
        ("Gi", Decimal(0)),
        ("1e4294967299", Decimal(1000)),
        (
            "12345678901234567890123456789012345678901.123456789",
            Decimal("12345678901234567890123456789012345678901.123456789"),
        ),
        # more digits than the precision of the arithmetic
        pytest.param("9" * 200 + ".5Ki", Decimal(2**63 - 1), id="many digits"),
        pytest.param("-" + "9" * 5000 + ".5Ei", Decimal(1 - 2**63), id="many digits, negative"),
        pytest.param("0." + "0" * 5000 + "1Ki", Decimal("1e-9"), id="many zeros"),
    ],
)
def test_reads_what_kubernetes_writes(text, value):
    assert quantity.parse(text) == value


@pytest.mark.parametrize(
    "text", ["", "x", "1 Gi", "1GiB", "--1", "1ee3", "Ei", "1K", "1i", "e", "1_0", "0x10", "\uff11"]
)
def test_refuses_everything_else(text):
    with pytest.raises(ValueError, match="quantity"):
        quantity.parse(text)


def test_equal_texts_are_read_once_and_neither_long_ones_nor_errors_are_kept():
    quantity._cached.cache_clear()
    assert quantity.parse("263856212Ki") is quantity.parse(" 263856212Ki")
    assert quantity.parse("0" * 200_000 + "1") == 1
    for wrong in ("x", [], {}, True, None):
        with pytest.raises(ValueError, match=f"{wrong!r} is not".replace("[", r"\[")):
            quantity.parse(wrong)
    assert quantity._cached.cache_info().currsize == 1


@pytest.mark.parametrize(
    "text", ["9" * 200_000, "1e999999", "1e2147483647", "0." + "0" * 200_000 + "1Gi", "1e" + "0" * 200_000 + "99"]
)
def test_a_long_or_large_quantity_costs_little(text):
    begun = time.process_time()
    value = quantity.parse(text)
    assert len(str(quantity.whole(value))) <= 101
    assert len(str(quantity.mebibytes(value))) <= 101
    assert quantity.whole(-value) <= 0
    assert time.process_time() - begun < 0.1


def test_the_message_shows_the_beginning_of_a_long_text():
    with pytest.raises(ValueError, match=r"^'x{64}'\.\.\. is not a quantity"):
        quantity.parse("x" * 200_000)


@given(st.integers(0, 10**12), st.sampled_from(["Ki", "Mi", "Gi"]))
def test_mebibytes_never_less_than_asked(number, suffix):
    value = quantity.parse(f"{number}{suffix}")
    assert quantity.mebibytes(value) * 2**20 >= value > (quantity.mebibytes(value) - 1) * 2**20


@given(st.text(max_size=12))
def test_anything_is_read_or_refused(text):
    with contextlib.suppress(ValueError):
        assert isinstance(quantity.parse(text), Decimal)
