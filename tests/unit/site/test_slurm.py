"""Slurm's words: what its commands print, what they are asked, and which complaint means what."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BatchError, BatchUnknownOutcomeError
from bridge.names import MPI_WAYS
from bridge.script.settings import Flavor
from bridge.site.batch import batch_user, slurm_flags, slurm_words
from bridge.site.batch import slurm_text as text
from bridge.site.batch.array_files import ArrayFiles
from bridge.site.batch.batch_interface import BatchJobRequest
from bridge.site.batch.slurm import SlurmBatch
from bridge.site.batch.slurm_flags import allowed_flags
from bridge.site.config.site_config import make_batch_system, parse
from tests.fakes.clock import FakeClock

SQUEUE = """\
2|FAILED||1795266742|1795266742|pb-a-2|BadConstraints
3|PENDING||N/A|N/A|pb-a-3|JobHeldUser
1|RUNNING|node-0|1795266742|1795266802|pb-a-1|None
4|CANCELLED||1795266743|1795266743|pb-a-4|JobHeldUser
5|CANCELLED|node-0|1795266742|1795266743|pb-a-5|None
6|PENDING||N/A|N/A|pb-a-6|ReqNodeNotAvail, UnavailableNodes:n[1-2]|x
7|RUNNING|node-0|1795266742|1795266802|somebody else's|None
8|COMPLETED|node-1|1795266742|1795266743|pb-a-8|None
9|RUNNING|node-1|1795266742|1795266743|pb-bad uid|None
slurm_load_jobs: something odd
"""


def test_squeue_as_22_05_and_26_05_print_it() -> None:
    found = {job.uid: job for job in text.jobs(SQUEUE)}
    # a-2: what sbatch was refused stays there as a FAILED job that had no node
    assert sorted(found) == ["a-1", "a-3", "a-4", "a-5", "a-6", "a-8"]
    assert (found["a-1"].phase, found["a-1"].host, found["a-1"].started_at) == ("running", "node-0", 1795266742)
    assert (found["a-3"].phase, found["a-3"].reason, found["a-3"].started_at) == ("queued", "JobHeldUser", None)
    assert (found["a-4"].phase, found["a-4"].reason, found["a-4"].started_at) == ("ended", "Cancelled", None)
    assert found["a-5"].started_at == 1795266742
    assert (found["a-6"].reason, found["a-6"].message) == (
        "ReqNodeNotAvail",
        "Slurm job 6 is pending: ReqNodeNotAvail, UnavailableNodes:n[1-2]|x",
    )
    assert found["a-8"].by_itself
    assert found["a-8"].ended_at == 1795266743


SQUEUE_OF_ARRAYS = """\
20_[0,3-5%2]|PENDING||N/A|N/A|pb-arr|Resources
20_[6-10:2]|PENDING||N/A|N/A|pb-arr|Resources
20_1|RUNNING|node-0|1795266742|1795266802|pb-arr|None
20_2|COMPLETED|node-1|1795266742|1795266743|pb-arr|None
20_11|RUNNING|node-1|1795266742|1795266743|pb-arr|None
21_[0-99999]|PENDING||N/A|N/A|somebody else's|Resources
22_0|RUNNING|node-1|1795266742|1795266743|pb-other|None
20_[0-2,...]|PENDING||N/A|N/A|pb-arr|Resources
"""


def pod_of(array: str, index: int) -> str:
    return f"a-{index}" if array == "arr" and index < 11 else ""


def test_squeue_of_an_array() -> None:
    found = {job.uid: job for job in text.jobs(SQUEUE_OF_ARRAYS, arrays=pod_of)}
    assert sorted(found, key=lambda uid: int(uid[2:])) == [f"a-{index}" for index in (*range(7), 8, 10)]
    assert {job.id for job in found.values()} == {f"20_{uid[2:]}" for uid in found}
    assert (found["a-8"].phase, found["a-8"].message) == ("queued", "Slurm job 20_8 is pending: Resources")
    assert (found["a-1"].phase, found["a-1"].host) == ("running", "node-0")
    assert (found["a-2"].phase, found["a-2"].by_itself) == ("ended", True)
    assert list(text.jobs(SQUEUE_OF_ARRAYS)) == []


def test_sacct_of_an_array() -> None:
    output = (
        "20_1|COMPLETED|node-0|1|2|pb-arr|3:0\n"
        "20_[4-5]|CANCELLED by 0|None assigned|Unknown|2|pb-arr|0:0\n20_6|RUNNING|node-0|1|Unknown|pb-arr|0:0\n"
    )
    found = {job.id: job for job in text.past_jobs(output, arrays=pod_of)}
    assert sorted(found) == ["20_1", "20_4", "20_5"]
    assert (found["20_1"].uid, found["20_1"].exit_code) == ("a-1", 3)
    assert (found["20_5"].reason, found["20_5"].message) == ("Cancelled", "Slurm job 20_5 was cancelled by user 0")


def index_list(indexes: list[int]) -> str:
    """Return sorted indexes as squeue shows them: ``0,4-9``."""
    spans: list[list[int]] = []
    for index in indexes:
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in spans)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_indexes_are_read_as_slurm_shows_them(indexes: set[int]) -> None:
    written = index_list(sorted(indexes))
    line = f"7_[{written}]|PENDING||N/A|N/A|pb-arr|None"
    read = [job.id for job in text.jobs(line, arrays=lambda array, index: f"a-{index}")]
    assert read == [f"7_{index}" for index in sorted(indexes)]


@pytest.mark.parametrize(
    ("word", "phase", "reason"),
    [
        ("CONFIGURING", "running", ""),  # interlink.md 3.6: no FAILED, though it has an F
        ("NODE_FAIL", "ended", "NodeFail"),
        ("BOOT_FAIL", "ended", "BootFail"),
        ("REQUEUED", "queued", "Requeued"),
        ("REQUEUE_HOLD", "queued", "RequeueHold"),
        ("TIMEOUT", "ended", "DeadlineExceeded"),
        ("OUT_OF_MEMORY", "ended", "OOMKilled"),
        ("PREEMPTED", "ended", "Preempted"),
        ("DEADLINE", "ended", "DeadlineExceeded"),
        ("CANCELLED by 1000", "ended", "Cancelled"),
        ("CANCELLED+", "ended", "Cancelled"),
        ("COMPLETING", "running", ""),
        ("SUSPENDED", "running", "Suspended"),
        ("A_STATE_OF_TOMORROW", "running", ""),
    ],
)
def test_3_6_states_are_whole_words(word: str, phase: str, reason: str) -> None:
    row = text.state(word)
    assert (row.phase, row.reason) == (phase, reason)


def test_no_state_is_another_ones_prefix_by_accident() -> None:
    for word in text.STATES:
        assert text.state(word) is text.STATES[word]
        assert text.state(word[:-1]) is not text.STATES[word]


@given(st.text(max_size=200))
def test_any_output_is_read_without_an_error(output: str) -> None:
    list(text.jobs(output))
    list(text.past_jobs(output))
    text.nodes(output, set())
    text.gres_counts(output)


def test_sacct() -> None:
    output = "11|OUT_OF_MEMORY|n1|10|20|pb-a|0:125\n12|RUNNING|n1|10|Unknown|pb-b|0:0\n11.batch|x|x|x|x|x|x\n"
    (found,) = text.past_jobs(output)
    assert (found.id, found.reason, found.signal, found.ended_at) == ("11", "OOMKilled", 125, 20)
    assert found.message == "Slurm job 11 was terminated because it used more memory than it requested"


def test_what_a_real_sacct_printed() -> None:
    """24.11: by whom a job was cancelled; nobody, where slurmctld came back without its state."""
    output = """\
