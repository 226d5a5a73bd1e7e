"""The pool against a DMS over real HTTP, made after the published examples."""

import contextlib
import threading
import time

import pytest

from bridge import names
from bridge.clock import SystemClock
from bridge.config.hub import parse
from bridge.config.nunet import NunetSection
from bridge.core.threads import Supervisor
from bridge.errors import (
    ConfigError,
    ScriptError,
    SiteDownError,
    SiteError,
    SiteRefusedError,
    SiteUnknownOutcomeError,
    UnknownJobError,
)
from bridge.http.curl_client import CallError
from bridge.pools.nunet import dms_client, dms_logs, nunet_pool
from bridge.pools.nunet.dms_client import DmsClient
from bridge.pools.registry import PoolContext
from bridge.protocol.model.jobs import pod_of
from bridge.protocol.model.requests import LogOptions
from bridge.script.references import Objects
from cluster.polling import eventually
from cluster.systems import dms
from cluster.systems.dms import FakeDms
from tests.fakes.web_server import Handler, serving

GPU = "nunet.io/gpu.nvidia.rtx.3080.10gb"
SUBMITTED = {names.REMOTE_JOB: "nunet/nunet-1"}


@pytest.fixture
def site():
    with FakeDms() as running:
        yield running


def pools(site, **more):
    section = NunetSection.model_validate(
        {"name": "nunet", "url": site.url, "pollPeriod": 0.2, "pingPeriod": 0.2, **more}
    )
    context = PoolContext(parse("pools: {submitTimeout: 5}"), SystemClock())
    return nunet_pool.pools_of(section, context, "pools.nunet[0]")


def client(url, **more):
    return DmsClient(NunetSection(name="nunet", url=url, **more), SystemClock())


def only(site, **more):
    (pool,) = pools(site, **more)
    pool.ping()
    return pool


def pod(uid="u-1", seconds="30", cpu="1", gpus=None, annotations=None, **spec):
    limits = {"cpu": cpu, "memory": "1Gi", **({GPU: gpus} if gpus else {})}
    env = [{"name": dms.SECONDS, "value": seconds}, *spec.pop("env", [])]
    container = {"name": "main", "image": "busybox", "env": env, "args": ["x"], "resources": {"limits": limits}}
    metadata = {"namespace": "remote", "name": f"p-{uid}", "uid": uid, "annotations": annotations or {}}
    return {"metadata": metadata, "spec": {"restartPolicy": "Never", "containers": [container], **spec}}


def submit(pool, found):
    return pool.submit(pool.prepare(found), Objects())


def lost(pool, site, found):
    """Submit a pod; its answer is lost."""
    site.drop = 1
    with pytest.raises(SiteUnknownOutcomeError):
        submit(pool, found)
    pool._dms._peer_list = None


# --- peers ------------------------------------------------------------------------------------------------------------
def test_the_node_has_the_sums_and_the_largest_peer(site):
    pool = only(site)
    told, _ = pool.announced()
    assert told.capacity["cpu"] == "18"
    assert told.capacity[GPU] == "4"
    assert "nunet.io/gpu.nvidia.tesla.p100.16gb" not in told.capacity
    assert told.labels["nunet.io/largest-peer-cpu"] == "17"
    assert told.labels["gpu-type"] == "nvidia.rtx.3080.10gb"
    assert told.labels["type"] == "virtual-kubelet"
    assert pool.ready().ok


def test_groups_are_virtual_nodes_with_one_list_of_peers(site):
    groups = [
        {"name": "rtx", "gpuTypes": ["nvidia.rtx.*"], "labels": {"zone": "a"}},
        {"name": "plain", "gpuTypes": ["none"]},
    ]
    rtx, plain = pools(site, groups=groups, pingPeriod=60)
    rtx.ping()
    plain.ping()
    assert rtx.announced()[0].capacity["cpu"] == "17"
    assert rtx.announced()[0].labels["zone"] == "a"
    assert plain.announced()[0].capacity["cpu"] == "1"
    assert "gpu-type" not in plain.announced()[0].labels
    assert len([1 for _, path in site.requests if path == dms.CURRENT]) == 1
    assert submit(rtx, pod()).host == "QmPeer3"
    assert submit(plain, pod("u-2")).host == "QmPeer1"


