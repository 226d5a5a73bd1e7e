from __future__ import annotations

import json
from typing import Any

import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from werkzeug.test import Client, TestResponse

from bridge.errors import (
    BridgeError,
    KubeForbiddenError,
    KubeUnavailableError,
    SiteDownError,
    SiteRefusedError,
    SiteUnknownOutcomeError,
)
from bridge.protocol.model.jobs import ContainerUse, JobUsage, Termination
from bridge.protocol.model.sessions import CommandOptions
from bridge.serving.streaming import LIMIT, ON_HANG_UP
from bridge.serving.upgrade import UPGRADE
from controllers.kubelet.authentication import TokenAuthenticator, User
from controllers.kubelet.authorization import REMEMBER_NO, KubeletAuthorizer
from controllers.kubelet.handlers import SCRAPE_CACHED, Located, Sources
from controllers.kubelet.kubelet_app import make_app
from tests.fakes.clock import FakeClock
from tests.fakes.log_pool import LogPool, running, terminated
from tests.fakes.memory_session import MemorySession

NOW = 1_700_000_000.0


class Served:
    """Two pools, a pod each; tokens are users' names; ``rights``: "user verb subresource node" (no node: any)."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOW)
        self.pools = {"one": LogPool("one"), "two": LogPool("two")}
        self.pods = [self._pod("one", "a", "main", "side"), self._pod("two", "b", "main")]
        allowed = ("get proxy", "create proxy", "get pods", "get stats", "get metrics")
        self.rights = {f"admin {each} " for each in allowed}
        self.broken: BridgeError | None = None
        sources = Sources(self.find, lambda: self.pods, lambda: self.pools)
        self.app = make_app(
            sources, TokenAuthenticator(self.review, self.clock), KubeletAuthorizer(self.may, self.clock), self.clock
        )
        self.client = Client(self.app)

    def _pod(self, pool: str, name: str, *containers: str) -> dict[str, Any]:
        pod = {
            "metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"},
            "spec": {"nodeName": pool, "containers": [{"name": each, "image": "i"} for each in containers]},
            "status": {"phase": "Running", "startTime": "2023-11-14T22:00:00Z"},
        }
        states = [running(each, NOW - 60) for each in containers]
        self.pools[pool].runs(f"uid-{name}", "ns", name, *states)
        return pod

    def find(self, namespace: str, name: str) -> Located | None:
        for pod in self.pods:
            if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name):
                return pod, self.pools.get(pod["spec"]["nodeName"])
        return None

    def review(self, token: str) -> dict[str, Any]:
        if self.broken is not None:
            raise self.broken
        return {"authenticated": token != "nobody", "user": {"username": token}}

    def may(self, user: User, verb: str, subresource: str, node: str) -> bool:
        if self.broken is not None:
            raise self.broken
        return bool({f"{user.name} {verb} {subresource} {where}" for where in ("", node)} & self.rights)

    def get(self, path: str, user: str | None = "admin", method: str = "GET", **headers: str) -> TestResponse:
        if user is not None:
            headers["Authorization"] = f"Bearer {user}"
        return self.client.open(path, method=method, headers=headers)


@pytest.fixture
def served() -> Served:
    return Served()


PATHS = [
    "/containerLogs/ns/a/main",
    "/pods",
    "/runningpods/",
    "/stats/summary?node=one",
    "/metrics/resource",
    "/metrics/resource/one",
    "/healthz",
    "/exec/ns/a/main",
    "/attach/ns/a/main",
    "/portForward/ns/a",
    "/nothing",
    "/metrics",
]


@pytest.mark.parametrize("path", PATHS)
def test_interlink_2_5_nobody_is_let_in_unknown(served: Served, path: str) -> None:
    for user in (None, "nobody"):
        answer = served.get(path, user)
        assert (answer.status_code, answer.text) == (401, "Unauthorized")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert served.pools["one"].asked == []


@pytest.mark.parametrize("path", PATHS)
def test_known_but_without_rights_is_403(served: Served, path: str) -> None:
    answer = served.get(path, "bob")
    assert answer.status_code == 403
    assert "user=bob" in answer.text
    assert served.pools["one"].asked == []


@pytest.mark.parametrize("path", PATHS)
def test_an_api_server_that_is_down_is_503(served: Served, path: str) -> None:
    served.broken = KubeUnavailableError("POST /tokenreviews: no connection")
    answer = served.get(path)
    assert answer.status_code == 503
    assert "no connection" in answer.text


def test_own_missing_rights_are_told(served: Served) -> None:
    served.broken = KubeForbiddenError("POST /tokenreviews: Forbidden", status=403)
    assert served.get("/pods").status_code == 500


def test_who_may_not_see_a_pod_does_not_learn_whether_it_is_there(served: Served) -> None:
    there, not_there = served.get("/containerLogs/ns/a/main", "bob"), served.get("/containerLogs/ns/zz/main", "bob")
    assert there.status_code == not_there.status_code == 403
    assert there.text == not_there.text


def test_a_log(served: Served) -> None:
    served.pools["one"].write("uid-a", "main", b"one\ntwo\n")
    answer = served.get("/containerLogs/ns/a/main?tailLines=1")
    assert (answer.status_code, answer.data) == (200, b"two\n")
    assert answer.content_type == "text/plain; charset=utf-8"
    assert served.pools["one"].open == 0


def test_an_empty_log(served: Served) -> None:
    answer = served.get("/containerLogs/ns/a/main")
    assert (answer.status_code, answer.data) == (200, b"")


def test_options_reach_the_site(served: Served) -> None:
    served.pools["one"].runs("uid-a", "ns", "a", running("main", last=Termination(exit_code=1)))
    path = "/containerLogs/ns/a/main?tailLines=7&sinceSeconds=60&timestamps=true&limitBytes=9&previous=true"
    assert served.get(path).status_code == 200
    job, options = served.pools["one"].asked[0]
    assert job == "uid-a"
    assert (options.container, options.tail, options.since) == ("main", 7, NOW - 60)
    assert (options.timestamps, options.limit_bytes, options.previous) == (True, 9, True)


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/containerLogs/ns/zz/main", 404, 'pod "zz" does not exist'),
        ("/containerLogs/other/a/main", 404, 'pod "a" does not exist'),
        ("/containerLogs/ns/a/zz", 404, 'container "zz" not found in pod "a"'),
        ("/containerLogs/ns/a/main?previous=true", 400, 'previous terminated container "main" in pod "a" not found'),
        ("/containerLogs/ns/a/main?tailLines=-1", 422, "tailLines: -1: must be 0 or more"),
        ("/containerLogs/ns/a/main?tailLines=x", 400, "tailLines: 'x': must be a whole number"),
    ],
)
def test_logs_that_are_not_to_be_had(served: Served, path: str, status: int, text: str) -> None:
    answer = served.get(path)
    assert (answer.status_code, answer.text) == (status, text)


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (SiteDownError("pool one does not answer", hint="wait"), 502),
        (SiteUnknownOutcomeError("pool one did not answer in time"), 502),
        (SiteRefusedError("busy", retryable=True), 502),
        (SiteRefusedError("no such log", reason="NotFound"), 404),
        (SiteRefusedError("not so", reason="Invalid"), 400),
        (BridgeError("something"), 500),
    ],
)
def test_a_sites_problems_reach_the_user_in_words(served: Served, problem: BridgeError, status: int) -> None:
    served.pools["one"].fail(problem)
    answer = served.get("/containerLogs/ns/a/main")
    assert answer.status_code == status
    assert str(problem) in answer.text
    assert problem.hint in answer.text


def test_a_pool_that_is_not_known_yet_is_told(served: Served) -> None:
    del served.pools["one"]
    answer = served.get("/containerLogs/ns/a/main")
    assert answer.status_code == 502
    assert "pool one has not been heard of" in answer.text
    assert served.get("/exec/ns/a/main").status_code == 502
    assert served.get("/containerLogs/ns/a/main", "bob").status_code == 403


def test_a_pool_without_logs_says_so(served: Served) -> None:
    served.pools["one"].logs = None
    answer = served.get("/containerLogs/ns/a/main")
    assert (answer.status_code, answer.json["reason"]) == (501, "NotImplemented")
    assert "kubectl logs is not possible for pods on pool one" in answer.json["message"]
    assert served.get("/containerLogs/ns/a/main", "bob").status_code == 403


def test_a_log_that_breaks_off_says_so(served: Served) -> None:
    served.pools["one"].write("uid-a", "main", b"begin\n")
    answer = served.client.open(
        "/containerLogs/ns/a/main?follow=true", headers={"Authorization": "Bearer admin"}, buffered=False
    )
    pieces = iter(answer.response)
    assert [next(pieces), next(pieces)] == [b"", b"begin\n"]
    served.pools["one"].fail(SiteDownError("pool one does not answer"))
    assert b"".join(pieces) == b"podbridge: the log ends here because of an error: pool one does not answer\n"
    answer.close()
    assert served.pools["one"].wait_open(0)


def test_an_answer_that_nobody_read_ends_the_log_at_the_site(served: Served) -> None:
    answer = served.client.open(
        "/containerLogs/ns/a/main?follow=true", headers={"Authorization": "Bearer admin"}, buffered=False
    )
    assert served.pools["one"].open == 1
    answer.close()
    assert served.pools["one"].open == 0


def test_a_log_of_a_container_that_has_ended(served: Served) -> None:
    served.pools["one"].runs("uid-a", "ns", "a", terminated("main"), phase="ended")
    served.pools["one"].write("uid-a", "main", b"last words\n")
    served.pools["one"].end("uid-a", "main")
    assert served.get("/containerLogs/ns/a/main?follow=true").data == b"last words\n"


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("/exec/ns/a/main?command=ls&output=1", "kubectl exec"),
        ("/exec/ns/a/uid-a/main", "kubectl exec"),
        ("/attach/ns/a/main", "kubectl attach"),
        ("/portForward/ns/a", "kubectl port-forward"),
        ("/portForward/ns/a/uid-a?port=80", "kubectl port-forward"),
    ],
)
def test_what_is_not_possible_yet_is_501_and_says_what_to_do(served: Served, method: str, path: str, word: str) -> None:
    served.pods[0]["spec"]["containers"][0]["stdin"] = True
    answer = served.get(path, method=method)
    assert answer.status_code == 501
    status = json.loads(answer.data)
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 501, "NotImplemented")
    assert word in status["message"]
    assert "pool one" in status["message"]


SPDY = {
    "Connection": "Upgrade",
    "Upgrade": "SPDY/3.1",
    "X-Stream-Protocol-Version": "v5.channel.k8s.io, v4.channel.k8s.io",
}
WEBSOCKET = {
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Protocol": "v4.channel.k8s.io",
}
EXEC = "/exec/ns/a/main?command=ls&output=1"


class Commands:
    """The commands of pool ``one``; ``problem`` is raised instead of a session, if set."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.sessions: list[MemorySession] = []
        self.started: list[CommandOptions] = []
        self.problem: BridgeError | None = None
        self.hang_ups: list[Any] = []
        served.pools["one"].sessions = self.start

    def start(self, pod: Any, options: CommandOptions) -> MemorySession:
        if self.problem is not None:
            raise self.problem
        self.started.append(options)
        self.sessions.append(MemorySession())
        return self.sessions[-1]

    def run(self, path: str = EXEC, method: str = "POST", **changes: str) -> TestResponse:
        headers = {"Authorization": "Bearer admin", **SPDY, **changes}
        environ = {ON_HANG_UP: self.hang_ups.append, UPGRADE: lambda converse: None}
        return self.served.client.open(path, method=method, headers=headers, environ_overrides=environ)


