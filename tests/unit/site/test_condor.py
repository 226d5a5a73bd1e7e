"""HTCondor's words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BatchError, BatchUnknownOutcomeError
from bridge.site.batch import condor_text as text
from bridge.site.batch.array_files import ArrayFiles
from bridge.site.batch.batch_interface import BatchJobRequest
from bridge.site.batch.htcondor import CondorBatch
from bridge.site.config.site_config import make_batch_system, parse
from tests.fakes.clock import FakeClock


def ad(**more: Any) -> dict[str, Any]:
    return {"ClusterId": 12, "ProcId": 0, "PodbridgeUid": "a-1", "JobStatus": 1, "EnteredCurrentStatus": 50, **more}


def one(**more: Any) -> Any:
    (job,) = text.jobs(json.dumps([ad(**more)]))
    return job


def test_states() -> None:
    assert (one().id, one().uid, one().phase) == ("12.0", "a-1", "queued")
    running = one(JobStatus=2, RemoteHost="slot1_3@n7.example", JobCurrentStartDate=40)
    assert (running.phase, running.host, running.started_at) == ("running", "n7.example", 40)
    done = one(JobStatus=4, ExitCode=3, ExitBySignal=False, CompletionDate=60, LastRemoteHost="slot1@n8")
    assert (done.phase, done.exit_code, done.by_itself, done.ended_at, done.host) == ("ended", 3, True, 60, "n8")
    assert (one(JobStatus=4, ExitBySignal=True, ExitSignal=9).signal, one(JobStatus=6).phase) == (9, "running")
    assert one(JobStatus=7).reason == "Suspended"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"JobStatus": 3, "RemoveReason": "via condor_rm (by user x)"}, "Cancelled"),
        (
            {"JobStatus": 3, "RemoveReason": "The job attribute PeriodicRemove ...", "LastJobStatus": 2},
            "DeadlineExceeded",
        ),
        ({"JobStatus": 3, "RemoveReason": "The job attribute PeriodicRemove ...", "LastJobStatus": 1}, "NodeFail"),
        ({"JobStatus": 5, "HoldReasonCode": 34, "HoldReason": "memory usage exceeded request_memory"}, "OOMKilled"),
        ({"JobStatus": 5, "HoldReasonCode": 1, "HoldReason": "via condor_hold"}, "Held"),
        ({"JobStatus": 3, "HoldReasonCode": 34, "RemoveReason": "held: podbridge ends it"}, "OOMKilled"),
    ],
)
def test_section_4_ends_from_outside(more: dict[str, Any], reason: str) -> None:
    found = one(**more)
    assert (found.phase, found.reason, found.by_itself) == ("ended", reason, False)


@pytest.mark.parametrize("status", [3, 5])
def test_a_job_that_still_has_a_machine_has_not_ended(status: int) -> None:
    found = one(JobStatus=status, LastJobStatus=2, RemoteHost="slot1@n7.example", RemoveReason="via condor_rm")
    assert (found.phase, found.host, found.ended_at) == ("running", "n7.example", None)
    assert one(JobStatus=status, LastJobStatus=2, LastRemoteHost="slot1@n7.example").phase == "ended"


def test_a_held_job_may_be_left_alone() -> None:
    (job,) = text.jobs(json.dumps([ad(JobStatus=5, HoldReason="x")]), held_ends=False)
    assert (job.phase, job.reason) == ("queued", "Held")


def test_nothing_is_no_jobs_and_nonsense_is_no_answer() -> None:
    assert text.jobs("") == text.jobs("\n") == text.jobs("[]") == []
    assert text.jobs('[{"JobStatus": 2}, 7, {"PodbridgeUid": "a b", "JobStatus": 2}]') == []
    with pytest.raises(BatchError, match="no JSON"):
        text.jobs("Failed to connect")


def test_slots() -> None:
    slots = [
        {"SlotType": "Partitionable", "PartitionableSlot": True, "State": "Unclaimed", "Cpus": 6, "Memory": 1000,
         "GPUs": 1, "TotalSlotCpus": 8, "TotalSlotMemory": 4000, "TotalSlotGPUs": 2},
        {"SlotType": "Dynamic", "DynamicSlot": True, "State": "Claimed", "Cpus": 2, "Memory": 3000, "GPUs": 1},
        {"SlotType": "Static", "State": "Claimed", "Cpus": 1, "Memory": 500},
        {"SlotType": "Static", "State": "Unclaimed", "Cpus": 1, "Memory": 500},
        {"SlotType": "Static", "State": "Owner", "Cpus": 1, "Memory": 500},
    ]  # fmt: skip
    total, free = text.slots(json.dumps(slots))
    assert total == {"Cpus": 10, "Memory": 5000, "GPUs": 2, "TotalGPUs": 2}
    assert free == {"Cpus": 7, "Memory": 1500, "GPUs": 1, "TotalGPUs": 2}


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z]{1,5}", fullmatch=True),
        st.text(max_size=20).filter(lambda t: "\n" not in t and "\r" not in t),
    )
)
def test_environment_is_one_line_whose_quotes_are_doubled(variables: dict[str, str]) -> None:
    line = text.environment(variables)
    assert "\n" not in line
    assert line[0] == line[-1] == '"'
    assert line[1:-1].replace('""', "").count('"') == 0
    assert "$(" not in line.replace("$(DOLLAR)", "")


def condor(tmp_path: Path, lines: str = "") -> CondorBatch:
    for name in ("submit", "q", "history", "rm", "status", "version"):
        tool = tmp_path / f"condor_{name}"
        note = f'printf "%s\\n" "$@" >>{tmp_path}/{name}.words\n[[ {name} != submit ]] || cat >{tmp_path}/stdin'
        tool.write_text(f"#!/bin/bash\n{note}\n{lines}\n")
        tool.chmod(0o755)
    text = f'[htcondor]\nbin_dir = "{tmp_path}"\nsubmit_lines = ["+Project = \\"x\\""]\n'
    top = f'pool = "p"\nfolder = "{tmp_path}/site"\nbatch.kind = "htcondor"\n'
    made = make_batch_system(parse(f"{top}{text}"), FakeClock())
    assert isinstance(made, CondorBatch)
    return made


def submitted(tmp_path: Path) -> list[str]:
    """Return the lines of the submit file."""
    return (tmp_path / "stdin").read_text().splitlines()


SUBMITTED = "[[ $0 == *condor_submit ]] && echo '12.0 - 12.0'; true"


def request(tmp_path: Path, **more: Any) -> BatchJobRequest:
    folder = tmp_path / "jobs" / "a-1"
    folder.mkdir(parents=True)
    return BatchJobRequest(uid="a-1", folder=folder, memory=10 * 2**20 + 1, **more)


def test_9_11_memory_is_asked_for_in_mib(tmp_path: Path) -> None:
    written = condor(tmp_path).submit_file(request(tmp_path, cpus=3, gpus=2, time_limit=90.5), ["a-1"]).splitlines()
    assert {
        "universe = vanilla", "request_cpus = 3", "request_memory = 11", "request_gpus = 2", 'batch_name = pb-a-1',
        '+PodbridgeUid = "$(pod)"', "getenv = False", "should_transfer_files = NO", "on_exit_remove = True",
        '+Project = "x"', f"initialdir = {tmp_path}/jobs/$(pod)", "executable = /bin/bash",
        """arguments = "-c 'exec bash ./job.sh >>script.log 2>&1'\"""",
    } <= set(written)  # fmt: skip
    assert written[-3:] == ["queue pod from (", "a-1", ")"]
    remove = next(line for line in written if line.startswith("periodic_remove"))
    assert "NumJobStarts > 0" in remove
    assert "> 91)" in remove


