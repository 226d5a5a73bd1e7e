import json
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from bridge.interlink.job_status import NOT_READY, NOT_STARTED, SIDECAR, job_status
from bridge.interlink.messages import PodStatus
from bridge.interlink.pod_status import pod_status
from bridge.protocol.model.jobs import ContainerState, Termination
from tests import builders
from tests.fakes.virtual_kubelet import phase

UID = "7b1f0c1e-3c9a-4a0e-9d5b-0f6a3f0a2b11"
START = 1_790_000_000.0
running = partial(builders.running, started_at=START)


def pod_of(*main, init=(), sidecars=(), probes=()):
    def container(name):
        made = {"name": name, "image": f"image-of-{name}"}
        if name in sidecars:
            made["restartPolicy"] = "Always"
        if name in probes:
            made["readinessProbe"] = {"exec": {"command": ["true"]}}
        return made

    spec = {"containers": [container(name) for name in main], "initContainers": [container(name) for name in init]}
    return {"metadata": {"namespace": "ns", "name": "p", "uid": UID}, "spec": spec}


def job(phase, *states, **more):
    return builders.job_status(UID, phase, job_id="7", containers=list(states), started_at=START, **more)


def over(name, code=0, **more):
    ended = Termination(exit_code=code, started_at=START, finished_at=START + 5)
    return ContainerState(name=name, state="terminated", ended=ended, **more)


def states(status, kind="containers"):
    return [next(iter(entry["state"].items()), (None, {})) for entry in status[kind]]


def test_a_running_pod():
    made = pod_status(pod_of("a", "b"), job("running", running("a"), over("b")))
    assert [kind for kind, _ in states(made)] == ["running", "terminated"]
    first = made["containers"][0]
    assert (first["image"], first["ready"], first["restartCount"]) == ("image-of-a", True, 0)
    assert first["state"]["running"] == {"startedAt": "2026-09-21T14:13:20Z"}
    assert (made["name"], made["namespace"], made["UID"], made["JID"]) == ("p", "ns", UID, "7")
    assert phase(made) == "Running"


def test_a_pod_that_no_pool_knows_has_containers_without_a_state():
    made = pod_status(pod_of("a", "b", init=["i"]), None)
    assert [entry["state"] for entry in made["containers"]] == [{}, {}]
    assert (made["initContainers"], phase(made)) == ([], "Pending")


def test_a_failed_init_container_ends_all_containers():
    pod = pod_of("a", "b", init=["i", "j"])
    made = pod_status(pod, job("ended", over("i", 3), outcome="Failed"))
    assert [told["exitCode"] for _, told in states(made, "initContainers")] == [3, 137]
    assert {told["reason"] for _, told in states(made)} == {NOT_STARTED}
    assert phase(made) == "Failed"


def test_an_init_container_that_is_restarted_has_not_failed_yet():
    made = pod_status(pod_of("a", init=["i"]), job("running", over("i", 3)))
    assert states(made, "initContainers")[0][0] == "waiting"
    assert phase(made) == "Pending"


def test_a_container_whose_job_goes_on_is_not_final():
    assert phase(pod_status(pod_of("a"), job("running", over("a", 1)))) == "Running"


def test_a_failed_job_whose_containers_exited_with_0_has_failed():
    made = pod_status(pod_of("a"), job("ended", over("a"), outcome="Failed", reason="DeadlineExceeded", message="late"))
    assert (phase(made), states(made)[0][1]["reason"], states(made)[0][1]["message"]) == (
        "Failed",
        "DeadlineExceeded",
        "late",
    )


def test_a_sidecar_does_not_keep_the_pod_pending():
    pod = pod_of("a", init=["s"], sidecars=["s"])
    made = pod_status(pod, job("running", running("s"), running("a")))
    assert states(made, "initContainers")[0][1]["reason"] == SIDECAR
    assert phase(made) == "Running"
    killed = pod_status(pod, job("ended", over("s", 137), over("a"), outcome="Succeeded"))
    assert phase(killed) == "Succeeded"


def test_a_container_waits_until_its_probes_have_succeeded():
    unready = running("a", ready=False)
    made = pod_status(pod_of("a", probes=["a"]), job("running", unready))
    assert states(made)[0][1]["reason"] == NOT_READY
    assert phase(made) == "Pending"
    assert phase(pod_status(pod_of("a"), job("running", unready))) == "Running"


def test_the_last_state_stands_while_the_batch_system_does_not_answer():
    assert phase(pod_status(pod_of("a"), job("unknown", running("a")))) == "Running"


def test_the_status_of_the_virtual_kubelet_does_not_count():
    pod = {**pod_of("a"), "status": {"phase": "Failed", "containerStatuses": [{"name": "a", "state": {}}]}}
    assert phase(pod_status(pod, job("running", running("a")))) == "Running"


NAMES = ["i", "s", "a", "b"]
ENDS = st.builds(
    Termination,
    exit_code=st.sampled_from([0, 0, 0, 1, 137]),
    reason=st.sampled_from(["", "Error", "OOMKilled", "Completed"]),
    started_at=st.none() | st.just(START),
    finished_at=st.none() | st.just(START + 9),
)


@st.composite
def container_states(draw, name):
    kind = draw(st.sampled_from(["waiting", "running", "terminated"]))
    started = draw(st.booleans())
    return ContainerState(
        name=name,
        state=kind,
        started_at=draw(st.none() | st.just(START)) if kind == "running" else None,
        ended=draw(ENDS | st.none()) if kind == "terminated" else None,
        restarts=draw(st.integers(0, 3)),
        started=started,
        ready=started and draw(st.booleans()),
        last=draw(st.none() | ENDS),
    )


@st.composite
def jobs(draw):
    told = [draw(container_states(name)) for name in NAMES if draw(st.booleans())]
    kind = draw(st.sampled_from(["queued", "running", "ended", "unknown"]))
    main_ends = [each.ended for each in told if each.name in ("a", "b") and each.ended]
    good = len(main_ends) == 2 and all(end.exit_code == 0 for end in main_ends)
    init_good = not any(each.name == "i" and (each.ended is None or each.ended.exit_code) for each in told)
    outcome = ""
    if kind == "ended":
        outcome = "Succeeded" if good and init_good and draw(st.booleans()) else "Failed"
    return job(kind, *told, outcome=outcome, reason=draw(st.sampled_from(["", "Preempted"])), ended_at=START + 9)


POD = pod_of("a", "b", init=["i", "s"], sidecars=["s"], probes=["b"])


@given(jobs())
def test_the_virtual_kubelet_derives_the_phase_of_the_job(status):
    made = pod_status(POD, status)
    assert [entry["name"] for entry in made["containers"]] == ["a", "b"]
    assert [entry["name"] for entry in made["initContainers"]] == ["i", "s"]
    assert PodStatus.model_validate(json.loads(json.dumps(made))).uid == UID
    if status.phase == "ended":
        assert phase(made) == status.outcome
    else:
        assert phase(made) in ("Pending", "Running")


@given(jobs())
def test_podbridges_client_reads_what_its_plugin_writes(status):
    answer = PodStatus.model_validate(json.loads(json.dumps(pod_status(POD, status))))
    read = job_status(POD, answer, "o")
    assert read is not None
    assert (read.phase == "ended") == (status.phase == "ended")
    if status.phase == "ended":
        assert read.outcome == status.outcome