def test_a_command_switches_the_protocol_and_its_session_ends_with_the_answer(served: Served) -> None:
    commands = Commands(served)
    for path in (EXEC, EXEC.replace("/main", "/uid-a/main")):
        answer = commands.run(path)
        assert (answer.status_code, answer.data) == (101, b"")
        assert answer.headers["Upgrade"] == "SPDY/3.1"
        assert answer.headers["X-Stream-Protocol-Version"] == "v4.channel.k8s.io"
        session = commands.sessions[-1]
        assert commands.hang_ups[-1] == session.close
        answer.close()
        assert session.closed


ATTACH = "/attach/ns/a/main?input=1&output=1"


def test_a_client_is_attached_to_a_console(served: Served) -> None:
    commands = Commands(served)
    served.pods[0]["spec"]["containers"][0] |= {"stdin": True, "tty": True}
    for tty in ("", "&tty=1"):
        answer = commands.run(ATTACH + tty)
        assert (answer.status_code, answer.headers["Upgrade"]) == (101, "SPDY/3.1")
        options = commands.started[-1]
        assert (options.attach, options.command, options.stdin, options.tty) == (True, [], True, tty != "")
        answer.close()
        assert commands.sessions[-1].closed


def test_a_client_is_attached_to_the_log_of_a_container_without_a_console(served: Served) -> None:
    commands = Commands(served)
    served.pools["one"].write("uid-a", "main", b"before\n")
    answer = commands.run(ATTACH)
    assert (answer.status_code, commands.sessions, served.pools["one"].open) == (101, [], 1)
    (_, options), *_ = served.pools["one"].asked
    assert (options.follow, options.tail, options.container) == (True, 0, "main")
    answer.close()
    assert served.pools["one"].open == 0


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/attach/ns/a/zz?output=1", 404, 'container "zz" not found in pod "a"'),
        ("/attach/ns/a/side?output=1", 400, '"side" in pod "a" is not running: it has ended'),
        ("/attach/ns/a/old-uid/main?output=1", 404, "UID old-uid does not exist"),
        ("/attach/ns/a/main", 400, "you must specify at least 1 of stdin, stdout, stderr"),
    ],
)
def test_what_nobody_is_attached_to(served: Served, path: str, status: int, words: str) -> None:
    commands = Commands(served)
    served.pools["one"].runs("uid-a", "ns", "a", running("main"), terminated("side"))
    answer = commands.run(path)
    assert (answer.status_code, commands.sessions, served.pools["one"].open) == (status, [], 0)
    assert words in answer.text


