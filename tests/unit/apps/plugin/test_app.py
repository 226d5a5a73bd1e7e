import json
import threading
import time
from decimal import Decimal

import pytest

from bridge.apps.plugin.bodies import LIMIT
from bridge.apps.plugin.plugin_app import ROUTES
from bridge.apps.plugin.plugin_pods import LEAST_SHARE, MOST_CREATIONS, PoolSlots
from bridge.errors import SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.interlink.pod_spec import Pod
from cluster.polling import eventually
from tests.fakes.interlink_bodies import body
from tests.fakes.virtual_kubelet import phase
from tests.unit.apps.plugin.conftest import Api, LoggingPool

POD = body("create_hop_b")["pod"]
UID = POD["metadata"]["uid"]
OTHER = "00000000-0000-4000-8000-000000000000"


def changed(pod, **metadata):
    return {**pod, "metadata": {**pod["metadata"], **metadata}}


FOREIGN = [
    ({"Origin": "http://evil.example"}, 403),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://127.0.0.1:4000"}, 403),
    ({"Host": "evil.example"}, 421),
    ({"Host": "127.0.0.1.evil.example:4000"}, 421),
    ({"Host": "localhost.evil.example"}, 421),
    ({"Host": "10.0.0.1:4000"}, 421),
    ({"Host": "[::1"}, 421),
    ({"Host": "evil@127.0.0.1@x"}, 421),
    ({"Content-Type": "text/plain"}, 415),
    ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ({"Content-Type": "multipart/form-data; boundary=application/json"}, 415),
    ({"Content-Type": "text/plain; application/json"}, 415),
]


@pytest.mark.parametrize(("headers", "status"), FOREIGN)
@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_a_foreign_request_is_refused(api, pool, route, headers, status):
    for method in route.methods:
        answer = api.call(method, route.path, body("create_hop_b"), headers=headers)
        assert answer.status_code == status
        assert next(iter(headers)) in answer.text
    assert not pool.submits


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json; charset=utf-8"},
        {},  # Go's clients without a type
        *(
            {"Host": host}
            for host in ("127.0.0.1:4000", "127.8.0.1", "localhost:1", "LOCALHOST", "[::1]:4000", "[::1]")
        ),
    ],
)
def test_requests_of_interlinks_clients_are_accepted(api, headers):
    assert api.call("POST", "/create", body("create_hop_b"), headers=headers).status_code == 200


