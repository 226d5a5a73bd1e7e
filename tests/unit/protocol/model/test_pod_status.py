"""Statuses of pods from states of jobs; numbers are sections of the notes on the interLink plugin API."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.clock import rfc3339
from bridge.protocol.model import pod_status as statuses
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination
from controllers.virtual import hub_status
from tests import builders
from tests.builders import job_status

NOW = 1_800_000_000.0
HOST = "10.0.0.1"
running = partial(builders.running, started_at=NOW - 9)


def pod(*containers, init=(), policy="Never", status=None, **spec):
    spec["containers"] = [{"name": name, "image": f"img-{name}"} for name in containers or ("main",)]
    if init:
        spec["initContainers"] = list(init)
    found = builders.pod(node="site", metadata={"name": "p"}, **{"restartPolicy": policy, **spec})
    return {**found, "status": status or {"phase": "Pending", "qosClass": "Burstable"}}


def job(phase="running", *containers, init=(), **values):
    return job_status(phase=phase, job_id="7", containers=containers, init_containers=init, **values)


def ended(name="main", code=0, **values):
    over = Termination(exit_code=code, started_at=NOW - 9, finished_at=NOW - 1, **values)
    return ContainerState(name=name, state="terminated", ended=over)


def waiting(name="main", **values):
    return ContainerState(name=name, **values)


def made(the_pod, the_job):
    return statuses.pod_status(the_pod, the_job, HOST, NOW)


def conditions(status):
    return {c["type"]: (c["status"], c.get("reason", "")) for c in status["conditions"]}


def states(status, kind="containerStatuses"):
    return {c["name"]: next(iter(c["state"])) for c in status[kind]}


INIT = {"name": "init", "image": "i"}
SIDECAR = {"name": "side", "image": "s", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("the_pod", "the_job", "phase"),
    [
        (pod(), job("queued"), "Pending"),
        (pod(), job("running"), "Pending"),
        (pod(), job("running", waiting()), "Pending"),
        (pod(), job("running", running()), "Running"),
        (pod("a", "b"), job("running", running("a"), waiting("b")), "Pending"),
        (pod("a", "b"), job("running", running("a"), ended("b", 1)), "Running"),
        # all over, but the job is not: the end is the script's last word
        (pod(), job("running", ended()), "Running"),
        (
            pod(policy="Always"),
            job("running", waiting(reason="CrashLoopBackOff", last=Termination(exit_code=1))),
            "Running",
        ),
        (pod(init=[INIT]), job("running", waiting(), init=[running("init")]), "Pending"),
        (pod(init=[INIT]), job("running", running(), init=[ended("init")]), "Running"),
        (pod(init=[SIDECAR]), job("running", waiting(), init=[running("side", started=False)]), "Pending"),
        (pod(init=[SIDECAR]), job("running", running(), init=[running("side")]), "Running"),
        (pod(), job("ended", ended(), outcome="Succeeded"), "Succeeded"),
        (pod(), job("ended", ended(code=42), outcome="Failed"), "Failed"),
        (pod("a", "b"), job("ended", ended("a"), ended("b", 3), outcome="Failed"), "Failed"),
        # a site that says nothing, or the impossible, of the outcome
        (pod(), job("ended", ended()), "Succeeded"),
        (pod(), job("ended", ended(code=1), outcome="Succeeded"), "Failed"),
        (pod(), job("ended", running(), outcome="Succeeded"), "Failed"),
        (pod(), job("ended", outcome="Succeeded"), "Failed"),
        (pod(), job("ended", ended(), outcome="Failed", reason="DeadlineExceeded"), "Failed"),
        # a sidecar is stopped when the rest is over: its code does not count
        (pod(init=[SIDECAR]), job("ended", ended(), init=[ended("side", 143)], outcome="Succeeded"), "Succeeded"),
        # once running, a pod never goes back
        (pod(status={"phase": "Running"}), job("queued"), "Running"),
    ],
)
def test_phase(the_pod, the_job, phase):
    assert made(the_pod, the_job)["phase"] == phase


def test_2_4_a_finished_pod_never_changes_again():
    before = {"phase": "Succeeded", "containerStatuses": [{"name": "main"}]}
    assert made(pod(status=before), job("running", running())) == before
    assert made(pod(status=before), job("ended", ended(code=1), outcome="Failed")) == before


def test_a_batch_system_that_cannot_be_asked_changes_nothing():
    before = {"phase": "Running", "containerStatuses": [{"name": "main"}]}
    assert made(pod(status=before), job("unknown")) == before


def test_2_4_exactly_the_pods_containers_in_the_order_of_its_spec():
    status = made(pod("a", "b"), job("running", running("b"), running("x"), running("a")))
    assert [entry["name"] for entry in status["containerStatuses"]] == ["a", "b"]
    status = made(pod("a", "b"), job("running", running("b")))
    assert states(status) == {"a": "waiting", "b": "running"}
    assert [entry["image"] for entry in status["containerStatuses"]] == ["img-a", "img-b"]


def test_2_4_after_an_init_failure_the_main_containers_never_ran():
    two = [INIT, {"name": "second", "image": "i"}]
    over = job("ended", waiting(), init=[ended("init", 5), waiting("second")], outcome="Failed")
    status = made(pod(init=two), over)
    assert status["phase"] == "Failed"
    assert states(status, "initContainerStatuses") == {"init": "terminated", "second": "waiting"}
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert conditions(status)["Initialized"] == ("False", "ContainersNotInitialized")
    assert conditions(status)["Ready"] == ("False", "PodFailed")


def test_2_4_a_site_that_says_nothing_of_containers():
    status = made(pod("a", "b"), job("ended", reason="NodeFailure", outcome="Failed", ended_at=NOW))
    assert states(status) == {"a": "terminated", "b": "terminated"}
    over = status["containerStatuses"][0]["state"]["terminated"]
    assert (over["exitCode"], over["reason"]) == (137, "NodeFailure")
    assert status["reason"] == "NodeFailure"
    assert conditions(status)["DisruptionTarget"] == ("True", "NodeFailure")


def test_2_4_a_running_container_that_is_not_ready_is_not_ready():
    status = made(pod(), job("running", running(ready=False)))
    assert conditions(status)["Ready"] == ("False", "ContainersNotReady")
    assert conditions(status)["ContainersReady"] == ("False", "ContainersNotReady")
    assert status["containerStatuses"][0]["ready"] is False
    status = made(pod(), job("running", running(started=False)))
    assert status["containerStatuses"][0]["started"] is False
    assert conditions(status)["Ready"][0] == "False"


def test_2_4_reasons_of_ends_are_kept():
    status = made(pod(), job("ended", ended(code=137, reason="OOMKilled", signal=9), outcome="Failed"))
    over = status["containerStatuses"][0]["state"]["terminated"]
    assert (over["reason"], over["exitCode"], over["signal"]) == ("OOMKilled", 137, 9)
    assert "reason" not in status
    late = job("ended", ended(code=143), outcome="Failed", reason="DeadlineExceeded", message="after 5 s")
    status = made(pod(), late)
    assert (status["reason"], status["message"]) == ("DeadlineExceeded", "after 5 s")
    assert "DisruptionTarget" not in conditions(status)
    status = made(pod(), job("ended", ended(code=137), outcome="Failed", reason="Evicted"))  # outgrew its emptyDir
    assert "DisruptionTarget" not in conditions(status)


@pytest.mark.parametrize(("code", "reason"), [(0, "Completed"), (42, "Error")])
def test_an_exit_code_has_a_kubelets_reason(code, reason):
    status = made(pod(), job("ended", ended(code=code)))
    over = status["containerStatuses"][0]["state"]["terminated"]
    assert (over["reason"], over["exitCode"]) == (reason, code)
    assert over["startedAt"] == "2027-01-15T07:59:51Z"
    assert over["containerID"] == "podbridge://site/u1/main"


def test_why_a_job_waits_is_said():
    status = made(pod("a", "b"), job("queued", reason="Resources", message="2 jobs before it"))
    message = "queued as job 7 (Resources: 2 jobs before it)"
    assert status["containerStatuses"][0]["state"] == {"waiting": {"reason": "ContainerCreating", "message": message}}
    assert conditions(status)["PodReadyToStartContainers"][0] == "False"
    assert conditions(status)["Initialized"][0] == "True"
    status = made(pod(init=[INIT]), job("queued", reason="Priority"))
    assert status["initContainerStatuses"][0]["state"]["waiting"]["reason"] == "PodInitializing"


def test_restarts_show_the_run_before():
    last = Termination(exit_code=1, reason="Error", started_at=NOW - 99, finished_at=NOW - 90)
    status = made(pod(policy="Always"), job("running", running(restarts=3, last=last)))
    entry = status["containerStatuses"][0]
    assert entry["restartCount"] == 3
    assert entry["lastState"]["terminated"]["exitCode"] == 1


@pytest.mark.parametrize(
    ("policy", "code", "returns"),
    [("Never", 0, False), ("Never", 1, False), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Always", 0, True)],
)
def test_a_container_comes_back_only_where_its_policy_lets_it(policy, code, returns):
    before = made(pod(policy=policy), job("running", ended(code=code)))
    status = made(pod(policy=policy, status=before), job("running", running(restarts=1)))
    assert ("running" in status["containerStatuses"][0]["state"]) is returns


def test_a_finished_pod_is_complete():
    status = made(pod(), job("ended", ended(), outcome="Succeeded"))
    assert conditions(status) == {
        "PodReadyToStartContainers": ("False", ""),
        "Initialized": ("True", "PodCompleted"),
        "Ready": ("False", "PodCompleted"),
        "ContainersReady": ("False", "PodCompleted"),
    }


def test_only_an_exposed_pod_that_runs_has_an_address_and_it_leads_nowhere():
    """An endpoint with the machine's address would lead to something else, one with the hub's to its own ports."""
    running_job = job("running", running(), ip="10.9.8.7")
    before = {"phase": "Running", "podIP": "10.9.8.7", "podIPs": [{"ip": "10.9.8.7"}]}
    status = made(pod(status=before), running_job)
    assert "podIP" not in status and "podIPs" not in status
    assert hub_status.patch(before, status)["podIP"] is None
    assert (status["hostIP"], status["hostIPs"]) == (HOST, [{"ip": HOST}])
    exposed = pod()
    exposed["metadata"]["annotations"] = {"bridge.vk.io/expose": "80"}
    assert "podIP" not in made(exposed, job("queued"))
    for host, address in (("10.0.0.1", "100::"), ("2001:db8::1", "192.0.0.8")):
        status = statuses.pod_status(exposed, running_job, host, NOW)
        assert (status["podIP"], status["podIPs"]) == (address, [{"ip": address}])


@pytest.mark.parametrize(
    ("families", "before", "address"),
    [
        ({"IPv4"}, {}, "100::"),
        ({"IPv6"}, {}, "192.0.0.8"),
        ({"IPv4", "IPv6"}, {"phase": "Running", "podIP": "100::"}, None),
        (None, {}, "100::"),
        (None, {"phase": "Running", "podIP": "192.0.0.8"}, "192.0.0.8"),
        (None, {"phase": "Running"}, None),
    ],
)
def test_the_address_has_a_family_that_no_service_has(families, before, address):
    exposed = pod(status=before)
    exposed["metadata"]["annotations"] = {"bridge.vk.io/expose": "80"}
    status = statuses.pod_status(exposed, job("running", running()), HOST, NOW, families)
    assert status.get("podIP") == address


def test_readiness_gates_are_waited_for():
    gated = pod(readinessGates=[{"conditionType": "example.com/g"}])
    assert conditions(made(gated, job("running", running())))["Ready"] == ("False", "ReadinessGatesNotReady")
    gated["status"]["conditions"] = [{"type": "example.com/g", "status": "True"}]
    assert conditions(made(gated, job("running", running())))["Ready"] == ("True", "")


def test_a_lost_job_ends_what_ran():
    before = made(pod("a", "b", policy="Always"), job("running", running("a"), ended("b")))
    lost = hub_status.failed(pod("a", "b", policy="Always", status=before), "JobLost", "gone", HOST, NOW)
    assert lost["phase"] == "Failed"
    assert lost["reason"] == "JobLost"
    codes = [entry["state"]["terminated"]["exitCode"] for entry in lost["containerStatuses"]]
    assert codes == [137, 0]
    assert conditions(lost)["DisruptionTarget"] == ("True", "JobLost")


def test_a_pod_that_waits_says_for_what():
    status = hub_status.waiting(pod(), "WaitingForReference", "waiting for Secret s", HOST, NOW)
    entry = status["containerStatuses"][0]["state"]["waiting"]
    assert entry == {"reason": "WaitingForReference", "message": "waiting for Secret s"}
    assert status["phase"] == "Pending"


# --- the patch --------------------------------------------------------------------------------------------------------
def applied(before, change):
    """Apply a strategic merge patch to a pod's status."""
    after = dict(before)
    for key, value in change.items():
        if key == "conditions":
            known = {entry["type"]: entry for entry in before.get("conditions") or ()}
            for entry in value:
                merged = {**known.get(entry["type"], {}), **entry}
                known[entry["type"]] = {k: v for k, v in merged.items() if v is not None}
            after[key] = list(known.values())
        elif key in ("podIPs", "hostIPs"):
            assert value[-1] == {"$patch": "replace"}
            after[key] = value[:-1]
        elif value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