def test_commands_have_shares(served: Served) -> None:
    commands = Commands(served)
    opened = [commands.run() for _ in range(LIMIT // 8)]
    refused = commands.run()
    assert (refused.status_code, refused.text) == (429, "32 sessions of this pod are open already: end one of them")
    assert served.get("/containerLogs/ns/a/main").status_code == 200
    opened[0].close()
    assert commands.run().status_code == 101


@pytest.mark.parametrize(
    ("path", "method", "changes", "status", "words"),
    [
        ("/exec/ns/zz/main?command=ls&output=1", "POST", {}, 404, 'pod "zz" does not exist'),
        ("/exec/ns/a/old-uid/main?command=ls&output=1", "POST", {}, 404, "UID old-uid does not exist"),
        ("/exec/ns/a/zz?command=ls&output=1", "POST", {}, 404, 'container "zz" not found in pod "a"'),
        ("/exec/ns/a/side?command=ls&output=1", "POST", {}, 400, '"side" in pod "a" is not running: it has ended'),
        ("/exec/ns/a/main?output=1", "POST", {}, 400, "a command is required"),
        (EXEC, "GET", {}, 405, "POST"),
        (EXEC, "GET", {"Upgrade": "websocket"}, 400, "Sec-WebSocket-Version"),
        (EXEC, "POST", {"X-Stream-Protocol-Version": "v3.channel.k8s.io"}, 403, "unable to negotiate"),
    ],
)
def test_commands_that_are_refused(
    served: Served, path: str, method: str, changes: dict[str, str], status: int, words: str
) -> None:
    commands = Commands(served)
    served.pools["one"].runs("uid-a", "ns", "a", running("main"), terminated("side"))
    before = REGISTRY.get_sample_value("podbridge_commands_total", {"result": "refused"}) or 0
    answer = commands.run(path, method, **changes)
    assert (answer.status_code, commands.sessions) == (status, [])
    assert words in answer.text
    if "/zz/main" not in path and "uid" not in path:
        assert REGISTRY.get_sample_value("podbridge_commands_total", {"result": "refused"}) == before + 1


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (SiteDownError("pool one does not answer"), 502),
        (SiteRefusedError("the site allows no commands", reason="NotAllowed"), 400),
    ],
)
def test_a_site_that_starts_no_command(served: Served, problem: BridgeError, status: int) -> None:
    commands = Commands(served)
    commands.problem = problem
    for _ in range(LIMIT):  # a failure leaves no place taken
        answer = commands.run()
    assert (answer.status_code, answer.text) == (status, str(problem))


