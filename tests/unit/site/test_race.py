"""A job that waits for its grant: it is asked for, granted, given back and replaced, and never begun without one."""

import contextlib
import os
import subprocess
import sys

import pytest

from bridge.errors import BatchError, BatchUnknownOutcomeError, SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage, Grant, SubmitMessage
from bridge.site.config.site_config import parse
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.job_record import Cancellation
from tests.fakes import nfs_names
from tests.unit.site.conftest import OWNER, UID

TICKET = "11111111-2222-3333-4444-555555555555"


@pytest.fixture
def site(world):
    world.config = parse('pool = "p"\n[limits]\nallow_race = true\n')
    return world


def ask(site, ticket=TICKET):
    """What the script does first: it starts nothing."""
    site.batch.run(site.status().job_id)
    site.write("started/job", "")
    site.write("state/pod.json", f'{{"phase":"Asking","host":"n1","startedAt":7,"ticket":"{ticket}"}}')
    site.look()


def submit_and_ask(site):
    site.submit(grant_wait=60)
    ask(site)


def record_end(site, reason="NoGrant"):
    text = f'{{"phase":"Failed","reason":"{reason}","startedAt":7,"finishedAt":9,"ticket":"{TICKET}"}}'
    site.write("state/pod.json", text)


def give_back(site, reason="NoGrant"):
    record_end(site, reason)
    site.batch.end(site.status().job_id, code=1)
    site.look(0, 5)


def granted(site):
    return (site.folder.job(UID).path / "control" / "grant").exists()


def test_a_site_that_does_not_allow_a_race_refuses_and_keeps_nothing(world):
    with pytest.raises(SiteRefusedError, match="allow_race") as refused:
        world.submit(grant_wait=60)
    assert (refused.value.reason, refused.value.retryable) == ("RaceNotAllowed", False)
    assert (world.status(), world.batch.submits) == (None, [])


def test_a_started_job_asks_until_it_is_granted(site):
    site.submit(grant_wait=60)
    site.look()
    assert site.status().asks == ""
    ask(site)
    status = site.events[-1][1]
    assert (status.phase, status.asks, status.reason, status.started_at) == ("queued", TICKET, "AwaitingGrant", None)
    again = site.submitter.grant(OWNER, UID, Grant(ticket=TICKET)).status
    assert (again.phase, again.asks, again.reason) == ("queued", "", "Granted")
    assert granted(site)
    site.begin()
    site.look()
    assert (site.status().phase, site.status().asks) == ("running", "")


def test_a_submitter_that_is_killed_still_knows_who_asks_and_who_was_granted(site):
    submit_and_ask(site)
    site.again()
    assert site.status().asks == TICKET
    site.submitter.grant(OWNER, UID, Grant(ticket=TICKET))
    site.again()
    assert (site.status().asks, site.status().reason) == ("", "Granted")


@pytest.mark.parametrize("owner, ticket", [(OWNER, "0" * 36), (OWNER, "another-run")])
def test_a_grant_for_another_ticket_is_not_written(site, owner, ticket):
    submit_and_ask(site)
    site.submitter.grant(owner, UID, Grant(ticket=ticket))
    assert not granted(site)
    assert site.status().asks == TICKET


def test_a_grant_of_another_owner_is_refused(site):
    submit_and_ask(site)
    with pytest.raises(SiteRefusedError):
        site.submitter.grant("c2", UID, Grant(ticket=TICKET))
    assert not granted(site)


def test_a_grant_for_a_job_that_needs_none_or_is_unknown_changes_nothing(site):
    assert site.submitter.grant(OWNER, "u-unknown", Grant(ticket=TICKET)).status is None
    site.submit()
    ask(site)  # a container of the pod may write what it wants
    assert site.status().asks == ""
    site.submitter.grant(OWNER, UID, Grant(ticket=TICKET))
    assert not granted(site)


@pytest.mark.parametrize("ticket", ["a b", "x" * 65, "\\u0000", "../x"])
def test_a_ticket_that_is_none_is_not_told(site, ticket):
    site.submit(grant_wait=60)
    ask(site, ticket)
    assert site.status().asks == ""


def test_a_job_that_was_given_back_is_unused_and_the_next_submission_replaces_it(site):
    submit_and_ask(site)
    site.submitter.grant(OWNER, UID, Grant(ticket=TICKET))  # too late: the script's wait was over
    give_back(site)
    status = site.status()
    assert (status.phase, status.outcome, status.reason, status.unused) == ("ended", "Failed", "NoGrant", True)
    answer = site.submit()
    assert (answer.existed, answer.status.phase, answer.status.unused) == (False, "queued", False)
    assert len(site.batch.submits) == 2
    assert not granted(site)
    site.look()
    assert (site.status().phase, site.batch.cancelled) == ("queued", [])