def test_a_socket_and_an_address_of_the_network_have_any_name(pool):
    api = Api(pool, loopback=False)
    for host in ("unix", "plugin.example.org:4000", "%2Frun%2Fplugin.sock"):
        assert api.call("GET", "/status", [], headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("name", ["create_hop_a", "create_hop_b"])
def test_a_pod_of_either_hop_is_submitted_with_its_objects(api, pool, name):
    answer = api.create(body(name))
    assert (answer.status_code, answer.json) == (200, {"PodUID": UID, "PodJID": "1"})
    script = pool.submits[UID].script
    assert "costs $5 and $(HOME)" in script
    assert "czNjcsOpdAo=" not in answer.text


def test_old_forms_of_create(api, pool):
    assert api.create([body("create_hop_b")]).json == [{"PodUID": UID, "PodJID": "1"}]
    plain = {
        "metadata": changed(POD, uid=OTHER)["metadata"],
        "spec": {"containers": [{"name": "c", "image": "busybox", "command": ["true"]}]},
    }
    assert api.create(plain).json == {"PodUID": OTHER, "PodJID": "2"}
    assert api.create([plain]).json == [{"PodUID": OTHER, "PodJID": "2"}]


def test_a_repeated_create_is_the_same_job(api, pool):
    assert api.create(body("create_hop_b")).json == api.create(body("create_hop_a")).json
    assert len(pool.submits) == 1


def test_the_job_name_is_never_empty(api, pool):
    api.create(body("create_hop_b"))
    pool.set(UID, job_id="")
    assert api.create(body("create_hop_b")).json["PodJID"] == UID


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_the_status_of_pods(api, pool, method):
    api.create(body("create_hop_b"))
    answer = api.call(method, "/status", body("status"))
    assert answer.status_code == 200
    assert (answer.json[0]["UID"], phase(answer.json[0])) == (UID, "Pending")
    pool.run(UID, "main", "side")
    assert phase(api.status(POD)[0]) == "Running"
    pool.end(UID, 42, "main", "side")
    assert phase(api.status(POD)[0]) == "Failed"
    assert api.call(method, "/status", POD).json == api.status(POD)


def test_an_unknown_pod_has_containers_without_a_state(api):
    assert [entry["state"] for entry in api.status(POD)[0]["containers"]] == [{}, {}]


def test_several_pods_are_answered_in_their_order_and_each_shows_only_itself(api, pool):
    api.create(body("create_hop_b"))
    pool.run(UID, "main", "side")
    asked = [changed(POD, uid=OTHER), POD, changed(POD, name="other")]
    told = api.status(*asked)
    assert [(entry["UID"], entry["name"]) for entry in told] == [(OTHER, "train"), (UID, "train"), (UID, "other")]
    assert [phase(entry) for entry in told] == ["Pending", "Running", "Pending"]


def test_a_site_that_does_not_answer_shows_no_pod_as_unknown(api, pool):
    api.create(body("create_hop_b"))
    pool.down()
    assert [entry["UID"] for entry in api.status(POD, changed(POD, uid=OTHER))] == [UID]
    assert api.call("GET", "/status", [changed(POD, uid=OTHER)]).status_code == 503


@pytest.mark.parametrize("content", [[], None, {}])
def test_a_ping(api, content):
    answer = api.call("POST", "/pinglink") if content == {} else api.call("GET", "/status", content)
    assert (answer.status_code, answer.json["resources"]) == (200, {"cpu": "64", "memory": "256Gi", "accelerators": []})
    assert answer.json["taints"] == []


def test_a_silent_site_fails_the_ping(api):
    api.clock.advance(31)
    answer = api.call("GET", "/status", [])
    assert (answer.status_code, "no announcement" in answer.text) == (503, True)


def test_a_ping_right_after_the_start_waits_for_the_first_announcement(pool):
    asked = []

    def wait(seconds):
        asked.append(seconds)
        api.clock.advance(5)
        if len(asked) == 2:
            api.heard(pool)
        return False

    api = Api(pool, wait=wait)
    pool.heard = None
    assert api.call("POST", "/pinglink").status_code == 200
    assert len(asked) == 2
    pool.heard = None
    assert api.call("POST", "/pinglink").status_code == 503
    assert len(asked) == 3


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_deleted_pod_is_cancelled_and_forgotten(api, pool, method):
    api.create(body("create_hop_b"))
    assert api.call(method, "/delete", body("delete")).status_code == 200
    assert pool.count("forget", UID) == 1
    assert api.call(method, "/delete", body("delete")).status_code == 200


def test_a_cancellation_that_the_site_does_not_answer_is_repeated(api, pool):
    api.create(body("create_hop_b"))
    pool.down()
    assert api.call("DELETE", "/delete", body("delete")).status_code == 503
    api.handler.repeat_cancellations()
    pool.problem = None
    api.handler.repeat_cancellations()
    assert UID not in pool.site
    asked = len(pool.asked)
    api.handler.repeat_cancellations()
    assert len(pool.asked) == asked


def test_a_cancellation_that_the_site_refuses_is_not_repeated(api, pool):
    api.create(body("create_hop_b"))
    pool.down()
    api.call("DELETE", "/delete", body("delete"))
    pool.problem = SiteRefusedError("no")
    api.handler.repeat_cancellations()
    asked = len(pool.asked)
    api.handler.repeat_cancellations()
    assert len(pool.asked) == asked


def test_the_wrong_uid_cancels_no_other_pod(api, pool):
    api.create(body("create_hop_b"))
    assert api.call("DELETE", "/delete", changed(POD, name="other")).status_code == 404
    assert pool.count("forget") == 0


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_log(api, pool, method):
    api.create(body("create_hop_b"))
    answer = api.call(method, "/getLogs", body("logs_tail_follow"))
    assert (answer.status_code, answer.text) == (200, f"log of {UID}\n")
    uid, options = pool.read[0]
    assert (uid, options.container, options.tail, options.follow, options.timestamps) == (UID, "main", 5, True, True)


def test_a_pool_without_logs_says_so(api, pool):
    api.create(body("create_hop_b"))
    pool.logs = None
    answer = api.call("GET", "/getLogs", body("logs"))
    assert answer.status_code == 501 and "has no logs" in answer.text


def test_a_log_of_another_pod_with_this_uid_is_not_shown(api, pool):
    api.create(body("create_hop_b"))
    for wrong in ({"Namespace": "other"}, {"PodName": "other"}):
        assert api.call("GET", "/getLogs", {**body("logs"), **wrong}).status_code == 404
    assert pool.read == []


def test_the_only_container_need_not_be_named(api, pool):
    api.create(body("create_hop_b"))
    assert api.call("GET", "/getLogs", {**body("logs"), "ContainerName": ""}).status_code == 400
    pool.run(UID, "main")
    assert api.call("GET", "/getLogs", {**body("logs"), "ContainerName": ""}).status_code == 200


@pytest.mark.parametrize(
    ("path", "content", "field"),
    [
        (
            "/create",
            {"pod": POD, "container": [{"name": "main", "secrets": [{"metadata": {}}]}]},
            "container[0].secrets[0].metadata.name",
        ),
        ("/create", [{"pod": {**POD, "spec": {"containers": []}}, "container": []}], "[0].pod.spec.containers"),
        (
            "/create",
            {"pod": {**POD, "spec": {"containers": [{"name": "c", "env": [{"name": 3}]}]}}},
            "pod.spec.containers[0].env[0].name",
        ),
        ("/create", {"nothing": 1}, "body"),
        ("/create", [], "body"),
        ("/status", [{"metadata": {"name": "x"}}], "[0].metadata.namespace"),
        ("/status", [{**POD, "spec": {"containers": []}}], "[0].spec.containers"),
        ("/delete", {"metadata": {"namespace": "a", "name": "b", "uid": "../x"}}, "metadata.uid"),
        ("/getLogs", {**body("logs"), "Namespace": "Not_A_Label"}, "Namespace"),
        ("/getLogs", {**body("logs"), "ContainerName": "A"}, "ContainerName"),
        ("/getLogs", {**body("logs"), "Opts": {"Tail": -1}}, "Opts.Tail"),
        ("/getLogs", {**body("logs"), "Opts": {"Tail": 1, "Bytes": 1}}, "Opts.Tail"),
        ("/getLogs", {**body("logs"), "Opts": {"SinceSeconds": 1, "SinceTime": "2026-01-01T00:00:00Z"}}, "Opts.Since"),
    ],
)
def test_a_bad_body_is_refused_with_the_path_of_the_field(api, path, content, field):
    answer = api.call("POST", path, content)
    assert (answer.status_code, answer.text.startswith(field)) == (400, True), answer.text


@pytest.mark.parametrize("path", ["/create", "/status"])
@pytest.mark.parametrize("text", ["{", "\xff", "[NaN", "[" * 100_000, '[{"secret": "hunter2"'])
def test_a_body_that_is_not_json_is_refused(api, path, text):
    answer = api.client.post(path, data=text.encode("latin-1"))
    assert (answer.status_code, "not JSON" in answer.text, "hunter2" in answer.text) == (400, True, False)


def test_an_answer_repeats_no_value_that_may_be_a_secret(api):
    told = body("create_hop_b")
    told["container"][1]["secrets"][0]["data"] = "hunter2"
    told["pod"]["spec"]["containers"][0]["env"] = [{"name": "A", "value": 1234321}]
    answer = api.create(told)
    assert answer.status_code == 400
    assert "hunter2" not in answer.text
    assert "1234321" not in answer.text


def test_unknown_keys_are_tolerated(api):
    told = body("create_hop_b")
    told["persistentVolumes"] = [{"x": 1}]
    told["pod"]["spec"]["containers"][0]["newField"] = {"x": 1}
    assert api.create(told).status_code == 200


def test_a_pod_that_the_pool_cannot_run_is_refused_by_name(api):
    told = body("create_hop_b")
    told["pod"]["spec"]["hostPID"] = True
    answer = api.create(told)
    assert (answer.status_code, "spec.hostPID" in answer.text) == (422, True)


def test_a_job_script_is_ignored(api, pool):
    assert api.create({**body("create_hop_b"), "jobScript": "rm -rf /"}).status_code == 200
    assert "rm -rf /" not in pool.submits[UID].script


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SiteUnknownOutcomeError("late"), 504),
        (SiteRefusedError("no", reason="Forgotten"), 409),
        (SiteRefusedError("no", reason="NotOwner"), 403),
        (SiteRefusedError("no"), 422),
        (SiteRefusedError("later", retryable=True), 503),
        (SiteError("garbage"), 502),
    ],
)
def test_errors_of_a_site_are_answers(api, pool, error, status):
    pool.problem = error
    assert api.create(body("create_hop_b")).status_code == status


