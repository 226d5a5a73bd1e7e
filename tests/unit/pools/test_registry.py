import logging

import pytest

from bridge.core.threads import Supervisor
from bridge.pools.registry import PoolRegistry
from tests.fakes.pool import FakePool, FakePools


def test_the_pools_of_all_sources_are_joined_and_their_changes_are_told() -> None:
    first, second = FakePools(FakePool("a")), FakePools(FakePool("b"))
    registry = PoolRegistry([first, second])
    told: list[tuple[str, str]] = []
    registry.subscribe(lambda pool, job: told.append((pool, job)))
    assert sorted(registry.pools()) == ["a", "b"]
    second.pools()["b"].tell("uid")
    second.add(FakePool("c"))
    assert told == [("b", "uid"), ("c", "")]
    registry.remove("c")
    assert sorted(registry.pools()) == ["a", "b"]


def test_of_two_pools_with_one_name_the_first_source_has_it(caplog: pytest.LogCaptureFixture) -> None:
    first, second = FakePools(FakePool("a")), FakePools(FakePool("a"))
    registry = PoolRegistry([first, second])
    with caplog.at_level(logging.ERROR):
        assert registry.pools()["a"] is first.pools()["a"]
        registry.pools()
    assert len(caplog.records) == 1


def test_a_problem_and_the_restored_jobs_of_any_source_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = FakePools(FakePool("a")), FakePools(FakePool("b"))
    registry = PoolRegistry([first, second])
    assert (registry.problem(), registry.remembered("b")) == (None, 0)
    monkeypatch.setattr(second, "problem", lambda: "no connection")
    monkeypatch.setattr(second, "remembered", {"b": 3}.get)
    assert (registry.problem(), registry.remembered("b")) == ("no connection", 3)


def test_all_sources_are_started() -> None:
    sources = FakePools(), FakePools()
    PoolRegistry(sources).start(Supervisor())
    assert [source.started for source in sources] == [1, 1]
