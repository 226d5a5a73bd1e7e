"""The scripts of a group's job: what the launcher does for all wrappers of its machine."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.site.batch.batch_interface import BatchJobRequest, GangStarter
from bridge.site.gangs import launcher

SIZE = 3
# a wrapper that has napped waited for something before its pod
WATCHED = """\
nap() { printf '%s\\n' "$BASHPID" >>naps; command sleep 0.02; }
run_script() {
    local waited=no
    ! grep -qx "$BASHPID" naps 2>/dev/null || waited=yes
    printf '%s\\n' "$PODBRIDGE_BEGIN_TIME $PODBRIDGE_GROUP_HOSTS $waited" >"ran.$1"
    record_end "$1" "$2" 0
}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The directory of the job of a group with its pods on one machine."""
    (tmp_path / "changed").mkdir()
    folder = tmp_path / "jobs" / "gang"
    (folder / "ranks").mkdir(parents=True)
    for rank in range(SIZE):
        pod = tmp_path / "jobs" / f"pod-{rank}"
        pod.mkdir()
        (pod / "job.sh").touch()
        (folder / "ranks" / str(rank)).write_text(f"pod-{rank}\n\nns/w-{rank}\n")
    request = replace(BatchJobRequest(uid="gang", folder=folder), members=SIZE, together=SIZE)
    head, case, tail = launcher.script([request], GangStarter()).rpartition("case ${1-} in")
    (folder / "job.sh").write_text(f"{head}{WATCHED}{case}{tail}")
    return folder


def run(job: Path) -> str:
    variables = {"PATH": "/usr/bin:/bin", "PODBRIDGE_START_WAIT_SECONDS": "1", "HOSTNAME": "m1"}
    done = subprocess.run(["bash", str(job / "job.sh")], env=variables, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return (job / "state" / "pod.json").read_text()


def test_no_wrapper_of_a_group_on_one_machine_waits_for_the_others(job: Path) -> None:
    assert '"phase":"Succeeded"' in run(job)
    assert [(job / f"ran.{rank}").read_text() for rank in range(SIZE)] == [f"{100 + 4 * SIZE} m1,m1,m1 no\n"] * SIZE


def test_no_pod_starts_before_all_wrappers_exist(job: Path) -> None:
    script = job / "job.sh"
    head, case, tail = script.read_text().rpartition("case ${1-} in")
    # the number of wrappers, and the pods that have started some time later
    seen = 'let_go() { [[ ! -e seen ]] || return 0; sleep 0.3; printf "%s" "${#TASKS[@]}" ran.* >seen; write_hosts; '
    script.write_text(f'{head}{seen}put go "$MACHINES"; }}\n{case}{tail}')
    assert '"phase":"Succeeded"' in run(job)
    assert (job / "seen").read_text() == f"{SIZE}ran.*"
    assert [(job / f"ran.{rank}").read_text() for rank in range(SIZE)] == [f"{100 + 4 * SIZE} m1,m1,m1 no\n"] * SIZE


def test_no_pod_starts_if_a_wrapper_cannot_report_that_it_is_ready(job: Path) -> None:
    (job / "ready" / "1").mkdir(parents=True)
    variables = {"PATH": "/usr/bin:/bin", "PODBRIDGE_START_WAIT_SECONDS": "1", "HOSTNAME": "m1"}
    subprocess.run(["bash", str(job / "job.sh")], env=variables, capture_output=True, timeout=60)
    assert '"reason":"MemberNotStarted"' in (job / "state" / "pod.json").read_text()
    assert [*job.glob("ran.*")] == []
