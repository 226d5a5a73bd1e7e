"""The last day of the pools."""

import time
from dataclasses import replace

from bridge.apps.dashboard.pool_day import PoolDay, sample
from bridge.apps.view import node_view, pod_view
from bridge.apps.view.pod_view import FAILED, RUNNING, STARTING, SUCCEEDED, Times
from bridge.slurm.day_history import MOST, PERIOD, Sample
from tests.fakes.clock import FakeClock
from tests.unit.apps.dashboard.test_places import pool
from tests.unit.apps.view.test_pod_view import pod


def row(state, started=None, ended=None, node="site-a"):
    times = Times(0.0, 0.0, started, ended)
    return replace(pod_view.of(pod()), state=state, node=node, times=times, cpu=2.0)


def test_a_sample_sums_all_pools_and_no_other_node():
    rows = [
        row(RUNNING, started=150.0),
        row(RUNNING, started=100.0, node="site-b"),
        row(STARTING),
        row(SUCCEEDED, started=110.0, ended=200.0),
        row(FAILED, started=50.0, ended=201.0),
        row(RUNNING, started=150.0, node="node-1"),
    ]
    pools, _ = node_view.nodes([pool(), pool("site-b")], rows)
    assert sample(pools, rows, 100.0, 200.0) == Sample(200, 6, 0, 64, 2, 1, 2, 1)


def test_each_start_counts_in_one_sample():
    clock, rows = FakeClock(), [row(RUNNING, started=1_000_010.0)]
    day = PoolDay(lambda: [{"view": each} for each in rows], lambda: [pool()], lambda: True, clock)
    for _ in range(MOST + 2):
        clock.advance(PERIOD)
        day.take()
        rows[:] = [row(RUNNING, started=clock.time() + 1)]
    assert len(day.samples) == MOST
    assert [each.started for each in day.samples] == [1] * MOST
    assert day.samples[-1].at == int(clock.time())


def test_no_sample_without_pools_or_before_the_first_list():
    clock, is_ready = FakeClock(), [False]
    day = PoolDay(list, lambda: [pool()], lambda: is_ready[0], clock)
    day.take()
    assert day.samples == ()
    is_ready[0] = True
    day.take()
    assert len(day.samples) == 1
    without = PoolDay(list, list, lambda: True, clock)
    without.take()
    assert without.samples == ()


def test_the_overview_has_it_for_those_who_may_list_nodes(site):
    samples = [Sample(int(time.time()), 3, 0, 64, 1, 2, 3, 4)]
    text = site(pool_day=samples).get("/").text
    assert "The last day in pools" in text and "The last day in Slurm" not in text
    assert "3 by podbridge&#39;s pods, of 64" in text and "podbridge&#39;s waiting pods" in text
    refused = site(pool_day=samples, may=lambda plural, _: plural != "nodes")
    assert "The last day" not in refused.get("/").text
