"""The client of interLink's REST API: what it sends, and what it makes of each answer."""

import json

import pytest
import requests
import responses
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.config.interlink import InterlinkSection
from bridge.errors import ConfigError, SiteDownError, SiteError, SiteRefusedError, SiteUnknownOutcomeError
from bridge.interlink import ping
from bridge.interlink.messages import RetrievedPodData
from bridge.pools.interlink import interlink_client, references
from bridge.pools.interlink.interlink_client import PluginClient
from bridge.pools.interlink.interlink_transport import PluginTransport, ServerError
from bridge.protocol.model.requests import LogOptions
from bridge.script.references import Objects
from bridge.telemetry import tracing
from tests.builders import site_pod as pod
from tests.examples import examples, json_values
from tests.fakes.clock import FakeClock
from tests.fakes.interlink_bodies import body, status_answer

POD = body("delete")
UID = POD["metadata"]["uid"]
URL = "http://plugin.test:4000"
CREATED = {"PodUID": "a", "PodJID": "4242"}


def client(clock=None, **fields):
    section = InterlinkSection.model_validate({"name": "far", "url": URL, **fields})
    clock = clock or FakeClock()
    return PluginClient(section, PluginTransport(section, clock), clock)


def create(**fields):
    return client(**fields).create(data(), "a", 5)


def phases(found):
    return {uid: state and state.phase for uid, state in found.items()}


@pytest.fixture
def wire():
    with responses.RequestsMock(assert_all_requests_are_fired=False) as mock:
        yield mock


def body_of(call):
    return json.loads(call.request.body)


def data(uid="a"):
    made = pod(uid)
    return RetrievedPodData(
        pod=references.sent_pod(made, Objects(), "far"), container=references.sent_containers(made, Objects(), "far")
    )


def told(each, state=None, **fields):
    metadata = each["metadata"]
    containers = [{"name": c["name"], "state": state or {}} for c in each["spec"]["containers"]]
    return {"name": metadata["name"], "UID": metadata["uid"], "namespace": metadata["namespace"], "JID": "7",
            "containers": containers, **fields}  # fmt: skip


RUNNING = {"running": {"startedAt": "2026-07-14T08:00:05Z"}}


# --- /create ----------------------------------------------------------------------------------------------------------
def test_create_sends_the_body_of_hop_b(wire):
    wire.post(f"{URL}/create", json=CREATED)
    assert client().create(data(), "a", 5) == "4242"
    sent = body_of(wire.calls[0])
    assert sent["pod"]["metadata"]["uid"] == "a"
    assert [each["name"] for each in sent["container"]] == ["main"]
    assert sent["jobConfig"]["Volumes"]["fuse_sleep_seconds"] == 0
    assert "jobScript" not in sent
    assert wire.calls[0].request.headers["InterLink-Http-Session"].startswith("CreatePod#")


def test_create_sends_the_trace_context_of_the_submission(wire):
    wire.post(f"{URL}/create", json=CREATED)
    text = f"00-{'a' * 32}-{'b' * 16}-01"
    with tracing.within(text):
        client().create(data(), "a", 5)
    client().create(data(), "a", 5)
    assert [call.request.headers.get("traceparent") for call in wire.calls] == [text, None]


@pytest.mark.parametrize("answer", [body("create_answer"), [CREATED]])
def test_a_recorded_answer_and_a_list_name_the_job(wire, answer):
    wire.post(f"{URL}/create", json=answer)
    told = answer[0] if isinstance(answer, list) else answer
    assert client().create(data(), told["PodUID"], 5) == told["PodJID"]


NO_OBJECT = "json: cannot unmarshal object into Go value of type []common.RetrievedPodData"


@pytest.mark.parametrize(
    ("status", "text"),
    [(400, "Input should be a valid list"), (422, '{"detail": [{"type": "list_type"}]}'), (500, NO_OBJECT)],
)
def test_an_older_plugin_gets_a_list_and_the_form_is_remembered(wire, status, text):
    def answer(request):
        return (200, {}, json.dumps([CREATED])) if request.body.startswith(b"[") else (status, {}, text)

    wire.add_callback(responses.POST, f"{URL}/create", answer)
    asked = client()
    assert [asked.create(data(), "a", 5) for _ in range(2)] == ["4242", "4242"]
    assert [isinstance(body_of(call), list) for call in wire.calls] == [False, True, True]


