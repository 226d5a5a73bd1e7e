"""The folder's id, and what is done about batch jobs of another folder."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import BatchError, ConfigError, SiteRefusedError
from bridge.protocol.nats.messages import CancelMessage
from bridge.site.batch.batch_interface import BatchJob
from bridge.site.jobs.site_folder import Folder
from bridge.site.service import LiveConfig, Service
from tests.unit.site.conftest import OWNER, UID


def test_the_id_is_made_once_whoever_comes_first(tmp_path: Path) -> None:
    folders = [Folder(tmp_path / "site") for _ in range(16)]
    start = threading.Barrier(len(folders))

    def prepare(folder: Folder) -> None:
        start.wait()
        folder.prepare()

    threads = [threading.Thread(target=prepare, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.id for folder in folders}) == 1
    assert len(folders[0].id) == 16
    again = Folder(tmp_path / "site")
    again.prepare()
    assert again.id == folders[0].id
    assert [path.name for path in (tmp_path / "site").iterdir() if path.name.startswith(".")] == []
    other = Folder(tmp_path / "other")
    other.prepare()
    assert other.id != again.id


def test_an_id_that_is_none_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "site")
    folder.prepare()
    (tmp_path / "site" / "id").write_text("mine\n")
    with pytest.raises(ConfigError, match="16 digits"):
        Folder(tmp_path / "site").prepare()


def test_two_pools_do_not_share_a_folder(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(f'pool = "b"\nfolder = "{tmp_path}/site"\nbatch.kind = "local"\n')
    Folder(tmp_path / "site").prepare("a")
    with pytest.raises(ConfigError, match=r"pool = \"b\" and folder = .*belongs to pool 'a'") as refused:
        Service(LiveConfig(tmp_path / "b.toml", None), pool="b")
    assert f"remove {tmp_path}/site/pool" in str(refused.value.hint)
    Folder(tmp_path / "site").prepare("a")
    Service(LiveConfig(tmp_path / "b.toml", None))  # that of a plugin serves no pool
    (tmp_path / "site" / "pool").unlink()  # the pool is renamed
    Service(LiveConfig(tmp_path / "b.toml", None), pool="b")
    assert (tmp_path / "site" / "pool").read_text() == "b\n"


def test_a_folder_of_an_earlier_version_gets_the_name_of_its_pool(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "site")
    folder.prepare()
    known = folder.id
    folder.prepare("a")
    assert (folder.id, (tmp_path / "site" / "pool").read_text()) == (known, "a\n")


def test_a_pod_that_the_batch_system_has_from_another_folder_is_not_submitted_again(world: Any) -> None:
    world.batch.table["77"] = BatchJob(id="77", uid=UID, phase="running")
    with pytest.raises(SiteRefusedError, match="already has job 77 of this pod") as refused:
        world.submit()
    assert (refused.value.reason, refused.value.retryable) == ("SubmittedElsewhere", True)
    assert world.batch.submits == []
    assert not world.folder.job(UID).exists()
    for _ in range(3):
        world.look(60)
    assert world.batch.cancelled == []
    world.batch.end("77")
    world.look(1)
    world.submit()
    assert len(world.batch.submits) == 1


def test_a_batch_job_without_a_record_ends_when_the_hub_forgets_it(world: Any) -> None:
    world.batch.table["77"] = BatchJob(id="77", uid=UID, phase="running")
    for _ in range(3):
        world.look(60)
    assert world.batch.cancelled == []
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=30, forget=True))
    assert world.folder.is_forgotten(UID, OWNER)
    world.look(1)
    assert world.batch.cancelled == ["77"]


def test_a_batch_job_ends_whose_folder_was_emptied_when_the_hub_forgets_it(world: Any) -> None:
    world.run_job()
    shutil.rmtree(world.folder.jobs / UID)
    world.look(60)
    assert (world.status(), world.batch.cancelled) == (None, [])
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=30, forget=True))
    world.look(1)
    assert world.batch.cancelled == ["1"]


def test_many_submits_ask_for_one_list(world: Any) -> None:
    for number in range(50):
        world.submit(f"job-{number}")
    assert world.batch.queries == 1
    world.clock.advance(60)
    world.submit("late")
    assert world.batch.queries == 2
    for number in range(20):  # the leader has asked: no other thread does
        world.look(1)
        world.submit(f"more-{number}")
    assert world.batch.queries == 22


def test_a_batch_system_that_gives_no_list_is_asked_once_in_a_while(world: Any) -> None:
    world.batch.down = True
    asked: list[int] = []
    real = world.batch.jobs
    world.batch.jobs = lambda: asked.append(1) or real()
    for number in range(10):
        with pytest.raises(BatchError):
            world.submit(f"job-{number}")
    assert len(asked) == 1
    assert list(world.folder.jobs.iterdir()) == []
    world.batch.down = None
    world.clock.advance(5)
    world.submit()