def test_no_available_peer_is_a_problem_of_the_node(site):
    for peer in site.peers:
        peer["is_available"] = False
    pool = only(site)
    assert (pool.ready().reason, pool.announced()[0].capacity["cpu"]) == ("NoPeerAvailable", "0")


# --- the life of a job ------------------------------------------------------------------------------------------------
def test_a_job_runs_and_ends(site):
    pool = only(site)
    found = pod(seconds="1.2", gpus="1")
    status = submit(pool, found)
    assert (status.phase, status.job_id, status.host) == ("queued", "nunet-1", "QmPeer3")
    body = site.jobs["nunet-1"].body
    assert (body["job_id"], body["peer_id"], body["jobparams"]) == ("u-1", "QmPeer3", ["x"])
    assert body["requiredCapability"]["resources"]["gpu"] == {"brand": "nvidia", "model": "rtx.3080", "vram": "10Gi"}
    pool.follows.add(found)
    pool.poll()
    running = pool.job("u-1")
    assert running.phase == "running"
    assert "at the latest" in running.message
    eventually(lambda: pool.poll() == 0 and pool.job("u-1").phase == "ended")
    assert pool.job("u-1").outcome == "Succeeded"
    pool.follows.remove("u-1")
    assert pool.jobs() == {}


def test_the_loops_of_the_pool_do_all_of_it(site):
    (pool,) = pools(site)
    heard = []
    pool.subscribe(heard.append)
    supervisor = Supervisor()
    pool.start(supervisor)
    try:
        eventually(lambda: pool.ready().ok)
        found = pod(seconds="0.5", env=[{"name": dms.FAIL, "value": "1"}])
        pool.follows.add(found)
        submit(pool, found)
        eventually(lambda: pool.job("u-1").phase == "ended")
        assert pool.job("u-1").outcome == "Failed"
        assert "u-1" in heard
    finally:
        supervisor.stop()
        assert supervisor.join(5) == []


def test_the_capacity_of_the_node_includes_its_own_jobs(site):
    pool = only(site)
    found = pod(cpu="4", gpus="1")
    pool.follows.add(found)
    submit(pool, found)
    for _ in range(2):  # before and after the list shows the job
        assert pool.announced()[0].capacity["cpu"] == "18"
        pool._dms._peer_list = None
        pool.ping()
    assert pool.announced()[0].free["cpu"] == "14"
    assert pool.announced()[0].capacity[GPU] == "4"
    # another process, which did not submit the job
    other = only(site)
    other.follows.add(pod(cpu="4", gpus="1", annotations=SUBMITTED))
    other.poll()
    other.ping()
    assert other.announced()[0].capacity["cpu"] == "18"


def test_jobs_in_one_second_do_not_share_resources(site):
    pool = only(site, pingPeriod=60)
    chosen = [submit(pool, pod(f"u-{number}", cpu="8")).host for number in range(2)]
    assert chosen == ["QmPeer3", "QmPeer3"]
    with pytest.raises(SiteDownError, match="it fits when a job of this pool has ended"):
        submit(pool, pod("u-9", cpu="8"))
    assert len(site.jobs) == 2


def test_a_pod_that_fits_no_peer_is_refused_with_what_is_free(site):
    refusal = r"cpu 18.*peer QmPeer3: less than cpu 18; free: cpu 17, memory 113855Mi, 4 GPU"
    with pytest.raises(ScriptError, match=refusal):
        submit(only(site), pod(cpu="18"))
    assert site.jobs == {}


def test_cancel_needs_a_path(site):
    found = pod()
    pool = only(site)
    submit(pool, found)
    with pytest.raises(SiteRefusedError, match="no cancelPath is configured") as caught:
        pool.cancel(found, 30)
    assert caught.value.retryable
    pool = only(site, cancelPath="/api/v1/job/{job}")
    ended = pool.cancel(pod(annotations=SUBMITTED), 30)
    assert (ended.phase, ended.reason) == ("ended", "Cancelled")
    assert pool.cancel(found, 0, forget=True) is None
    assert pool.jobs() == {}


def test_a_running_job_is_not_forgotten(site):
    found = pod()
    pool = only(site, cancelPath="/api/v1/job/{job}")
    submit(pool, found)
    assert pool.cancel(pod_of(pool.job("u-1")), 0, forget=True).phase == "ended"
    assert site.jobs["nunet-1"].state == "cancelled"


