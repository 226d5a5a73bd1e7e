"""Why a pod waits, and the next step: nothing is advised where there is nothing to do."""

import pytest

from bridge import names
from bridge.apps.view import wait_reasons

POD = {"pod": "p", "namespace": "hpc", "job": 7}


@pytest.mark.parametrize(
    ("reason", "slurm", "step"),
    [
        ("SlurmPending", "Resources", ""),
        ("SlurmPending", "Priority", ""),
        ("SlurmPending", "JobHeldUser", "scontrol release 7"),
        ("SlurmPending", "DependencyNeverSatisfied", "delete the pod: the job that it depends on has failed"),
        ("SlurmPending", "Dependency", "scontrol show job 7 shows the job that it waits for"),
        ("SlurmPending", "SomethingNew", "squeue -j 7 --start"),
        ("SlurmPending", "", "squeue -j 7 --start"),
        ("Racing", "", ""),
        (wait_reasons.NOT_PROCESSED, "", "podbridge check"),
        ("OfAnotherVersion", "", "kubectl describe pod p -n hpc"),
    ],
)
def test_the_next_step(reason, slurm, step):
    assert wait_reasons.next_step(reason, slurm, **POD) == step


@pytest.mark.parametrize("slurm", ["AssocGrpCpuLimit", "QOSMaxJobsPerUserLimit"])
def test_a_limit_names_the_account_and_the_qos(slurm):
    assert "account or the QOS" in wait_reasons.next_step("SlurmPending", slurm, **POD)


def test_a_group_that_needs_more_nodes_than_there_are_may_share_them():
    step = wait_reasons.next_step("Unschedulable", message="the group needs 6 nodes, but only 4 fit", **POD)
    assert names.MEMBERS_PER_NODE in step


def test_every_step_can_be_printed():
    for reason in (*wait_reasons.WAITING, *wait_reasons.OTHER):
        assert "{" not in wait_reasons.next_step(reason, **POD)
    for prefix, _ in wait_reasons.SLURM:
        assert "{" not in wait_reasons.next_step("SlurmPending", prefix, **POD)