2|FAILED|node-0|1795278239|1795278239|pb-a-2|3:0
3|FAILED|node-0|1795278239|1795278240|pb-a-3|0:9
4|CANCELLED by 0|node-0|1795278239|1795278242|pb-a-4|0:0
5|CANCELLED by 0|None assigned|None|1795278242|pb-a-5|0:0
6|CANCELLED|None assigned|None|1795278443|pb-a-6|0:0
7|CANCELLED|node-0|1795278438|1795278443|pb-a-7|0:0
8|FAILED|None assigned|None|1795278450|pb-a-8|1:0
9|PENDING|None assigned|Unknown|Unknown|pb-a-9|0:0
"""
    found = {job.id: job for job in text.past_jobs(output, {0: "root"}.__getitem__)}
    assert sorted(found) == ["2", "3", "4", "5"]
    assert (found["2"].exit_code, found["2"].signal, found["2"].message) == (3, 0, "")
    assert (found["3"].exit_code, found["3"].signal, found["3"].by_itself) == (None, 9, True)
    assert found["3"].message == "the script of Slurm job 3 was terminated by signal 9"
    assert found["4"].message == "Slurm job 4 was cancelled by user root"
    assert (found["5"].reason, found["5"].started_at) == ("Cancelled", None)


def test_sinfo_counts_each_working_node_once() -> None:
    output = """\