def test_a_process_that_does_not_know_the_job_does_not_forget_it(site):
    found = pod()
    submit(only(site), found)
    other = only(site, cancelPath="/api/v1/job/{job}")
    assert other.cancel(found, 0, forget=True).phase == "ended"
    assert site.jobs["nunet-1"].state == "cancelled"
    assert other.cancel(found, 0, forget=True) is None
    assert other.cancel(pod("u-2"), 0, forget=True) is None  # it failed before it was submitted


def test_a_job_that_the_dms_does_not_know(site):
    found = pod(annotations={"bridge.vk.io/job": "nunet/nunet-77"})
    assert only(site).status(found) is None


def test_an_unknown_word_is_no_end(site, monkeypatch):
    pool = only(site)
    found = pod()
    submit(pool, found)
    monkeypatch.setattr(site, "status", lambda job: {"jobid": job.id, "jobstatus": "hibernating"})
    assert pool.status(found).phase == "unknown"
    pool = only(site, statuses={"Hibernating": "queued"})
    assert pool.status(pod(annotations=SUBMITTED)).phase == "queued"


# --- never twice ------------------------------------------------------------------------------------------------------
def test_a_lost_answer_is_found_again_in_the_services(site):
    pool, found = only(site), pod()
    lost(pool, site, found)
    status = pool.status(found)
    assert (status.job_id, status.phase) == ("nunet-1", "running")
    assert status.host in ("QmPeer1", "QmPeer3")
    assert submit(pool, found).job_id == "nunet-1"
    assert len(site.jobs) == 1


def test_a_submission_after_a_restart_finds_the_job(site):
    submit(only(site), pod())
    assert submit(only(site), pod()).job_id == "nunet-1"
    assert len(site.jobs) == 1


def test_a_job_that_nobody_shows_is_not_known_and_not_absent(site):
    pool, found = only(site), pod()
    site.shows = False
    lost(pool, site, found)
    with pytest.raises(UnknownJobError):
        submit(pool, found)  # whoever repeats it
    with pytest.raises(UnknownJobError) as caught:
        pool.status(found)
    assert "no-job=true" in caught.value.hint
    pool.follows.add(found)
    assert pool.poll() == 0  # the other jobs are asked for as before
    found["metadata"]["annotations"] = {"nunet.bridge.vk.io/no-job": "true"}
    assert pool.status(found) is None
    assert only(site).status(found) is None  # another process
    lost(pool, site, found)
    with pytest.raises(UnknownJobError):
        pool.status(found)
    annotations = found["metadata"]["annotations"]
    annotations[names.JOB_INTENT] = f"{pool.name}/{annotations[pool.follows.statement]}"  # as the hub writes it
    with pytest.raises(UnknownJobError):
        only(site).status(found)  # another process, to which the same statement is not new
    found["metadata"]["annotations"] = {**found["metadata"]["annotations"], "nunet.bridge.vk.io/no-job": "again"}
    assert pool.status(found) is None
    assert only(site).status(found) is None
    site.shows = True
    pool._dms._peer_list = None
    assert pool.status(found).phase == "running"  # what a peer shows counts more


# --- peers that state jobs of others ----------------------------------------------------------------------------------
def rogue(site, name="QmRogue", **entry):
    """Add a peer that states an end of job u-1."""
    service = {"JobStatus": "finished", "ServiceName": "u-1", **entry}
    site.peers.insert(0, {"peer_id": name, "is_available": False, "services": [service]})


@pytest.mark.parametrize("entry", [{}, {"ID": "nunet-77"}, {"job_id": ""}])
def test_a_peer_cannot_state_the_end_of_a_job_that_another_peer_got(site, entry):
    pool, found = only(site), pod()
    rogue(site, **entry)
    lost(pool, site, found)
    status = pool.status(found)
    assert (status.job_id, status.phase) == ("nunet-1", "running")
    assert status.host != "QmRogue"


def test_a_peer_of_another_pool_cannot_state_the_end_of_a_job(site):
    rogue(site)
    pool = only(site, groups=[{"name": "nunet", "peers": ["QmPeer1", "QmPeer3"]}])
    with pytest.raises(UnknownJobError, match="no peer shows one"):
        pool.status(pod())
    with pytest.raises(UnknownJobError, match="not in the pool"):
        submit(pool, pod())
    assert submit(pool, pod(annotations={"nunet.bridge.vk.io/no-job": "true"})).job_id == "nunet-1"


