"""The cells of the map: shares never exceed the node, and devices keep their types."""

from hypothesis import given
from hypothesis import strategies as st

from bridge.apps.view import node_map
from bridge.apps.view.node_view import Amount, NodeUse
from bridge.slurm.cluster_sums import Amounts, NodeSums

COUNTS = st.integers(0, 10**6)


@given(COUNTS, COUNTS, COUNTS)
def test_shares_fit_into_the_bar_whatever_is_reported(own, others, total):
    amount = Amount("cpu", own, total, others)
    assert 0 <= amount.share <= 100
    assert 0 <= amount.others_share <= 100 - amount.share + 1e-9
    assert amount.idle >= 0


def test_devices_without_a_type_count_as_those_of_the_node():
    (cell,) = node_map.of_slurm(
        [NodeSums("n", ("MIXED",), "", Amounts(8, 8, {"gpu:a100": 4, "fpga": 1}), Amounts(1, 1, {"gpu": 2}))]
    )
    assert [(one.name, one.own, one.total) for one in cell.amounts[1:-1]] == [
        ("gpu:a100", 2, 4),
        ("fpga", 0, 1),
    ]
    assert (cell.gpus.own, cell.gpus.total) == (2, 4)
    assert cell.state == node_map.USED


def test_states_that_the_numbers_do_not_show_are_noted():
    def note(*states, reason=""):
        return node_map.of_slurm([NodeSums("n", states, reason)])[0].note

    assert note("MIXED") == ""
    assert note("IDLE", "PLANNED") == "IDLE+PLANNED"
    assert note("DOWN", reason="no answer") == "DOWN: no answer"


def test_a_pool_has_its_amounts_in_the_units_of_the_map():
    amounts = (
        Amount("cpu", 2, 8),
        Amount("nvidia.com/gpu", 1, 2),
        Amount("memory", 2**30, 2**32),
        Amount("pods", 1, 9),
    )
    use = NodeUse("pool", "site", "True", "", "", "", amounts)
    (cell,) = node_map.of_pools([use])
    assert [(one.name, one.own, one.total) for one in cell.amounts] == [
        ("cpu", 2, 8),
        ("nvidia.com/gpu", 1, 2),
        ("memory", 2**30, 2**32),
    ]
    assert (cell.state, cell.gpus.total) == (node_map.USED, 2)
    closed = NodeUse("pool", "site", "False", "", "silent: since 10:00", "", amounts)
    assert node_map.of_pools([closed])[0].state == node_map.CLOSED


def test_a_closed_node_counts_only_with_what_its_jobs_still_have():
    drained = NodeSums("a", ("DRAIN", "MIXED"), "", Amounts(16), Amounts(2), Amounts(3))
    totals = node_map.totals(node_map.of_slurm([drained, NodeSums("b", ("IDLE",), "", Amounts(8))]))
    assert (totals.cpu.own, totals.cpu.others, totals.cpu.total, totals.cpu.idle) == (2, 3, 13, 8)
    assert totals.states == {"used": 0, "idle": 1, "closed": 1}