def test_a_command_on_a_pool_that_has_not_been_heard_of(served: Served) -> None:
    commands = Commands(served)
    del served.pools["one"]
    assert commands.run().status_code == 502


def test_reading_does_not_give_the_right_to_write(served: Served) -> None:
    served.rights.discard("admin create proxy ")
    assert served.get("/exec/ns/a/main", method="POST").status_code == 403
    commands = Commands(served)
    assert commands.run(method="GET", **WEBSOCKET).status_code == 403, "a WebSocket is a GET, but runs a command"
    served.rights.add("admin create proxy ")
    served.rights.discard("admin get proxy ")
    served.clock.advance(REMEMBER_NO)
    assert commands.run(method="GET", **WEBSOCKET).status_code == 101


def test_interlink_2_5_pods_is_a_list_of_pods(served: Served) -> None:
    for path in ("/pods", "/pods/"):
        content = served.get(path).get_json()
        assert content["kind"] == "PodList"
        assert [pod["metadata"]["name"] for pod in content["items"]] == ["a", "b"]
        assert content["items"][0]["kind"] == "Pod"


def test_pods_of_nodes_that_one_may_not_see_are_left_out(served: Served) -> None:
    served.rights.add("bob get pods two")
    assert [pod["metadata"]["name"] for pod in served.get("/pods", "bob").get_json()["items"]] == ["b"]
    assert served.get("/pods?node=one", "bob").status_code == 403
    assert served.get("/containerLogs/ns/b/main", "bob").status_code == 403