def test_a_submission_is_repeated_while_the_site_does_not_answer(pool):
    asked = []

    def wait(seconds):
        asked.append(seconds)
        if len(asked) == 3:
            pool.problem = None
        return False

    api = Api(pool, patience=60.0, wait=wait)
    pool.down()
    assert api.create(body("create_hop_b")).status_code == 200
    assert len(asked) == 3


def test_a_pool_without_a_configuration_accepts_no_pod(api, pool):
    pool.config = None
    assert api.create(body("create_hop_b")).status_code == 503


def test_system_info_is_always_an_answer(api, pool):
    told = api.call("GET", "/system-info").json
    assert (told["status"], told["slurm_connected"], told["error"]) == ("ok", True, "")
    assert told["sinfo_output"].startswith("pool: ok")
    api.clock.advance(100)
    answer = api.call("GET", "/system-info")
    assert (answer.status_code, answer.json["status"], answer.json["slurm_connected"]) == (200, "warning", False)


def test_update_cache_does_nothing(api):
    assert api.call("POST", "/updateCache", UID).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/create"), ("PUT", "/delete"), ("HEAD", "/status"), ("OPTIONS", "/status"), ("POST", "/system-info")],
)
def test_other_methods_are_refused(api, method, path):
    answer = api.call(method, path)
    assert answer.status_code == 405
    assert answer.headers["Allow"]