def test_a_group_on_several_machines_is_a_parallel_job(tmp_path: Path) -> None:
    asked = request(tmp_path, cpus=3, gpus=1, time_limit=90.5, members=6, together=2)
    written = condor(tmp_path).submit_file(asked, ["a-1"]).splitlines()
    assert {
        "universe = parallel", "machine_count = 3", "request_cpus = 6", "request_memory = 21", "request_gpus = 2"
    } <= set(written)  # fmt: skip
    remove = next(line for line in written if line.startswith("periodic_remove"))
    assert remove == (
        "periodic_remove = (JobStatus == 1 && RemoteHost =?= undefined"
        " && (NumJobStarts > 0 || (LastJobStatus == 2 && (VacateReasonCode =!= 1006 || NumShadowStarts > 10))))"
        " || (RemoteHost =!= undefined && time() - JobCurrentStartDate > 91)"
    )


def test_all_machines_of_a_group_have_as_many_pods(tmp_path: Path) -> None:
    batch = condor(tmp_path)
    sizes = [(4, 2), (6, 4), (5, 2), (7, 7), (3, 9)]
    assert [batch.pods_per_machine(members, per_node) for members, per_node in sizes] == [2, 3, 1, 7, 3]


def test_a_group_on_one_machine_is_an_ordinary_job(tmp_path: Path) -> None:
    asked = request(tmp_path, cpus=3, members=2, together=2)
    batch = condor(tmp_path, "echo '12.0 - 12.0'")
    assert batch.submit(asked) == "12.0"
    assert {"universe = vanilla", "request_cpus = 6"} <= set(submitted(tmp_path))


