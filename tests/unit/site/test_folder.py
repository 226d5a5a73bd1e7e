"""The site's folder: private, whole at every moment, and not fooled by what jobs write into theirs."""

from __future__ import annotations

import importlib
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import ConfigError, SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage, File, Files
from bridge.site.jobs.job_index import FIRST_STATE
from bridge.site.jobs.job_record import Cancellation, Meta
from bridge.site.jobs.site_folder import Folder
from tests.unit.site import test_gangs
from tests.unit.site.conftest import OWNER, UID


@pytest.mark.parametrize("mode", [0o750, 0o705, 0o777])
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "site"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        Folder(path).prepare()
    assert refused.value.hint == f"chmod 700 {path}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site"
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="belongs to user 65534") as refused:
        Folder(path).prepare()
    assert refused.value.hint == "name a folder of your own in site.toml"


def test_the_folders_above_it_are_created(tmp_path: Path) -> None:
    path = tmp_path / "pools" / "a"
    Folder(path).prepare()
    Folder(path).prepare()
    assert path.stat().st_mode & 0o777 == 0o700


def test_everything_is_private(world: Any) -> None:
    world.submit()
    world.look()
    for folder, _, files in os.walk(world.path):
        assert os.stat(folder).st_mode & 0o077 == 0
        assert all(os.stat(os.path.join(folder, file)).st_mode & 0o077 == 0 for file in files)


@pytest.mark.parametrize("uid", ["", "..", "a/b", "a.b", "-a", "a" * 65, "a\n"])
def test_what_is_no_uid_names_no_folder(world: Any, uid: str) -> None:
    with pytest.raises(ValueError, match="is no UID"):
        world.folder.job(uid)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '"x"', "\xff", '{"phase": 7, "startedAt": "x"}', "9" * 70000]
)
def test_9_1_nonsense_in_a_jobs_folder_spoils_nothing(world: Any, content: str) -> None:
    world.submit()
    world.submit("other")
    world.begin()
    for name in ("state/pod.json", "state/main.json", "state/odd name.json", "batch.json", "cancel.json"):
        world.write(name, content)
    world.look(0, FIRST_STATE)  # a state that can't be read is none
    assert {job.job: job.phase for job in world.watcher.index.page(OWNER, "", 10)[1]} == {
        UID: "running",
        "other": "queued",
    }


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_a_grace_period_without_a_value_is_no_request(world: Any, number: str) -> None:
    """The code of a job may have written it: the hub's cancellation would count for nothing beside it."""
    world.run_job()
    world.write("cancel.json", f'{{"at":1.0,"grace":{number}}}')
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=3))
    world.look(1, 60)
    assert world.batch.cancelled == ["1"]


@pytest.mark.parametrize("in_group", [False, True])
@pytest.mark.parametrize("defect", [
    "bridge.site.jobs.job_folder.JobFolder.read", "bridge.site.jobs.job_status.status",
    "bridge.site.jobs.job_record.JobRecord.lifecycle", "bridge.site.jobs.job_folder.JobFolder.ask_to_stop",
])  # fmt: skip
def test_a_defect_about_one_job_costs_this_job_alone(
    world: Any, monkeypatch: pytest.MonkeyPatch, isolates: Any, defect: str, in_group: bool
) -> None:
    """Its code can change what is read of it: else it would end the submitter of all pods, and each one after that."""
    if in_group:
        test_gangs.run_all(world)
    else:
        world.submit()
        world.begin()
    bad = test_gangs.GANG if in_group else UID
    world.submit("other")
    world.begin("other")
    world.look()
    owner, _, name = defect.rpartition(".")
    module, _, kind = owner.rpartition(".")
    holder = importlib.import_module(owner) if kind.islower() else getattr(importlib.import_module(module), kind)
    whole, hits = getattr(holder, name), []

    def broken(self: Any, *more: Any, **named: Any) -> Any:
        if self.uid == bad:
            hits.append(self.uid)
            raise ValueError("a defect")
        return whole(self, *more, **named)

    for uid in (bad, "other"):
        job = world.folder.job(uid)
        job.write_cancel(Cancellation(1, 0))
        world.folder.touch(uid)
    monkeypatch.setattr(holder, name, broken)
    for again in (False, True):
        if again:
            world.again()
        world.look(1, 60)
    assert hits and isolates and "2" in world.batch.cancelled


def test_a_link_or_a_pipe_instead_of_a_state_file_is_not_followed(world: Any, tmp_path: Path) -> None:
    world.submit()
    world.begin()
    state = world.folder.job(UID).path / "state"
    secret = tmp_path / "secret.json"
    secret.write_text('{"state":"terminated","reason":"stolen"}')
    (state / "main.json").unlink()
    (state / "main.json").symlink_to(secret)
    os.mkfifo(state / "other.json")
    world.look()
    assert world.status().containers == []