@pytest.mark.parametrize(
    ("to_object", "to_list", "error", "text"),
    [
        ((400, "no such flavor"), (400, "a list"), SiteRefusedError, "HTTP 400: no such flavor"),
        ((500, NO_OBJECT), (400, "no such flavor"), SiteRefusedError, "no such flavor"),
        ((422, ""), (500, "sbatch timed out"), ServerError, "HTTP 500"),
        ((422, ""), (504, "sbatch timed out"), ServerError, "HTTP 504"),
    ],
    ids=["malformed: the first answer", "it names its form: the second answer", "may be carried out", "late"],
)
def test_a_pod_that_is_accepted_in_neither_form(wire, to_object, to_list, error, text):
    def answer(request):
        status, body = to_list if request.body.startswith(b"[") else to_object
        return status, {}, body

    wire.add_callback(responses.POST, f"{URL}/create", answer)
    with pytest.raises(error, match=text) as raised:
        create()
    assert error is ServerError or not raised.value.retryable
    assert len(wire.calls) == 2, "the list was tried once"


def test_a_new_version_of_a_plugin_may_want_the_other_form_of_the_body(wire):
    wanted = []

    def answer(request):
        body = json.loads(request.body)
        if isinstance(body, wanted[-1]):
            return 200, {}, json.dumps(CREATED)
        kind = "array" if isinstance(body, list) else "object"
        form = "[]" if wanted[-1] is list else ""
        return 500, {}, f"json: cannot unmarshal {kind} into Go value of type {form}types.RetrievedPodData"

    wire.add_callback(responses.POST, f"{URL}/create", answer)
    asked = client()
    forms = []
    for kind in (list, dict, dict, list):
        wanted.append(kind)
        assert asked.create(data(), "a", 5) == "4242"
        forms.append([type(body_of(call)).__name__ for call in wire.calls])
        wire.calls.reset()
    assert forms == [["dict", "list"], ["list", "dict"], ["dict"], ["dict", "list"]]


@pytest.mark.parametrize(
    ("api", "status", "body", "answered"),
    [
        ("plugin", 500, "sbatch: error: Batch job submission failed", True),
        ("plugin", 502, "bad gateway", False),
        ("server", 500, "", False),
        ("server", 500, "CreatePod#1 call exit status: 500. Body: sbatch: error", True),
    ],
)
def test_who_has_answered_an_error_after_which_the_pod_is_not_sent_again(wire, api, status, body, answered):
    wire.post(f"{URL}/create", status=status, body=body)
    with pytest.raises(ServerError) as raised:
        create(api=api)
    assert (raised.value.answered, len(wire.calls)) == (answered, 1)
    assert not answered or "sbatch: error" in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [
        {"body": ""},
        {"body": "ok"},
        {"body": '{"PodUID": "a"'},
        {"json": {"PodUID": "other", "PodJID": "1"}},
        {"json": []},
        {"json": None},
        {"json": {"PodUID": "a", "PodJID": None}},
        {"body": "[" * 100_000},
        {"status": 409},
        {"status": 503, "body": "<html>"},
        {"body": requests.ConnectionError(ConnectionResetError(104, "Connection reset by peer"))},
        {"body": requests.ReadTimeout("read timed out")},
    ],
)
def test_an_answer_that_does_not_name_the_job_leaves_the_outcome_unknown(wire, answer):
    wire.post(f"{URL}/create", **answer)
    with pytest.raises(SiteUnknownOutcomeError):
        create()


def test_a_refused_connection_is_a_certain_outcome(wire):
    class NewConnectionError(Exception):
        pass

    wire.post(f"{URL}/create", body=requests.ConnectionError(NewConnectionError("refused")))
    with pytest.raises(SiteDownError):
        create()


# --- who answers ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "answer",
    [
        {"status": 302, "headers": {"Location": "https://login.test/oauth2/start?rd=secret"}},
        {"status": 307, "headers": {"Location": "/oauth2/sign_in"}},
        {"status": 200, "body": "<!DOCTYPE html><title>Sign in</title>", "content_type": "text/html"},
    ],
)
@pytest.mark.parametrize("call", ["ping", "statuses", "create"])
def test_the_login_page_of_a_proxy_is_an_error_that_says_what_to_do(wire, answer, call):
    for method in (responses.GET, responses.POST):
        wire.add(method, f"{URL}/status", **answer)
    wire.post(f"{URL}/create", **answer)
    asked = client()
    calls = {
        "ping": asked.ping,
        "statuses": lambda: asked.statuses([pod("a")]),
        "create": lambda: asked.create(data(), "a", 5),
    }
    with pytest.raises(SiteRefusedError) as raised:
        calls[call]()
    assert raised.value.reason == "LoginRequired"
    assert raised.value.retryable
    assert "tokenFile" in raised.value.hint
    assert "secret" not in str(raised.value)