@pytest.mark.parametrize(("slots", "is_dedicated"), [('[{"Name": "slot1@n1"}]', True), ("[]", False), ("", False)])
def test_a_group_needs_machines_of_this_schedd(tmp_path: Path, slots: str, is_dedicated: bool) -> None:
    names_schedd = "[[ $0 == *condor_q ]] && echo '-- Schedd: me@n0 : <10.0.0.1:9618?x=y> @ 11/29/26 10:28:12'"
    batch = condor(tmp_path, f"{names_schedd}\n[[ $0 == *condor_status ]] && echo '{slots}'\n{SUBMITTED}")
    assert (batch.gang_problem() == "") == is_dedicated
    assert 'DedicatedScheduler == "DedicatedScheduler@me@n0"' in (tmp_path / "status.words").read_text()
    asked = request(tmp_path, members=2)
    if is_dedicated:
        assert batch.submit(asked) == "12.0"
        assert f"arguments = {text.arguments(is_parallel=True)}" in submitted(tmp_path)
    else:
        with pytest.raises(BatchError, match='set DedicatedScheduler = "DedicatedScheduler@me@n0" and add') as refused:
            batch.submit(asked)
        assert refused.value.retryable, "the collector lists no machine at all"


def test_a_group_is_refused_for_good_where_there_are_machines_but_none_for_groups(tmp_path: Path) -> None:
    script = """[[ $0 == *condor_q ]] && echo '-- Schedd: me@n0 : <10.0.0.1:9618?x=y> @ 11/29/26 10:28:12'
        [[ $0 == *condor_status && $* != *-constraint* ]] && echo '[{"Name": "slot1@n1"}]'; true"""
    with pytest.raises(BatchError, match="set DedicatedScheduler") as refused:
        condor(tmp_path, script).submit(request(tmp_path, members=2))
    assert not refused.value.retryable


def test_an_answer_without_a_schedd_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="names no schedd") as refused:
        condor(tmp_path, "echo '-- Failed to fetch ads'").gang_problem()
    assert refused.value.retryable


def test_a_parallel_job_that_ran_again_has_lost_a_machine() -> None:
    again = one(JobUniverse=text.PARALLEL, JobStatus=4, ExitCode=text.SECOND_RUN, ExitBySignal=False)
    assert (again.phase, again.reason, again.by_itself, again.exit_code) == ("ended", "NodeFail", False, None)
    removed = one(JobUniverse=text.PARALLEL, JobStatus=3)
    assert (removed.phase, removed.reason) == ("ended", "NodeFail")
    by_a_person = one(JobUniverse=text.PARALLEL, JobStatus=3, RemoveReason="via condor_rm (by user x)")
    assert by_a_person.reason == one(JobStatus=3).reason == "Cancelled"
    ordinary = one(JobUniverse=5, JobStatus=4, ExitCode=text.SECOND_RUN, ExitBySignal=False)
    assert (ordinary.reason, ordinary.by_itself, ordinary.exit_code) == ("", True, text.SECOND_RUN)
    assert f"exit {text.SECOND_RUN};" in text.arguments(is_parallel=True)


