"""Scripts as the hub builds them, run at a site with no container runtime."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SiteError
from bridge.protocol.nats.messages import CancelMessage, Empty, Snapshot, SubmitMessage
from bridge.protocol.nats.request_table import CANCEL, DESCRIBE, SNAPSHOT, SUBMIT
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects
from cluster.polling import eventually
from tests.contract.site.jobs import uid

pytestmark = pytest.mark.real


@pytest.fixture
def site(make_site: Any) -> Any:
    made = make_site("local", '[runtime]\nkind = "none"\n[local]\ncpus = 8\nmemory = "8Gi"\n')
    made.start()
    return made


def pod(job: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": job},
        "spec": {"restartPolicy": "Never", "containers": list(containers), "terminationGracePeriodSeconds": 2, **spec},
    }


def container(name: str, command: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "none", "command": ["bash", "-c", command], **more}


def run(site: Any, job: str, manifest: dict[str, Any]) -> Any:
    config = BuildConfig.model_validate(site.client.call(DESCRIBE, "", Empty()).buildconfig.config)
    made = build(manifest, config, Objects({}, {}, {}), site.pool)
    body = SubmitMessage(
        namespace="default", name="p", script=made.script, cpus=made.cpus, memory=made.memory, flags=made.flags,
        time_limit=made.time_limit, flavor=made.flavor, grace=made.grace,
    )  # fmt: skip
    return site.client.call(SUBMIT, job, body).status


def test_deleted_with_grace(site: Any) -> None:
    job = uid()
    run(site, job, pod(job, container("main", "trap 'echo asked; exit 0' TERM; while :; do sleep 0.1; done")))
    site.wait(job, "running")
    eventually(lambda: [state for state in site.status(job).containers if state.state == "running"])
    time.sleep(0.5)
    site.client.call(CANCEL, job, CancelMessage(grace=10))
    done = site.wait(job, "ended", 15)
    assert (done.reason, done.containers[0].ended.exit_code) == ("Deleted", 0)
    assert site.log(job) == b"asked\n"


def test_a_log_is_bounded_as_the_site_says(make_site: Any) -> None:
    """Three files of 64 KiB: 128 to 192 KiB are kept, of this run and of the one before."""
    site = make_site(
        "local",
        '[runtime]\nkind = "none"\n[local]\ncpus = 8\nmemory = "8Gi"\n'
        '[container_logs]\nmax_size = "64Ki"\nmax_files = 3\n',
    )
    site.start()
    job = uid()
    again = site.path / "again"
    last = 300_000
    command = f"seq 100000 {last}; [ -e {again} ] && exit; touch {again}; exit 1"
    run(site, job, pod(job, container("main", command), restartPolicy="OnFailure"))
    site.wait(job, "ended", 40)
    for previous in (False, True):
        kept = site.log(job, previous=previous)
        assert 128 * 1024 <= len(kept) <= 192 * 1024
        assert kept == b"".join(b"%d\n" % number for number in range(last + 1 - len(kept) // 7, last + 1))
        assert site.log(job, previous=previous, tail=2) == b"%d\n%d\n" % (last - 1, last)
    used = sum(path.stat().st_blocks * 512 for path in (site.folder / "jobs" / job / "logs").iterdir())
    assert used < 2 * 192 * 1024


def test_5_submitters_killed_at_random_lose_and_double_nothing(site: Any) -> None:
    """Thirty pods; each says once that it ran. Two submitters, one of them killed again and again."""
    site.start()
    jobs = [uid() for _ in range(30)]
    ran = site.path / "ran"
    ran.mkdir()
    chance, kills = random.Random(7), 0

    def sent(job: str) -> bool:
        manifest = pod(
            job,
            container("main", f"echo x >>{ran}/{job}; sleep 1", resources={"limits": {"cpu": "1", "memory": "64Mi"}}),
        )
        try:
            run(site, job, manifest)
        except SiteError:
            return False
        return True

    left = list(jobs)
    while left or kills < 6:
        left = [job for job in left if not sent(job)]
        if kills < 6 and chance.random() < 0.5:
            living = [process for process in site.processes if process.poll() is None]
            site.kill(chance.choice(living))
            kills += 1
            site.start(wait=False)
        time.sleep(0.3)
    for job in jobs:
        assert site.wait(job, "ended", 60).outcome == "Succeeded"
    assert [(ran / job).read_text() for job in jobs] == ["x\n"] * 30
    for job in jobs:
        site.client.call(CANCEL, job, CancelMessage(grace=0, forget=True))
    eventually(lambda: not site.client.call(SNAPSHOT, "", Snapshot()).jobs, timeout=30)
    assert list((site.folder / "jobs").iterdir()) == []


@pytest.mark.parametrize("alone", [False, True], ids=["leader", "no-submitter"])
def test_a_script_that_is_killed_leaves_nothing_running(site: Any, alone: bool) -> None:
    job = uid()
    mark = f"12400{int(alone)}"
    run(site, job, pod(job, container("main", f"sleep {mark} & echo ready; wait")))
    log = site.folder / "jobs" / job / "logs" / "main.log"
    eventually(lambda: log.exists() and log.read_text() == "ready\n", what="the container")
    if alone:
        site.kill(site.processes[0])
    eventually(lambda: running(mark), what="the process in the background")
    os.kill(int((site.folder / "local" / f"{job}.pid").read_text().split()[0]), signal.SIGKILL)
    if alone:
        site.start()
    done = site.wait(job, "ended")
    assert done.outcome == "Failed"
    assert done.reason == ("JobLost" if alone else "Killed")
    assert not running(mark)


def running(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (words := (entry / "cmdline").read_bytes().split(b"\0"))[0] == b"sleep":
                found += [entry.name] if mark.encode() in words else []
    return found