def test_other_paths_do_not_exist(api):
    assert api.call("GET", "/nothing").status_code == 404


# --- several pools ----------------------------------------------------------------------------------------------------
def toleration(value=None):
    operator = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {"key": "pool.vk.io", **operator}


def with_tolerations(*entries):
    told = body("create_hop_b")
    told["pod"]["spec"]["tolerations"] = list(entries)
    return told


@pytest.fixture
def two():
    return Api(
        LoggingPool("alpha", capacity={"cpu": "4"}), LoggingPool("beta", capacity={"cpu": "8"}), by_toleration=True
    )


def test_the_toleration_names_the_pool(two):
    assert two.create(with_tolerations(toleration("beta"))).status_code == 200
    assert (len(two.pools["alpha"].submits), len(two.pools["beta"].submits)) == (0, 1)
    two.pools["beta"].run(UID, "main", "side")
    assert phase(two.status(with_tolerations(toleration("beta"))["pod"])[0]) == "Running"
    assert two.call("GET", "/getLogs", body("logs")).text == f"log of {UID}\n"
    assert two.call("DELETE", "/delete", with_tolerations(toleration("beta"))["pod"]).status_code == 200
    assert two.pools["beta"].count("forget") == 1


@pytest.mark.parametrize("entries", [(), (toleration(),), (toleration("alpha"), toleration("beta"))])
def test_a_pod_with_no_pool_or_several_is_refused_with_what_is_allowed(two, entries):
    answer = two.create(with_tolerations(*entries))
    assert (answer.status_code, "alpha, beta" in answer.text) == (422, True)


def test_a_pool_that_has_not_announced_itself(two):
    answer = two.create(with_tolerations(toleration("gamma")))
    assert (answer.status_code, "known: alpha, beta" in answer.text) == (503, True)


def test_a_single_pool_need_not_be_named():
    api = Api(LoggingPool("alpha"), by_toleration=True)
    for entries in ((), (toleration(),), (toleration("alpha"),)):
        assert api.create(with_tolerations(*entries)).status_code == 200


def test_the_ping_has_the_sum_of_the_pools_that_accept_jobs(two):
    assert two.call("POST", "/pinglink").json == {"status": "ok", "resources": {"cpu": "12", "accelerators": []}}
    two.heard(two.pools["beta"], capacity={"cpu": "8"}, problem="slurmctld does not answer")
    assert Decimal(two.call("POST", "/pinglink").json["resources"]["cpu"]) == 4
    assert "slurmctld does not answer" in two.call("GET", "/system-info").json["error"]


