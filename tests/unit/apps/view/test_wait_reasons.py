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


LIMITS = {
    "the job starts when others have ended": (
        "AssocGrpCpuLimit",
        "AssocGrpCPURunMinutesLimit",
        "AssocMaxJobsLimit",
        "AssociationJobLimit",
        "QOSGrpGRES",
        "QOSGrpNodeRunMinutes",
        "QOSMaxCpuPerUserLimit",
        "QOSMaxGRESPerUser",
        "QOSMaxJobsPerUserLimit",
        "MaxCpuPerAccount",
        "MaxJobsPerAccount",
        "MaxGRESRunMinsPerUser",
    ),
    "it never starts": (
        "AssocMaxCpuMinutesPerJobLimit",
        "AssocMaxGRESPerNode",
        "AssocMaxWallDurationPerJobLimit",
        "AssociationTimeLimit",
        "QOSMaxCpuPerJobLimit",
        "QOSMaxGRESPerJob",
        "QOSMaxMemoryPerNode",
        "QOSMaxWallDurationPerJobLimit",
        "QOSMinCpuNotSatisfied",
        "QOSMinGRES",
        "QOSTimeLimit",
    ),
    "is used up": ("AssocGrpCPUMinutesLimit", "AssocGrpGRESMinutes", "QOSGrpWallLimit", "QOSUsageThreshold"),
}
"""Reasons of Slurm (``src/common/job_state_reason.c``) by what the user must know of them."""


@pytest.mark.parametrize(("text", "slurm"), [(text, slurm) for text in LIMITS for slurm in LIMITS[text]])
def test_a_limit_says_whether_the_job_starts_when_others_have_ended(text, slurm):
    step = wait_reasons.next_step("SlurmPending", slurm, **POD)
    assert "account or the QOS" in step
    assert [each for each in LIMITS if each in step] == [text]


@pytest.mark.parametrize("slurm", ["ReservationDeleted", "ReservationInvalid"])
def test_a_reservation_that_is_gone_has_no_room_later_either(slurm):
    assert "no longer exists" in wait_reasons.next_step("SlurmPending", slurm, **POD)
    assert "no longer exists" not in wait_reasons.next_step("SlurmPending", "Reservation", **POD)


def test_a_group_that_needs_more_nodes_than_there_are_may_share_them():
    step = wait_reasons.next_step("Unschedulable", message="the group needs 6 nodes, but only 4 fit", **POD)
    assert names.MEMBERS_PER_NODE in step


def test_every_step_can_be_printed():
    for reason in (*wait_reasons.WAITING, *wait_reasons.OTHER):
        assert "{" not in wait_reasons.next_step(reason, **POD)
    for prefix, _ in wait_reasons.SLURM:
        assert "{" not in wait_reasons.next_step("SlurmPending", prefix, **POD)
