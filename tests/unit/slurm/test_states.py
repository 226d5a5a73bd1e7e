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


PHASES = {
    Phase.PENDING: "PENDING, PENDING REQUEUED, PENDING REQUEUE_HOLD, PENDING COMPLETING REQUEUED",
    Phase.ALLOCATED: "RUNNING, RUNNING CONFIGURING, RUNNING CONFIGURING POWER_UP_NODE, RUNNING STOPPED",
    Phase.BETWEEN: "RUNNING COMPLETING, RUNNING REQUEUED, SUSPENDED",
    Phase.ENDED: "CANCELLED COMPLETING, PENDING REVOKED",
}
HIDDEN = {Phase.ALLOCATED: "CONFIGURING", Phase.BETWEEN: "COMPLETING", Phase.PENDING: "REQUEUED"}
"""22.05: the flag hides the base state."""
NEW = {Phase.BETWEEN: ", HYPERSPACE, CONFIGURING HYPERSPACE, RUNNING CANCELLED", Phase.ALLOCATED: "RUNNING HYPERSPACE"}
"""Never seen before."""


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (states, phase)
        for table in (PHASES, HIDDEN, NEW)
        for phase, found in table.items()
        for states in found.split(", ")
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


DRAINED = "IDLE DRAIN, ALLOCATED DRAIN, DOWN, DOWN NOT_RESPONDING, UNKNOWN DRAIN, ALLOCATED FAIL"
NOT_DRAINED = (
    ", IDLE, IDLE NOT_RESPONDING, UNKNOWN, MIXED PLANNED, IDLE CLOUD POWERED_DOWN, IDLE MAINTENANCE RESERVED"
    ", IDLE HYPERSPACE"
)


@pytest.mark.parametrize(
    ("states", "drained"),
    [(states, drained) for text, drained in ((DRAINED, True), (NOT_DRAINED, False)) for states in text.split(", ")],
)
def test_drained_nodes(states: str, drained: bool) -> None:
    assert is_drained(set(states.split())) == drained
