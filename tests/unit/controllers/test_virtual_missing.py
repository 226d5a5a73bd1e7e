"""Which pods of a pool count as missing: those of jobs that the site reports missing, and those it holds nothing of."""

from types import SimpleNamespace
from typing import Any

from bridge import names
from bridge.core.job_lifecycle import Lifecycle, State
from controllers.virtual.pod_state import Entry
from controllers.virtual.pool_state import LoopState, PoolState
from tests import builders
from tests.builders import NO_OBJECTS, site_pod
from tests.fakes.pool import FakePool


def pod(uid: str, phase: str = "Running") -> dict[str, Any]:
    return builders.pod(uid, phase=phase, annotations={names.REMOTE_JOB: f"site/{uid}"})


class Pool(FakePool):
    walks = 0

    def jobs(self) -> dict[str, Any]:
        self.walks += 1
        return super().jobs()

    def missing(self) -> frozenset[str]:
        return frozenset(uid for uid, job in super().jobs().items() if job.missing)


def record(pool: FakePool, *pods: dict[str, Any]) -> PoolState:
    cache: Any = SimpleNamespace(items=lambda: list(pods))
    nothing: Any = None
    return PoolState("site", cache, nothing, nothing, LoopState(0.0), pool=pool)


def pool_with(*jobs: str, missing: tuple[str, ...] = ()) -> Pool:
    pool = Pool("site")
    for uid in jobs:
        pool.submit(site_pod(uid), NO_OBJECTS)
        pool.set(uid, phase="running", missing=uid in missing)
    return pool


def doubt(record: PoolState, uid: str, state: State) -> None:
    entry = record.entries[uid] = Entry(lifecycle=Lifecycle(state))
    record.note(uid, entry)


def test_nothing_is_counted_and_no_job_is_read_while_none_is_in_doubt() -> None:
    pool = pool_with("a", "b")
    found = record(pool, pod("a"), pod("b"), pod("c"))
    doubt(found, "c", State.ABSENT)
    pool.walks = 0
    assert found.missing() == (0, {})
    assert pool.walks == 0


def test_jobs_that_the_site_reports_missing_count() -> None:
    found = record(pool_with("a", "b", missing=("b",)), pod("a"), pod("b"), pod("c"), pod("d", "Succeeded"))
    known, missing = found.missing()
    assert (known, sorted(missing)) == (3, ["b"])


def test_once_the_site_has_said_twice_that_it_holds_nothing_of_one_all_absent_jobs_count() -> None:
    found = record(pool_with("a"), pod("a"), pod("c"), pod("d"))
    doubt(found, "c", State.LOST)
    assert sorted(found.missing()[1]) == ["c", "d"]
    doubt(found, "c", State.KNOWN)
    assert found.missing() == (0, {})
    doubt(found, "c", State.LOST)
    found.forget("c")
    assert found.missing() == (0, {})
    doubt(found, "c", State.LOST)
    found.forget_all()
    assert found.missing() == (0, {})


def test_doubt_about_a_job_that_is_there_again_makes_no_other_missing() -> None:
    found = record(pool_with("a", "c"), pod("a"), pod("c"), pod("d"))
    doubt(found, "c", State.LOST)
    assert found.missing() == (3, {})


def test_without_a_snapshot_nothing_is_missing() -> None:
    pool = pool_with("a", missing=("a",))
    pool.complete = None
    assert record(pool, pod("a")).missing() == (0, {})
