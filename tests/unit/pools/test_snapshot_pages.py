"""Snapshots page by page: as many jobs as a site may have, and no more memory than a pool may use."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from bridge.errors import SiteError
from bridge.pools.submitter import site_requests
from bridge.pools.submitter.announced_pool import ReceivedBuildConfigs
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats.messages import BuildConfigMessage, Snapshot, SnapshotPage, UnreadableJob
from bridge.protocol.nats.request_table import SNAPSHOT, SubmitterClient
from tests.fakes.clock import FakeClock

OWNER = "c1"


def job(number: int, message: str = "") -> JobStatus:
    return JobStatus(job=f"u-{number:07}", owner=OWNER, namespace="n", name="p", phase="queued", message=message)


class Site:
    """A site with pages; the last one has no successor."""

    def __init__(self, pages: Iterator[list[JobStatus]], count: int) -> None:
        self.pages, self.count, self.asked = pages, count, 0

    def call(self, kind: Any, uid: str, body: Snapshot) -> SnapshotPage:
        self.asked += 1
        jobs = tuple(next(self.pages))
        assert (kind, uid) == (SNAPSHOT, "")
        assert not body.after or body.after < jobs[0].job
        return SnapshotPage(submitter="s", sequence=1, jobs=jobs, more=self.asked < self.count)


def requested(site: Site) -> int:
    parts = site_requests.request_snapshot("far", OWNER, cast(SubmitterClient, site), FakeClock())
    return sum(len(part.jobs) for part in parts)


def pages(count: int, page: int = Snapshot().limit, message: str = "") -> Site:
    return Site(([job(n * page + i, message) for i in range(page)] for n in range(count)), count)


def test_a_site_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    bad = ([UnreadableJob(job=f"u-{page * 10 + n:07}") for n in range(10)] for page in range(100))
    assert requested(Site(cast(Iterator[list[JobStatus]], bad), 100)) == 0
    assert [record.kv["jobs"] for record in caplog.records] == [1000]  # type: ignore[attr-defined]
    caplog.clear()
    configs = ReceivedBuildConfigs("far")
    for number in range(1000):
        configs.add(BuildConfigMessage(pool="far", digest=str(number), config={f"key{number}": 1}))
    assert len(caplog.records) == 10


def test_a_site_with_ten_thousand_jobs_and_long_messages() -> None:
    assert requested(pages(20, message="x" * 4096)) == 10_000


@pytest.mark.parametrize(("limit", "value"), [("MOST_JOBS", 2_000), ("MOST_BYTES", 3_000_000), ("MOST_PAGES", 4)])
def test_a_snapshot_beyond_a_limit_is_refused_before_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(site_requests, limit, value)
    site = pages(1000, message="x" * 1000)
    with pytest.raises(SiteError, match="snapshot of pool far"):
        requested(site)
    assert site.asked <= 5


def test_a_snapshot_whose_pages_come_slowly_is_refused() -> None:
    clock = FakeClock()

    class SlowSite(Site):
        def call(self, *args: Any) -> SnapshotPage:
            clock.advance(29)
            return super().call(*args)

    site = SlowSite(([job(n)] for n in range(1000)), 1000)
    with pytest.raises(SiteError, match="not complete after 120 s"):
        site_requests.request_snapshot("far", OWNER, cast(SubmitterClient, site), clock)
    assert site.asked == 5
