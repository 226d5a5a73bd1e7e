"""The writes of a pod, as the audit log of the API server has them."""

import pytest

from cluster.polling import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]
PARTITION = "main"


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


@pytest.mark.parametrize("bare_world", ["26.05"], indirect=True)
def test_a_pod_that_was_changed_after_its_submission_gets_a_job_for_its_new_request(bare_world):
    world, cluster = bare_world, bare_world.cluster
    name = "slurmjob.slinky.slurm.net/timelimit"

    def changed():
        """Create a pod and change it after its submission; nothing if it has its job id by then (3 s later)."""
        pod = world.create(run="1")
        uid = pod["metadata"]["uid"]
        (first, _) = eventually(lambda: world.jobs_by_uid().get(uid), "a job")[0]
        patch = {"metadata": {"annotations": {name: "7"}}}
        path = world.path(pod["metadata"]["name"])
        status, _ = world.api.request("PATCH", path, patch, "application/merge-patch+json")
        if status == 200:
            return pod, first
        world.delete(pod, grace=0)
        return None

    cluster.start_podbridge(("scheduler",), name="scheduler")
    cluster.start_podbridge(("controllers",), name="controllers")
    try:
        world.slurm("scontrol", "update", f"partitionname={PARTITION}", "state=down")
        pod, first = eventually(changed, "a pod without a job id is changed", 60)
        world.slurm("scontrol", "update", f"partitionname={PARTITION}", "state=up")
        eventually(lambda: world.get(pod)["status"]["phase"] == "Succeeded", "the pod ends", 60)
        jobs = dict(world.jobs_by_uid()[pod["metadata"]["uid"]])
        assert jobs.pop(first) == "CANCELLED"
        ((second, _),) = jobs.items()
        assert world.job(second)["TimeLimit"] == "00:07:00" != world.job(first)["TimeLimit"]
    finally:
        world.slurm("scontrol", "update", f"partitionname={PARTITION}", "state=up")
        for part in ("scheduler", "controllers"):
            if cluster.pid(part):
                cluster.stop_podbridge(part)