def test_a_job_that_replaces_a_withdrawn_one_has_its_own_grace_period(site):
    submit_and_ask(site)
    withdraw(site)
    give_back(site)
    site.clock.advance(1000)
    site.submit()
    site.begin()
    site.look()
    site.submitter.cancel(OWNER, UID, CancelMessage(grace=600))
    site.look()
    assert "2" not in site.batch.cancelled
    site.look(1000)
    assert "2" in site.batch.cancelled


def test_a_job_that_replaces_an_unused_one_keeps_its_script(site, monkeypatch):
    """The leader drops the secrets of the unused job, and waits for the lock that its submission holds."""
    submit_and_ask(site)
    give_back(site)
    real, files = site.folder.locked, []

    @contextlib.contextmanager
    def after_the_submission(*uids, **more):
        monkeypatch.setattr(site.folder, "locked", real)
        site.submit()
        files.append(job_file.read_text())
        with real(*uids, **more):
            yield

    job_file = site.folder.job(UID).path / "job.sh"
    monkeypatch.setattr(site.folder, "locked", after_the_submission)
    site.watcher.actions.drop_secrets(site.clock.time() + 1000)
    assert files == [job_file.read_text()]
    assert files[0].endswith("true\n")


def test_the_secrets_of_a_job_that_replaces_an_unused_one_go_too(site):
    submit_and_ask(site)
    give_back(site)
    site.watcher.actions.drop_secrets(site.clock.time() + 1000)
    site.submit()
    site.look()
    site.batch.end("2", "NodeFail")
    site.look(0, 5, 600)
    assert not (site.folder.job(UID).path / "job.sh").read_text().endswith("true\n")


def test_a_job_that_ended_in_the_queue_is_unused(site):
    site.submit(grant_wait=60)
    site.look()
    site.batch.end("1", "NodeFail")
    site.look(0, 5)
    assert site.status().unused
    assert site.submit(grant_wait=60).existed is False


def test_a_script_that_was_killed_with_a_grant_may_have_begun(site):
    submit_and_ask(site)
    site.submitter.grant(OWNER, UID, Grant(ticket=TICKET))
    site.batch.end("1", "NodeFail")
    site.look(0, 5)
    assert (site.status().phase, site.status().unused) == ("ended", False)
    assert site.submit().existed


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_has_run_is_never_unused_even_without_its_grant_on_disk(site, code):
    submit_and_ask(site)
    site.submitter.grant(OWNER, UID, Grant(ticket=TICKET))
    site.begin()
    (site.folder.job(UID).path / "control" / "grant").unlink()  # the pod's own code
    site.look()
    assert site.status().phase == "running"
    site.finish(code=code)
    site.look()
    assert (site.status().phase, site.status().unused) == ("ended", False)
    assert site.submit().existed


def test_a_cancelled_place_does_not_ask_and_is_replaced_only_by_another_place(site):
    submit_and_ask(site)
    site.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    assert site.status().asks == ""
    assert (site.folder.job(UID).path / "control" / "stop").exists()
    site.look()
    give_back(site, "Deleted")
    assert site.status().unused
    assert site.submit().existed  # a late submission of a pod that was deleted
    assert len(site.batch.submits) == 1
    answer = site.submit(grant_wait=60)
    assert (answer.existed, answer.status.phase, len(site.batch.submits)) == (False, "queued", 2)


def withdraw(site):
    return site.submitter.cancel(OWNER, UID, CancelMessage(grace=0, withdrawn=True)).status


@pytest.mark.parametrize("grant_wait", [60, None])
@pytest.mark.parametrize("stage", ["lost", "queued", "asks"])
def test_a_withdrawn_place_takes_every_later_job_of_its_pod(site, stage, grant_wait):
    """Its pod lives: it may get a place there again, or be bound there."""
    if stage == "lost":
        site.batch.swallow = True
        with pytest.raises(BatchUnknownOutcomeError):
            site.submit(grant_wait=60)
        site.batch.swallow = False
    else:
        site.submit(grant_wait=60)
    if stage == "asks":
        ask(site)
    assert withdraw(site).reason == "Cancelling"
    assert site.submit(grant_wait=grant_wait).existed, "the batch system has the job still"
    if stage == "asks":
        give_back(site, "Deleted")
    for _ in range(3):
        site.look(30)
    assert (site.status().phase, site.status().unused) == ("ended", True)
    answer = site.submit(grant_wait=grant_wait)
    assert (answer.existed, answer.status.phase, answer.status.unused) == (False, "queued", False)
    site.look(5)
    assert site.status().phase == "queued"


def test_a_submission_that_is_refused_while_it_is_withdrawn_is_taken_later(site):
    def withdrawn():
        site.folder.job(UID).write_cancel(Cancellation(0, 0, withdrawn=True))

    site.batch.during_submit, site.batch.refuse = withdrawn, BatchError("full")
    with pytest.raises(BatchError):
        site.submit(grant_wait=60)
    site.batch.during_submit, site.batch.refuse = (lambda: None), None
    assert site.submit().existed is False


def test_a_place_that_the_site_does_not_know_is_withdrawn_without_a_trace(site):
    assert withdraw(site) is None
    assert site.submit(grant_wait=60).existed is False