def test_one_node_of_several(served: Served) -> None:
    assert [pod["metadata"]["name"] for pod in served.get("/pods?node=two").get_json()["items"]] == ["b"]
    assert served.get("/pods?node=zz").status_code == 404


def test_running_pods_are_those_that_run(served: Served) -> None:
    served.pools["one"].runs("uid-a", "ns", "a", running("main"), terminated("side"))
    served.pools["two"].runs("uid-b", "ns", "b", terminated("main"), phase="ended")
    items = served.get("/runningpods/").get_json()["items"]
    assert [(pod["metadata"]["name"], pod["spec"]["containers"]) for pod in items] == [
        ("a", [{"name": "main", "image": "i"}])
    ]


def test_interlink_2_5_the_summary_holds_no_invented_number(served: Served) -> None:
    content = served.get("/stats/summary?node=one").get_json()
    assert content == {
        "node": {"nodeName": "one", "startTime": "2023-11-14T22:13:20Z"},
        "pods": [
            {
                "podRef": {"name": "a", "namespace": "ns", "uid": "uid-a"},
                "startTime": "2023-11-14T22:00:00Z",
                "containers": [
                    {"name": "main", "startTime": "2023-11-14T22:12:20Z"},
                    {"name": "side", "startTime": "2023-11-14T22:12:20Z"},
                ],
            }
        ],
    }


def test_a_summary_of_several_nodes_asks_which(served: Served) -> None:
    answer = served.get("/stats/summary")
    assert answer.status_code == 400
    assert "one, two" in answer.text
    del served.pools["two"]
    assert served.get("/stats/summary").get_json()["node"]["nodeName"] == "one"


def test_interlink_2_5_resource_metrics_are_there_and_real(served: Served) -> None:
    samples = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(served.get("/metrics/resource?node=two").text)
        for sample in family.samples
    ]
    assert samples == [
        ("container_start_time_seconds", {"container": "main", "namespace": "ns", "pod": "b"}, NOW - 60),
        ("resource_scrape_error", {}, 0.0),
    ]


def measured(served: Served, cpu: float = 3.0, at: float = NOW - 2) -> None:
    """Let the site of pool ``one`` report the use of its pod: container ``side`` has restarted since."""
    main = ContainerUse(name="main", restarts=0, cpu=cpu, memory=5000)
    old = ContainerUse(name="side", restarts=0, cpu=1.0, memory=7000)
    served.pools["one"].runs("uid-a", "ns", "a", running("main", NOW - 60), running("side", NOW - 1, restarts=1))
    served.pools["one"].usage = lambda jobs: [JobUsage(job=job, at=at, containers=[main, old]) for job in jobs]


def scraped(served: Served, path: str) -> dict[str, tuple[dict[str, str], float, float | None]]:
    families = text_string_to_metric_families(served.get(path).text)
    samples = [sample for family in families for sample in family.samples]
    return {
        sample.name: (sample.labels, sample.value, sample.timestamp)
        for sample in samples
        if "time_sec" not in sample.name
    }


def test_resource_metrics_of_one_node_with_the_names_of_a_kubelet(served: Served) -> None:
    measured(served)
    container, pod = {"container": "main", "namespace": "ns", "pod": "a"}, {"namespace": "ns", "pod": "a"}
    assert scraped(served, "/metrics/resource/one") == {
        "container_cpu_usage_seconds_total": (container, 3.0, NOW - 2),
        "container_memory_working_set_bytes": (container, 5000, NOW - 2),
        "pod_cpu_usage_seconds_total": (pod, 4.0, NOW - 2),
        "pod_memory_working_set_bytes": (pod, 12000, NOW - 2),
        "node_cpu_usage_seconds_total": ({}, 4.0, NOW),
        "node_memory_working_set_bytes": ({}, 12000, NOW),
        "resource_scrape_error": ({}, 0.0, None),
    }
    of_all = scraped(served, "/metrics/resource")
    assert "pod_memory_working_set_bytes" in of_all and "node_memory_working_set_bytes" not in of_all
    assert scraped(served, "/metrics/resource/two") == {"resource_scrape_error": ({}, 0.0, None)}
    assert served.get("/metrics/resource/zz").status_code == 404
    assert served.get("/metrics/resource/one", "bob").status_code == 403
    served.rights.add("bob get metrics two")
    assert served.get("/metrics/resource/one", "bob").status_code == 403
    assert served.get("/metrics/resource/two", "bob").status_code == 200


