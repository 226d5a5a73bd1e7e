"""A real HTCondor of which the submitter or the schedd is killed: no pod of a group runs twice or is left."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from cluster import Cluster
from cluster.polling import eventually
from tests import processes
from tests.contract.site import gangs, test_condor
from tests.contract.site.test_condor import NAME, SETTINGS

pytestmark = [pytest.mark.real, pytest.mark.long_only]

cluster, site = test_condor.cluster, test_condor.site
MOMENTS = (0.0, 2.0, 4.0, 6.0)
"""Seconds from the submission, before which the group has begun, or not, to the kill."""
LOST = {"NodeFail", "MemberNotStarted"}
"""Reasons of pods that have lost the schedd."""


def kill(cluster: Cluster, victim: str) -> None:
    """Kill a daemon, and start it again."""
    cluster.kill(f"{NAME}-{victim}")
    if victim == "submitter":
        cluster.start_submitter(NAME, SETTINGS)
    else:
        cluster.start_daemon(f"{NAME}-{victim}")


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["submitter", "schedd"])
def test_all_pods_of_a_group_run_once_or_end_together(site: Any, cluster: Cluster, victim: str, moment: float) -> None:
    mark = f"2.{os.getpid()}"
    group = gangs.Group(site, 2, per_node=1)
    group.submit_all(f"echo ran; sleep {mark}")
    time.sleep(moment)
    kill(cluster, victim)
    ends = group.wait("ended", 150)
    reasons = {end.reason for end in ends}
    assert {end.outcome for end in ends} == {"Succeeded"} or (victim != "submitter" and reasons <= LOST), ends
    began = [rank for rank, pod in group.pods.items() if (site.folder / "jobs" / pod / "started").is_dir()]
    assert began in ([], [0, 1]), "all pods begin, or none"
    assert [group.log(rank) for rank in began] == [["ran"]] * len(began)
    eventually(lambda: not processes.with_word(mark), "no pod runs on")
    group.check_nothing_left()
