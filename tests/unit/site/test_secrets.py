"""What a job was given goes when it has ended, however it ended; the request stays for who reads it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.protocol.nats.messages import CancelMessage, File, Files, SubmitMessage
from bridge.site.jobs.action_runner import SECRETS_KEPT
from tests.unit.site.conftest import OWNER, UID

WORD = "c2VjcmV0LXdvcmQ="
SCRIPT = f"#!/bin/bash\nput login/password 644 <<'END'\n{WORD}\nEND\n"


def holders(folder: Path) -> list[Path]:
    """List the files of a site that hold the word."""
    return [path for path in folder.rglob("*") if path.is_file() and WORD.encode() in path.read_bytes()]


def submit(world: Any) -> None:
    world.submitter.submit(OWNER, UID, SubmitMessage(namespace="ns", name="pod", script=SCRIPT))
    assert holders(world.path)


def leave(world: Any) -> None:
    """What a script writes that is killed later."""
    for name in ("volumes/login/password", "run/docker/config.json", "run/main.env", "run/main.env.more", "run/x.rc"):
        world.write(name, WORD)
    world.write("logs/main.log", "its own words")


def test_a_killed_script(world: Any) -> None:
    submit(world)
    world.begin()
    leave(world)
    world.batch.end("1", "NodeFail")
    world.look(1)
    world.look(SECRETS_KEPT / 2)
    assert holders(world.path)  # the guard may be about to end what is left
    world.look(SECRETS_KEPT)
    assert holders(world.path) == []
    job = world.folder.job(UID).path
    assert (job / "logs" / "main.log").read_text() == "its own words"
    before = world.status()
    world.again()
    assert world.status() == before and before.name == "pod"


@pytest.mark.parametrize("known", [True, False], ids=["queued", "never submitted"])
def test_a_job_that_never_started(world: Any, known: bool) -> None:
    if known:
        submit(world)
    else:
        world.batch.swallow = True
        with pytest.raises(Exception, match="no answer"):
            submit(world)
    assert holders(world.path)
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    for _ in range(4):
        world.look(100)
    assert world.status().phase == "ended" and holders(world.path) == []
    # it is still a job, for the next submitter too
    world.again()
    assert (world.status().phase, world.status().name) == ("ended", "pod")


def test_a_token_that_comes_late_is_not_written(world: Any) -> None:
    submit(world)
    world.begin()
    world.finish()
    world.submitter.files(OWNER, UID, Files(files=[File(path="login/token", data=WORD)]))
    assert not (world.folder.job(UID).path / "volumes").exists()


def test_a_job_that_runs_keeps_what_it_has(world: Any) -> None:
    submit(world)
    world.begin()
    leave(world)
    for _ in range(3):
        world.look(SECRETS_KEPT)
    assert len(holders(world.path)) == 6


def test_ended_jobs_are_looked_through_once(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(world)
    seen: list[str] = []
    monkeypatch.setattr("bridge.site.jobs.job_folder.JobFolder.drop_secrets", lambda self: seen.append(self.uid))
    world.submitter.cancel(OWNER, UID, CancelMessage(grace=0))
    for _ in range(3):
        world.look(SECRETS_KEPT)
    assert seen == [UID]
