from __future__ import annotations

from typing import Any

import pytest

from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination
from bridge.serving.http_error import AnswerError
from controllers.kubelet.containers import check_log

POD = {
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "main"}, {"name": "side"}], "initContainers": [{"name": "first"}]},
}


def status(*containers: ContainerState, init: tuple[ContainerState, ...] = ()) -> JobStatus:
    return JobStatus(
        job="u", namespace="n", name="p", phase="running", containers=list(containers), init_containers=list(init)
    )


def container(state: Any, **more: Any) -> ContainerState:
    return ContainerState(name="main", state=state, **more)


def refused(pod: dict[str, Any], known: JobStatus | None, name: str = "main", previous: bool = False) -> AnswerError:
    with pytest.raises(AnswerError) as caught:
        check_log(pod, known, name, previous=previous)
    return caught.value


def test_a_container_that_has_not_started_is_400_in_a_kubelets_words() -> None:
    error = refused(POD, None)
    assert (error.status, error.text) == (400, 'container "main" in pod "p" is waiting to start: ContainerCreating')


def test_why_it_waits_is_told_by_the_site_first() -> None:
    told = {**POD, "status": {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "Queued"}}}]}}
    assert refused(told, None).text.endswith(": Queued")
    assert refused(told, status(container("waiting"))).text.endswith(": Queued")
    assert refused(told, status(container("waiting", reason="PodInitializing"))).text.endswith(": PodInitializing")


def test_a_container_that_waits_for_its_next_run_has_the_log_of_its_last_one() -> None:
    check_log(POD, status(container("waiting", last=Termination(exit_code=1))), "main", previous=False)


def test_previous_needs_an_earlier_run() -> None:
    error = refused(POD, status(container("running")), previous=True)
    assert (error.status, error.text) == (400, 'previous terminated container "main" in pod "p" not found')
    check_log(POD, status(container("running", last=Termination(exit_code=1))), "main", previous=True)


def test_init_containers_count() -> None:
    init = ContainerState(name="first", state="terminated")
    check_log(POD, status(container("waiting"), init=(init,)), "first", previous=False)


def test_without_a_word_of_the_site_the_pods_status_counts() -> None:
    ended = {"name": "main", "state": {"terminated": {"exitCode": 0}}, "lastState": {"terminated": {"exitCode": 1}}}
    pod = {**POD, "status": {"containerStatuses": [ended]}}
    check_log(pod, None, "main", previous=False)
    check_log(pod, None, "main", previous=True)


def test_a_pod_that_was_refused_has_no_log_and_the_message_says_why() -> None:
    failed = {"phase": "Failed", "reason": "PodNotSupported", "message": "spec.hostPID: True is not allowed on a pool"}
    containers = [{"name": "main", "state": {"terminated": {"exitCode": 137}}}]
    pod = {**POD, "status": {**failed, "containerStatuses": containers}}
    error = refused(pod, None)
    text = "PodNotSupported: spec.hostPID: True is not allowed on a pool"
    assert (error.status, error.text) == (400, f'pod "p" has no log, because it never ran: {text}')
    ran = {**pod, "metadata": {"name": "p", "annotations": {"bridge.vk.io/job": "site/7"}}}
    check_log(ran, None, "main", previous=False)
