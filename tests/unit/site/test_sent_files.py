"""Files that a hub sends for the volumes of a job: they stay in them, and what is no longer there is removed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.nats.messages import File, Files
from tests.unit.site.conftest import OWNER, UID


@pytest.fixture
def volumes(world: Any) -> Path:
    world.submit()
    return world.folder.job(UID).path / "volumes"


def send(world: Any, files: dict[str, str] | None = None, **volumes: list[str]) -> None:
    sent = [File(path=path, data=data, mode=0o644) for path, data in (files or {}).items()]
    world.submitter.files(OWNER, UID, Files(files=sent, volumes=volumes))


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_removed_keys(world: Any, volumes: Path) -> None:
    send(world, {"conf/a": "bmV3", "conf/sub/b": "bmV3", "conf/sub/c": "bmV3", "other/a": "bmV3"})
    assert (volumes / "conf/sub").stat().st_mode & 0o777 == 0o755
    send(world, {"conf/d": "bmV3"}, conf=["a", "sub/b", "d"])
    assert names(volumes / "conf") == ["a", "d", "sub/b"] and names(volumes / "other") == ["a"]
    send(world, conf=[])
    assert names(volumes / "conf") == []


def test_a_job_whose_script_has_not_begun_gets_the_list(world: Any, volumes: Path) -> None:
    send(world, conf=["a", "b"])
    assert (volumes / ".files/conf").read_text() == "a\nb\n"
    assert not (volumes / "conf").exists()


def test_a_request_of_an_older_hub_removes_nothing(world: Any, volumes: Path) -> None:
    send(world, {"conf/a": "bmV3"})
    send(world, {"conf/b": "bmV3"})
    assert names(volumes / "conf") == ["a", "b"] and not (volumes / ".files").exists()


@pytest.mark.parametrize("volume", ["..", ".", "", ".files", "a/b", "/etc", "../logs", "A", "a\n", "-a"])
def test_lists_are_of_volumes_alone(world: Any, volumes: Path, volume: str) -> None:
    world.write("logs/main.log", "its own words")
    with pytest.raises(SiteRefusedError) as refused:
        send(world, {"conf/a": "bmV3"}, **{volume: []})
    assert refused.value.reason == "BadPath"
    assert not volumes.exists(), "all is checked before the first file is written"
    assert (volumes.parent / "logs/main.log").exists()


@pytest.mark.parametrize("path", ["a\nb", "\0"])
def test_paths_in_lists(world: Any, volumes: Path, path: str) -> None:
    with pytest.raises(SiteRefusedError, match="no path of a file"):
        send(world, conf=[path])


def test_the_list_itself_is_no_file_of_a_volume(world: Any, volumes: Path) -> None:
    with pytest.raises(SiteRefusedError, match="no path of a file below a volume"):
        send(world, {".files/conf": "bmV3"})


@pytest.mark.parametrize("link", ["conf", "conf/sub", ".files", ".files/conf"])
def test_links_of_the_job_lead_nowhere(world: Any, volumes: Path, tmp_path: Path, link: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("x")
    (volumes / link).parent.mkdir(parents=True)
    (volumes / link).symlink_to(elsewhere / "precious" if link == ".files/conf" else elsewhere)
    try:
        send(world, conf=[])
    except SiteRefusedError as error:
        assert error.reason == "BadPath"
    assert names(elsewhere) == ["precious"] and (elsewhere / "precious").read_text() == "x"


def test_an_emptydir_is_out_of_reach(world: Any, volumes: Path) -> None:
    """Volumes of other kinds are not in the directory ``volumes``, and no path leads out of it."""
    world.write("scratch/disk/data", "x")
    send(world, {"disk/data": "bmV3"}, disk=[])
    assert (volumes.parent / "scratch/disk/data").read_text() == "x"


def test_another_owner_is_refused(world: Any, volumes: Path) -> None:
    with pytest.raises(SiteRefusedError):
        world.submitter.files("other", UID, Files(files=[], volumes={"conf": []}))
    assert not volumes.exists()


def test_the_longest_names(world: Any, volumes: Path) -> None:
    send(world, {f"conf/{'k' * 253}": "bmV3", f"conf/{'ä' * 127}": "bmV3"})
    assert len(os.listdir(volumes / "conf")) == 2
