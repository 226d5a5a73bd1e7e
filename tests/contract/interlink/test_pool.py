"""An interLink pool of the hub in front of podbridge's own plugin: one process, and over a real nats-server."""

from __future__ import annotations

import time
from typing import Any

import pytest

from bridge.clock import SystemClock
from bridge.config.interlink import InterlinkSection
from bridge.pools.interlink.interlink_pool import InterlinkPool, make_pool
from bridge.protocol.model.jobs import pod_of
from bridge.protocol.model.requests import LogOptions
from bridge.script.references import Objects
from cluster.polling import eventually
from tests.contract.interlink.plugin_process import PluginProcess, jobs_of, make_pod

pytestmark = pytest.mark.real

OBJECTS = Objects(configmaps={"settings": {"metadata": {"name": "settings"}, "data": {"key": "from a ConfigMap"}}})


@pytest.fixture(params=["plugin", "server"])
def pool(request: pytest.FixtureRequest, plugin: PluginProcess) -> InterlinkPool:
    address = str(plugin.address)
    url = address if "://" in address else f"http://{address}"
    section = InterlinkSection(name="far", url=url, api=request.param)
    return make_pool(section, 20, SystemClock())


def phase_of(pool: InterlinkPool, pod: dict[str, Any]) -> str:
    pool.poll()
    job = pool.job(pod["metadata"]["uid"])
    return job.phase if job is not None else "unknown"


def main_of(pool: InterlinkPool, pod: dict[str, Any]) -> str:
    pool.poll()
    job = pool.job(pod["metadata"]["uid"])
    return job.containers[0].state if job is not None and job.containers else "waiting"


def test_the_life_of_a_pod(pool: InterlinkPool, plugin: PluginProcess) -> None:
    pod = make_pod('echo "$KEY"; sleep 1; echo done; exit 3', init="echo prepared")
    source = {"configMapKeyRef": {"name": "settings", "key": "key"}}
    pod["spec"]["containers"][0]["env"] = [{"name": "KEY", "valueFrom": source}]
    pool.ping()
    assert pool.ready().ok
    announcement = pool.announced()
    assert announcement is not None
    assert announcement[0].capacity["cpu"]
    pool.follows.add(pod)
    assert pool.status(pod) is None
    job_id = pool.submit(pod, OBJECTS).job_id
    assert pool.submit(pod, OBJECTS).job_id == job_id, "the plugin submits a pod once"
    eventually(lambda: main_of(pool, pod) != "waiting", "its container started", 15)
    followed = b"".join(pool.logs(pod, LogOptions(container="main", follow=True)))
    assert followed == b"from a ConfigMap\ndone\n"
    eventually(lambda: phase_of(pool, pod) == "ended", "ended", 15)
    status = pool.job(pod["metadata"]["uid"])
    assert status is not None
    assert (status.outcome, status.job_id) == ("Failed", job_id)
    ends = [each.ended.exit_code for each in (*status.init_containers, *status.containers) if each.ended]
    assert ends == [0, 3]
    assert b"".join(pool.logs(pod, LogOptions(container="first"))) == b"prepared\n"
    assert b"".join(pool.logs(pod, LogOptions(container="main", tail=1))) == b"done\n"
    assert b"".join(pool.logs(pod, LogOptions(container="main", tail=1, limit_bytes=2))) == b"do"
    assert pool.cancel(pod_of(status), 0, forget=True) is None
    eventually(lambda: pod["metadata"]["uid"] not in jobs_of(plugin.folder), "the removal of the job's folder", 10)
    assert (pool.status(pod), pool.cancel(pod, 0, forget=True)) == (None, None)


def test_a_running_job_is_cancelled(pool: InterlinkPool, plugin: PluginProcess) -> None:
    pod = make_pod("sleep 300", terminationGracePeriodSeconds=1)
    pool.follows.add(pod)
    pool.submit(pod, Objects())
    eventually(lambda: phase_of(pool, pod) == "running", "running", 15)
    began = time.monotonic()
    pool.cancel(pod, 1)
    eventually(lambda: pool.status(pod) is None, "not known", 15)
    assert time.monotonic() - began < 12
    assert pod["metadata"]["uid"] not in pool.jobs()
    eventually(lambda: pod["metadata"]["uid"] not in jobs_of(plugin.folder), "the removal of the job's folder", 10)


def test_states_of_many_pods_in_one_request(pool: InterlinkPool) -> None:
    pods = [make_pod("exit 0") for _ in range(5)]
    for pod in pods:
        pool.submit(pod, Objects())
        pool.follows.add(pod)
    uids = {pod["metadata"]["uid"] for pod in pods}

    def ended() -> bool:
        pool.poll()
        return {uid for uid, job in pool.jobs().items() if job.outcome == "Succeeded"} == uids

    eventually(ended, "all ended", 30)
    for pod in pods:
        assert pool.cancel(pod, 0, forget=True) is None