def test_a_job_that_several_peers_show_is_not_known(site):
    lost(only(site), site, pod())
    rogue(site)
    with pytest.raises(UnknownJobError, match=r"several peers.*: peer QmRogue, peer QmPeer"):
        only(site).status(pod())  # a process that does not know which peer got the job
    with pytest.raises(UnknownJobError, match="several peers"):
        submit(only(site), pod())
    assert len(site.jobs) == 1


def test_the_number_of_a_row_is_no_id_of_a_job(site):
    pool, found = only(site, cancelPath="/cancel/{job}"), pod()
    site.shows = False
    lost(pool, site, found)
    site.jobs["nunet-1"].peer["services"] = [{"ID": 12, "JobStatus": "running", "ServiceName": "u-1"}]
    for _ in range(3):
        pool._dms._peer_list = None
        assert pool.status(found).phase == "running"
    with pytest.raises(SiteRefusedError, match="without the id that the DMS needs"):
        pool.cancel(found, 0)
    found["metadata"]["annotations"] = {names.REMOTE_JOB: f"{pool.name}/u-1"}
    assert only(site).status(found).phase == "running"  # another process


def test_a_peer_cannot_attach_a_pod_to_the_job_of_another_pod(site):
    pool, first = only(site), pod("u-2")
    pool.follows.add(first)
    assert submit(pool, first).job_id == "nunet-1"
    site.shows = False
    lost(pool, site, pod())
    got = site.jobs["nunet-2"].peer
    got["services"] = [{"ID": "nunet-1", "JobStatus": "finished", "ServiceName": "u-1"}]
    with pytest.raises(UnknownJobError, match="the job of another pod: 'nunet-1'"):
        pool.status(pod())
    got["services"] = []
    # another process, which has the id from the annotation
    other = only(site)
    other.follows.add(pod("u-2", annotations=SUBMITTED))
    rogue(site, ID="nunet-1")
    other._dms._peer_list = None
    with pytest.raises(UnknownJobError, match="the job of another pod"):
        other.status(pod())


def test_an_id_that_several_peers_show_is_not_adopted(site):
    rogue(site, ID="nunet-9")
    rogue(site, name="QmOther", ID="nunet-9", ServiceName="u-9")
    with pytest.raises(UnknownJobError, match="peer QmOther, peer QmRogue"):
        only(site).status(pod())


def test_without_a_field_for_the_peer_the_dms_chooses_it(site):
    pool, found = only(site, peerField=""), pod()
    lost(pool, site, found)
    assert pool.status(found).job_id == "nunet-1"


def test_a_refused_submission_holds_no_resources(site):
    pool = only(site, pingPeriod=60)
    site.peers[0]["is_available"] = site.peers[2]["is_available"] = False
    with pytest.raises(SiteRefusedError, match="no peer fits") as caught:
        submit(pool, pod(cpu="17"))
    assert not caught.value.retryable
    site.peers[2]["is_available"] = True
    assert submit(pool, pod("u-2", cpu="17")).host == "QmPeer3"


# --- HTTP -------------------------------------------------------------------------------------------------------------
def test_the_token_is_read_for_each_request(site, tmp_path):
    token = tmp_path / "token"
    token.write_text("one\n")
    site.token = "one"
    pool = only(site, tokenFile=str(token))
    site.token = "two"
    pool._dms._peer_list = None
    assert pool.ping() == 1
    token.write_text("two")
    assert pool.ping() == 0
    token.unlink()
    with pytest.raises(SiteDownError, match="tokenFile"):
        pool.status(pod(annotations={"bridge.vk.io/job": "nunet/x"}))


def test_a_dms_that_is_down_certainly_got_nothing(site):
    pool = only(site, pingPeriod=60)
    site.stop()
    with pytest.raises(SiteDownError):
        submit(pool, pod())
    with pytest.raises(SiteDownError):
        pool.status(pod(annotations={"bridge.vk.io/job": "nunet/x"}))
    site.__init__()
    site.start()


