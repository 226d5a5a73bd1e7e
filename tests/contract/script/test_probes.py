"""Probes by HTTPS and gRPC, against real servers, with the programs that a machine has."""

import ssl
import subprocess
from concurrent import futures

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from tests.contract.script.conftest import folder_of_programs
from tests.fakes.web_server import Handler, serving
from tests.pod_specs import spec_of

pytestmark = pytest.mark.real

LONG = "team.package.Service" + "x" * 200
STATUS = health_pb2.HealthCheckResponse


@pytest.fixture(scope="module")
def health_port():
    """A server whose own health is good, as is that of two services; a third one's is bad."""
    servicer = health.HealthServicer()
    for service, status in (
        ("", STATUS.SERVING),
        ("it's/good", STATUS.SERVING),
        (LONG, STATUS.SERVING),
        ("bad", STATUS.NOT_SERVING),
    ):
        servicer.set(service, status)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("0.0.0.0:0")
    server.start()
    yield port
    server.stop(0).wait()


class _Strict(Handler):
    def respond(self):
        told = (self.path, self.headers.get_all("X-Test"), self.headers["User-Agent"], self.headers["Host"])
        self.server.told.append(told)
        self.answer(status=204 if self.path.startswith("/good") else 503)


@pytest.fixture
def https_server(tmp_path):
    """A server with a certificate that nobody has signed; ``told`` is what it was asked."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x"]
    subprocess.run([*words, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(_Strict, "0.0.0.0", tls=context) as server:  # noqa: S104
        server.told = []
        yield server


# A kubelet requests such paths as they are;
# curl would expand the brackets.
PATHS = ("/good[1-3]", "/good{a,b}", "/good?x[]=1&y={}", "/good/[::1]/../..", "/good\\x")


def test_a_path_by_https_is_requested_as_it_stands(ordinary, https_server):
    port = https_server.server_address[1]
    probes = {
        f"good-{number}": {"httpGet": {"scheme": "HTTPS", "port": port, "path": path}}
        for number, path in enumerate(PATHS)
    }
    probes["bad"] = {"httpGet": {"scheme": "HTTPS", "port": port, "path": "/bad"}}
    job, ready = asked(ordinary, probes)
    assert ready == set(probes) - {"bad"}, job.everything()
    assert {told[0] for told in https_server.told} == {*PATHS, "/bad"}
    (event,) = [each for each in job.state("bad")["occurrences"] if each["reason"] == "Unhealthy"]
    assert event["message"] == "Liveness probe failed: HTTP probe failed with statuscode: 503"


def asked(site, probes, environment=None):
    """Run a container for each probe (name -> handler); gives those that became ready, once all others were killed.

    Names that begin with "good" are probes of readiness, the others of liveness, which one failure ends.
    """
    times = {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 1}
    spec = spec_of(
        *[
            site.shell(
                "exec sleep 1000",
                name=name,
                **{"readinessProbe" if name.startswith("good") else "livenessProbe": {**handler, **times}},
            )
            for name, handler in probes.items()
        ]
    )
    job = site.job(spec, environment=environment).start()

    def told(name):
        state = job.state(name)
        return state.get("ready") if name.startswith("good") else (state.get("ended") or {}).get("exitCode") == 143

    job.eventually(lambda: job.process.poll() is not None or all(map(told, probes)))
    ready = {name for name in probes if job.state(name)["ready"]}
    job.ask_to_stop(0)
    job.wait(15)
    return job, ready


def test_grpc(ordinary, health_port, closed_port):
    def handler(service=None, port=health_port):
        return {"grpc": {"port": port, **({} if service is None else {"service": service})}}

    probes = {
        "good": handler(),
        "good-empty": handler(""),
        "good-named": handler("it's/good"),
        "good-long": handler(LONG),
        "bad": handler("bad"),
        "unknown": handler("no such service"),
        "closed": handler(port=closed_port),
    }
    job, ready = asked(ordinary, probes)
    assert ready == {name for name in probes if name.startswith("good")}, job.everything()


def test_grpc_at_a_server_that_speaks_http_alone(ordinary, http_port):
    _, ready = asked(ordinary, {"plain": {"grpc": {"port": http_port}}, "good": {"tcpSocket": {"port": http_port}}})
    assert ready == {"good"}


OLD = "echo 'curl 7.29.0 (x86_64) libcurl/7.29.0'; echo 'Features: AsynchDNS IPv6 libz'"
"""What CentOS 7 has."""


@pytest.mark.parametrize("program", ["none", "old"])
def test_grpc_without_a_program_for_it(ordinary, health_port, program):
    # the script puts the folders of administrators behind PATH; curl is in none of them
    path = folder_of_programs(ordinary, "curl", **({"curl": OLD} if program == "old" else {}))
    job, ready = asked(ordinary, {"main": {"grpc": {"port": health_port}}}, {"PATH": path})
    assert (job.pod()["phase"], job.pod()["reason"]) == ("Failed", "ProbeNotPossible") and not ready
    assert "a probe by grpc needs" in job.pod()["message"]


def test_grpc_by_the_program_that_is_made_for_it(ordinary, health_port):
    told = ordinary.home_for_host_path() / "told"
    path = folder_of_programs(ordinary, "curl", curl=OLD, grpc_health_probe=f'echo "$*" >>{told}')
    job, ready = asked(ordinary, {"good": {"grpc": {"port": health_port, "service": "x"}}}, {"PATH": path})
    assert ready == {"good"} and told.read_text().splitlines()[0] == f"-addr={job.pod()['ip']}:{health_port} -service=x"


def test_https(ordinary, https_server, http_port):
    def handler(path, port=https_server.server_port, **more):
        return {"httpGet": {"scheme": "HTTPS", "port": port, "path": path, **more}}

    text = 'it\'s "$HOME" \\ é'
    headers = [{"name": "X-Test", "value": text}, {"name": "X-Test", "value": "two"}]
    probes = {
        "good": handler("/good?x=1&y='a b'", httpHeaders=headers),
        "good-host": handler("/good", httpHeaders=[{"name": "Host", "value": "other.example"}]),
        "bad": handler("/bad"),
        "no-tls": handler("/good", port=http_port),
    }
    job, ready = asked(ordinary, probes)
    assert ready == {"good", "good-host"}, job.everything()
    told = {each[0]: each for each in https_server.told if each[1] or "other" in each[3]}
    path, values, agent, _ = told["/good?x=1&y='a%20b'"]
    assert values == [text.encode().decode("latin-1"), "two"], path
    assert agent.startswith("kube-probe/") and told["/good"][3] == "other.example"


def test_https_without_curl(ordinary, https_server):
    probe = {"httpGet": {"scheme": "HTTPS", "port": https_server.server_port, "path": "/good"}}
    job, _ = asked(ordinary, {"main": probe}, {"PATH": folder_of_programs(ordinary, "curl")})
    assert (job.pod()["phase"], job.pod()["reason"]) == ("Failed", "ProbeNotPossible")
