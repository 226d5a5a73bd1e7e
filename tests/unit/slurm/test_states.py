from __future__ import annotations

import pytest

from bridge.slurm.states import (
    BASE_STATES,
    FLAGS,
    NODE_STATES,
    Phase,
    end_of,
    is_allocated,
    is_drained,
    is_pending,
    phase,
)

# what the OpenAPI documents of 24.11 (v0.0.42) and 26.05 (v0.0.45) list
JOB_WORDS = (
    "PENDING RUNNING SUSPENDED COMPLETED CANCELLED FAILED TIMEOUT NODE_FAIL PREEMPTED BOOT_FAIL DEADLINE OUT_OF_MEMORY"
    " LAUNCH_FAILED REQUEUED REQUEUE_HOLD SPECIAL_EXIT RESIZING CONFIGURING COMPLETING STOPPED RECONFIG_FAIL"
    " POWER_UP_NODE REVOKED REQUEUE_FED RESV_DEL_HOLD SIGNALING STAGE_OUT EXPEDITING"
)
NODE_WORDS = (
    "INVALID UNKNOWN DOWN IDLE ALLOCATED ERROR MIXED FUTURE EXTERNAL RESERVED UNDRAIN CLOUD RESUME DRAIN COMPLETING"
    " NOT_RESPONDING POWERED_DOWN FAIL POWERING_UP MAINTENANCE REBOOT_REQUESTED REBOOT_CANCELED POWERING_DOWN"
    " DYNAMIC_FUTURE REBOOT_ISSUED PLANNED INVALID_REG POWER_DOWN POWER_UP POWER_DRAIN POWER_DOWN_ASAP"
    " POWER_DOWN_FORCE DYNAMIC_NORM BLOCKED"
)


def test_every_state_has_one_row() -> None:
    assert BASE_STATES.keys() | FLAGS.keys() == set(JOB_WORDS.split())
    assert not BASE_STATES.keys() & FLAGS.keys()
    assert set(NODE_WORDS.split()) <= NODE_STATES.keys()


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ("PENDING", Phase.PENDING),
        ("PENDING REQUEUED", Phase.PENDING),
        ("PENDING REQUEUE_HOLD", Phase.PENDING),
        ("PENDING COMPLETING REQUEUED", Phase.PENDING),
        ("RUNNING", Phase.ALLOCATED),
        ("RUNNING CONFIGURING", Phase.ALLOCATED),
        ("RUNNING CONFIGURING POWER_UP_NODE", Phase.ALLOCATED),
        ("RUNNING STOPPED", Phase.ALLOCATED),
        ("RUNNING COMPLETING", Phase.BETWEEN),
        ("RUNNING REQUEUED", Phase.BETWEEN),
        ("SUSPENDED", Phase.BETWEEN),
        ("CANCELLED COMPLETING", Phase.ENDED),
        ("PENDING REVOKED", Phase.ENDED),
        # 22.05: the flag hides the base state
        ("CONFIGURING", Phase.ALLOCATED),
        ("COMPLETING", Phase.BETWEEN),
        ("REQUEUED", Phase.PENDING),
        # never seen before
        ("", Phase.BETWEEN),
        ("HYPERSPACE", Phase.BETWEEN),
        ("RUNNING HYPERSPACE", Phase.ALLOCATED),
        ("CONFIGURING HYPERSPACE", Phase.BETWEEN),
        ("RUNNING CANCELLED", Phase.BETWEEN),
    ],
)
def test_phases(states: str, expected: Phase) -> None:
    told = frozenset(states.split())
    assert phase(told) is expected
    assert is_pending(told) == (expected is Phase.PENDING)
    assert is_allocated(told) == (expected is Phase.ALLOCATED)
    assert (end_of(told) is not None) == (expected is Phase.ENDED)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("TIMEOUT", "TimeLimit"),
        ("CANCELLED", "Cancelled"),
        ("PREEMPTED", "Preempted"),
        ("NODE_FAIL", "NodeFail"),
        ("OUT_OF_MEMORY", "OutOfMemory"),
        ("DEADLINE", "Deadline"),
        ("BOOT_FAIL", "BootFail"),
        ("FAILED", "JobFailed"),
        ("COMPLETED", "JobCompleted"),
        ("REVOKED", "Revoked"),
    ],
)
def test_ends(state: str, reason: str) -> None:
    for told in ({state}, {state, "COMPLETING"}):
        end = end_of(told)
        assert end is not None
        assert end.reason == reason
        assert end.text.startswith(("was ", "completed", "failed")), "a predicate of 'Slurm job 14'"


def test_reasons_are_told_apart() -> None:
    rows = [row for row in [*BASE_STATES.values(), *FLAGS.values()] if row.phase is Phase.ENDED]
    assert len({row.reason for row in rows}) == len(rows)


@pytest.mark.parametrize(
    ("states", "drained"),
    [
        ("IDLE", False),
        ("IDLE DRAIN", True),
        ("ALLOCATED DRAIN", True),
        ("DOWN", True),
        ("DOWN NOT_RESPONDING", True),
        ("IDLE NOT_RESPONDING", False),
        ("UNKNOWN", False),
        ("UNKNOWN DRAIN", True),
        ("MIXED PLANNED", False),
        ("IDLE CLOUD POWERED_DOWN", False),
        ("IDLE MAINTENANCE RESERVED", False),
        ("ALLOCATED FAIL", True),
        ("IDLE HYPERSPACE", False),
        ("", False),
    ],
)
def test_drained_nodes(states: str, drained: bool) -> None:
    assert is_drained(set(states.split())) == drained
