"""The use of CPU and memory of running jobs, over a real nats-server."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bridge.protocol.nats.messages import UsageRequest
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_table import USAGE
from cluster.polling import eventually
from tests.contract.site import jobs

pytestmark = pytest.mark.real


def test_the_use_of_running_jobs(site: Any) -> None:
    eventually(lambda: site.announced, "announced")
    busy = jobs.submit_pod(site, "while :; do :; done")
    idle = jobs.submit_pod(site, "sleep 300")

    def use(client: PoolClient = site.client) -> dict[str, Any]:
        request = UsageRequest(jobs=[busy, idle, jobs.uid()])
        return {usage.job: usage for usage in client.call(USAGE, "", request).jobs}

    assert not (site.folder / "jobs" / busy / "run" / "usage").exists(), "nobody has asked"
    assert use(PoolClient(site.link, "bridge.v1", site.pool, "another-cluster")) == {}
    # the first request waits for the scripts
    first = use()
    assert set(first) == {busy, idle}
    time.sleep(5)
    second = eventually(lambda: (found := use())[busy].at > first[busy].at and found, "a second measurement")

    def rate(job: str) -> float:
        before, after = first[job].containers[0], second[job].containers[0]
        return (after.cpu - before.cpu) / max(0.01, second[job].at - first[job].at)

    assert 0.2 < rate(busy) < 1.1
    assert rate(idle) < 0.05
    assert all(2**15 < usage.containers[0].memory < 2**25 for usage in second.values())
    jobs.cancel(site, busy, forget=False)
    site.wait(busy, "ended")
    assert set(use()) == {idle}
