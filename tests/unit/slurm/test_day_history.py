"""The samples of the last day: what is counted, and how many are kept."""

from hypothesis import given
from hypothesis import strategies as st

from bridge.slurm import day_history
from bridge.slurm.cluster_sums import Amounts, ClusterSums, NodeSums
from bridge.slurm.day_history import DAY, KEY, MOST, PERIOD, Sample
from tests.builders import observed, snapshot

NOW = 1_767_225_600.0
SAMPLES = st.lists(st.builds(Sample, *[st.integers(0, 2**40)] * 8))


@given(SAMPLES)
def test_a_config_map_gives_back_the_samples(samples):
    assert day_history.from_config_map({"data": {KEY: day_history.to_text(samples)}}) == tuple(samples)


@given(st.text() | st.sampled_from(["[[1]]", "[1]", "{}", '[["a",1,1,1,1,1,1,1]]']))
def test_another_text_is_a_value_error_or_no_sample(text):
    try:
        assert day_history.from_config_map({"data": {KEY: text}}) == ()
    except ValueError as error:
        assert "validation error" in str(error)


@given(st.lists(st.integers(int(NOW - 3 * DAY), int(NOW + DAY))))
def test_only_the_last_day_is_kept_and_its_size_has_a_limit(times):
    kept = day_history.kept([Sample(at, *[0] * 7) for at in times], NOW)
    assert len(kept) <= MOST
    assert list(kept) == sorted(kept)
    assert all(NOW - DAY < each.at <= NOW + PERIOD for each in kept)


def test_a_full_day_is_small():
    whole = [
        Sample(int(NOW - PERIOD * number), 10**6, 10**6, 10**6, 10**5, 10**5, 10**4, 10**4) for number in range(MOST)
    ]
    assert len(day_history.to_text(day_history.kept(whole, NOW))) < 20_000


def test_a_sample_counts_what_changed_since_the_one_before():
    def view(*jobs):
        return snapshot(*jobs)

    runs, waits = observed(1, "RUNNING", start_time=5.0), observed(2, "PENDING", "u2", start_time=9.0)
    before = view(runs, waits)
    now = view(
        observed(1, "COMPLETED", start_time=5.0),
        observed(2, "RUNNING", "u2", start_time=9.0),
        observed(3, "PENDING", "u3"),
        observed(4, "CANCELLED", "u4"),
        observed(5, "RUNNING", "u5", missing=True),
    )
    nodes = (
        NodeSums("a", ("MIXED",), "", Amounts(8), Amounts(3), Amounts(2)),
        NodeSums("b", ("DOWN",), "", Amounts(8)),
    )
    found = day_history.sample(
        ClusterSums(NOW, nodes=nodes), now, day_history.marks(before, 0), day_history.marks(now, 1)
    )
    assert found == Sample(int(NOW), 3, 2, 8, running=1, waiting=1, started=1, ended=3)