ENDED = st.builds(
    Termination, exit_code=st.integers(0, 255), started_at=st.none() | st.floats(1, 1e10), finished_at=st.none()
)
CONTAINER = st.builds(
    ContainerState,
    name=st.sampled_from(["main", "b", "x"]),
    state=st.sampled_from(["waiting", "running", "terminated"]),
    reason=st.sampled_from(["", "CrashLoopBackOff"]),
    started_at=st.none() | st.floats(1, 1e10),
    ended=st.none() | ENDED,
    restarts=st.integers(0, 3),
    started=st.booleans(),
    ready=st.booleans(),
    last=st.none() | ENDED,
)
JOB = st.builds(
    JobStatus,
    job=st.just("u1"),
    namespace=st.just("ns"),
    name=st.just("p"),
    phase=st.sampled_from(["queued", "running", "ended", "unknown"]),
    outcome=st.sampled_from(["", "Succeeded", "Failed"]),
    reason=st.sampled_from(["", "Resources", "DeadlineExceeded"]),
    ip=st.sampled_from(["", "10.1.1.1", "10.1.1.2"]),
    containers=st.lists(CONTAINER, max_size=3),
    init_containers=st.lists(CONTAINER, max_size=2),
)


@given(st.lists(JOB, max_size=4), st.sampled_from(["Always", "OnFailure", "Never"]), st.booleans())
def test_patches_lead_to_the_status_and_then_say_nothing(jobs, policy, with_init):
    the_pod = pod("main", "b", init=[{"name": "x", "image": "x"}] if with_init else (), policy=policy)
    the_pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
    for each in jobs:
        before = the_pod["status"]
        wanted = made(the_pod, each)
        after = applied(before, hub_status.patch(before, wanted))
        the_pod = {**the_pod, "status": after}
        assert hub_status.patch(after, made(the_pod, each)) == {}
        assert {"type": "PodScheduled", "status": "True"} in after["conditions"]
        assert after.get("qosClass") == "Burstable"
        if before["phase"] in ("Succeeded", "Failed"):
            assert after == before
        if "containerStatuses" in after:
            assert [entry["name"] for entry in after["containerStatuses"]] == ["main", "b"]


@pytest.mark.parametrize("moment", [1722470400000.0, 1e300, float("nan"), float("inf"), -1.0])
def test_a_time_of_the_site_that_is_none(moment):
    status = made(pod("main"), job("running", running(), submitted_at=moment, started_at=moment))
    assert status["startTime"] == rfc3339(NOW)
