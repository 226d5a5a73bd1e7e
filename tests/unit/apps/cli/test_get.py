"""``podbridge get``: objects by their names, and their order."""

import pytest

from bridge.apps.cli import get
from bridge.errors import BridgeError

PODS = [{"name": name, "job": job, "created": f"2026-01-{day}T00:00:00Z", "node": None} for name, job, day in (
    ("train-1", 12, "05"), ("train-10", 9, "08"), ("eval", None, "01")
)]  # fmt: skip


def names(**listing):
    return [record["name"] for record in get._chosen("pods", lambda: list(PODS), get.Listing(**listing))()]


@pytest.mark.parametrize(
    ("column", "order"),
    [
        (None, ["train-1", "train-10", "eval"]),
        ("name", ["eval", "train-1", "train-10"]),
        ("age", ["train-10", "train-1", "eval"]),
        ("-AGE", ["eval", "train-1", "train-10"]),
        ("job", ["train-10", "train-1", "eval"]),
    ],
)
def test_records_are_sorted_by_a_column(column, order):
    assert names(sort_by=column) == order


def test_amounts_are_sorted_by_what_is_used():
    pools = [{"pool": name, "cpu": {"used": used, "total": 8.0}} for name, used in (("a", 6.0), ("b", 0.5), ("c", 2.0))]
    chosen = get._chosen("pools", lambda: pools, get.Listing(sort_by="cpu"))()
    assert [pool["pool"] for pool in chosen] == ["b", "c", "a"]


def test_a_column_that_does_not_exist_lists_those_that_do():
    with pytest.raises(BridgeError, match="'colour' is not a column; allowed: namespace, name"):
        names(sort_by="colour")


def test_objects_are_chosen_by_name_and_a_typo_says_which_one_is_meant():
    assert names(names=("eval",)) == ["eval"]
    with pytest.raises(BridgeError, match="pods: tran-1 not found") as error:
        names(names=("tran-1",))
    assert error.value.hint == "did you mean train-1?"
    assert names(names=("later",), watch=True) == []