@contextlib.contextmanager
def answers(*script):
    """Serve raw answers: status, content type and body of each request, the last one for all others."""
    left = list(script)

    class Script(Handler):
        def respond(self):
            code, kind, body = left.pop(0) if len(left) > 1 else left[0]
            self.answer(body, code, {"Content-Type": kind, "Location": "http://169.254.169.254/"})

    with serving(Script) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize(
    "answer",
    [
        (404, "text/html", b"<html>proxy</html>"),
        (502, "text/html", b"bad gateway"),
        (500, "application/json", b'{"error": "x"}'),
        (200, "text/plain", b"it works!"),
        (200, "application/json", b"[" * 100_000),
        (200, "application/json", b"{}"),
        (302, "text/plain", b""),
    ],
)
def test_no_answer_of_another_program_means_that_a_job_is_gone(answer):
    with answers(answer) as url, pytest.raises(SiteError):
        client(url).status("n-1")
    with answers((404, "application/json", b'{"error": "no such job"}')) as url:
        assert client(url).status("n-1") is None


def test_an_answer_has_a_limit(monkeypatch):
    monkeypatch.setattr(dms_client, "MOST_BYTES", 1000)
    with (
        answers((200, "application/json", b"[" + b" " * 5000 + b"]")) as url,
        pytest.raises(SiteError, match="1000 bytes"),
    ):
        client(url).peers(0)


def test_an_accepted_job_without_an_id_has_an_unknown_outcome():
    with answers((200, "application/json", b"{}")) as url, pytest.raises(SiteUnknownOutcomeError):
        client(url).submit({}, 5)


# --- logs -------------------------------------------------------------------------------------------------------------
def read(pool, found, **options):
    return b"".join(pool.logs(found, LogOptions(container="main", **options))).decode()


def test_logs_are_read_and_followed(site, monkeypatch):
    monkeypatch.setattr(dms_logs, "FOLLOW_PERIOD", 0.1)
    pool, found = only(site), pod(seconds="1.6")
    submit(pool, found)
    pool.follows.add(found)
    pool._dms._peer_list = None
    stop = threading.Event()
    poller = threading.Thread(target=lambda: [pool.poll() for _ in iter(lambda: stop.wait(0.1), True)])
    poller.start()
    try:
        text = read(pool, found, follow=True)
    finally:
        stop.set()
        poller.join()
    lines = text.splitlines()
    assert lines[0] == "job u-1 with image busybox"
    assert lines[-1] == "step 3"
    assert len(lines) == len(set(lines))
    assert read(pool, found, tail=1) == "step 3\n"
    assert read(pool, found, tail=0) == ""
    assert read(pool, found, limit_bytes=7) == "job u-1"
    for option in ({"since": 5.0}, {"timestamps": True}, {"previous": True}):
        with pytest.raises(SiteRefusedError, match="not possible"):
            read(pool, found, **option)


def test_a_followed_log_ends_when_it_is_closed(site):
    pool, found = only(site), pod()
    submit(pool, found)
    pool._dms._peer_list = None
    log = pool.logs(found, LogOptions(container="main", follow=True))
    assert b"job u-1" in next(log)
    threading.Timer(0.2, log.close).start()
    began = time.monotonic()
    assert b"job" not in b"".join(log)
    assert time.monotonic() - began < 1.5


def test_a_log_has_a_limit(site, monkeypatch):
    monkeypatch.setattr(dms_logs, "MOST_BYTES", 1024)
    pool, found = only(site), pod()
    submit(pool, found)
    site.jobs["nunet-1"].log = lambda: b"x" * 5000
    pool._dms._peer_list = None
    assert read(pool, found) == "x" * 1024


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "http://127.0.0.1.evil.example/x",
        "https://user@127.0.0.1/",
        "http://127.0.0.1\\@evil.example/",
        "http://evil.example/?127.0.0.1",
        "//127.0.0.1/x",
        # other servers of the DMS's machine
        "http://127.0.0.1/x",
        "http://127.0.0.1:22/",
        "https://127.0.0.1/x",
        "http:///x",
        "http://[::1/",
        "",
    ],
)
def test_log_urls_of_other_hosts_are_refused(site, url, monkeypatch):
    pool, found = only(site), pod()
    submit(pool, found)
    monkeypatch.setattr(
        site, "status", lambda job: {"jobid": job.id, "jobstatus": "running", "LogURL": url or " http://x"}
    )
    with pytest.raises(SiteRefusedError, match="not allowed"):
        read(pool, found)


