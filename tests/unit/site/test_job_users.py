"""The user of its jobs that a site announces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bridge.protocol.model.announcement import Announcement, JobUser
from bridge.site import measuring
from bridge.site.announce import Announcer
from bridge.site.config.site_config import parse
from tests.unit.site.test_announce import Heard

APPTAINER, PODMAN = parse('pool = "p"'), parse('pool = "p"\n[runtime]\nkind = "podman"')


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user, 1000 (me), on a machine with newuidmap and newgidmap."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 100)
    monkeypatch.setattr(measuring, "_account", lambda uid: ("me", 100))
    monkeypatch.setattr(measuring.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(measuring, "_has_own_numbers", lambda: True)


@pytest.mark.usefixtures("user")
def test_the_jobs_of_an_ordinary_user_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measuring.job_user(APPTAINER, one_machine=False) == JobUser(uid=1000, gid=100)
    monkeypatch.setattr(os, "getegid", lambda: 101)  # newgrp: batch systems give jobs the usual group
    assert measuring.job_user(APPTAINER, one_machine=False) == JobUser(uid=1000)
    assert measuring.job_user(APPTAINER, one_machine=True) == JobUser(uid=1000, gid=101)


@pytest.mark.usefixtures("user")
def test_no_user_is_announced_that_is_not_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measuring.job_user(parse('pool = "p"\n[limits]\nrules = "interlink-slurm"'), one_machine=True) is None
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert measuring.job_user(APPTAINER, one_machine=False) is None
    assert measuring.job_user(APPTAINER, one_machine=True) == JobUser(uid=0, gid=100)
    monkeypatch.setattr(measuring, "_has_own_numbers", lambda: False)
    assert measuring.job_user(APPTAINER, one_machine=True) is None


@pytest.mark.parametrize("text", ["         0       1000          1\n", "0 0 1\n"])
def test_the_numbers_of_a_user_namespace_are_not_those_of_jobs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str
) -> None:
    monkeypatch.setattr(measuring, "_UID_MAP", tmp_path / "uid_map")
    assert measuring.job_user(APPTAINER, one_machine=True) is None
    (tmp_path / "uid_map").write_text(text)
    assert measuring.job_user(APPTAINER, one_machine=True) is None
    (tmp_path / "uid_map").write_text("         0          0 4294967295\n")
    assert measuring.job_user(APPTAINER, one_machine=True) is not None


@pytest.mark.usefixtures("user")
@pytest.mark.parametrize(
    ("subuid", "most"),
    [
        ("me:100000:65536\n", 65536),
        ("you:1:5\n1000:100000:10\nme:200000:20\n", 30),
        ("you:1:5\n", 0),
        (None, 0),
        ("me:100000:many\n", None),
    ],
)
def test_ids_of_podman(tmp_path: Path, subuid: str | None, most: int | None) -> None:
    if subuid is not None:
        (tmp_path / "subuid").write_text(subuid)
    (tmp_path / "subgid").write_text("me:5:7\n")
    expected = JobUser(uid=1000, gid=100, most_uid=most, most_gid=7)
    assert measuring.job_user(PODMAN, one_machine=True, etc=tmp_path) == expected
    assert measuring.job_user(PODMAN, one_machine=False, etc=tmp_path) == JobUser(uid=1000, gid=100)
    (tmp_path / "nsswitch.conf").write_text("passwd: files\nsubid: sss\n")
    assert measuring.job_user(PODMAN, one_machine=True, etc=tmp_path) == JobUser(uid=1000, gid=100)


@pytest.mark.usefixtures("user")
def test_no_program_that_maps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measuring.shutil, "which", lambda name: None)
    (tmp_path / "subuid").write_text("me:1:65536\n")
    found = measuring.job_user(PODMAN, one_machine=True, etc=tmp_path)
    assert found is not None and (found.most_uid, found.most_gid) == (0, 0)


def test_it_is_announced_and_other_versions_read_the_rest(world: Any, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue("user")  # the directory belongs to who runs the tests
    told = Announcer(world.folder, world.batch, world.watcher, lambda: world.config, Heard(), world.clock).make()
    assert told.user == JobUser(uid=1000, gid=100)
    sent = told.model_dump(mode="json")
    newer = sent | {"user": sent["user"] | {"later": 1}, "later": {}}
    assert Announcement.model_validate(newer).user == told.user
    del sent["user"]
    assert Announcement.model_validate(sent).user is None
