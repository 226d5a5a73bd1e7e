"""A site with the rules of the interLink Slurm plugin, in front of a real Slurm."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.protocol.nats.messages import CancelMessage
from bridge.protocol.nats.request_table import CANCEL, SUBMIT
from cluster.polling import eventually
from tests.contract.interlink.plugin_process import CHECKOUT, Client, free_address, make_pod
from tests.contract.site.jobs import submit, uid
from tests.fakes import slurm_plugin_job

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
    told = site.client.call(SUBMIT, job, submit("sleep 60", cpus=2, memory=2**20, flavor="main", flags=flags)).status
    shown = site.cluster.run_slurm("scontrol", "show", "job", told.job_id)
    for words in (f"JobName=pb-{job}", "TimeLimit=00:07:00", "Comment=user", "MinMemoryCPU=50M", "Partition=main"):
        assert words in shown
    site.client.call(CANCEL, job, CancelMessage(grace=0, forget=True))


@pytest.mark.skipif(os.geteuid() != 0, reason="Slurm lets only root submit for others")
def test_a_job_runs_as_the_user_that_its_pod_names(site: Any) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    for folder in (site.path.parent, site.path):
        folder.chmod(0o711)
    job = site.submit("id -u; exit 3", flags=[f"--uid={nobody}"])
    done = site.wait(job, "ended", 30)
    assert (done.outcome, done.containers[0].ended.exit_code, site.log(job)) == ("Failed", 3, f"{nobody}\n".encode())
    for folder in (site.folder, site.folder / "jobs"):
        assert folder.stat().st_mode & 0o777 == 0o711
    endless = uid()
    told = site.client.call(SUBMIT, endless, submit("sleep 600", flags=[f"--uid={nobody}"])).status
    site.wait(endless, "running", 30)
    site.kill(site.processes[0])
    site.start()
    assert site.status(job).outcome == "Failed"
    time.sleep(8)  # more than lost_after and two lists of jobs
    status = site.status(endless)
    assert (status.phase, status.missing, status.job_id) == ("running", False, told.job_id)
    # the script reads the request before podbridge cancels the batch job, 10 s after the grace period
    asked_at = time.monotonic()
    site.client.call(CANCEL, endless, CancelMessage(grace=5))
    ended = site.wait(endless, "ended", 30)
    assert ended.reason == "Deleted" and time.monotonic() - asked_at < 10, ended


# --- adoption: jobs that the plugin left running, under a real Slurm --------------------------------------------------
class Left:
    """A directory of the plugin with jobs that it submitted before it stopped."""

    def __init__(self, cluster: Any, root: Path) -> None:
        self.cluster, self.root = cluster, root

    def submit(
        self, containers: list[tuple[str, str]], init: Any = (), flags: Any = (), namespace: str = "default"
    ) -> tuple[str, str, Path]:
        pod = uid()
        path = slurm_plugin_job.write(self.root, pod, containers, init, ["--mem=10", *flags], namespace)
        said = self.cluster.run_slurm("sbatch", str(path / "job.slurm"))
        job_id = said.split()[-1]
        slurm_plugin_job.submitted(path, pod, job_id, namespace)
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
        site.client.call(CANCEL, pod, CancelMessage(grace=600, forget=True))
    eventually(lambda: not any(site.status(pod) for pod in (waiting, endless, running, ended)), timeout=60)
    for job_id in (waiting_id, endless_id):
        assert left.cluster.run_slurm("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T").strip() == "CANCELLED"
    eventually(lambda: [path.name for path in left.root.iterdir()] == ["gate"], timeout=15)
    assert left.all_jobs() == before


# --- slurm-sd: the same configuration, variables and options, in front of a real Slurm --------------------------------
SINGULARITY = """#!/bin/bash
# in place of singularity: runs the command outside of any container
while (($#)) && [[ $1 != --env-file ]]; do shift; done
shift 3
exec "$@"
"""


RUN = "from bridge.apps.cli.slurm_sd import main; main()"


class SlurmSd:
    """The command as a process."""

    def __init__(self, cluster: Any, place: Path) -> None:
        self.place, self.root = place, place / "plugin"
        program = place / "singularity"
        program.write_text(SINGULARITY)
        program.chmod(0o755)
        self.address = free_address()
        self.config = place / "SlurmConfig.yaml"
        self.config.write_text(
            f'SidecarPort: "1"\nSbatchPath: "{cluster.state}/bin/sbatch"\nScancelPath: "{cluster.state}/bin/scancel"\n'
            f'SqueuePath: "{cluster.state}/bin/squeue"\nSinfoPath: "{cluster.state}/bin/sinfo"\nNamespace: "vk"\n'
            f'DataRootFolder: "plugin/"\nSingularityPath: "{program}"\nExportPodData: true\n'
            "DefaultFlavor: main\nFlavors:\n"
            '  main: {CPUDefault: 2, SlurmFlags: ["--partition main", "--comment=flavor"]}\n'
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.client = Client(self.address)

    def start(self) -> None:
        port = self.address.rpartition(":")[2]
        with (self.place / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", RUN, "-verbose", "-SlurmConfigpath", str(self.config), "--allow-local-users"],
                cwd=self.place,
                env={**os.environ, "SIDECARPORT": port, "SHARED_FS": "true", "PYTHONPATH": str(CHECKOUT)},
                stdout=log,
                stderr=log,
            )
        eventually(self.answers, "an answer to a ping", 30)

    def answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()
        with contextlib.suppress(OSError):
            return self.client.call("GET", "/status", [])[0] == 200
        return False

    def log(self) -> str:
        return (self.place / "log").read_text()

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            if self.process.poll() is None:
                self.process.send_signal(number)
            self.process.wait(20)


@pytest.fixture
def slurm_sd(slurm_cluster: Any, place: Path) -> Iterator[SlurmSd]:
    made = SlurmSd(slurm_cluster, place)
    yield made
    made.stop()


def test_slurm_sd_takes_over_from_the_plugin(left: Left, slurm_sd: SlurmSd) -> None:
    gate = left.root.parent / "gate"
    old = make_pod("unused")
    pod, job_id, path = left.submit(
        [("main", f"echo hello; until [ -e {gate} ]; do sleep 0.2; done; exit 3")], namespace="default"
    )
    old["metadata"]["uid"] = pod
    eventually(lambda: (path / "run-main.out").exists())
    slurm_sd.start()
    client = slurm_sd.client

    # the log names what has no effect, the rights of pods, and how to listen elsewhere
    said = slurm_sd.log()
    for words in ("SHARED_FS", "Namespace", "allow_user_flags", "--token-file"):
        assert words in said
    ping = client.good("GET", "/status", [])
    assert int(ping["resources"]["cpu"]) > 0

    # the job of the plugin is the pod's, with its log
    told = client.wait(old, "Running", 30)
    assert told["JID"] == job_id
    assert client.log(old) == "hello\n"

    # a new pod: limits, the flavor's flags, and the user's on top of them
    new = make_pod("echo $GREETING")
    container = new["spec"]["containers"][0]
    container |= {"image": "/bin/sh", "env": [{"name": "GREETING", "value": "hi"}]}
    # without a container, the link of the default path would be made in the machine's /dev
    container["terminationMessagePath"] = "/message"
    container["resources"] = {"limits": {"memory": "100Mi"}, "requests": {"cpu": "7"}}
    new["metadata"]["annotations"] = {"slurm-job.vk.io/flags": "--comment=user --job-name=mine --mem=1"}
    made = client.create(new)
    shown = left.cluster.run_slurm("scontrol", "show", "job", made["PodJID"])
    for words in ("Partition=main", "Comment=user", "MinMemoryNode=100M", "CPUs/Task=2", "JobName=pb-"):
        assert words in shown
    client.wait(new, "Succeeded", 30)

    # a restart loses nothing and submits nothing
    before = left.all_jobs()
    slurm_sd.stop(signal.SIGKILL)
    slurm_sd.start()
    gate.touch()
    ended = client.wait(old, "Failed", 30)
    assert ended["containers"][0]["state"]["terminated"]["exitCode"] == 3
    assert left.all_jobs() == before
    for each in (old, new):
        client.delete(each)
    eventually(lambda: [entry.name for entry in left.root.iterdir()] == ["podbridge"], timeout=40)
    eventually(lambda: not os.listdir(left.root / "podbridge/jobs"), timeout=20)
