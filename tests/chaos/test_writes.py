"""The writes of a pod, as the audit log of the API server has them."""

import pytest

from cluster.polling import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


@pytest.mark.parametrize("bare_world", ["26.05"], indirect=True)
def test_a_pod_costs_one_write_until_it_runs_and_one_after_it(bare_world):
    world, cluster = bare_world, bare_world.cluster
    parts = ("scheduler", "controllers")
    try:
        for part in parts:
            cluster.start_podbridge((part,), name=part)
        pod = world.create(run="1")
        path = world.path(pod["metadata"]["name"])
        eventually(lambda: (found := world.get(pod)) and found["status"]["phase"] == "Succeeded", "the pod ends", 60)
        eventually(lambda: not world.get(pod)["metadata"].get("finalizers"), "its job is released", 30)

        def writes():
            return [
                f"{event['verb']} {event['requestURI'].removeprefix(path)}".split("?")[0].strip()
                for event in cluster.audit_events()
                if event["requestURI"].startswith(path)
                and event["verb"] in ("create", "update", "patch", "delete")
                and "podbridge" in event.get("userAgent", "")
            ]

        assert eventually(lambda: len(found := writes()) > 1 and found, "both writes are in the log", 10) == [
            "create /binding",
            "patch",
        ]
    finally:
        for part in parts:
            if cluster.pid(part):
                cluster.stop_podbridge(part)
