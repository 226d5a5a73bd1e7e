"""A script that waits for its grant makes and starts nothing before, and gives its place back without one."""

import time

import pytest

pytestmark = pytest.mark.real
WAIT = 3.0


def test_it_runs_its_containers_after_its_grant(site):
    job = site.job({"containers": [site.shell("echo ran")]}, grant_wait=30.0).start()
    ticket = job.asks()
    assert not (job.folder / "logs" / "main").exists()
    job.grant(ticket)
    assert (job.wait(), job.pod()["phase"], job.pod()["ticket"]) == (0, "Succeeded", "")
    assert "ran" in job.log()


def test_it_ends_without_a_container_if_no_grant_comes(site):
    command = "touch $HOME/begun; false"
    config = {"limits": {"allow_pre_exec": True}}
    annotations = {"slurm-job.vk.io/pre-exec": "touch pre-exec-ran"}
    job = site.job(
        {"containers": [site.shell(command)]}, config=config, annotations=annotations, grant_wait=WAIT
    ).start()
    ticket = job.asks()
    assert job.wait() == 1
    assert (job.pod()["phase"], job.pod()["reason"], job.pod()["ticket"]) == ("Failed", "NoGrant", ticket)
    assert job.state("main")["state"] == "waiting"
    assert not (job.folder / "pre-exec-ran").exists()
    assert len((job.folder / "job.sh").read_text().splitlines()) <= 2, "the secrets in the script are removed"


def test_a_grant_for_another_run_is_none(site):
    job = site.job({"containers": [site.shell("true")]}, grant_wait=WAIT).start()
    job.asks()
    job.grant("11111111-2222-3333-4444-555555555555")
    assert (job.wait(), job.pod()["reason"]) == (1, "NoGrant")


def test_a_withdrawn_place_ends_at_once(site):
    job = site.job({"containers": [site.shell("true")]}, grant_wait=600.0).start()
    job.asks()
    job.ask_to_stop(0)
    assert (job.wait(10), job.pod()["reason"]) == (1, "Deleted")


def test_the_deadline_of_the_pod_counts_from_its_grant(site):
    job = site.job({"containers": [site.shell("true")], "activeDeadlineSeconds": 5}, grant_wait=30.0).start()
    ticket = job.asks()
    time.sleep(6)  # longer than the deadline
    job.grant(ticket)
    assert job.wait() == 0
