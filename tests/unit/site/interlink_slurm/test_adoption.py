"""Jobs that the interLink Slurm plugin left running become jobs of podbridge, once, whatever fails in between."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError
from bridge.protocol.model.requests import LogOptions
from bridge.protocol.nats.messages import CancelMessage, SubmitMessage
from bridge.site.batch import adopted, slurm_text
from bridge.site.batch.batch_interface import BatchJob
from bridge.site.interlink_slurm import adopted_jobs
from bridge.site.interlink_slurm.adoption import Adoption
from bridge.site.jobs.job_folder import JobFolder
from bridge.site.jobs.site_folder import Folder
from tests.fakes import slurm_plugin_job
from tests.unit.site.conftest import OWNER, UID, World


def write(root: Path) -> Path:
    path = slurm_plugin_job.write(
        root, UID, [("main", "true"), ("side", "true")], init=[("init", "true")], namespace="ns"
    )
    slurm_plugin_job.submitted(path, UID, "77", "ns")
    return path


class Left:
    """A site with one job of the plugin, and its Slurm job 77."""

    def __init__(self, path: Path) -> None:
        self.root = path / "jobs"
        self.path = write(self.root)
        self.world = World(path)
        self.world.batch.table["77"] = BatchJob(id="77", uid=UID, phase="queued", reason="Priority")
        self.again()

    def again(self) -> None:
        self.world.again()
        self.adoption = Adoption(self.root, self.world.folder)
        self.adoption.begin()
        self.world.watcher.release_leadership()
        assert self.world.watcher.take_leadership()

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.path / name.replace("__", "-").replace("_", ".")).write_text(text)

    def look(self, seconds: float = 0.0) -> None:
        self.adoption.refresh()
        self.world.look(seconds)

    def status(self) -> Any:
        return self.world.status()

    def containers(self) -> dict[str, Any]:
        return {
            state.name: (state.state, state.ended.exit_code if state.ended else None)
            for state in self.status().containers
        }


@pytest.fixture
def left(tmp_path: Path) -> Left:
    return Left(tmp_path)


def test_a_pending_job_is_queued_with_its_slurm_id(left: Left) -> None:
    left.look()
    status = left.status()
    assert (status.phase, status.job_id, status.reason, status.namespace) == ("queued", "77", "Priority", "ns")
    assert not left.world.batch.submits


def test_a_job_belongs_to_the_first_cluster_that_asks_for_it_and_is_told_to_no_other(left: Left) -> None:
    left.write(run__main_out="")
    left.look()
    assert left.world.events == [] and left.world.watcher.index.sequences == {}
    assert left.status().owner == OWNER
    left.write(run__main_status="0\n")
    left.look()
    assert [status.owner for _, status in left.world.events] == [OWNER] * len(left.world.events) != []


@pytest.mark.parametrize("error", [OSError(errno.EDQUOT, "quota"), ValueError("a defect")])
def test_a_job_that_can_not_be_read_delays_no_other(
    left: Left, monkeypatch: pytest.MonkeyPatch, isolates: Any, error: Exception
) -> None:
    bad = "00000000-0000-4000-8000-000000000001"
    path = slurm_plugin_job.write(left.root, bad, [("main", "true")], namespace="ns")
    slurm_plugin_job.submitted(path, bad, "78", "ns")
    left.again()
    whole = adopted_jobs.look

    def look(job: Any, listed: Any) -> Any:
        if job.uid == bad:
            raise error
        return whole(job, listed)

    monkeypatch.setattr(adopted_jobs, "look", look)
    left.write(job_out="", init__init_out="preparing\n")
    left.look()
    assert left.containers()["init"] == ("running", None)


def test_the_life_of_a_job(left: Left) -> None:
    left.write(job_out="", init__init_out="preparing\n")
    left.look()
    assert left.containers() == {"init": ("running", None), "main": ("waiting", None), "side": ("waiting", None)}
    left.write(init__init_status="0\n", run__main_out="hello\n", run__side_out="")
    left.world.batch.run("77")
    left.look()
    assert left.status().phase == "running"
    assert left.containers() == {"init": ("terminated", 0), "main": ("running", None), "side": ("running", None)}
    left.write(run__main_status="3\n")
    left.look()
    assert left.containers()["main"] == ("terminated", 3) and left.status().phase == "running"
    left.write(run__side_status="0\n", StartedAt_time="2026-07-14 10:11:12.5 +0000 UTC")
    left.look()
    done = left.status()
    assert (done.phase, done.outcome, done.started_at) == ("ended", "Failed", 1784023872.5)
    pieces = left.world.submitter.log(OWNER, UID, LogOptions(container="main"), lambda _: False)
    assert b"".join(pieces) == b"hello\n"
    left.world.batch.end("77", code=3)
    left.look()
    left.world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
    left.look()
    left.look()
    assert left.status() is None and not left.path.exists()
    assert not left.world.batch.submits and not left.world.batch.cancelled


def test_output_that_grows_is_read_as_it_grows(left: Left) -> None:
    left.write(run__main_out="one\n")
    left.look()
    with (left.path / "run-main.out").open("a") as file:
        file.write("two\n")
    pieces = left.world.submitter.log(OWNER, UID, LogOptions(container="main"), lambda _: False)
    assert b"".join(pieces) == b"one\ntwo\n"


def test_an_init_container_that_fails_ends_the_job(left: Left) -> None:
    left.write(init__init_out="", init__init_status="9\n")
    left.look()
    assert (left.status().phase, left.status().outcome) == ("ended", "Failed")
    assert left.containers() == {"init": ("terminated", 9), "main": ("waiting", None), "side": ("waiting", None)}


def test_a_job_that_slurm_ended_has_slurms_reason(left: Left) -> None:
    left.write(init__init_status="0\n", run__main_out="", run__side_out="")
    left.world.batch.run("77")
    left.look()
    left.world.batch.end("77", "DeadlineExceeded")
    left.look()
    left.look(seconds=10)
    assert (left.status().outcome, left.status().reason) == ("Failed", "DeadlineExceeded")
    assert left.containers()["main"] == ("terminated", 137)


def test_a_running_job_is_cancelled_at_once_with_any_grace_period(left: Left) -> None:
    left.write(run__main_out="")
    left.world.batch.run("77")
    left.look()
    left.world.submitter.cancel(OWNER, UID, CancelMessage(grace=600, forget=True))
    left.look()
    assert left.world.batch.cancelled == ["77"]
    for _ in range(4):
        left.look(seconds=10)
    assert left.status() is None and not left.path.exists()
    left.again()
    assert left.status() is None


def test_nothing_is_submitted_twice(left: Left) -> None:
    left.look()
    body = SubmitMessage(namespace="ns", name="pod", script="true\n")
    assert left.world.submitter.submit(OWNER, UID, body).existed
    left.again()
    left.look()
    del left.world.batch.table["77"]
    for _ in range(6):
        left.look(seconds=100)
    assert left.world.submitter.submit(OWNER, UID, body).existed
    assert not left.world.batch.submits
    assert (left.status().phase, left.status().outcome) == ("ended", "Failed")


@pytest.mark.parametrize("broken", ["create", "write_id", "put"])
def test_a_crash_while_a_job_is_adopted_leaves_nothing_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    root = tmp_path / "jobs"
    write(root)
    folder = Folder(tmp_path / "site")
    folder.prepare()
    with monkeypatch.context() as patch:
        if broken == "put":
            patch.setattr(adopted, "put", crash)
        else:
            patch.setattr(JobFolder, broken, crash)
        with pytest.raises(KeyboardInterrupt):
            Adoption(root, folder).begin()
    world = World(tmp_path)
    Adoption(root, world.folder).begin()
    assert list(adopted.read(world.folder.path)) == [UID]
    world.watcher.release_leadership()
    assert world.watcher.take_leadership()
    world.batch.table["77"] = BatchJob(id="77", uid=UID, phase="queued")
    world.look()
    assert world.status().job_id == "77" and not world.batch.submits


def test_a_crash_before_the_plugins_directory_is_removed(left: Left) -> None:
    left.look()
    left.world.batch.end("77", "Cancelled")
    left.world.submitter.cancel(OWNER, UID, CancelMessage(grace=0, forget=True))
    left.world.look(10)
    assert left.path.exists()
    left.again()
    assert left.status() is None
    left.look()
    assert not left.path.exists() and not adopted.read(left.world.folder.path)


def test_directories_that_are_no_jobs(left: Left) -> None:
    (left.root / "podbridge").mkdir()
    wrong = left.root / "odd"
    wrong.mkdir()
    slurm_plugin_job.submitted(wrong, "b" * 8, "78")
    link = left.root / "ns-link"
    link.symlink_to(left.path)
    found, bad = adopted_jobs.find(left.root)
    assert [job.uid for job in found] == [UID] and bad == ["odd"]
    assert adopted_jobs.find(left.root / "none") == ([], [])


def test_a_folder_that_cannot_be_read_is_named(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", no)
    with pytest.raises(ConfigError, match=r"adopt_from: .*jobs can't be read: Permission denied"):
        adopted_jobs.find(left.root)


def test_output_on_another_file_system_is_copied_at_the_end(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no)
    left.write(init__init_status="0\n", run__main_out="hello\n", run__side_out="")
    left.look()
    left.write(run__main_status="0\n", run__side_status="0\n")
    left.look()
    assert (left.world.folder.job(UID).path / "logs/main.log").read_text() == "hello\n"


def test_slurm_names_an_adopted_job_by_its_id_and_name() -> None:
    output = f"77|RUNNING|node-0|1|2|{UID}|None\n78|RUNNING|node-0|1|2|{UID}|None\n79|RUNNING|n|1|2|other|None\n"
    names = {"77": (UID, UID), "79": ("b", "mine")}
    assert [(job.id, job.uid) for job in slurm_text.jobs(output, names)] == [("77", UID)]
    assert [job.uid for job in slurm_text.past_jobs(f"77|FAILED|n1|10|20|{UID}|3:0\n", adopted=names)] == [UID]


def test_the_name_of_a_job_may_be_the_users(tmp_path: Path) -> None:
    path = slurm_plugin_job.write(tmp_path, UID, [("main", "true")], flags=["--job-name=mine"])
    slurm_plugin_job.submitted(path, UID, "5")
    (job,), _ = adopted_jobs.find(tmp_path)
    assert job.name == "mine"


def test_times_as_go_prints_them() -> None:
    assert adopted_jobs.moment("2026-07-14 10:11:12.123456789 +0200 CEST") == pytest.approx(1784016672.123456789)
    assert adopted_jobs.moment("2026-07-14 10:11:12 +0000 UTC") == 1784023872
    assert adopted_jobs.moment("0001-01-01 00:00:00 +0000 UTC") is not None
    assert adopted_jobs.moment("soon") is None


@given(st.text(max_size=60))
def test_any_time_is_read_or_not(text: str) -> None:
    adopted_jobs.moment(text)


NAMES = st.sampled_from(["a", "b-1", "c"])
FILES = st.dictionaries(
    st.builds(
        lambda kind, name, end: f"{kind}-{name}.{end}",
        st.sampled_from(["init", "run"]),
        NAMES,
        st.sampled_from(["out", "status"]),
    ),
    st.floats(1, 10),
)


@given(
    st.lists(st.tuples(NAMES, st.booleans()), max_size=3, unique_by=lambda pair: pair[0]),
    FILES,
    st.dictionaries(NAMES.map(lambda name: f"run-{name}.status"), st.sampled_from(["0", "3", "", "x", "0\n"])),
)
def test_any_files_give_a_state(listed: list[tuple[str, bool]], files: dict[str, float], codes: dict[str, str]) -> None:
    seen = adopted_jobs.state(listed, files, codes, None)
    assert not listed or [container.name for container in seen.containers] == [name for name, _ in listed]
    assert not seen.ended or seen.started
    assert adopted_jobs.records(seen)["phase"] == (
        "Running" if not seen.ended else "Succeeded" if seen.succeeded else "Failed"
    )
    for container in seen.containers:
        assert adopted_jobs.records(seen, container)["state"] in ("waiting", "running", "terminated")


@given(st.text(max_size=200))
def test_any_script_has_containers_or_none(text: str) -> None:
    assert all(name == name.lower() for name, _ in adopted_jobs.containers_of(text))