def test_the_type_of_a_text_does_not_make_it_a_login_page(wire):
    html = "text/html; charset=utf-8"  # the default of Flask
    wire.get(f"{URL}/status", body="ok", content_type=html)
    wire.post(f"{URL}/delete", body="Pod deleted", content_type=html)
    wire.post(f"{URL}/create", status=400, body="no such flavor", content_type=html)
    asked = client()
    assert asked.ping().degraded == ""
    asked.delete(pod("a"))
    with pytest.raises(SiteRefusedError, match="no such flavor"):
        asked.create(data(), "a", 5)


@pytest.mark.parametrize("page", ["<html>", " \n<!DOCTYPE html>", "\ufeff<html>"])
def test_a_page_is_a_login_page_whatever_its_type(wire, page):
    wire.get(f"{URL}/status", body=page.encode(), content_type="text/plain")
    with pytest.raises(SiteRefusedError, match="web page"):
        client().ping()


def test_a_redirect_to_no_url_is_a_refusal(wire):
    wire.get(f"{URL}/status", status=302, headers={"Location": "http://[?token=s3cret"})
    with pytest.raises(SiteRefusedError, match=r"a redirect to 'http://\['$"):
        client().ping()


def test_a_redirect_to_https_says_so(wire):
    wire.get(f"{URL}/status", status=301, headers={"Location": "https://plugin.test:4000/status"})
    with pytest.raises(SiteRefusedError) as raised:
        client().ping()
    assert "begins with https://" in raised.value.hint


@pytest.mark.parametrize(
    ("status", "reason"), [(401, "CredentialsRefused"), (403, "CredentialsRefused"), (404, "NoSuchRoute")]
)
def test_refused_credentials_and_a_wrong_address_do_not_fail_the_pod(wire, status, reason):
    wire.post(f"{URL}/create", status=status)
    with pytest.raises(SiteRefusedError) as raised:
        create()
    assert (raised.value.reason, raised.value.retryable) == (reason, True)


def test_the_token_is_read_for_each_request(wire, tmp_path):
    file = tmp_path / "token"
    wire.get(f"{URL}/status", json={})
    asked = client(tokenFile=str(file))
    for token in ("one\n", "Bearer two"):
        file.write_text(token)
        asked.ping()
    assert [call.request.headers["Authorization"] for call in wire.calls] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize("content", ["", "a b", "é", "a\nb: c"])
def test_an_unusable_token_file_is_an_error_that_names_it(tmp_path, content):
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(SiteDownError, match="tokenFile"):
        client(tokenFile=str(file)).ping()
    file.unlink()
    with pytest.raises(SiteDownError, match=r"cannot read tokenFile .*No such file"):
        client(tokenFile=str(file)).ping()


def test_a_missing_certificate_is_an_error_of_the_configuration(tmp_path):
    with pytest.raises(ConfigError, match="pool far: caFile: no such file"):
        client(url="https://plugin.test", caFile=str(tmp_path / "none"))


# --- /status ----------------------------------------------------------------------------------------------------------
def test_states_of_many_pods_in_one_request(wire):
    pods = [pod("a"), pod("b"), pod("c")]
    wire.get(f"{URL}/status", json=[told(pods[0], RUNNING), told(pods[1]), told(pods[2], RUNNING)])
    found = client().statuses(pods)
    assert phases(found) == {"a": "running", "b": None, "c": "running"}
    assert len(wire.calls) == 1
    assert [each["metadata"]["uid"] for each in body_of(wire.calls[0])] == ["a", "b", "c"]


def test_an_api_server_must_not_answer_from_its_cache(wire):
    finished = {**pod("a"), "status": {"phase": "Succeeded"}}
    finished["metadata"]["managedFields"] = [{"manager": "x"}]
    wire.get(f"{URL}/status", json=[told(finished)])
    client().statuses([finished])
    sent = body_of(wire.calls[0])[0]
    assert sent["status"]["phase"] == "Running"
    assert "managedFields" not in sent["metadata"]