@pytest.mark.parametrize("how", ["without a wait", "granted", "running"])
def test_a_late_withdrawal_leaves_the_job_of_the_bound_pod_alone(site, how):
    site.submit(grant_wait=None if how == "without a wait" else 60)
    if how != "without a wait":
        ask(site)
        site.submitter.grant(OWNER, UID, Grant(ticket=TICKET))
    if how == "running":
        site.begin()
    site.look()
    before = site.status()
    assert withdraw(site) == before
    site.look(5)
    assert (site.folder.job(UID).read().cancel, site.batch.cancelled) == (None, [])


@pytest.mark.parametrize("first", ["withdrawn", "deleted"])
def test_the_deletion_of_the_pod_counts_before_and_after_a_withdrawal(site, first):
    site.submit(grant_wait=60)
    requests = [CancelMessage(grace=0, withdrawn=True), CancelMessage(grace=30)]
    for request in requests if first == "withdrawn" else reversed(requests):
        site.submitter.cancel(OWNER, UID, request)
    site.look(0, 5)
    assert site.status().unused
    assert site.submit().existed, "a late submission of a pod that is gone"


@pytest.mark.parametrize("end", ["ended", "missing", "withdrawn", "cancelled"])
def test_a_job_that_is_to_end_or_over_gets_no_grant(site, end):
    submit_and_ask(site)
    if end == "ended":
        site.batch.end("1", "NodeFail")
        site.look()
    elif end == "missing":
        del site.batch.table["1"]
        for _ in range(4):
            site.look(40)
    else:
        site.submitter.cancel(OWNER, UID, CancelMessage(grace=0, withdrawn=end == "withdrawn"))
    site.submitter.grant(OWNER, UID, Grant(ticket=TICKET))
    assert not granted(site)


def test_a_cancelled_place_that_is_forgotten_is_refused(site):
    submit_and_ask(site)
    site.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
    give_back(site, "Deleted")
    with pytest.raises(SiteRefusedError) as refused:
        site.submit(grant_wait=60)
    assert refused.value.reason == "Forgotten"


def test_a_job_without_a_race_is_never_unused(site):
    site.submit()
    site.look()
    site.batch.end("1", "NodeFail")
    site.look(5)
    assert (site.status().phase, site.status().unused) == ("ended", False)


def test_an_asking_job_that_the_batch_system_lost_is_missing_and_does_not_ask(site):
    submit_and_ask(site)
    del site.batch.table["1"]
    for _ in range(4):
        site.look(40)
    assert (site.status().missing, site.status().asks) == (True, "")


def test_the_message_of_another_version_has_no_wait():
    assert SubmitMessage(namespace="ns", name="p", script="x").grant_wait is None


@pytest.mark.parametrize("moment", ["before its id is written", "before the index has it"])
def test_the_new_job_is_not_surplus_while_it_is_submitted(site, monkeypatch, moment):
    submit_and_ask(site)
    record_end(site)
    real = JobFolder.write_id

    def write_id(folder, job_id):
        if moment == "before the index has it":
            real(folder, job_id)
        site.watcher.poll_batch_system()
        if moment == "before its id is written":
            real(folder, job_id)

    monkeypatch.setattr(JobFolder, "write_id", write_id)
    assert site.submit().existed is False
    monkeypatch.undo()
    site.look(5)
    assert (site.status().phase, site.status().job_id, site.batch.cancelled) == ("queued", "2", [])


@pytest.mark.parametrize("listed", ["running", "ended", "vanished"])
def test_a_list_from_before_the_replacement_says_nothing_about_the_new_job(site, listed):
    submit_and_ask(site)
    record_end(site)
    if listed == "ended":
        site.batch.end("1", code=1)
    if listed == "vanished":
        del site.batch.table["1"]
    site.batch.during_submit = site.watcher.poll_batch_system  # the list that the leader has requested before
    assert site.submit().existed is False
    site.batch.during_submit = lambda: None
    for _ in range(3):
        site.look(5)
    assert (site.status().phase, site.status().job_id, site.batch.cancelled) == ("queued", "2", [])
    site.batch.run("2")
    site.begin()
    site.look()
    assert site.status().phase == "running"


ASKS_ON_NFS = """
import sys
from pathlib import Path
from bridge.site.jobs import job_status
from bridge.site.jobs.site_folder import Folder
job = Folder(Path(sys.argv[1])).job(sys.argv[2])
for _ in range(2):
    print(job_status.asks(job.read()), flush=True)
    sys.stdin.readline()
"""


def test_the_question_of_a_script_is_seen_on_nfs(site, tmp_path):
    """With the default options of NFS, a name that was absent stays absent for half a minute."""
    site.submit(grant_wait=60)
    environment = {**os.environ, **nfs_names.environment(tmp_path)}
    command = [sys.executable, "-c", ASKS_ON_NFS, str(site.path), UID]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as reader:
        assert reader.stdout.readline() == "\n"
        ask(site)
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == f"{TICKET}\n"
        reader.communicate("\n")