@pytest.mark.parametrize("made", ["fifo", "folder", "no folder", "link"])
def test_what_a_job_made_of_its_control_directory_holds_up_no_other_job(world: Any, made: str) -> None:
    world.submit()
    world.submit("other")
    world.begin()
    world.begin("other")
    world.look()
    control = world.folder.job(UID).path / "control"
    if made == "no folder":
        control.write_text("x")
    else:
        control.mkdir()
        stop = control / "stop"
        {"fifo": lambda: os.mkfifo(stop), "folder": stop.mkdir, "link": lambda: stop.symlink_to("/dev/zero")}[made]()
    for uid in (UID, "other"):
        world.submitter.cancel(OWNER, uid, CancelMessage(grace=5))
    for again in (False, True):
        if again:
            world.again()
        world.look(1)
    assert (world.folder.job("other").path / "control" / "stop").read_text() == "5 Deleted\n"
    world.look(3600)
    assert sorted(world.batch.cancelled) == ["1", "2"]


def test_a_directory_instead_of_a_notification_is_ignored(world: Any) -> None:
    world.submit()
    world.begin()
    (world.folder.changed / "0a1b2c3d-1111-2222-3333-444455556667").mkdir()
    world.look()
    assert world.status().phase == "running" and world.watcher.folder_problems.first == ""


def test_9_1_termination_messages_need_not_be_text(world: Any) -> None:
    world.submit()
    world.begin()
    world.write("termination/main", b"\xff\xfe" + b"x" * 10000)
    world.finish(code=1)
    message = world.status().containers[0].ended.message
    assert len(message) == 4096
    assert message.startswith("\ufffd\ufffdx")


@given(
    script=st.text(st.characters(codec="utf-8"), max_size=200),
    shebang=st.booleans(),
    flag=st.text(st.characters(codec="utf-8"), max_size=5000),
)
def test_a_script_and_its_request_are_one_file(script: str, shebang: bool, flag: str) -> None:
    meta = Meta("ns", "pod", 1, 2**20, 0, "", None, ("--a b", flag), "", 30.0, 1.0, 1.5)
    script = f"#!/bin/sh\n{script}" if shebang else script
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path), sync=False)
        folder.prepare()
        job = folder.job(UID)
        assert job.meta() is None
        job.create(script, meta)
        assert job.meta() == meta
        text = (job.path / "job.sh").read_bytes().decode()
        assert text.startswith("#!")
        assert text.endswith(script.partition("\n")[2] if script.startswith("#!") else script)
        job.write_meta(replace(meta, attempts=2))
        assert job.meta() == replace(meta, attempts=2)


@pytest.mark.parametrize("content", ["", "x", "#!/bin/bash\n", "#!/bin/bash\n# podbridge: {}\nx", "\xff" * 70000])
def test_a_script_that_was_meddled_with_is_no_job(world: Any, content: str) -> None:
    world.submit()
    world.write("job.sh", content)
    assert world.folder.job(UID).read() is None


def test_a_lock_keeps_others_out(world: Any) -> None:
    order = []

    def second() -> None:
        with Folder(world.path).locked(UID):
            order.append("second")

    with world.folder.locked(UID):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_files_of_volumes_are_replaced(world: Any) -> None:
    world.submit()
    world.submitter.files(OWNER, UID, Files(files=[File(path="token/token", data="bmV3", mode=0o644)]))
    path = world.folder.job(UID).path / "volumes" / "token" / "token"
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("path", ["../job.sh", "/etc/passwd", "a/../../job.sh", "", ".", "file", "a/\0", "link/file"])
def test_files_stay_in_their_volume(world: Any, tmp_path: Path, path: str) -> None:
    world.submit()
    (world.folder.job(UID).path / "volumes").mkdir()
    (world.folder.job(UID).path / "volumes" / "link").symlink_to(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SiteRefusedError) as refused:
        world.submitter.files(OWNER, UID, Files(files=[File(path="ok/x", data=""), File(path=path, data="")]))
    assert refused.value.reason == "BadPath"
    assert sorted(tmp_path.rglob("*")) == before


def test_files_of_a_job_that_is_not_here(world: Any) -> None:
    with pytest.raises(SiteRefusedError) as refused:
        world.submitter.files(OWNER, UID, Files(files=[]))
    assert refused.value.reason == "NotFound"


def test_ten_thousand_jobs_are_read_in_seconds(world: Any) -> None:
    """A tenth of them in a tenth of the time, so that the test stays short."""
    for number in range(1000):
        job = world.folder.job(f"u-{number:04d}")
        (job.path / "state").mkdir(parents=True)
        (job.path / "started").mkdir()
        (job.path / "job.json").write_text(_META)
        (job.path / "job.id").write_text(f"{number}\n")
        (job.path / "state" / "pod.json").write_text('{"phase":"Running"}')
        (job.path / "state" / "main.json").write_text('{"state":"running"}')
    began = time.process_time()
    world.again()
    assert time.process_time() - began < 1.5
    assert world.watcher.index.counts() == {"running": 1000}


_META = (
    '{"namespace":"ns","name":"n","cpus":1,"memory":1,"gpus":0,"gpu_resource":"","time_limit":null,"flags":[],'
    '"flavor":"","grace":1,"submitted_at":1,"attempted_at":1}'
)
