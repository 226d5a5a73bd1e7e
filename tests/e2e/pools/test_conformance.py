"""Every case of the conformance set on every kind of site, with a real API server, NATS and batch system.

All pods of a site are created at once; each test then checks one of them.
"""

from __future__ import annotations

import pytest

from cluster.polling import eventually
from tests.e2e.pools.cases import CASES, Case

pytestmark = pytest.mark.real
NAMESPACE = "remote"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


def manifest(case: Case, pool: str) -> dict:
    annotations = {"bridge.vk.io/pools": pool, **case.annotations}
    metadata = {"name": f"{case.name}-{pool}", "annotations": annotations, "labels": dict(case.labels)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": case.spec}


def create(world, pool, case):
    """Create the objects of a case and its pod; return the API server's answer."""
    for body in case.objects:
        kind = "configmaps" if body["kind"] == "ConfigMap" else "secrets"
        world.api.ensure(f"/api/v1/namespaces/{NAMESPACE}/{kind}", body)
    return world.api.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", manifest(case, pool))


@pytest.fixture(scope="module")
def created(pools_world, pool):
    """Create the pods of all cases without actions; return the API server's answers, by case."""
    answers = {case.name: create(pools_world, pool, case) for case in CASES if not case.while_running}
    yield answers
    for status, found in answers.values():
        if status == 201:
            pools_world.delete(found, 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_conformance(pools_world, pool, created, case):
    status, answer = created.get(case.name) or create(pools_world, pool, case)
    if case.refused:
        assert status in (403, 422), f"created, though it can't be honoured: {answer}"
        assert case.refused in answer["message"]
        return
    assert status == 201, answer
    world = pools_world
    late = case.while_running.get("create")
    if late:
        eventually(lambda: world.events(answer, case.while_running["expect_event"]), "the Event")
        world.api("POST", CONFIG_MAPS, late)
    if case.while_running.get("delete"):
        deleted_while_it_runs(world, pool, answer, case)
        return
    if case.while_running.get("not_ready_first"):
        running = world.seen(answer, "running", lambda p: p["status"]["phase"] == "Running", case.timeout)
        assert not running["status"]["containerStatuses"][0]["ready"]
        world.seen(answer, "ready", lambda p: p["status"]["containerStatuses"][0]["ready"], case.timeout)
    found = world.seen(
        answer, "ended", lambda p: p["status"]["phase"] in ("Succeeded", "Failed"), case.timeout, NAMESPACE
    )
    judge(world, pool, found, case)
    if late:  # the pod of the next site must wait, too
        world.api("DELETE", f"{CONFIG_MAPS}/{late['metadata']['name']}")


def judge(world, pool, found, case):
    status = found["status"]
    assert status["phase"] == case.phase, status
    if case.reason:
        assert status.get("reason") == case.reason, status
    if case.reason == "NotPossibleAtSite":
        return
    entries = [*(status.get("initContainerStatuses") or ()), *status["containerStatuses"]]
    names = [c["name"] for c in (*found["spec"].get("initContainers", ()), *found["spec"]["containers"])]
    assert [entry["name"] for entry in entries] == names
    states = {entry["name"]: entry for entry in entries}
    for name, run in case.runs.items():
        ended = states[name]["state"]["terminated"]
        assert ended["exitCode"] == run.code, (ended, world.logs(found, "-c", name))
        assert not run.reason or ended["reason"] == run.reason, ended
        assert run.restarts is None or states[name]["restartCount"] == run.restarts, states[name]
        assert ended["startedAt"] <= ended["finishedAt"]
    if case.message:
        assert states["main"]["state"]["terminated"]["message"].strip() == case.message
    words = {"{name}": found["metadata"]["name"], "{pool}": pool, "{uid}": found["metadata"]["uid"]}
    for name, text in case.logs.items():
        for word, value in words.items():
            text = text.replace(word, value)
        assert text in world.logs(found, "-c", name)
    for name, text in case.not_logs.items():
        assert text not in world.logs(found, "-c", name, check=False)


def deleted_while_it_runs(world, pool, pod, case):
    world.seen(pod, "running", lambda p: p["status"]["phase"] == "Running", case.timeout)
    if case.while_running.get("log_has"):
        follow = world.follow(pod)
        assert follow.stdout.readline() == "up\n"
    world.delete(pod)
    world.gone(pod, 40)
    eventually(lambda: pod["metadata"]["uid"] not in world.jobs_at(pool), "nothing left at the site")
    if case.while_running.get("log_has"):
        assert case.while_running["log_has"] in follow.communicate(timeout=20)[0]
