"""Groups of pods as one job of the batch system ``local``."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.contract.site import gangs

pytestmark = pytest.mark.real


@pytest.fixture
def site(make_site: Any) -> Any:
    """A site whose launcher waits for 3 seconds only."""
    variables = f'PATH = "{os.environ["PATH"]}", PODBRIDGE_START_WAIT_SECONDS = "3", PODBRIDGE_PLACE_WAIT_SECONDS = "3"'
    text = f'[limits]\nallow_race = true\n[local]\ncpus = 4\nmemory = "4Gi"\nenvironment = {{ {variables} }}\n'
    made = make_site("local", text)
    made.start()
    return made


def test_four_pods_run_as_one_job(site: Any) -> None:
    ends = gangs.check_one_job_for_all(site, machines_used=1)
    assert {end.job_id for end in ends} == {site_job.stem for site_job in (site.folder / "local").glob("*.json")}
    assert any(announce.gangs and announce.heterogeneous_gangs for announce in site.announced)


def test_no_pod_starts_before_all_are_granted(site: Any) -> None:
    gangs.check_grant(site)


def test_a_job_without_the_grant_of_all_pods_is_unused(site: Any) -> None:
    gangs.check_unused(site)


def test_if_one_pod_does_not_start_none_does(site: Any) -> None:
    gangs.check_all_or_none(site)


def test_a_pod_takes_the_place_of_one_that_is_over(site: Any) -> None:
    gangs.check_successor(site, {"cpus": 2})


def test_one_pod_is_killed_and_the_others_run_on(site: Any) -> None:
    gangs.check_one_is_killed(site)


def test_pods_are_cancelled_while_their_job_is_queued(site: Any) -> None:
    other = site.submit("sleep 60", cpus=4)
    site.wait(other, "running")
    gangs.check_cancelled_while_queued(site)
    assert site.status(other).phase == "running"