@pytest.mark.parametrize(
    ("url", "hosts", "good"),
    [
        ("https://logs.nunet.io/x", ("*.nunet.io",), True),
        ("https://nunet.io/x", ("*.nunet.io",), False),
        ("https://xnunet.io/x", ("*.nunet.io",), False),
        ("https://a.example:8443/x", ("a.example:8443",), True),
        ("https://a.example/x", ("a.example:8443",), False),
        ("http://a.example/x", ("a.example",), False),
        ("https://a.example/x", ("a.example:443",), True),
        ("https://a.example:444/x", ("a.example",), True),
        ("https://[fd00::1]:8443/x", ("[fd00::1]:8443",), True),
        ("https://[fd00::1]:9/x", ("[fd00::1]:8443",), False),
        ("https://[fd00::1]:9/x", ("fd00::1",), True),
    ],
)
def test_allowed_hosts(url, hosts, good):
    section = NunetSection(name="nunet", url="https://dms", log_hosts=hosts)
    if good:
        assert dms_logs.check_url(url, section) == url
    else:
        with pytest.raises(SiteRefusedError):
            dms_logs.check_url(url, section)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://dms.example", "dms.example:443"),
        ("http://dms.example/api", "dms.example:80"),
        ("https://dms.example:9999", "dms.example:9999"),
        ("http://[fd00::1]:9999", "[fd00::1]:9999"),
    ],
)
def test_by_default_a_peer_reaches_one_port_of_the_dms(url, expected):
    assert dms_logs.own_host(url) == expected
    section = NunetSection(name="nunet", url=url)
    scheme, _, host = url.partition("://")
    name = host.partition("/")[0].removesuffix(":9999")
    assert dms_logs.check_url(f"{scheme}://{host}/log", section)
    for port in (1, 22, 443 if scheme == "http" else 80, 6443, 65535):
        with pytest.raises(SiteRefusedError, match="is not allowed"):
            dms_logs.check_url(f"{scheme}://{name}:{port}/log", section)


# --- configuration ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"defaults": {"colour": "red"}}, "defaults.colour: unknown"),
        ({"defaults": {"max-time": "x"}}, "defaults.max-time: 'x'"),
        ({"defaults": {"no-job": "true"}}, "defaults.no-job: only a pod"),
    ],
)
def test_defaults_of_annotations_are_checked_at_the_start(site, more, text):
    with pytest.raises(ConfigError, match=text):
        pools(site, **more)


def test_a_pod_has_the_defaults_and_its_own_values_first(site):
    pool = only(site, defaults={"max-price-per-hour": "5", "max-time": "60"})
    submit(pool, pod(annotations={"nunet.bridge.vk.io/max-price-per-hour": "7"}))
    capability = site.jobs["nunet-1"].body["requiredCapability"]
    assert (capability["price"]["max_per_hour"], capability["time"]["max_time"]) == (7, 60)


@pytest.mark.parametrize(
    "peers",
    [
        (200, "text/html", b"<html>login</html>"),
        (404, "application/json", b'{"error": "no such path"}'),
        (200, "application/json", b"[]"),
        (200, "application/json", b'{"error": "starting"}'),
        (409, "application/json", b"{}"),
    ],
)
def test_an_answer_about_peers_that_cannot_be_used_refuses_no_pod(site, peers):
    pool = only(site, pingPeriod=60)
    pool.ping()
    with answers(peers) as url:
        pool._dms = client(url)
        with pytest.raises(SiteError) as caught:
            submit(pool, pod())
    assert caught.value.retryable
    assert site.jobs == {}


@pytest.mark.parametrize(("sent", "error"), [(True, SiteUnknownOutcomeError), (False, SiteDownError)])
def test_an_error_of_tls_says_whether_the_request_was_sent(monkeypatch, sent, error):
    def fail(*_, **__):
        raise CallError("bad record mac" if sent else "self-signed certificate", sent=sent, late=False)

    monkeypatch.setattr(dms_client.CurlClient, "call", fail)
    with pytest.raises(error):
        client("https://127.0.0.1:1").submit({}, 1)


def test_a_missing_file_of_tls_sends_nothing(tmp_path):
    with pytest.raises(SiteDownError, match="does not exist"):
        client("https://127.0.0.1:1", ca_file=tmp_path / "ca.crt").submit({}, 1)
