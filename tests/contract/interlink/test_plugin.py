"""The plugin with a real submitter: in one process, and over a real nats-server."""

from __future__ import annotations

import contextlib
import json
import signal
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cluster.polling import eventually
from tests.contract.interlink.plugin_process import PluginProcess, follow, jobs_of, log_request, make_pod
from tests.fakes.interlink_bodies import body
from tests.fakes.virtual_kubelet import phase

pytestmark = pytest.mark.real


def test_a_pod_runs_and_its_log_is_followed(plugin: PluginProcess) -> None:
    client = plugin.client
    pod = make_pod("echo begun; sleep 2; echo done; exit 3", init="echo prepared")
    created = client.create(pod)
    assert created["PodUID"] == pod["metadata"]["uid"]
    assert created["PodJID"]
    client.wait(pod, "Running")
    lines: list[tuple[float, str]] = []
    reader = threading.Thread(target=follow, args=(client, pod, lines))
    reader.start()
    eventually(lambda: lines, "the first line", 5)
    assert phase(client.status(pod)) == "Running"
    reader.join(15)
    assert not reader.is_alive()
    assert [text for _, text in lines] == ["begun", "done"]
    assert lines[1][0] - lines[0][0] > 1
    told = client.wait(pod, "Failed")
    assert told["containers"][0]["state"]["terminated"]["exitCode"] == 3
    assert told["initContainers"][0]["state"]["terminated"]["exitCode"] == 0
    assert (client.log(pod, "first"), client.log(pod, Tail=1)) == ("prepared\n", "done\n")
    assert client.log(pod, Bytes=5) == "begun"
    assert " begun\n" in client.log(pod, Timestamps=True)
    client.delete(pod)
    eventually(lambda: pod["metadata"]["uid"] not in jobs_of(plugin.folder), "the removal of the job's folder", 10)
    assert client.status(pod)["containers"][0]["state"] == {}


def test_a_deleted_pod_is_ended(plugin: PluginProcess) -> None:
    pod = make_pod("sleep 300", terminationGracePeriodSeconds=1)
    plugin.client.create(pod)
    plugin.client.wait(pod, "Running")
    began = time.monotonic()
    plugin.client.delete(pod)
    eventually(lambda: pod["metadata"]["uid"] not in jobs_of(plugin.folder), "the end of the job", 15)
    assert time.monotonic() - began < 10
    plugin.client.delete(pod)
    assert plugin.client.call("POST", "/create", {"pod": pod, "container": []})[0] == 409


def test_a_cancellation_reaches_a_site_that_was_down(over_nats: PluginProcess) -> None:
    client = over_nats.client
    pod = make_pod("sleep 300", terminationGracePeriodSeconds=0)
    client.create(pod)
    client.wait(pod, "Running")
    over_nats.submitter.stop(signal.SIGKILL)
    try:
        status, text = client.call("DELETE", "/delete", pod)
        assert status in (503, 504), text
        assert phase(client.status(pod)) == "Running"
    finally:
        over_nats.submitter.start()
    eventually(lambda: pod["metadata"]["uid"] not in jobs_of(over_nats.folder), "the end of the job", 30)
    eventually(over_nats.answers, "the site's announcement", 10)


def test_a_job_survives_a_restart_of_the_plugin(plugin: PluginProcess, tmp_path: Path) -> None:
    client, end = plugin.client, tmp_path / "end"
    pod = make_pod(f"echo begun; until [ -e {end} ]; do sleep 0.1; done; echo done")
    created = client.create(pod)
    client.wait(pod, "Running")
    plugin.stop(signal.SIGKILL)
    plugin.start()
    assert client.create(pod) == created
    assert phase(client.status(pod)) == "Running"
    end.touch()
    client.wait(pod, "Succeeded")
    assert client.log(pod) == "begun\ndone\n"
    client.delete(pod)


def test_the_recorded_bodies_run(plugin: PluginProcess) -> None:
    client = plugin.client
    told = body("create_hop_b")
    text = json.dumps(told).replace(told["pod"]["metadata"]["uid"], make_pod("")["metadata"]["uid"])
    asked: dict[str, Any] = json.loads(text)
    for container in asked["pod"]["spec"]["initContainers"] + asked["pod"]["spec"]["containers"]:
        container["volumeMounts"] = []
        container["command"] = ["sh", "-c", 'echo "$LITERAL"']
    client.good("POST", "/create", asked)
    client.wait(asked["pod"], "Succeeded")
    assert client.log(asked["pod"]) == "costs $5 and $(HOME)\n"
    client.delete(asked["pod"])


def test_a_container_that_waits_has_no_log_yet(plugin: PluginProcess) -> None:
    pod = make_pod("true", init="sleep 3")
    plugin.client.create(pod)
    eventually(lambda: "running" in plugin.client.status(pod)["initContainers"][0]["state"], "the init container", 10)
    status, text = plugin.client.call("GET", "/getLogs", log_request(pod))
    assert (status, b"waiting to start" in text) == (400, True)
    assert plugin.client.call("GET", "/getLogs", log_request(pod, "other"))[0] in (400, 404)
    plugin.client.delete(pod)


def test_the_end_of_a_client_ends_its_log(plugin: PluginProcess) -> None:
    pod = make_pod("echo begun; sleep 300")
    plugin.client.create(pod)
    plugin.client.wait(pod, "Running")
    assert plugin.process is not None
    tasks = Path(f"/proc/{plugin.process.pid}/task")
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            answer = stack.enter_context(plugin.client.open("GET", "/getLogs", log_request(pod, Follow=True)))
            assert answer.readline() == b"begun\n"
        during = len(list(tasks.iterdir()))
    eventually(lambda: len(list(tasks.iterdir())) <= during - 3, "the end of the three threads", 10)
    plugin.client.delete(pod)


def test_a_ping_has_the_resources_of_the_site(plugin: PluginProcess) -> None:
    told = plugin.client.good("GET", "/status", [])
    assert (told["resources"]["cpu"], told["resources"]["pods"]) == ("4", "10000")
    assert plugin.client.good("GET", "/system-info")["slurm_connected"] is True


def test_only_the_user_of_the_plugin_can_open_its_socket(in_process: PluginProcess) -> None:
    mode = Path(in_process.address.removeprefix("unix://")).stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)


def test_the_socket_of_a_running_plugin_is_not_taken(in_process: PluginProcess) -> None:
    second = PluginProcess(in_process.folder, in_process.address, *in_process.arguments)
    second.started = 100
    with pytest.raises(AssertionError, match="another process listens on this socket"):
        second.start()
        while second.process is not None and second.process.poll() is None:
            time.sleep(0.1)
        second.answers()
    second.stop()
    assert in_process.answers()


def test_no_secret_is_in_the_log_of_the_plugin(plugin: PluginProcess) -> None:
    told = body("create_hop_b")
    told["pod"]["spec"]["hostPID"] = True
    assert plugin.client.call("POST", "/create", told)[0] == 422
    told["container"][1]["secrets"][0]["data"]["password"] = 5
    assert plugin.client.call("POST", "/create", told)[0] == 400
    text = plugin.log()
    assert "hostPID" in text
    assert "eyJhbGciOiJSUzI1NiJ9" not in text
    assert "s3cr" not in text
