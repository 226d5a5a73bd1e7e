"""Versions are ordered as semver.org orders them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.workload.devices.cel_values import Semver

# from https://semver.org, point 11
IN_ORDER = (
    "1.0.0-alpha < 1.0.0-alpha.1 < 1.0.0-alpha.beta < 1.0.0-beta < 1.0.0-beta.2 < 1.0.0-beta.11 < 1.0.0-rc.1"
    " < 1.0.0 < 2.0.0 < 2.1.0 < 2.1.1 < 10.0.0"
)
NONE = ("", "1", "1.2", "v1.2.3", "01.2.3", "1.2.3-", "1.2.3-01", "1.2.3-a..b", "1.2.3 ", "1.2.3+")


def test_the_order_of_the_specification() -> None:
    for earlier, later in itertools.combinations(map(Semver.parse, IN_ORDER.split(" < ")), 2):
        assert earlier < later
        assert not later < earlier


def test_build_metadata_do_not_count() -> None:
    assert Semver.parse("1.0.0+a") == Semver.parse("1.0.0+b.1")


@pytest.mark.parametrize("text", NONE)
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="is not a semantic version"):
        Semver.parse(text)


@given(st.tuples(*[st.integers(0, 9)] * 3), st.tuples(*[st.integers(0, 9)] * 3))
def test_releases_compare_by_their_numbers(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    first, second = (Semver.parse(".".join(map(str, core))) for core in (one, other))
    assert (first < second, first == second) == (one < other, one == other)
