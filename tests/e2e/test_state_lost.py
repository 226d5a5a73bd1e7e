"""A slurmctld that has lost its state assigns job ids from 1 again, also to jobs of another user."""

import shutil

import pytest

from cluster.polling import eventually

pytestmark = pytest.mark.real


def lose_state(world):
    """Restart slurmctld without its state."""
    cluster = world.cluster
    cluster.stop_daemon("slurmctld")
    for entry in (cluster.state / "slurm" / "state").iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    cluster.start_daemon("slurmctld")


def others_job(world, *options):
    """Submit a job as alice; return its id."""
    told = world.slurm(
        "sbatch", "--uid=alice", "--chdir=/", "--output=/dev/null", "--mem=100", *options, "--wrap=sleep 600"
    )
    return int(told.split()[-1])


def test_job_ids_are_used_again_after_lost_state(clean):
    world = clean
    lose_state(world)
    first = world.create(cpu="1")
    assert world.labelled(first) == 1
    second = world.create(cpu="1")
    assert world.labelled(second) == 2
    nodes = ",".join({world.running(pod)["spec"]["nodeName"] for pod in (first, second)})

    lose_state(world)
    # there the old batch jobs still run, and slurmd ends a new job with the same id
    world.slurm("scontrol", "update", f"nodename={nodes}", "state=drain", "reason=old jobs")
    try:
        assert others_job(world, "-w", "node-3") == 1
        later = world.create(cpu="1")
        assert world.labelled(later) == 2
        world.running(later)
        for pod in (first, second):
            eventually(lambda pod=pod: world.events(pod, "JobGone"), "JobGone")
            world.gone(pod)
        assert world.job(1)["UserId"].startswith("alice")
        assert world.queue() == {1: "RUNNING", 2: "RUNNING"}
        assert world.get(later)["status"]["phase"] == "Running"
        assert world.job_of(world.get(later)) == 2

        world.delete(later, grace=1)
        world.gone(later)
        eventually(lambda: world.queue() == {1: "RUNNING"}, "only the job of alice is left")
    finally:
        world.slurm("scancel", "1")
        world.slurm("scontrol", "update", f"nodename={nodes}", "state=resume")
