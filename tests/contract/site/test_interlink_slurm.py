"""A site with the rules of the interLink Slurm plugin, in front of a real Slurm."""

from __future__ import annotations

import os
import pwd
from typing import Any

import pytest

from bridge.wire.messages import Cancel
from tests.contract.site.jobs import submit, uid

pytestmark = pytest.mark.real


@pytest.fixture
def site(slurm_cluster: Any, make_site: Any) -> Any:
    made = make_site(
        "slurm",
        '[limits]\nrules = "interlink-slurm"\nallow_user_flags = true\n'
        f'[slurm]\nbin_dir = "{slurm_cluster.state}/bin"\n'
        '[batch]\nkind = "slurm"\nperiod = 1\nlost_after = 3\nsettle = 4\nlag = 2\n'
        '[[flavors]]\nname = "main"\nflags = ["-p", "main", "--comment=flavor"]\n',
    )
    made.cluster = slurm_cluster
    made.start()
    return made


def test_the_users_flags_replace_those_of_the_flavor_and_a_job_keeps_its_name(site: Any) -> None:
    job = uid()
    flags = ["--job-name=mine", "-t", "7", "--comment", "user", "--mem-per-cpu=50", "--signal=B:USR1@60"]
    told = site.client.submit(job, submit("sleep 60", cpus=2, memory=2**20, flavor="main", flags=flags)).status
    shown = site.cluster.run_slurm("scontrol", "show", "job", told.job_id)
    for words in (f"JobName=pb-{job}", "TimeLimit=00:07:00", "Comment=user", "MinMemoryCPU=50M", "Partition=main"):
        assert words in shown
    site.client.cancel(job, Cancel(grace=0, forget=True))


@pytest.mark.skipif(os.geteuid() != 0, reason="Slurm lets only root submit for others")
def test_a_job_runs_as_the_user_that_its_pod_names(site: Any) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    for folder in (site.path.parent, site.path):
        folder.chmod(0o711)
    job = uid()
    site.client.submit(job, submit("id -u; exit 3", flags=[f"--uid={nobody}"]))
    done = site.wait(job, "ended", 30)
    assert (done.outcome, done.containers[0].ended.exit_code, site.log(job)) == ("Failed", 3, f"{nobody}\n".encode())
    for folder in (site.folder, site.folder / "jobs"):
        assert folder.stat().st_mode & 0o777 == 0o711
    site.kill(site.processes[0])
    site.start()
    assert site.status(job).outcome == "Failed"
