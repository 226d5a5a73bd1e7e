"""What a site says of itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.errors import SiteDownError
from bridge.protocol.nats.messages import Announce, BuildConfigMessage, Empty
from bridge.script import library
from bridge.site.announce import Announcer, Presence, runtime_version
from bridge.site.config.site_config import parse


class Heard:
    def __init__(self) -> None:
        self.announced: list[Any] = []
        self.configs: list[Any] = []
        self.down = False

    def publish(self, message: Announce | BuildConfigMessage) -> None:
        if self.down:
            raise SiteDownError("no connection")
        (self.announced if isinstance(message, Announce) else self.configs).append(message)


def announcer(world: Any, heard: Heard) -> Announcer:
    return Announcer(world.folder, world.batch, world.watcher, lambda: world.config, heard.publish, world.clock)


def test_9_11_what_is_measured_is_announced(world: Any) -> None:
    world.submit()
    world.look()
    told = announcer(world, Heard()).make()
    assert told.capacity == {"cpu": "8", "memory": "8192Mi", "nvidia.com/gpu": "2", "pods": "10000"}
    assert told.free == {"cpu": "6", "memory": "4096Mi", "nvidia.com/gpu": "1", "pods": "9999"}
    assert (told.jobs, told.sequences, told.submitter) == (
        {"queued": 1},
        world.watcher.index.sequences,
        world.watcher.name,
    )
    assert told.batch == "memory 1"


def test_what_is_configured_counts_instead(world: Any) -> None:
    world.config = parse(
        'pool = "p"\n[resources]\ncpu = "4"\npods = 3\nextended = { "x/y" = "1" }\n[node]\ntaints = ["a=b:NoSchedule"]'
    )
    told = announcer(world, Heard()).make()
    assert (told.capacity["cpu"], told.free["cpu"]) == ("4", "4")
    assert (told.capacity["pods"], told.capacity["x/y"], told.free["x/y"]) == ("3", "1", "1")
    assert told.taints == ["a=b:NoSchedule"]


def test_groups_are_announced_while_the_batch_system_runs_them(world: Any) -> None:
    made = announcer(world, Heard())
    assert made.make().gangs
    assert not made.make().heterogeneous_gangs
    world.batch.heterogeneous = True
    assert made.make().heterogeneous_gangs
    world.batch.refuses_heterogeneous = "SchedulerType is sched/builtin"
    world.clock.advance(31)
    told = made.make()
    assert (told.gangs, told.heterogeneous_gangs) == (True, False)
    world.batch.refuses_gangs = "no machine runs groups of pods"
    world.clock.advance(31)
    told = made.make()
    assert (told.gangs, told.problem) == (False, "")
    world.batch.gangs = False
    world.batch.refuses_gangs = ""
    world.clock.advance(31)
    assert not made.make().gangs


def test_a_batch_system_that_is_down_is_a_problem_and_keeps_its_size(world: Any) -> None:
    made = announcer(world, Heard())
    before = made.make()
    world.batch.down = True
    world.clock.advance(31)
    told = made.make()
    assert (told.problem, told.capacity) == ("down", before.capacity)
    world.batch.down = None
    world.clock.advance(11)
    assert made.make().problem == ""


def test_the_buildconfig_is_told_once_and_again_after_a_break(world: Any) -> None:
    heard = Heard()
    made = announcer(world, heard)
    made.publish(made.make())
    made.publish(made.make())
    assert (len(heard.configs), len(heard.announced)) == (1, 2)
    assert heard.configs[0].digest == heard.announced[0].digest == world.config.buildconfig().digest
    made.reconnected()
    made.publish(made.make())
    assert len(heard.configs) == 2
    heard.down = True
    world.config = parse('pool = "p"\nheader = "x"')
    made.publish(made.make())
    heard.down = False
    made.publish(made.make())
    assert heard.configs[-1].config["header"] == "x"
    described = world.submitter.describe("c1", "", Empty())
    assert (described.announce.digest, described.buildconfig.digest) == (heard.configs[-1].digest,) * 2


def test_the_library_of_the_sites_runtime_is_announced(world: Any) -> None:
    world.config = parse('pool = "p"\n[runtime]\nkind = "singularity"')
    assert announcer(world, Heard()).make().library == library.digest("apptainer")


def test_who_is_alone_knows_it(world: Any) -> None:
    first = Presence(world.folder)
    assert first.alone()
    second = Presence(world.folder)
    assert not first.alone()
    assert not second.alone()


@pytest.mark.parametrize(
    ("said", "told"), [("apptainer version 1.4.5", "apptainer 1.4.5"), ("1.4.5", "apptainer 1.4.5"), ("", "apptainer")]
)
def test_the_runtime_says_its_version(tmp_path: Path, said: str, told: str) -> None:
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\necho {said}\n")
    tool.chmod(0o755)
    assert runtime_version(parse(f'pool = "p"\n[apptainer]\nexecutable = "{tool}"')) == told
    assert runtime_version(parse('pool = "p"\n[apptainer]\nexecutable = "/none"')) == "apptainer"
    assert runtime_version(parse('pool = "p"\n[runtime]\nkind = "none"')) == "none"