@pytest.mark.parametrize("answer", ["[]", "null"])
def test_no_entry_for_the_only_pod_says_that_the_job_is_not_known(wire, answer):
    wire.get(f"{URL}/status", body=answer)
    assert client().statuses([pod("a")]) == {"a": None}


@pytest.mark.parametrize("name", ["unknown", "running", "init_failed", "queued", "succeeded"])
def test_recorded_answers(wire, name):
    wire.get(f"{URL}/status", json=status_answer(name))
    found = client().statuses([POD])
    assert list(found) == [UID]
    assert (found[UID] is None) == (name == "unknown")


def wrong(**fields):
    return told(pod("a"), RUNNING) | fields


@pytest.mark.parametrize(
    "entry",
    [
        wrong(UID="b"),
        wrong(name="other"),
        wrong(namespace="other"),
        wrong(UID=7),
        wrong(containers=None),
        wrong(containers=[]),
        wrong(containers=[{"name": "stranger", "state": {}}]),
        7,
        None,
        "text",
        [],
    ],
)
def test_an_invalid_answer_says_nothing_about_the_job(wire, entry):
    wire.get(f"{URL}/status", json=[entry])
    assert client().statuses([pod("a")]) == {}


@pytest.mark.parametrize("answer", ["{}", "7", '"ok"', "", "[{", "[" * 100_000, '{"UID": "a"}'])
def test_an_answer_that_is_no_list_is_an_error(wire, answer):
    wire.get(f"{URL}/status", body=answer)
    with pytest.raises(SiteError):
        client().statuses([pod("a")])


@pytest.mark.parametrize("status", [400, 404, 410, 500, 502, 503])
def test_an_http_error_never_says_that_the_job_is_not_known(wire, status):
    for method in (responses.GET, responses.POST):
        wire.add(method, f"{URL}/status", status=status, body="not found")
    with pytest.raises(SiteError):
        client().statuses([pod("a")])


def test_a_plugin_that_answers_for_the_first_pod_gets_one_request_for_each_pod(wire):
    pods = [pod("a"), pod("b"), pod("c")]
    wire.add_callback(
        responses.GET,
        f"{URL}/status",
        lambda request: (200, {}, json.dumps([told(json.loads(request.body)[0], RUNNING)])),
    )
    asked = client()
    assert phases(asked.statuses(pods)) == dict.fromkeys("abc", "running")
    assert len(wire.calls) == 3


def test_a_pod_that_breaks_the_plugin_does_not_hide_the_others(wire):
    pods = [pod(uid) for uid in "abcdefgh"]

    def answer(request):
        asked = json.loads(request.body)
        if any(each["metadata"]["uid"] == "c" for each in asked):
            return 500, {}, "IndexError"
        return 200, {}, json.dumps([told(each, RUNNING) for each in asked])

    wire.add_callback(responses.GET, f"{URL}/status", answer)
    assert set(client().statuses(pods)) == set("abdefgh")
    assert len(wire.calls) == 7


@pytest.mark.parametrize(
    "fault",
    [(503, {}, "the site is silent"), (404, {}, ""), (500, {}, "IndexError"), requests.ConnectionError("reset")],
)
def test_a_pod_without_a_state_does_not_hide_the_others(wire, fault):
    def answer(request):
        asked = [each["metadata"]["uid"] for each in json.loads(request.body)]
        if asked == ["b"]:
            if isinstance(fault, Exception):
                raise fault
            return fault
        return 200, {}, json.dumps([told(pod(uid), RUNNING) for uid in asked if uid not in "bd"])

    wire.add_callback(responses.GET, f"{URL}/status", answer)
    found = client().statuses([pod(uid) for uid in "abcd"])
    assert phases(found) == {"a": "running", "c": "running", "d": None}


@pytest.mark.parametrize(("status", "error"), [(503, SiteDownError), (500, SiteRefusedError)])
def test_an_answer_without_any_state_is_an_error(wire, status, error):
    wire.add_callback(
        responses.GET,
        f"{URL}/status",
        lambda request: (200, {}, "[]") if len(json.loads(request.body)) > 1 else (status, {}, ""),
    )
    with pytest.raises(error, match=f"HTTP {status}"):
        client().statuses([pod("a"), pod("b")])


