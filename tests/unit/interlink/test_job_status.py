import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from bridge.errors import SiteError
from bridge.interlink.job_status import NOT_READY, NOT_STARTED, SIDECAR, job_status
from bridge.interlink.messages import PodStatus
from tests.counted import Count, Text
from tests.fakes.interlink_bodies import body, status_answer

POD = body("delete")
STARTED, FINISHED = 1784019605.0, 1784019635.0


def told(name):
    return PodStatus.model_validate(status_answer(name)[0])


def read(name):
    return job_status(POD, told(name), "owner")


def changed(**fields):
    return told("running").model_copy(update=fields)


@pytest.mark.parametrize(
    ("name", "phase", "outcome", "reason"),
    [
        ("queued", "queued", "", "Pending"),
        ("init_running", "running", "", ""),
        ("running", "running", "", ""),
        ("running_no_init", "running", "", ""),
        ("succeeded", "ended", "Succeeded", ""),
        ("failed", "ended", "Failed", ""),
        ("timeout", "ended", "Failed", "SlurmJobTimeout"),
        ("init_failed", "ended", "Failed", ""),
    ],
)
def test_the_state_of_a_job(name, phase, outcome, reason):
    status = read(name)
    assert (status.phase, status.outcome, status.reason) == (phase, outcome, reason)
    assert (status.job, status.owner, status.namespace, status.name) == (
        POD["metadata"]["uid"],
        "owner",
        "science",
        "train",
    )


def test_the_containers_of_a_job():
    status = read("failed")
    assert [(each.name, each.ended.exit_code) for each in status.containers] == [("main", 42), ("side", 0)]
    assert [(each.name, each.ended.exit_code) for each in status.init_containers] == [("fetch", 0)]
    assert (status.job_id, status.started_at, status.ended_at) == ("4242", STARTED, FINISHED)


def test_a_job_that_the_plugin_does_not_know():
    assert read("unknown") is None


@pytest.mark.parametrize(
    "answer",
    [
        changed(uid="7b1f0c1e-0000-4a0e-9d5b-0f6a3f0a2b11"),
        changed(name="other"),
        changed(namespace="other"),
        changed(containers=[]),
        changed(containers=told("running").containers[:1]),
    ],
)
def test_an_answer_that_is_not_about_this_pod_is_an_error(answer):
    with pytest.raises(SiteError):
        job_status(POD, answer, "owner")


def one(state, **more):
    return PodStatus(
        name="train",
        uid=POD["metadata"]["uid"],
        namespace="science",
        containers=[{"name": "main", "state": state, **more}, {"name": "side", "state": {"running": {}}}],
    )


def test_a_running_container_that_is_not_ready():
    state = job_status(POD, one({"waiting": {"reason": NOT_READY}}), "").containers[0]
    assert (state.state, state.ready) == ("running", False)


def test_a_container_that_never_ran():
    state = job_status(POD, one({"terminated": {"exitCode": 137, "reason": NOT_STARTED}}), "").containers[0]
    assert (state.state, state.ended) == ("waiting", None)


def test_a_container_without_a_name_that_runs_is_no_end_of_a_job_whose_pod_is_gone():
    gone = {"metadata": POD["metadata"]}
    entries = [{**entry, "name": None} for entry in told("running").containers[:1]]
    assert job_status(gone, changed(containers=entries, init_containers=[]), "").phase == "running"


def test_a_sidecar_that_runs():
    answer = told("running").model_copy(
        update={"init_containers": [{"name": "fetch", "state": {"terminated": {"exitCode": 0, "reason": SIDECAR}}}]}
    )
    state = job_status(POD, answer, "").init_containers[0]
    assert (state.state, state.started) == ("running", True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "state", "running", "terminated", "waiting", "exitCode", "reason", "startedAt"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(st.dictionaries(st.sampled_from(["name", "state", "lastState", "restartCount"]), JSON), max_size=3))
def test_no_answer_of_a_plugin_raises_another_error(entries):
    named = [{"name": name, **entry} for name, entry in zip(("main", "side"), entries, strict=False)]
    answer = changed(containers=named, init_containers=entries)
    try:
        status = job_status(POD, answer, "owner")
    except SiteError:
        return
    assert status is None or len(status.containers) == 2


def test_many_entries_are_compared_with_the_pod_once():
    count, number = Count(), 200
    names = [Text(f"i{index}", count) for index in range(number)]
    pod = {**POD, "spec": {**POD["spec"], "initContainers": [{"name": name} for name in names]}}
    entries = [{"name": f"x{index}"} for index in range(number)] + [{"name": []}, {}]
    answer = changed(init_containers=entries, containers=[*told("running").containers, *entries])
    count.value = 0
    assert job_status(pod, answer, "owner").init_containers == []
    assert count.value <= 2 * number


def test_the_first_invalid_entry_ends_the_validation():
    with pytest.raises(ValidationError) as error:
        PodStatus.model_validate({**status_answer("running")[0], "containers": [0] * 1000})
    assert error.value.error_count() == 1
