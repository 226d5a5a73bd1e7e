"""What scripts have measured: who may see it, how old it may be, and what a job can do to the answer."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.model.jobs import ContainerUse
from bridge.protocol.nats.messages import UsageRequest
from bridge.site.container_usage import LEAST_GAP, STALE, parse
from tests.unit.site.conftest import OWNER, UID

WRITTEN = b"170000000012\nmain 2 150 1024\nside 0 1 4\n"


def usage(world: Any, owner: str = OWNER, *jobs: str) -> tuple[Any, ...]:
    found: tuple[Any, ...] = world.submitter.usage(owner, "", UsageRequest(jobs=list(jobs or (UID,)))).jobs
    return found


def measured(world: Any, content: bytes = WRITTEN, age: float = 0.0) -> None:
    path = world.folder.job(UID).path / "run" / "usage"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (time.time() - age,) * 2)


def test_a_measurement_of_a_running_job(world: Any) -> None:
    world.run_job(1)
    assert usage(world) == (), "no script has measured"
    measured(world)
    (found,) = usage(world)
    assert (found.job, found.at) == (UID, 1_700_000_000.12)
    assert found.containers == [
        ContainerUse(name="main", restarts=2, cpu=1.5, memory=2**20),
        ContainerUse(name="side", restarts=0, cpu=0.01, memory=4096),
    ]
    assert usage(world, "c2") == (), "another cluster"
    assert usage(world, OWNER, "unknown-job") == ()
    measured(world, age=STALE + 60)
    assert usage(world) == ()


def test_a_submitter_that_does_not_lead_answers_too(world: Any) -> None:
    world.run_job(1)
    measured(world)
    world.watcher.release_leadership()
    assert len(usage(world)) == 1
    assert usage(world, "c2") == ()


def test_scripts_are_asked_at_a_bounded_rate(world: Any) -> None:
    world.run_job(1)
    ask = world.folder.path / "usage"
    usage(world)
    os.utime(ask, (1000.0, 1000.0))
    usage(world)
    assert ask.stat().st_mtime == 1000.0
    world.clock.advance(LEAST_GAP)
    usage(world)
    assert ask.stat().st_mtime > 1000.0


def test_what_cannot_be_asked_is_refused_in_words(world: Any) -> None:
    world.run_job(1)
    (world.folder.path / "usage").symlink_to("/dev/null")
    with pytest.raises(SiteRefusedError, match="the use of CPU and memory can't be requested"):
        usage(world)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"nan\n", b"-1\n", b"1 2\n", "\N{ARABIC-INDIC DIGIT ONE}\n".encode(), b"9" * 16, b"\xff\n"]
)
def test_a_file_that_a_job_has_changed_is_left_out(content: bytes) -> None:
    assert parse(UID, content) is None


@pytest.mark.parametrize(
    "line",
    [b"main 0 1", b"main 0 -1 1", b"main 0 1e9 1", b"../x 0 1 1", b"main 0 1 1 1", b"main 0 1 9999999999999", b"\0"],
)
def test_a_line_that_a_job_has_changed_is_left_out(line: bytes) -> None:
    found = parse(UID, b"1\n" + line + b"\ngood 0 1 1\n")
    assert found is not None and [each.name for each in found.containers] == ["good"]


def test_no_job_makes_an_answer_large_or_invalid(world: Any) -> None:
    world.run_job(1)
    line = b"main 999999999 999999999999999 999999999999\n"
    measured(world, b"999999999999999\n" + line * 10_000)
    (found,) = usage(world)
    assert len(found.containers) == 256


def test_no_job_makes_the_submitter_read_another_file_or_wait(world: Any, tmp_path: Any) -> None:
    world.run_job(1)
    measured(world)
    path = world.folder.job(UID).path / "run" / "usage"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert usage(world) == ()
    path.unlink()
    os.mkfifo(path)
    assert usage(world) == ()
    path.unlink()
    path.parent.rmdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "run" / "usage")
    path.parent.symlink_to(tmp_path / "run")
    assert usage(world) == ()