def test_a_site_that_fails_is_a_scrape_error_and_nothing_invented(served: Served) -> None:
    def fail(jobs: Any) -> Any:
        raise SiteDownError("no connection")

    served.pools["one"].usage = fail
    assert scraped(served, "/metrics/resource/one") == {"resource_scrape_error": ({}, 1.0, None)}
    assert "cpu" not in served.get("/stats/summary?node=one").text


def test_the_summary_has_what_the_site_has_measured(served: Served) -> None:
    measured(served)
    served.get("/stats/summary?node=one")
    served.clock.advance(10)
    measured(served, 8.0, NOW + 8)
    content = served.get("/stats/summary?node=one").get_json()
    (pod,) = content["pods"]
    at = "2023-11-14T22:13:28Z"
    assert pod["containers"][0]["cpu"] == {
        "time": at,
        "usageCoreNanoSeconds": 8_000_000_000,
        "usageNanoCores": 500_000_000,
    }
    assert pod["containers"][0]["memory"] == {"time": at, "workingSetBytes": 5000}
    assert "cpu" not in pod["containers"][1], "measured before its restart"
    assert (pod["cpu"]["usageCoreNanoSeconds"], pod["memory"]["workingSetBytes"]) == (9_000_000_000, 12000)
    assert content["node"]["cpu"]["usageNanoCores"] == 500_000_000
    assert content["node"]["memory"]["workingSetBytes"] == 12000


def test_resource_metrics_are_cached_for_those_who_may_read_the_same_nodes(served: Served) -> None:
    read: list[str] = []
    pools = served.pools["one"]
    jobs = pools.jobs
    pools.jobs = lambda: read.append("one") or jobs()  # type: ignore[func-returns-value, method-assign]
    served.rights |= {"bob get metrics two", "eve get pods "}
    first = served.get("/metrics/resource")
    assert 'pod="a"' in first.text
    served.pods.append(served._pod("one", "c", "main"))
    again = served.get("/metrics/resource")
    assert (again.data, again.content_type) == (first.data, first.content_type)
    assert read == ["one"]
    assert served.get("/metrics/resource", "eve").status_code == 403, "permissions are checked for each request"
    assert served.get("/metrics/resource", "nobody").status_code == 401
    for _ in range(2):
        assert 'pod="a"' not in served.get("/metrics/resource", "bob").text
    assert read == ["one"] * 2
    other = served.get("/metrics/resource", Accept="application/openmetrics-text; version=1.0.0")
    assert other.content_type != first.content_type
    assert other.text.endswith("# EOF\n")
    served.clock.advance(SCRAPE_CACHED)
    assert 'pod="c"' in served.get("/metrics/resource").text


def test_health(served: Served) -> None:
    assert served.get("/healthz").text == "ok"
    served.rights.add("probe get healthz one")
    assert served.get("/healthz", "probe").text == "ok"


@pytest.mark.parametrize("path", ["/", "/nothing", "/metrics", "/run/ns/a/main", "/containerLogs/ns/a", "//pods"])
def test_unknown_paths_are_404_for_who_may_ask(served: Served, path: str) -> None:
    assert served.get(path).status_code == 404


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_change_nothing(served: Served, method: str) -> None:
    assert served.get("/containerLogs/ns/a/main", method=method).status_code in (403, 405)
    assert served.pools["one"].asked == []


def test_one_pod_has_a_share_of_the_logs() -> None:
    served = Served()
    path = "/containerLogs/ns/a/main"
    open_logs = [served.client.open(path, headers={"Authorization": "Bearer admin"}) for _ in range(LIMIT // 8)]
    assert {each.status_code for each in open_logs} == {200}
    refused = served.get(path)
    assert refused.status_code == 429 and "of this pod" in refused.text
    assert served.get("/containerLogs/ns/b/main").status_code == 200
    open_logs[0].close()
    again = served.client.open(path, headers={"Authorization": "Bearer admin"})
    assert again.status_code == 200