node-0|4/124/0/128|512000|1024|gpu:a100:8(S:0-1)|gpu:a100:3(IDX:0-2)|mixed|main*|
node-0|4/124/0/128|512000|1024|gpu:a100:8(S:0-1)|gpu:a100:3(IDX:0-2)|mixed|other|
node-1|0/0/128/128|512000|0|gpu:a100:8|gpu:a100:0|down*|main*|
node-2|0/128/0/128|512000|0|(null)|gpu:(null):0(IDX:N/A)|idle~|main*|
node-3|0/128/0/128|512000|0|gpu:8|gpu:0|drained|main*|
node-4|0/128/0/128|512000|0|gpu:8|gpu:0|idle*|main*|
node-5|0/64/0/64|1000|0|gpu:2,craynetwork:4|gpu:1|idle|other|
"""
    found = text.nodes(output, set())
    assert [node.name for node in found] == ["node-0", "node-2"]
    assert (found[0].total.cpus, found[0].free.cpus, found[0].free.memory) == (128, 124, (512000 - 1024) * 2**20)
    assert (found[0].total.extended, found[0].free.extended, found[1].total.extended) == (
        {"gpu:a100": 8},
        {"gpu:a100": 5},
        {},
    )
    (other,) = [node for node in text.nodes(output, {"other"}) if node.name == "node-5"]
    assert other.total.extended == {"gpu": 2, "craynetwork": 4}


# --- sbatch -----------------------------------------------------------------------------------------------------------
def slurm(tmp_path: Path, lines: str = "", more: str = "") -> SlurmBatch:
    """Slurm with an sbatch that does as it is told, and keeps what it got."""
    for name in ("sbatch", "squeue", "scancel", "sinfo", "sacct", "scontrol", "srun"):
        tool = tmp_path / name
        tool.write_text(
            f'#!/bin/bash\nprintf "%s\\n" "$@" >{tmp_path}/{name}.words\ncat >{tmp_path}/{name}.stdin\n'
            f"env >{tmp_path}/{name}.env\n{lines}\n"
        )
        tool.chmod(0o755)
    text = f'pool = "p"\n{more}\n[slurm]\nbin_dir = "{tmp_path}"\ntimeout = 2\npartition = "std"\n'
    made = make_batch_system(parse(text), FakeClock())
    assert isinstance(made, SlurmBatch)
    return made


def words_of(tmp_path: Path, asked: BatchJobRequest) -> list[str]:
    """Return the options of sbatch."""
    return slurm_words.words(slurm(tmp_path)._config, asked)


def request(**more: Any) -> BatchJobRequest:
    return BatchJobRequest(uid="a-1", folder=Path("/x y/jobs/a-1"), memory=10 * 2**20 + 1, **more)


def test_3_6_warnings_on_stderr_are_no_error(tmp_path: Path) -> None:
    assert slurm(tmp_path, "echo 'sbatch: Your budget is low' >&2; echo 77").submit(request()) == "77"


@pytest.mark.parametrize(("line", "job"), [("echo '77;cluster'", "77"), ("echo lua says hello; echo 78", "78")])
def test_parsable_output(tmp_path: Path, line: str, job: str) -> None:
    assert slurm(tmp_path, line).submit(request()) == job


@pytest.mark.parametrize(
    ("said", "kind", "retryable"),
    [
        ("Batch job submission failed: Invalid partition name specified", BatchError, False),
        ("Batch job submission failed: Requested node configuration is not available", BatchError, False),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", BatchError, True),
        ("Batch job submission failed: Job violates accounting/QOS policy (job submit limit)", BatchError, True),
        ("Batch job submission failed: Socket timed out on send/recv operation", BatchUnknownOutcomeError, True),
        ("Batch job submission failed: Zero Bytes were transmitted or received", BatchUnknownOutcomeError, True),
        ("Batch job submission failed: Unexpected message received", BatchUnknownOutcomeError, True),
    ],
)
def test_complaints(tmp_path: Path, said: str, kind: type[BatchError], retryable: bool) -> None:
    with pytest.raises(BatchError) as refused:
        slurm(tmp_path, f"echo 'sbatch: error: {said}' >&2; exit 1").submit(request())
    assert type(refused.value) is kind
    assert refused.value.retryable is retryable
    assert said in str(refused.value)


@pytest.mark.parametrize(("line", "why"), [("sleep 60 & wait", "did not end within 2 s"), ("exit 0", "")])
def test_an_sbatch_that_hangs_or_says_no_id_may_have_done_it(tmp_path: Path, line: str, why: str) -> None:
    with pytest.raises(BatchUnknownOutcomeError, match=why):
        slurm(tmp_path, line).submit(request())


def test_9_3_no_sbatch_at_all_is_an_answer(tmp_path: Path) -> None:
    batch = slurm(tmp_path)
    (tmp_path / "sbatch").unlink()
    with pytest.raises(BatchError) as refused:
        batch.submit(request())
    assert not isinstance(refused.value, BatchUnknownOutcomeError)


def test_9_8_no_secret_is_given_to_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2")
    monkeypatch.setenv("SBATCH_PARTITION", "elsewhere")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    slurm(tmp_path, "echo 1").submit(request())
    assert (tmp_path / "sbatch.stdin").read_text() == (
        "#!/bin/bash\nexec bash '/x y/jobs/a-1'/job.sh >>'/x y/jobs/a-1'/script.log 2>&1\n"
    )
    names = {line.partition("=")[0] for line in (tmp_path / "sbatch.env").read_text().splitlines()}
    assert names.isdisjoint({"MY_TOKEN", "SBATCH_PARTITION", "SLURM_JOB_ID"})
    assert "--export=ALL" in (tmp_path / "sbatch.words").read_text().split("\n")


def test_an_array_is_one_sbatch(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    batch = slurm(tmp_path, "echo 77", f'folder = "{folder}"')
    (folder / "arrays").mkdir(parents=True)
    ArrayFiles(folder).write("arr", ("a-0", "a-1", "a-2"), sync=False)
    array_request = BatchJobRequest(uid="a-0", folder=folder / "jobs/a-0", array="arr")
    assert batch.submit_array(array_request, ("a-0", "a-1", "a-2")) == ["77_0", "77_1", "77_2"]
    words = (tmp_path / "sbatch.words").read_text().split("\n")
    assert {"--array=0-2", "--job-name=pb-arr", f"--chdir={folder}/jobs", "--nodes=1"} <= set(words)
    script = (tmp_path / "sbatch.stdin").read_text()
    for index in (1, 2, 3):
        job = folder / f"jobs/a-{index}"
        job.mkdir(parents=True)
        (job / "job.sh").write_text("echo $PWD\n")
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": str(index)}
        result = subprocess.run(["bash", "-c", script], env=environment, capture_output=True)
        assert (result.returncode == 0, (job / "script.log").exists()) == (index < 3, index < 3)
    assert (folder / "jobs/a-2/script.log").read_text() == f"{folder}/jobs/a-2\n"
    shutil.rmtree(folder)  # a job of an array whose pods are gone does nothing
    assert subprocess.run(["bash", "-c", script], env=environment, capture_output=True).returncode == 0


def test_an_array_runs_as_no_other_user(tmp_path: Path) -> None:
    made = slurm(tmp_path)
    made._config = made._config.model_copy(update={"options": ["--uid=1000"]})
    with pytest.raises(BatchError, match="an array can't run as another user"):
        made.submit_array(BatchJobRequest(uid="a-0", folder=tmp_path / "jobs/a-0", array="arr"), ("a-0", "a-1"))


def test_the_jobs_of_an_array_are_found_by_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    rows = "21_1|PENDING||N/A|N/A|pb-arr|None\\n9_1|PENDING||N/A|N/A|pb-arr|None\\n9_[0]|PENDING||N/A|N/A|pb-arr|None"
    batch = slurm(tmp_path, f"printf '{rows}\\n'", f'folder = "{folder}"')
    (folder / "arrays").mkdir(parents=True)
    ArrayFiles(folder).write("arr", ("a-0", "a-1"), sync=False)
    assert batch.find_array("arr") == {"a-0": "9_0", "a-1": "9_1"}
    assert "--name=pb-arr" in (tmp_path / "squeue.words").read_text().split("\n")
    assert "SLURM_BITSTR_LEN=0" in (tmp_path / "squeue.env").read_text().split("\n")


@pytest.mark.parametrize(("line", "most"), [("MaxArraySize            = 1001", 1001), ("MaxJobId = 9", 0)])
def test_the_size_of_an_array_is_slurms(tmp_path: Path, line: str, most: int) -> None:
    batch = slurm(tmp_path, f"echo '{line}'")
    assert batch.most_in_array() == most


def test_9_11_resources_are_asked_for_in_slurms_units(tmp_path: Path) -> None:
    flavor = Flavor(
        name="f",
        account="acc",
        qos="q",
        reservation="r",
        nodelist="n[1-2]",
        generic_resources=["gpu:a100:1", "shard:2"],
        flags=["--exclusive"],
    )
    words = words_of(
        tmp_path,
        request(cpus=3, gpus=2, gpu_resource="nvidia.com/gpu", time_limit=61, flavor=flavor, flags=("-n2", "-t", "5")),
    )
    assert {
        "--cpus-per-task=3", "--mem=11M", "--time=2", "--gres=shard:2,gpu:a100:2", "--account=acc", "--qos=q",
        "--reservation=r", "--nodelist=n[1-2]", "--partition=std", "--job-name=pb-a-1", "--no-requeue", "--parsable",
        "--nodes=1", "--ntasks=1",
    } <= set(words)  # fmt: skip
    # of two, sbatch takes the last: the pod's, the user's, the site's
    for pods, users in (("--ntasks=1", "--ntasks=2"), ("--time=2", "--time=5")):
        assert words.index(pods) < words.index(users)
    site = ["--partition=std", "--qos=q", "--reservation=r", "--nodelist=n[1-2]", "--exclusive", "--export=ALL"]
    assert words[-1] == "--exclusive"
    assert min(map(words.index, site)) > words.index("--time=5")
    assert "--gres=gpu:1" in words_of(tmp_path, request(gpus=1, gpu_resource="amd.com/gpu"))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("-p gpu -A acc", ["--partition=gpu", "--account=acc"]),
        ("--time 10:00 --exclusive", ["--time=10:00", "--exclusive"]),
        ("--exclusive=user -N2", ["--exclusive=user", "--nodes=2"]),
        ("--comment='it is; $(mine)'", ["--comment=it is; $(mine)"]),
    ],
)
def test_allowed_flags(written: str, read: list[str]) -> None:
    assert allowed_flags(shlex.split(written)) == read


@pytest.mark.parametrize(
    "words",
    [
        ["--wrap=reboot"], ["--output=/etc/x"], ["-o", "x"], ["script.sh"], ["--uid=0"], ["--export=ALL"],
        ["--array=1-9"], ["-D", "/"], ["--job-name=x"], ["--requeue"], ["--partition"], ["--partition", "--wrap=x"],
        ["-"], ["--"], [""],
        ["--get-user-env"], ["--parsable"], ["--test-only"], ["--comment=a\nb"], ["-M", "other"], ["--contiguous=x"],
        ["--nodelist=/etc/passwd"], ["-w", "./pipe"], ["-xn1,a/b"], ["--exclude", "/dev/zero"], ["--bb=#DW stage_in"],
    ],
)  # fmt: skip
def test_flags_that_are_not_allowed(words: list[str]) -> None:
    with pytest.raises(BatchError, match="flag"):
        allowed_flags(words)


CAPPED = Flavor(
    name="f", account="acc", qos="q", reservation="r", nodelist="n1", max_resources={"cpu": "4"}, flags=["-C", "ib"]
)


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--partition=big", "--partition=std"), ("-A other", "--account=acc"), ("--qos=high", "--qos=q"),
        ("--reservation=all", "--reservation=r"), ("-w n2", "--nodelist=n1"), ("-C gpu", "--constraint=ib"),
        ("--time=2", "at most 100 s"), ("--time=0", "at most"), ("-t UNLIMITED", "at most"), ("-t 1-0", "at most"),
        ("--time=0:1:41", "at most"), ("--time=-1", "at most"), ("--time-min=5", "at most"),
        # sbatch reads each of these as 0 minutes, which is no limit
        ("--time=0:0", "at most"), ("-t 00", "at most"), ("-t 0-0", "at most"), ("--time-min=0:00:00", "at most"),
        (f"--time={'9' * 5000}", "at most"),
        ("--cpus-per-task=64", "max_resources"), ("--mem=0", "max_resources"), ("--gres=gpu:8", "max_resources"),
        ("-N 9", "max_resources"), ("--exclusive", "max_resources"), ("--gpus=8", "max_resources"),
        ("--hint=nomultithread", "max_resources"),  # --threads-per-core by another name
    ],
)  # fmt: skip
def test_the_last_word_is_the_sites(tmp_path: Path, flag: str, told: str) -> None:
    with pytest.raises(BatchError, match="is not allowed") as refused:
        words_of(tmp_path, request(flavor=CAPPED, flags=tuple(shlex.split(flag)), most_seconds=100))
    assert told in str(refused.value.hint)


@pytest.mark.parametrize("flag", ["--time=1", "-t 0:1:40", "--partition=std", "-A acc", "-C ib", "--comment=x"])
def test_flags_within_a_sites_caps(tmp_path: Path, flag: str) -> None:
    words_of(tmp_path, request(flavor=CAPPED, flags=tuple(shlex.split(flag)), most_seconds=100))


@given(st.lists(st.text(max_size=20), max_size=6))
def test_what_passes_is_one_option_each_and_never_the_script(words: list[str]) -> None:
    try:
        passed = allowed_flags(words)
    except BatchError:
        return
    assert all(word.startswith("--") and word[2:3].isalpha() for word in passed)


# --- the others -------------------------------------------------------------------------------------------------------
def test_scancel_of_jobs_that_are_gone_is_no_error(tmp_path: Path) -> None:
    said = "scancel: error: Kill job error on job id 99: Invalid job id specified"
    slurm(tmp_path, f"echo '{said}' >&2; exit 1").cancel(["99", "98"])
    assert (tmp_path / "scancel.words").read_text().split() == ["98", "99"]
    with pytest.raises(BatchError, match="contact"):
        slurm(tmp_path, "echo 'scancel: error: Unable to contact slurm controller' >&2; exit 1").cancel(["99"])


def test_a_thousand_jobs_are_cancelled_by_few_commands(tmp_path: Path) -> None:
    slurm(tmp_path, f"echo x >>{tmp_path}/count").cancel([str(number) for number in range(1000)])
    assert len((tmp_path / "count").read_text().split()) == 2


def test_9_3_without_accounting_nothing_is_known_and_it_is_not_asked_again(tmp_path: Path) -> None:
    batch = slurm(tmp_path, f"echo x >>{tmp_path}/count; echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert (batch.past(["1"]), batch.past(["1"])) == ({}, {})
    assert len((tmp_path / "count").read_text().split()) == 1


def test_without_sacct_nothing_is_known_until_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bridge.site.batch.slurm.ACCOUNTING_RETRY", 0.1)
    batch = slurm(tmp_path, "echo '1|FAILED|n1|5|6|pb-a-1|3:0'")
    (tmp_path / "sacct").rename(tmp_path / "away")
    assert batch.past(["1"]) == {}
    (tmp_path / "away").rename(tmp_path / "sacct")
    time.sleep(0.1)
    assert batch.past(["1"])["1"].exit_code == 3


def test_an_error_of_sacct_is_none_of_the_job(tmp_path: Path) -> None:
    batch = slurm(tmp_path, "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1")
    with pytest.raises(BatchError, match="Connection refused") as refused:
        batch.past(["1"])
    assert refused.value.retryable


def test_a_sacct_that_hangs_is_left_alone_for_a_while(tmp_path: Path) -> None:
    batch = slurm(tmp_path, f"echo x >>{tmp_path}/count; sleep 60 & wait")
    for words in ("did not end within 2 s", "a moment ago"):
        with pytest.raises(BatchError, match=words) as refused:
            batch.past(["1"])
        assert refused.value.retryable
    assert len((tmp_path / "count").read_text().split()) == 1


def test_squeue_is_asked_for_everything_of_mine_with_times_as_numbers(tmp_path: Path) -> None:
    batch = slurm(tmp_path, "printf '1|RUNNING|n1|5|6|pb-a-1|None\\n'")
    assert (batch.find("a-1"), batch.find("a-2"), set(batch.jobs())) == ("1", None, {"1"})
    assert "SLURM_TIME_FORMAT=%s" in (tmp_path / "squeue.env").read_text().splitlines()
    assert {"--me", "--all", "--states=all"} <= set((tmp_path / "squeue.words").read_text().split())


def test_capacity_names_gpus_as_kubernetes_does(tmp_path: Path) -> None:
    batch = slurm(tmp_path, "echo 'n1|1/3/0/4|100|50|gpu:a100:2,gpu:1|gpu:a100:1,gpu:0|mixed|std|'")
    told = batch.capacity()
    assert (told.total.cpus, told.free.cpus, told.free.memory) == (4, 3, 50 * 2**20)
    assert (told.total.extended, told.free.extended) == ({"nvidia.com/gpu": 3}, {"nvidia.com/gpu": 2})


def test_a_slurmctld_that_does_not_answer(tmp_path: Path) -> None:
    batch = slurm(tmp_path, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    for ask in (batch.jobs, batch.capacity, lambda: batch.find("a")):
        with pytest.raises(BatchError) as refused:
            ask()
        assert refused.value.retryable


# --- interlink-slurm rules --------------------------------------------------------------------------------------------
def test_with_the_plugins_rules_the_users_flags_replace_the_flavors_and_these_the_pods(tmp_path: Path) -> None:
    flavor = Flavor(name="f", flags=["-p", "gpu", "--hold", "--output=x", "--comment", "a b"])
    users = ("--job-name=mine", "-t", "5", "--partition=fast", "--mem-per-cpu=2000", "--signal=B:TERM@60", "-o", "x")
    words = words_of(tmp_path, request(cpus=3, time_limit=61, flavor=flavor, flags=users, flags_win=True))
    asked = words[: words.index("--parsable")]
    assert asked == [
        "--nodes=1", "--ntasks=1", "--cpus-per-task=3", "--time=5", "--partition=fast", "--hold", "--comment=a b",
        "--mem-per-cpu=2000", "--signal=B:TERM@60",
    ]  # fmt: skip
    assert "--job-name=pb-a-1" in words and "--job-name=mine" not in words


@pytest.mark.parametrize("flags_win", [False, True])
@pytest.mark.parametrize(("users", "sites"), [((), ()), (("--comment=u",), ()), ((), ("--comment=s",))])
def test_a_comment_of_user_or_site_replaces_the_trace_context(
    tmp_path: Path, users: tuple[str, ...], sites: tuple[str, ...], flags_win: bool
) -> None:
    flavor, context = Flavor(name="f", flags=list(sites)), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    asked = request(flavor=flavor, flags=users, flags_win=flags_win, traceparent=context)
    comments = [word for word in words_of(tmp_path, asked) if word.startswith("--comment")]
    assert comments[-1] == next(iter((*users, *sites)), f"--comment=traceparent={context}"), "of two, the last counts"
    without = words_of(tmp_path, request(flavor=flavor, flags=users, flags_win=flags_win))
    assert [word for word in without if word.startswith("--comment")] == [*users, *sites]


def test_a_word_that_is_no_option_never_becomes_the_script(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="reboot"):
        words_of(tmp_path, request(flags=("-t", "5", "reboot"), flags_win=True))


def test_only_another_user_is_asked_for(tmp_path: Path) -> None:
    mine = words_of(tmp_path, request(flags=(f"--uid={os.geteuid()}",), flags_win=True))
    assert not any(word.startswith("--uid") for word in mine)
    assert "--uid=4711" in words_of(tmp_path, request(flags=("--uid=4711",), flags_win=True))
    with pytest.raises(BatchError, match="the job can't run as user 4711"):
        slurm(tmp_path).submit(request(flags=("--uid=4711",), flags_win=True))
    with pytest.raises(BatchError, match="--uid"):
        words_of(tmp_path, request(flags=("--uid=4711",)))


def test_commands_with_words_and_another_bash(tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper"
    more = f'programs = {{ sbatch = ["{wrapper}", "first"] }}\nbash = "/opt/b ash"\n'
    batch = slurm(tmp_path, "echo 5")
    wrapper.write_text(f'#!/bin/bash\n[[ $1 == first ]] && shift && exec {tmp_path}/sbatch "$@"\n')
    wrapper.chmod(0o755)
    batch = make_batch_system(parse(f'pool = "p"\n[slurm]\nbin_dir = "{tmp_path}"\n{more}'), FakeClock())
    assert batch.submit(request()) == "5"
    assert (tmp_path / "sbatch.words").read_text().splitlines()[0] == "--nodes=1"
    assert (tmp_path / "sbatch.stdin").read_text().startswith("#!/opt/b ash\nexec '/opt/b ash' '/x y/jobs/a-1'/job.sh")


def test_jobs_of_other_users_are_listed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = slurm(tmp_path)
    batch.jobs()
    assert (tmp_path / "squeue.words").read_text().splitlines()[0] == "--me"
    monkeypatch.setattr(batch_user, "users", lambda folder: {4711, 12})
    batch = slurm(tmp_path)
    batch.jobs()
    users = ",".join(map(str, sorted({os.geteuid(), 12, 4711})))
    assert (tmp_path / "squeue.words").read_text().splitlines()[0] == f"--user={users}"


@pytest.mark.parametrize("user", ["4294967295", "99999999999"])
def test_a_number_that_is_no_user_is_an_error_of_the_job(tmp_path: Path, user: str) -> None:
    folder = tmp_path / "jobs" / "u"
    folder.mkdir(parents=True)
    with pytest.raises(BatchError, match="allowed: 0 to 4294967294"):
        batch_user.hand_over(folder, ["sbatch", f"--uid={user}"])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2", 120),
        ("10:30", 630),
        ("2:03:04", 7384),
        ("1-2", 93600),
        ("1-2:03", 93780),
        ("1-2:03:04", 93784),
        ("0:10", 10),
        ("0-0:1", 60),
        ("0", float("inf")),
        ("0-00:00:00", float("inf")),
        ("UNLIMITED", float("inf")),
        ("1:2:3:4", float("inf")),
    ],
)
def test_the_times_of_sbatch_are_read(text: str, seconds: float) -> None:
    assert slurm_flags._seconds(text) == seconds


@given(st.text(max_size=20), st.text(max_size=20))
def test_what_a_script_has_written_is_no_word_for_srun(
    tmp_path_factory: pytest.TempPathFactory, job: str, host: str
) -> None:
    """Srun reads a host with a slash as the name of a file, and takes lists and ranges."""
    batch = make_batch_system(parse('pool = "p"\n[slurm]\nbin_dir = "/bin"\n'), FakeClock())
    folder = tmp_path_factory.getbasetemp()
    assert "--nodelist=node-0.site" in batch.entrance("7_3", "node-0.site", folder).words
    assert "--het-group=1" in batch.entrance("7", "node-0", folder, component=1).words
    for words in ((job, "node-0"), ("7", host)):
        try:
            batch.entrance(*words, folder)
        except BatchError:
            continue
        named = "".join(words)
        assert named.isascii() and not {*named} & {*"/,[]+= \n"}
    for bad in ("/etc/shadow", "a,b", "n[1-2]", "", "-w", "a\n"):
        with pytest.raises(BatchError):
            batch.entrance("7", bad, folder)


@pytest.mark.parametrize(
    ("listed", "ways"),
    [
        ("\tnone\n\tpmix\n\tcray_shasta\n\tpmi2\nspecific pmix plugin versions available: pmix_v5", MPI_WAYS),
        ("\tcray_shasta\n\tpmi2\n\tnone", ("none", "pmi2")),
    ],
)
def test_ways_of_mpi_are_the_plugins_that_srun_lists(tmp_path: Path, listed: str, ways: Collection[str]) -> None:
    assert [*slurm(tmp_path, f"echo 'MPI plugin types are...\n{listed}'").mpi_ways()] == [*ways]


def test_the_pods_of_a_group_ask_srun_once(tmp_path: Path) -> None:
    batch = slurm(tmp_path, f"echo asked >>{tmp_path}/asked; echo pmi2 none")
    assert [[*batch.mpi_ways()] for _ in range(3)] == [["none", "pmi2"]] * 3
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_without_an_answer_of_srun_the_job_tells_what_is_missing(tmp_path: Path) -> None:
    assert slurm(tmp_path, "exit 1").mpi_ways() == MPI_WAYS
