"""The driver of PBS: what it asks, and how it reads the answers."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BatchError, BatchUnknownOutcomeError
from bridge.script.settings import Flavor
from bridge.site.batch import pbs
from bridge.site.batch.array_files import ArrayFiles
from bridge.site.batch.batch_interface import Amount, BatchJobRequest, GangStarter
from bridge.site.config.site_config import make_batch_system, parse
from bridge.site.gangs import launcher
from tests.fakes.clock import FakeClock

UID = "0a1b2c3d-1111-2222-3333-444455556666"
JOB = {  # as a server of version 23.06 writes it, shortened
    "Job_Name": f"pb-{UID}",
    "Job_Owner": "me@login1",
    "job_state": "F",
    "queue": "workq",
    "exec_host": "node7/0*4+node8/0",
    "stime": "Tue Mar 12 13:04:41 2024",
    "substate": 92,
    "Resource_List": {"ncpus": 4, "walltime": "48:00:00"},
    "Variable_List": {"PBS_O_PATH": "/bin"},
    "comment": "Job run at Tue Mar 12 at 13:04 on (node7:ncpus=4) and finished",
    "Exit_status": 0,
    "history_timestamp": 1710331813,
}


def read(**more: Any) -> Any:
    found = {"12.server": {key: value for key, value in {**JOB, **more}.items() if value is not None}}
    return next(pbs.parse_jobs(found))


@pytest.mark.parametrize(
    ("state", "phase", "reason"),
    [
        ("Q", "queued", "WaitingForResources"),
        ("H", "queued", "Held"),
        ("W", "queued", "Waiting"),
        ("M", "queued", "Moved"),
        ("R", "running", ""),
        ("E", "running", ""),
        ("S", "running", "Suspended"),
        ("U", "running", "Suspended"),
        ("?", "running", ""),
        (None, "running", ""),
    ],
)
def test_each_state_has_a_phase(state: str | None, phase: str, reason: str) -> None:
    job = read(job_state=state, Exit_status=None, substate=10)
    assert (job.phase, job.reason, job.by_itself) == (phase, reason, False)


@pytest.mark.parametrize(
    ("status", "substate", "reason", "code", "number", "by_itself"),
    [
        (0, 92, "", 0, 0, True),
        (3, 93, "", 3, 0, True),
        (137, 93, "", 137, 0, True),
        (265, 93, "", None, 9, True),
        (271, 91, "Cancelled", None, 0, False),
        (None, 91, "Cancelled", None, 0, False),
        (None, None, "Cancelled", None, 0, False),
        (-29, 93, "DeadlineExceeded", None, 0, False),
        (-28, 93, "DeadlineExceeded", None, 0, False),
        (-27, 93, "OOMKilled", None, 0, False),
        (-26, 93, "OOMKilled", None, 0, False),
        (-25, 93, "Killed", None, 0, False),
        (-1, 93, "", None, 0, True),
    ],
)
def test_each_end_has_a_reason(
    status: int | None, substate: int | None, reason: str, code: int | None, number: int, by_itself: bool
) -> None:
    job = read(Exit_status=status, substate=substate)
    assert (job.phase, job.reason, job.exit_code, job.signal, job.by_itself) == (
        "ended", reason, code, number, by_itself
    )  # fmt: skip


def test_host_and_times_are_read() -> None:
    job = read()
    assert (job.id, job.uid, job.host, job.started_at, job.ended_at) == (
        "12.server", UID, "node7", 1710248681.0, 1710331813.0
    )  # fmt: skip
    assert read(obittime="Wed Mar 13 12:10:13 2024").ended_at == 1710331813.0
    assert read(stime="nonsense", history_timestamp=None).ended_at is None
    assert read(job_state="Q", comment="Not Running: no").message == "PBS job 12.server is queued: Not Running: no"
    assert (
        read(Exit_status=-3, comment="no such node").message
        == "PBS job 12.server ended with Exit_status -3: no such node"
    )


@pytest.mark.parametrize("name", ["STDIN", UID, "pb-../x", None, 5])
def test_jobs_of_others_are_left_out(name: Any) -> None:
    assert list(pbs.parse_jobs({"1.s": {**JOB, "Job_Name": name}})) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*JOB, "obittime"]), values))
def test_any_value_in_any_field_gives_a_job_or_none(fields: dict[str, Any]) -> None:
    for job in pbs.parse_jobs({"1.s": {**fields, "Job_Name": f"pb-{UID}"}}):
        assert job.uid == UID and job.phase in ("queued", "running", "ended")


@given(st.one_of(st.text(), values.map(json.dumps)))
def test_any_answer_of_pbsnodes_gives_a_capacity_or_a_batch_error(text: str) -> None:
    try:
        assert pbs.parse_nodes(text, {"a/b": "ngpus"}).total.cpus >= 0
    except BatchError as error:
        assert error.retryable


def test_nodes_that_work_are_added_up() -> None:
    nodes = {
        "n1": {
            "state": "free",
            "resources_available": {"ncpus": 64, "mem": "527672488kb", "ngpus": 4, "host": "n1"},
            "resources_assigned": {"ncpus": 10, "mem": "1gb", "ngpus": "1"},
        },
        "n2": {"state": "job-busy", "resources_available": {"ncpus": "2"}, "resources_assigned": {"ncpus": 4}},
        "n3": {"state": "state-unknown,down", "resources_available": {"ncpus": 64}},
        "n4": {"state": "offline", "resources_available": {"ncpus": 64}},
    }
    found = pbs.parse_nodes(json.dumps({"nodes": nodes}), {"nvidia.com/gpu": "ngpus", "amd.com/gpu": "ngpus"})
    assert found.total == Amount(66, 527672488 * 1024, {"nvidia.com/gpu": 4})
    assert found.free == Amount(54, 527672488 * 1024 - 2**30, {"nvidia.com/gpu": 3})


# --- commands ---------------------------------------------------------------------------------------------------------
def made(tmp_path: Path, **answers: str) -> pbs.PbsBatch:
    """The driver with commands that note their words and then do what ``answers`` says, in bash."""
    for name in ("qsub", "qselect", "qstat", "qdel", "pbsnodes"):
        tool = tmp_path / name
        note = f'printf "%s\\n" "$@" >>{tmp_path}/{name}.words\n[[ {name} != qsub ]] || cat >{tmp_path}/stdin\n'
        tool.write_text(f"#!/bin/bash\n{note}{answers.get(name, '')}\n")
        tool.chmod(0o755)
    top = f'pool = "p"\nfolder = "{tmp_path}/site"\nbatch.kind = "pbs"\n'
    text = f'{top}[pbs]\nbin_dir = "{tmp_path}"\ntimeout = 2\nqueue = "workq"\n'
    batch = make_batch_system(parse(f"{text}options = ['-P', 'site']\n"), FakeClock())
    assert isinstance(batch, pbs.PbsBatch)
    return batch


def request(**more: Any) -> BatchJobRequest:
    return BatchJobRequest(uid=UID, folder=Path("/x y/jobs/a"), memory=10 * 2**20 + 1, **more)


def test_what_is_asked_for(tmp_path: Path) -> None:
    flavor = Flavor(
        name="f", partition="gpuq", account="a", nodelist="n7", generic_resources=["ngpus=9", "model=a100"],
        flags=["-p", "5"],
    )  # fmt: skip
    asked = request(cpus=3, gpus=2, gpu_resource="nvidia.com/gpu", time_limit=90.5, flavor=flavor)
    words = made(tmp_path).words(asked)
    assert words[words.index("-l") + 1] == "select=1:ncpus=3:mem=11mb:ngpus=2:model=a100:host=n7"
    assert words[-10:] == ["-l", "walltime=91", "-q", "gpuq", "-A", "a", "-P", "site", "-p", "5"]
    assert words[:6] == ["-N", f"pb-{UID}", "-S", "/bin/bash", "-r", "n"]
    assert made(tmp_path).words(request())[-4:] == ["-q", "workq", "-P", "site"]


@pytest.mark.parametrize(
    ("members", "together", "select"),
    [
        (4, 1, "4:ncpus=3:mem=11mb:ngpus=1"),
        (4, 2, "2:ncpus=6:mem=21mb:ngpus=2"),
        (5, 2, "2:ncpus=6:mem=21mb:ngpus=2+1:ncpus=3:mem=11mb:ngpus=1"),
        (4, 4, "1:ncpus=12:mem=41mb:ngpus=4"),
    ],
)
def test_a_group_gets_a_chunk_for_each_machine(tmp_path: Path, members: int, together: int, select: str) -> None:
    asked = request(cpus=3, gpus=1, gpu_resource="nvidia.com/gpu", members=members, together=together)
    words = made(tmp_path).words(asked)
    assert words[words.index("-l") + 1] == f"select={select}"
    assert ("place=scatter" in words) == (together < members)


def test_a_flavor_of_one_host_has_no_group_on_several(tmp_path: Path) -> None:
    asked = request(members=4, together=2, flavor=Flavor(name="f", nodelist="n7"))
    with pytest.raises(BatchError, match=r"flavor f: nodelist n7: .* needs 2 machines; allowed: a flavor without"):
        made(tmp_path).words(asked)


def test_pbsdsh_gets_the_variables_of_the_job(tmp_path: Path) -> None:
    starter = made(tmp_path).gang_starter(request(), "none")
    assert (starter.command, starter.task) == ((f"{tmp_path}/pbsdsh", "--"), "machine")
    assert "PATH" in starter.variables
    script = launcher.script([request()], GangStarter(starter.command, "machine", {"A": "it's"}))
    assert script.index("export A='it'\"'\"'s'\n") < script.index("TASK=machine")


def test_the_script_of_pbs_starts_that_of_the_job(tmp_path: Path) -> None:
    assert made(tmp_path, qsub="echo 12.server").submit(request()) == "12.server"
    first, *_, last = (tmp_path / "stdin").read_text().splitlines()
    assert first == "#!/bin/bash"
    assert last == "exec bash '/x y/jobs/a'/job.sh </dev/null >>'/x y/jobs/a'/script.log 2>&1"


@pytest.mark.parametrize(
    ("answer", "error", "retryable"),
    [
        ("echo 'qsub: Unknown queue' >&2; exit 170", BatchError, False),
        ("echo 'qsub: would exceed queue generic per-user limit' >&2; exit 1", BatchError, True),
        ("echo 'qsub: cannot connect to server s (errno=15010)' >&2; exit 1", BatchError, True),
        ("echo 'qsub: End of File' >&2; exit 1", BatchUnknownOutcomeError, True),
        ("echo hm", BatchUnknownOutcomeError, True),
        ("sleep 5", BatchUnknownOutcomeError, True),
    ],
)
def test_a_submit_that_fails(tmp_path: Path, answer: str, error: type[BatchError], retryable: bool) -> None:
    with pytest.raises(BatchError) as refused:
        made(tmp_path, qsub=answer).submit(request())
    assert (type(refused.value), refused.value.retryable) == (error, retryable)


def test_flags_of_users_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="takes none"):
        made(tmp_path).submit(request(flags=("-p", "1")))


ANSWER = json.dumps({"Jobs": {"12.server": {**JOB, "job_state": "R", "Exit_status": None}}})


def test_all_jobs_are_those_of_the_user(tmp_path: Path) -> None:
    batch = made(tmp_path, qselect="echo 12.server", qstat=f"echo '{ANSWER}'")
    assert list(batch.jobs()) == ["12.server"]
    assert (tmp_path / "qstat.words").read_text().split() == ["-t", "-f", "-F", "json", "12.server"]
    assert (tmp_path / "qselect.words").read_text().split()[0] == "-u"
    none = made(tmp_path, qselect="", qstat="exit 1")
    assert none.jobs() == {}


def test_a_job_that_ends_between_the_two_commands_is_no_error(tmp_path: Path) -> None:
    ended = "echo 'qstat: 13.server Job has finished, use -x or -H to obtain' >&2; exit 35"
    batch = made(tmp_path, qselect="echo 12.server; echo 13.server", qstat=f"echo '{ANSWER}'; {ended}")
    assert list(batch.jobs()) == ["12.server"]


@pytest.mark.parametrize(
    "answer",
    [
        f"echo '{ANSWER}'",  # a build of OpenPBS answers about the first of several ids alone (openpbs issue 2672)
        "echo '{'",
        "echo 'qstat: cannot connect to server' >&2; exit 255",
        f"echo '{ANSWER}'; echo 'qstat: Server disconnected' >&2; exit 1",
        "exit 1",
    ],
)
def test_an_answer_that_is_not_complete_says_nothing_about_jobs(tmp_path: Path, answer: str) -> None:
    batch = made(tmp_path, qselect="echo 12.server; echo 13.server", qstat=answer)
    with pytest.raises(BatchError) as refused:
        batch.jobs()
    assert refused.value.retryable


# --- arrays -----------------------------------------------------------------------------------------------------------
PODS = ("a-0", "a-1", "a-2")


@pytest.fixture
def site_folder(tmp_path: Path) -> Path:
    """The directory of a site with one array."""
    folder = tmp_path / "site"
    (folder / "arrays").mkdir(parents=True)
    ArrayFiles(folder).write(UID, PODS, sync=False)
    return folder


def test_an_array_is_one_qsub_and_each_job_finds_its_pod(tmp_path: Path, site_folder: Path) -> None:
    asked = BatchJobRequest(uid="a-0", folder=site_folder / "jobs/a-0", array=UID)
    batch = made(tmp_path, qsub="echo '12[].server'")
    assert batch.submit_array(asked, PODS) == ["12[0].server", "12[1].server", "12[2].server"]
    words = (tmp_path / "qsub.words").read_text().split()
    assert (words[-2:], words[words.index("-r") + 1], words[1]) == (["-J", "0-2"], "y", f"pb-{UID}")
    (site_folder / "jobs/a-1").mkdir(parents=True)
    (site_folder / "jobs/a-1/job.sh").write_text("echo $PWD\n")
    environment = {**os.environ, "PBS_ARRAY_INDEX": "1"}
    subprocess.run(["bash"], stdin=(tmp_path / "stdin").open(), env=environment, check=True)
    assert (site_folder / "jobs/a-1/script.log").read_text() == f"{site_folder}/jobs/a-1\n"


@pytest.mark.parametrize(
    ("answer", "error", "retryable"),
    [
        ("echo 'qsub: Array job exceeds server or queue size limit' >&2; exit 1", BatchError, False),
        ("echo 'qsub: would exceed queue generic per-user limit' >&2; exit 1", BatchError, True),
        ("echo 12.server", BatchUnknownOutcomeError, True),
    ],
)
def test_an_array_that_is_refused(tmp_path: Path, answer: str, error: type[BatchError], retryable: bool) -> None:
    with pytest.raises(BatchError) as refused:
        made(tmp_path, qsub=answer).submit_array(request(array=UID), PODS)
    assert (type(refused.value), refused.value.retryable) == (error, retryable)


@pytest.mark.usefixtures("site_folder")
def test_the_jobs_of_an_array_are_found_by_its_name(tmp_path: Path) -> None:
    assert made(tmp_path, qselect="echo '12[].server'").find_array(UID) == {
        "a-0": "12[0].server", "a-1": "12[1].server", "a-2": "12[2].server"
    }  # fmt: skip
    assert f"-N\npb-{UID}\n" in (tmp_path / "qselect.words").read_text()
    assert made(tmp_path, qselect="").find_array(UID) == {}


@pytest.mark.usefixtures("site_folder")
def test_the_jobs_of_an_array_are_listed_with_their_pods(tmp_path: Path) -> None:
    attributes = {"Job_Name": f"pb-{UID}", "job_state": "Q", "comment": "waits"}
    answer = {
        "12[].server": {**attributes, "job_state": "B"},
        **{f"12[{index}].server": attributes for index in (0, 2, 3)},
    }
    batch = made(tmp_path, qselect="echo '12[].server'", qstat=f"echo '{json.dumps({'Jobs': answer})}'")
    assert {job_id: (job.uid, job.phase) for job_id, job in batch.jobs().items()} == {
        "12[0].server": ("a-0", "queued"), "12[2].server": ("a-2", "queued")
    }  # fmt: skip


@pytest.mark.parametrize(
    ("comment", "reason", "by_itself"),
    [("Subjob finished", "", True), ("Subjob failed", "", True), ("Subjob terminated", "Cancelled", False)],
)
@pytest.mark.parametrize("more", [{}, {"job_state": "F", "Exit_status": 1, "substate": 92}])
def test_a_job_of_an_array_without_a_record_has_the_attributes_of_its_array(
    comment: str, reason: str, by_itself: bool, more: dict[str, Any]
) -> None:
    attributes = {"Job_Name": f"pb-{UID}", "job_state": "X", "comment": comment, **more}
    (job,) = pbs.parse_jobs({"12[1].server": attributes}, lambda array, index: f"a-{index}")
    assert (job.uid, job.phase, job.reason, job.exit_code, job.by_itself) == ("a-1", "ended", reason, None, by_itself)


def test_a_server_without_history_has_no_past(tmp_path: Path) -> None:
    no = "[[ $* != *-x* ]] || { echo 'PBS is not configured to maintain job history' >&2; exit 1; }\n"
    batch = made(tmp_path, qstat=no, qselect=f"{no}echo 14.server; echo 9.server")
    assert (batch.past(["12.server"]), batch.find(UID)) == ({}, "9.server")


def test_an_end_that_has_come_is_no_error(tmp_path: Path) -> None:
    gone = "echo 'qdel: Unknown Job Id 1.s' >&2; echo 'qdel: Job has finished 2.s' >&2; exit 35"
    made(tmp_path, qdel=gone).cancel(["1.s", "2.s"])
    with pytest.raises(BatchError, match="Unauthorized Request"):
        made(tmp_path, qdel="echo 'qdel: Unauthorized Request 3.s' >&2; exit 159").cancel(["3.s"])


def test_times_of_qstat_are_in_utc(tmp_path: Path) -> None:
    found = {"1.s": {**JOB, "stime": time.strftime("%a %b %d %H:%M:%S %Y", time.gmtime(1710248681))}}
    assert next(pbs.parse_jobs(found)).started_at == 1710248681.0
    zone = made(tmp_path, qstat='echo "pbs_version = $TZ"')
    assert zone.version() == "pbs UTC"