def test_submit(tmp_path: Path) -> None:
    asked = request(tmp_path)
    assert condor(tmp_path, "echo 'WARNING: odd' >&2; echo '12.0 - 12.0'").submit(asked) == "12.0"
    assert (tmp_path / "submit.words").read_text().split() == ["-terse", "-"]
    assert submitted(tmp_path)[-2:] == ["a-1", ")"]


ARRAY = "0a1b2c3d-1111-2222-3333-444455556666"


def test_an_array_is_one_cluster_with_a_process_for_each_pod(tmp_path: Path) -> None:
    asked = request(tmp_path, array=ARRAY)
    pods = ("a-1", "b-2", "c-3")
    assert condor(tmp_path, "echo '12.0 - 12.2'").submit_array(asked, pods) == ["12.0", "12.1", "12.2"]
    assert submitted(tmp_path)[-5:] == ["queue pod from (", *pods, ")"]
    assert f"batch_name = pb-{ARRAY}" in submitted(tmp_path)


@pytest.mark.parametrize(
    ("said", "retryable"),
    [
        ("ERROR: Number of submitted jobs would exceed MAX_JOBS_PER_SUBMISSION", True),
        ("ERROR: Number of submitted jobs would exceed MAX_JOBS_PER_OWNER", True),
        ("ERROR: Invalid wallet", False),
    ],
)
def test_a_limit_of_jobs_refuses_an_array_for_now(tmp_path: Path, said: str, retryable: bool) -> None:
    with pytest.raises(BatchError) as refused:
        condor(tmp_path, f"echo '{said}' >&2; exit 1").submit_array(request(tmp_path, array=ARRAY), ("a-1", "b-2"))
    assert refused.value.retryable == retryable


@pytest.mark.parametrize("left", [0, 1, 3])
def test_the_jobs_of_an_array_are_found_by_its_name(tmp_path: Path, left: int) -> None:
    """``left``: jobs of the array that have left the queue, and are in the history."""
    (tmp_path / "site/arrays").mkdir(parents=True)
    pods = ("a-1", "b-2", "c-3")
    ArrayFiles(tmp_path / "site").write(ARRAY, pods, sync=False)
    ads = [ad(ProcId=index, PodbridgeUid=pod) for index, pod in enumerate(pods)]
    answers = {"q": json.dumps(ads[left:]), "history": json.dumps(ads[:left])}
    lines = "\n".join(f"[[ $0 == *condor_{tool} ]] && echo '{answer}'" for tool, answer in answers.items())
    batch = condor(tmp_path, f"{lines}\ntrue")
    assert batch.find_array(ARRAY) == {"a-1": "12.0", "b-2": "12.1", "c-3": "12.2"}
    assert f'JobBatchName == "pb-{ARRAY}"' in (tmp_path / "q.words").read_text()
    assert (tmp_path / "history.words").exists() == (left > 0)


@pytest.mark.parametrize(
    ("said", "kind", "retryable"),
    [
        ("ERROR: Failed to connect to local queue manager", BatchError, True),
        ("ERROR: on Line 3 of submit file: bad", BatchError, False),
        ("ERROR: Failed to commit job submission into the queue.", BatchUnknownOutcomeError, True),
    ],
)
def test_complaints(tmp_path: Path, said: str, kind: type[BatchError], retryable: bool) -> None:
    with pytest.raises(BatchError) as refused:
        condor(tmp_path, f"echo '{said}' >&2; exit 1").submit(request(tmp_path))
    assert (type(refused.value), refused.value.retryable) == (kind, retryable)