def test_pods_without_an_answer_do_not_hold_the_poll(wire):
    clock = FakeClock()

    def answer(request):
        asked = json.loads(request.body)
        if len(asked) > 1:
            return 200, {}, json.dumps([told(asked[0], RUNNING)])
        clock.advance(30)
        raise requests.ReadTimeout("timed out")

    wire.add_callback(responses.GET, f"{URL}/status", answer)
    assert set(client(clock).statuses([pod(uid) for uid in "abcdef"])) == {"a"}
    assert len(wire.calls) == 3, "after two time-outs the rest waits for the next poll"


NOT_FOUND = (404, {}, '{"detail": "No containers found for UUID"}')


def answers(wire, pings, states):
    """Answer pings and requests about pods with these answers, one after the other; the last one is repeated."""
    left = {True: list(pings), False: list(states)}

    def answer(request):
        found = left[json.loads(request.body) == []]
        return found.pop(0) if len(found) > 1 else found[0]

    wire.add_callback(responses.GET, f"{URL}/status", answer)
    wire.post(f"{URL}/status", status=405)


@pytest.mark.parametrize("ping", [(200, {}, "[]"), (500, {}, "IndexError"), (422, {}, "")])
def test_a_plugin_that_answers_a_ping_does_not_know_a_pod_that_it_does_not_find(wire, ping):
    answers(wire, [ping], [NOT_FOUND])
    assert client().statuses([pod("a")]) == {"a": None}


ANSWERED = (200, {}, "[]")


@pytest.mark.parametrize(
    ("api", "ping", "state"),
    [
        ("plugin", ping, NOT_FOUND)
        for ping in (NOT_FOUND, (502, {}, ""), (503, {}, "{}"), (302, {}, ""), (200, {}, "<html>"))
    ]
    + [("plugin", ANSWERED, (404, {}, body)) for body in ("", "404 page not found", "<html>", '"Not found"', "404")]
    + [("server", ANSWERED, NOT_FOUND)],
)
def test_a_404_of_a_proxy_without_an_object_or_of_an_api_server_does_not_say_that_a_job_is_not_known(
    wire, api, ping, state
):
    answers(wire, [ping], [state])
    wire.post(f"{URL}/pinglink", json={})
    with pytest.raises(SiteRefusedError, match="HTTP 404"):
        client(api=api).statuses([pod("a")])


def test_a_plugin_that_starts_behind_its_proxy_is_asked_once_more(wire):
    running = (200, {}, json.dumps([told(pod("a"), RUNNING)]))
    answers(wire, [(200, {}, "[]")], [NOT_FOUND, running])
    asked = client()
    with pytest.raises(SiteRefusedError, match="HTTP 404"):
        asked.statuses([pod("a")])
    assert asked.statuses([pod("a")])["a"].phase == "running"


def test_a_pod_that_is_not_found_does_not_hide_the_others(wire):
    def answer(request):
        asked = json.loads(request.body)
        if not asked:
            return 500, {}, "IndexError"
        return NOT_FOUND if asked[0]["metadata"]["uid"] == "a" else (200, {}, json.dumps([told(asked[0], RUNNING)]))

    wire.add_callback(responses.GET, f"{URL}/status", answer)
    wire.post(f"{URL}/status", status=405)
    found = client().statuses([pod(uid) for uid in "abcd"])
    assert phases(found) == {"a": None} | dict.fromkeys("bcd", "running")


@pytest.mark.parametrize("init", [[f"x{number}" for number in range(1000)], [[]], [{}], [7], [None]])
def test_init_containers_that_the_pod_does_not_have_are_left_out(wire, init):
    strangers = [{"name": name, "state": RUNNING} for name in init]
    wire.get(f"{URL}/status", json=[told(pod("a"), RUNNING, initContainers=strangers)])
    assert client().statuses([pod("a")])["a"].init_containers == []


def test_half_a_surrogate_pair_is_replaced(wire):
    made = pod("a")
    waiting = {"waiting": {"reason": "Pending", "message": "\ud800"}}
    wire.get(f"{URL}/status", body=json.dumps([told(made, waiting)]))
    assert client().statuses([made])["a"].message == "\ufffd"


