"""The plots of the last day."""

import re
import time

from hypothesis import given
from hypothesis import strategies as st

from bridge.apps.dashboard import plots
from bridge.apps.dashboard.slurm_reader import SlurmState
from bridge.slurm.cluster_sums import ClusterSums
from bridge.slurm.day_history import DAY, PERIOD, Sample

NOW = 1_767_225_600.0
COUNTS = st.integers(0, 10**6)
SAMPLES = st.lists(st.builds(Sample, st.integers(int(NOW - 2 * DAY), int(NOW + DAY)), *[COUNTS] * 7), max_size=20).map(
    sorted
)


def points(path):
    """Return the ends of the lines of a path."""
    x = y = 0.0
    for command, text in re.findall(r"([MVHhZ])([-\d. ]*)", path):
        numbers = [float(number) for number in text.split()]
        if command == "M":
            x, y = numbers
        elif command == "V":
            (y,) = numbers
        elif command == "H":
            (x,) = numbers
        elif command == "h":
            x += numbers[0]
        yield x, y


@given(SAMPLES)
def test_every_path_stays_in_its_box(samples):
    for plot in plots.of(samples, NOW):
        for _, path in plot.paths:
            assert all(0 <= x <= plots.WIDTH and 0 <= y <= plots.HEIGHT for x, y in points(path)), path


def test_without_samples_of_the_day_there_is_no_plot():
    assert plots.of([], NOW) == []
    assert plots.of([Sample(int(NOW - 2 * DAY), *[1] * 7)], NOW) == []


def test_numbers_and_heights():
    samples = [Sample(int(NOW - 2 * PERIOD), 4, 4, 16, 1, 10, 5, 0), Sample(int(NOW - PERIOD), 8, 0, 16, 2, 0, 2, 3)]
    used, waiting, started, ended = plots.of(samples, NOW)
    assert used.text == "8 by podbridge's pods, 0 by other jobs, of 16"
    assert dict(used.paths)["use"] == "M286.0 60V45.0H287.0V30.0H288.0V60Z"
    assert waiting.text == "0 now, 10 at most"
    assert (started.text, ended.text) == (
        "7 in the last day, 7 in the last hour",
        "3 in the last day, 3 in the last hour",
    )


def test_a_time_without_samples_is_a_gap():
    samples = [Sample(int(NOW - age), 1, 0, 1, 1, 1, 1, 1) for age in (7200, 6900, 600, 300)]
    assert dict(plots.of(samples, NOW)[0].paths)["use"].count("M") == 2


def test_the_overview_has_them_for_those_who_may_read_the_sums(site):
    opened = site(sums=ClusterSums())
    assert "The last day" not in opened.get("/").text
    opened.slurm = SlurmState(ClusterSums(), "", (Sample(2**31, *[1] * 7), Sample(int(time.time()), *[1] * 7)))
    text = opened.get("/").text
    assert "The last day in Slurm" in text and text.count("<figure>") == 4
    refused = site(may=lambda plural, _: True, may_sums=False)
    refused.slurm = opened.slurm
    assert "The last day" not in refused.get("/").text