def test_section_4_held_jobs_are_removed(tmp_path: Path) -> None:
    batch = condor(
        tmp_path, f"""[[ $0 == *condor_q ]] && echo '{json.dumps([ad(JobStatus=5, HoldReasonCode=34)])}'; true"""
    )
    assert batch.jobs()["12.0"].reason == "OOMKilled"
    assert (tmp_path / "rm.words").read_text().split()[-1] == "12.0"


def test_rm_of_what_is_gone_is_no_error(tmp_path: Path) -> None:
    condor(tmp_path, 'echo "Couldn\'t find/remove all jobs matching 12.0" >&2; exit 1').cancel(["12.0"])
    with pytest.raises(BatchError):
        condor(tmp_path, "echo 'Failed to connect' >&2; exit 1").cancel(["12.0"])


def test_find_looks_into_the_history_too(tmp_path: Path) -> None:
    done = json.dumps([ad(JobStatus=4)])
    batch = condor(tmp_path, f"[[ $0 == *condor_history ]] && echo '{done}'; true")
    assert (batch.find("a-1"), set(batch.past(["12.0"]))) == ("12.0", {"12.0"})


def test_the_oldest_of_several_jobs_is_found(tmp_path: Path) -> None:
    jobs = json.dumps([ad(ClusterId=cluster) for cluster in (10, 9, 100)])
    assert condor(tmp_path, f"echo '{jobs}'").find("a-1") == "9.0"


def test_the_newest_of_the_jobs_with_an_id_counts(tmp_path: Path) -> None:
    """condor_history prints the newest first; a schedd that lost its queue assigns ids again."""
    newest = [ad(JobStatus=4), ad(ClusterId=13, PodbridgeUid="a-2", JobStatus=4)]
    oldest = [ad(PodbridgeUid="b-1", JobStatus=4), ad(ClusterId=13, PodbridgeUid="b-2", JobStatus=4)]
    batch = condor(tmp_path, f"echo '{json.dumps(newest + oldest)}'")
    assert {name: job.uid for name, job in batch.past(["12.0", "13.0"]).items()} == {"12.0": "a-1", "13.0": "a-2"}


def history(batch: CondorBatch, monkeypatch: pytest.MonkeyPatch, ads: list[dict[str, Any]]) -> list[list[str]]:
    """Replace condor_history by a list of records, the newest first; return the options of its calls."""
    calls: list[list[str]] = []

    def run(constraint: str, *options: str) -> str:
        calls.append(list(options))
        found = [ad for ad in ads if f"(ClusterId == {ad['ClusterId']} && ProcId == 0)" in constraint]
        return json.dumps(found[: int(options[1])])

    monkeypatch.setattr(batch, "_history", run)
    return calls


def test_the_history_is_read_up_to_the_last_of_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = condor(tmp_path)
    calls = history(batch, monkeypatch, [ad(ClusterId=number, JobStatus=4) for number in range(150, 0, -1)])
    assert len(batch.past([f"{number}.0" for number in range(1, 151)])) == 150
    assert calls == [["-limit", "100"], ["-limit", "50"]]


def test_records_of_a_reused_id_hide_no_other_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ads = [ad(ClusterId=number, PodbridgeUid=uid, JobStatus=4) for number, uid in
           ((13, "a-2"), (13, "a-2"), (13, "b-2"), (12, "a-1"), (14, "a-3"), (12, "b-1"))]  # fmt: skip
    batch = condor(tmp_path)
    calls = history(batch, monkeypatch, ads)
    found = batch.past(["12.0", "13.0", "14.0", "15.0"])
    assert {name: job.uid for name, job in found.items()} == {"12.0": "a-1", "13.0": "a-2", "14.0": "a-3"}
    assert calls == [["-limit", "4"], ["-limit", "2"]]


def test_a_job_without_a_record_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = condor(tmp_path)
    calls = history(batch, monkeypatch, [ad(JobStatus=4)])
    assert set(batch.past(["12.0", "13.0"])) == {"12.0"}
    assert calls == [["-limit", "2"]]


def test_flags_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="flags"):
        condor(tmp_path).submit(request(tmp_path, flags=("-x",)))