def test_the_limit_of_a_body_holds_a_pod_with_large_objects():
    assert LIMIT == 64 * 1024 * 1024
    assert Pod.model_validate(json.loads(json.dumps(POD))).metadata.uid == UID


def test_creations_for_a_silent_pool_leave_threads_for_the_others(two, monkeypatch):
    two.handler._creations = PoolSlots(stalled_after=0.5)
    answer = threading.Event()
    monkeypatch.setattr(two.pools["alpha"], "submit", lambda *_: answer.wait(20) and None)
    share = MOST_CREATIONS // 2
    threads = [threading.Thread(target=create_number, args=(two, "alpha", number)) for number in range(share + 10)]
    for thread in threads:
        thread.start()
    eventually(lambda: sum(thread.is_alive() for thread in threads) == share)
    began = time.monotonic()
    assert create_number(two, "alpha", share + 10) == 503
    assert time.monotonic() - began < 0.3
    assert create_number(two, "beta", share + 11) == 200
    answer.set()
    for thread in threads:
        thread.join(10)


def test_a_burst_of_pods_for_a_pool_that_accepts_them_is_not_refused(pool, monkeypatch):
    api = Api(pool, patience=0.0)
    api.handler._creations = PoolSlots(stalled_after=0.5)
    monkeypatch.setattr("bridge.apps.plugin.plugin_pods.MOST_CREATIONS", 2)
    monkeypatch.setattr("bridge.apps.plugin.plugin_pods.LEAST_SHARE", 2)
    submit = pool.submit

    def slow(*args):
        time.sleep(0.1)
        return submit(*args)

    monkeypatch.setattr(pool, "submit", slow)
    answers = []
    threads = [threading.Thread(target=lambda n=n: answers.append(create_number(api, "pool", n))) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert answers == [200] * 30


def create_number(api, pool, number):
    told = with_tolerations(toleration(pool))
    told["pod"]["metadata"]["uid"] = f"{UID[:-4]}{number:04}"
    return api.create(told).status_code


def test_deletions_for_a_silent_pool_are_repeated_without_a_thread_for_each(two, monkeypatch):
    two.handler._cancellations = PoolSlots(stalled_after=0.2)
    answer = threading.Event()
    monkeypatch.setattr(two.pools["alpha"], "cancel", lambda *_, **__: answer.wait(20) and None)

    def delete(number):
        pod = with_tolerations(toleration("alpha"))["pod"]
        pod["metadata"]["uid"] = f"{UID[:-4]}{number:04}"
        return two.call("DELETE", "/delete", pod).status_code

    threads = [threading.Thread(target=delete, args=(number,)) for number in range(LEAST_SHARE)]
    for thread in threads:
        thread.start()
    eventually(lambda: two.handler._cancellations._used["alpha"] == LEAST_SHARE)
    assert delete(99) == 503
    assert list(two.handler._deletions.undelivered()) == [f"{UID[:-4]}0099"]
    answer.set()
    for thread in threads:
        thread.join(10)


def test_a_silent_pool_does_not_delay_the_repeated_cancellations_of_the_others(two):
    for name in ("alpha", "beta"):
        two.pools[name].down()
        for number in range(3):
            pod = with_tolerations(toleration(name))["pod"]
            pod["metadata"]["uid"] = f"{UID[:-4]}{'ab'.index(name[0])}00{number}"
            assert two.call("DELETE", "/delete", pod).status_code == 503
    two.pools["beta"].problem = None
    for pool in two.pools.values():
        pool.asked.clear()
    reached, heard = threading.Event(), []
    ask_alpha, ask_beta = two.pools["alpha"].status, two.pools["beta"].status
    two.pools["alpha"].status = lambda pod: heard.append(reached.wait(10)) or ask_alpha(pod)
    two.pools["beta"].status = lambda pod: reached.set() or ask_beta(pod)
    two.handler.repeat_cancellations()
    assert heard == [True]
    assert len(two.pools["alpha"].asked) == 1
    first = two.pools["alpha"].asked[0]
    assert two.pools["beta"].count("forget") == 3
    two.handler.repeat_cancellations()
    assert two.pools["alpha"].asked[1] != first
