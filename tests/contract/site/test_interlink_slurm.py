"""A site with the rules of the interLink Slurm plugin, in front of a real Slurm."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from bridge.wire.messages import Cancel
from cluster.polling import eventually
from tests.contract.site.jobs import submit, uid
from tests.fakes import slurm_plugin_job

pytestmark = [pytest.mark.real, pytest.mark.main_version]


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


# --- adoption: jobs that the plugin left running, under a real Slurm --------------------------------------------------
class Left:
    """A directory of the plugin with jobs that it submitted before it stopped."""

    def __init__(self, cluster: Any, root: Path) -> None:
        self.cluster, self.root = cluster, root

    def submit(self, containers: list[tuple[str, str]], init: Any = (), flags: Any = ()) -> tuple[str, str, Path]:
        pod = uid()
        path = slurm_plugin_job.write(self.root, pod, containers, init, ["--mem=10", *flags])
        said = self.cluster.run_slurm("sbatch", str(path / "job.slurm"))
        job_id = said.split()[-1]
        slurm_plugin_job.submitted(path, pod, job_id)
        return pod, job_id, path

    def all_jobs(self) -> list[str]:
        return sorted(str(self.cluster.run_slurm("squeue", "-h", "-t", "all", "-o", "%i %j")).splitlines())


@pytest.fixture
def left(slurm_cluster: Any, place: Any) -> Left:
    root = place / "plugin"
    root.mkdir()
    return Left(slurm_cluster, root)


def test_jobs_of_the_plugin_are_adopted_followed_and_cancelled(left: Left, make_site: Any) -> None:
    gate = left.root / "gate"
    running, running_id, _ = left.submit(
        [("main", f"echo hello; until [ -e {gate} ]; do sleep 0.2; done; echo bye; exit 3"), ("side", "true")],
        init=[("init", "echo prepared")],
    )
    waiting, waiting_id, _ = left.submit([("main", "true")], flags=["--begin=now+1hour", "--job-name=mine"])
    endless, endless_id, endless_path = left.submit([("main", "sleep 600")])
    ended, _, ended_path = left.submit([("main", "echo done")])
    eventually(lambda: (ended_path / "run-main.status").exists() and (endless_path / "run-main.out").exists())
    before = left.all_jobs()
    site = make_site(
        "slurm",
        f'[slurm]\nbin_dir = "{left.cluster.state}/bin"\n'
        '[batch]\nkind = "slurm"\nperiod = 1\nlost_after = 3\nsettle = 1\nlag = 2\n',
    )
    site.config.write_text(f'adopt_from = "{left.root}"\n' + site.config.read_text())
    site.start()

    # each is found by its UID, with its id at Slurm
    assert (site.wait(running, "running", 30).job_id, site.wait(ended, "ended", 30).outcome) == (
        running_id,
        "Succeeded",
    )
    assert (site.wait(waiting, "queued", 5).job_id, site.wait(endless, "running", 30).job_id) == (
        waiting_id,
        endless_id,
    )
    eventually(lambda: site.status(waiting).reason == "BeginTime")
    eventually(lambda: site.log(running) == b"hello\n")
    states = {container.name: container.state for container in site.status(running).containers}
    assert states == {"init": "terminated", "main": "running", "side": "terminated"} or states["side"] == "running"
    assert site.log(ended) == b"done\n"

    # a restart adopts nothing again and submits nothing
    site.kill(site.processes[0])
    site.start()
    gate.touch()
    done = site.wait(running, "ended", 30)
    assert done.outcome == "Failed"
    codes = {container.name: container.ended.exit_code for container in done.containers}
    assert codes == {"init": 0, "main": 3, "side": 0}
    assert site.log(running) == b"hello\nbye\n"

    # cancellation reaches Slurm at once, and the directories of the plugin go with their jobs
    for pod in (waiting, endless, running, ended):
        site.client.cancel(pod, Cancel(grace=600, forget=True))
    eventually(lambda: not any(site.status(pod) for pod in (waiting, endless, running, ended)), timeout=60)
    for job_id in (waiting_id, endless_id):
        assert left.cluster.run_slurm("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T").strip() == "CANCELLED"
    eventually(lambda: [path.name for path in left.root.iterdir()] == ["gate"], timeout=15)
    assert left.all_jobs() == before