def test_a_plugin_that_accepts_only_post(wire):
    wire.get(f"{URL}/status", status=405)
    wire.post(f"{URL}/status", json=[told(pod("a"), RUNNING)])
    asked = client()
    assert asked.statuses([pod("a")])["a"].phase == "running"
    asked.statuses([pod("a")])
    assert [call.request.method for call in wire.calls] == ["GET", "POST", "POST"]


def test_a_method_that_worked_once_is_kept(wire):
    wire.get(f"{URL}/status", json=[told(pod("a"), RUNNING)])
    asked = client()
    asked.statuses([pod("a")])
    wire.replace(responses.GET, f"{URL}/status", status=404)
    with pytest.raises(SiteRefusedError):
        asked.statuses([pod("a")])
    assert [call.request.method for call in wire.calls] == ["GET", "GET"]


@pytest.mark.parametrize("status", [400, 405, 415, 422])
def test_a_new_version_of_a_plugin_may_want_the_other_method(wire, status):
    wanted = []

    def answer(request):
        return (200, {}, json.dumps([told(pod("a"), RUNNING)])) if request.method == wanted[-1] else (status, {}, "")

    for method in (responses.GET, responses.POST):
        wire.add_callback(method, f"{URL}/status", answer)
    asked = client()
    methods = []
    for method in ("POST", "GET", "GET"):
        wanted.append(method)
        assert asked.statuses([pod("a")])["a"].phase == "running"
        methods.append([call.request.method for call in wire.calls])
        wire.calls.reset()
    assert methods == [["GET", "POST"], ["POST", "GET"], ["GET"]]


WORDS = ["UID", "name", "namespace", "containers", "state", "running", "terminated", "exitCode", "startedAt"]
JSON = json_values(st.sampled_from(WORDS))


@settings(max_examples=examples(40, 300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(JSON, st.lists(JSON, max_size=3))
def test_no_answer_raises_anything_but_a_site_error(entry, more):
    made = pod("a")
    with responses.RequestsMock() as wire:
        wire.get(f"{URL}/status", json=[told(made) | (entry if isinstance(entry, dict) else {}), *more])
        try:
            found = client().statuses([made])
        except SiteError:
            return
    assert set(found) <= {"a"}


# --- ping -------------------------------------------------------------------------------------------------------------
def test_a_ping_of_hop_b_and_its_recorded_answer(wire):
    wire.get(f"{URL}/status", json=body("ping_answer"))
    found = client().ping()
    assert body_of(wire.calls[0]) == []
    assert found.degraded == ""
    assert found.response.resources is not None


@pytest.mark.parametrize("answer", ["[]", "null", "", "pong", "7", '{"status": "ok"}'])
def test_any_text_is_an_answer_to_a_ping(wire, answer):
    wire.get(f"{URL}/status", body=answer)
    assert client().ping().degraded == ""


def test_invalid_values_in_a_ping_make_the_plugin_degraded(wire):
    wire.get(f"{URL}/status", json={"resources": {"cpu": []}})
    assert client().ping().degraded.startswith("invalid values: resources.cpu")


def test_an_invalid_value_in_a_ping_leaves_out_nothing_else(wire):
    gpus = [
        {"resourceType": "a.com/gpu", "available": "8"},
        {"resourceType": "b.com/gpu", "available": None},
        7,
        {"available": "1"},
        {"resourceType": "c.com/gpu", "available": 2},
    ]
    taints = [None, {"key": "k", "value": "v"}, {"key": "l", "value": 7}]
    wire.get(f"{URL}/status", json={"resources": {"cpu": "128", "memory": [], "accelerators": gpus}, "taints": taints})
    found = client().ping()
    assert ping.capacity(found.response) == {"cpu": "128", "a.com/gpu": "8", "c.com/gpu": "2"}
    assert ping.taints(found.response) == ["k=v:NoSchedule"]
    assert found.degraded.startswith("invalid values: resources.memory")


@pytest.mark.parametrize("part", ["resources", "taints", "status"])
def test_a_part_of_a_ping_of_the_wrong_type_is_left_out(wire, part):
    wire.get(f"{URL}/status", json={"resources": {"cpu": "4"}, "taints": [], "status": "ok", part: 7})
    found = client().ping()
    assert found.degraded.startswith(f"invalid values: {part}")
    assert ping.capacity(found.response) == ({} if part == "resources" else {"cpu": "4"})


@settings(max_examples=examples(40, 300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(JSON, JSON, JSON, st.lists(JSON, max_size=4))
def test_no_ping_raises_anything_but_a_site_error(cpu, resources, gpus, taints):
    parts = {"cpu": cpu, "accelerators": gpus, **(resources if isinstance(resources, dict) else {})}
    with responses.RequestsMock() as wire:
        wire.get(f"{URL}/status", json={"resources": parts, "taints": taints})
        client().ping()


@pytest.mark.parametrize("status", [500, 422])
def test_a_plugin_that_fails_at_its_ping_runs(wire, status):
    for method in (responses.GET, responses.POST):
        wire.add(method, f"{URL}/status", status=status, body="IndexError: list index out of range")
    assert client().ping().degraded == f"HTTP {status}"


@pytest.mark.parametrize("status", [401, 404, 502, 503, 504])
def test_a_gateway_without_a_plugin_is_no_answer(wire, status):
    for method in (responses.GET, responses.POST):
        wire.add(method, f"{URL}/status", status=status)
    with pytest.raises(SiteError):
        client().ping()


@pytest.mark.parametrize(
    ("body", "runs"), [("PingInterLink#1 call exit status: 500. Body: IndexError", True), ("503", False)]
)
def test_an_api_server_says_whether_its_plugin_answered(wire, body, runs):
    wire.post(f"{URL}/pinglink", status=500, body=body)
    asked = client(api="server")
    if runs:
        assert asked.ping().degraded == "HTTP 500"
    else:
        with pytest.raises(SiteDownError):
            asked.ping()


# --- logs -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("limit", "log"), [(None, b"one\ntwo\n"), (5, b"one\nt")])
def test_a_log_and_its_options_and_a_limit_that_is_not_sent(wire, limit, log):
    wire.get(f"{URL}/getLogs", body=b"one\ntwo\n")
    pieces = client().logs(pod("a"), LogOptions(container="main", tail=2, limit_bytes=limit))
    assert b"".join(pieces) == log
    assert body_of(wire.calls[0])["Opts"]["Tail"] == 2


def test_a_refused_log_is_an_error_with_the_text(wire):
    wire.get(f"{URL}/getLogs", status=500, body="no such file")
    with pytest.raises(SiteRefusedError, match="HTTP 500: no such file"):
        client().logs(pod("a"), LogOptions(container="main"))
    pieces = client().logs(pod("a"), LogOptions(container="main", follow=True))
    with pytest.raises(SiteRefusedError, match="HTTP 500: no such file"):
        next(pieces)


def test_a_log_that_is_refused_with_both_methods_is_reported_with_the_first_answer(wire):
    wire.get(f"{URL}/getLogs", status=400, body="container is waiting to start")
    wire.post(f"{URL}/getLogs", status=405)
    with pytest.raises(SiteRefusedError, match="GET /getLogs: HTTP 400: container is waiting to start"):
        client().logs(pod("a"), LogOptions(container="main"))


def test_a_followed_log_is_requested_with_its_first_piece(wire):
    wire.get(f"{URL}/getLogs", body=b"one\n")
    pieces = client().logs(pod("a"), LogOptions(container="main", follow=True))
    assert len(wire.calls) == 0
    assert list(pieces) == [b"one\n"]


# --- /delete ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("api", "method"), [("plugin", "POST"), ("server", "DELETE")])
def test_delete_sends_the_pod(wire, api, method):
    wire.add(method, f"{URL}/delete", body="deleted")
    client(api=api).delete(pod("a"))
    assert body_of(wire.calls[0])["metadata"]["uid"] == "a"


def test_a_failed_delete_has_an_unknown_outcome(wire):
    wire.post(f"{URL}/delete", status=500, body="scancel: error")
    with pytest.raises(ServerError):
        client().delete(pod("a"))


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_the_answer_about_a_pod_has_a_limited_size(wire, monkeypatch, more, is_read):
    answer = json.dumps(status_answer("running"))
    monkeypatch.setattr(interlink_client, "LEAST_STATUS", len(answer))
    monkeypatch.setattr(interlink_client, "STATUS_OF_POD", 100)
    wire.get(f"{URL}/status", body=answer + " " * (100 + more))
    if is_read:
        assert phases(client().statuses([POD])) == {UID: "running"}
        return
    with pytest.raises(SiteError, match=f"more than {len(answer) + 100} bytes"):
        client().statuses([POD])
