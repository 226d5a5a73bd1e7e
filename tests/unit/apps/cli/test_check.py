"""The checks of ``podbridge check``, each with a small stand-in for its outside system."""

import base64
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from bridge.apps.cli.check import (
    check_cluster,
    check_command,
    check_connections,
    check_permissions,
    check_pools,
    check_webhook,
)
from bridge.apps.cli.connection_options import ConnectionOptions
from bridge.apps.cli.main import cli
from bridge.apps.cli.session import CommandSession
from bridge.config.hub import Config
from bridge.errors import KubeForbiddenError, KubeInvalidError
from bridge.names import DEFAULT_SCHEDULER_REASON
from bridge.serving.certificates import make_pair
from tests import builders
from tests.fakes.kube_answers import KubeAnswers


class Kube(KubeAnswers):
    """``allowed`` decides reviews, ``answer`` creations of pods."""

    server = ""

    def __init__(self, objects=(), allowed=lambda attributes, user: True, answer=None, clock=0.0):
        super().__init__(dict(objects))
        self.allowed, self.answer, self.clock = allowed, answer, clock
        self.reviews = 0

    def create(self, path, body, params=None):
        if "accessreviews" in path:
            self.reviews += 1
            spec = body["spec"]
            return {"status": {"allowed": self.allowed(spec["resourceAttributes"], spec.get("user"))}}
        assert params == {"dryRun": "All"}
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if isinstance(self.answer, dict) else {"spec": {"schedulerName": self.answer}}

    def server_time(self):
        return int(time.time() + self.clock)


def session(kube, **config):
    slurm = SimpleNamespace(server_time=lambda: int(time.time()))
    made = object.__new__(CommandSession)
    made.slurm_answers = True
    made.kube, made.slurm, made.config = kube, slurm, Config.model_validate(config)
    return made


def run(check, *args):
    found = list(check(*args))
    assert all(finding.fix for finding in found if finding.result != "ok"), "a problem without a fix"
    return found


def results(found):
    return [finding.result for finding in found]


# --- permissions ------------------------------------------------------------------------------------------------------
ACCOUNT = "/api/v1/namespaces/podbridge/serviceaccounts/podbridge-scheduler"


def test_the_permissions_are_those_of_the_parts():
    parts = {"admission", "scheduler", "controllers", "policies", "pools", "queues", "race"}
    assert check_permissions.roles().keys() == parts


def test_the_permissions_of_a_service_account_are_reviewed():
    kube = Kube({ACCOUNT: {}})
    (finding,) = run(check_permissions.permissions, session(kube))
    assert (finding.result, finding.found) == ("ok", "podbridge/podbridge-scheduler has those of scheduler")
    assert kube.reviews == sum(len(rule["verbs"]) for rule in check_permissions.roles()["scheduler"])


def test_a_missing_permission_is_named():
    def allowed(attributes, user):
        assert user == "system:serviceaccount:podbridge:podbridge-scheduler"
        return attributes.get("subresource") != "binding"

    (finding,) = run(check_permissions.permissions, session(Kube({ACCOUNT: {}}, allowed)))
    assert finding.result == "FAIL"
    assert finding.found.endswith("lacks: update resourceclaims/binding, create pods/binding")


def test_the_objects_of_another_installation_have_its_name():
    asked = []

    def allowed(attributes, user):
        asked.append((attributes["resource"], attributes.get("name", ""), attributes.get("namespace", "")))
        return True

    path = "/api/v1/namespaces/second/serviceaccounts/second-controllers"
    (finding,) = run(check_permissions.permissions, session(Kube({path: {}}, allowed), installation="second"))
    assert finding.result == "ok"
    assert ("leases", "second-controllers", "second") in asked
    assert ("leases", "", "kube-node-lease") in asked


CONTROLLERS = "/api/v1/namespaces/podbridge/serviceaccounts/podbridge-controllers"


@pytest.mark.parametrize("installed", [True, False])
def test_the_list_of_guarded_nodes_is_reviewed_beside_the_policies(installed):
    objects = {CONTROLLERS: {}}
    if installed:
        objects["/api/v1/namespaces/podbridge/configmaps/podbridge-guarded-nodes"] = {}

    def allowed(attributes, user):
        return attributes.get("name") != "podbridge-guarded-nodes"

    (finding,) = run(check_permissions.permissions, session(Kube(objects, allowed)))
    assert finding.result == ("FAIL" if installed else "ok")
    assert not installed or "get configmaps in podbridge, patch configmaps in podbridge" in finding.found


@pytest.mark.parametrize("granted", [True, False])
def test_the_role_for_pools_is_reviewed_where_the_annotation_sends_pods_to_pools(granted):
    spaces = {"research": {"bridge.vk.io/pools": "alpha"}, "physics": {}, "other": {"bridge.vk.io/pools": "*"}}
    items = [{"metadata": {"name": name, "annotations": notes}} for name, notes in spaces.items()]
    asked = set()

    def allowed(attributes, user):
        asked.add((attributes["resource"], attributes.get("subresource", ""), attributes.get("namespace", "")))
        return granted or attributes.get("namespace") != "research"

    config = {
        "managedNamespaces": ["research", "physics"],
        "pools": {"nats": {"servers": ["nats://n:4222"], "seedFile": "s"}},
    }
    kube = Kube({CONTROLLERS: {}, "/api/v1/namespaces": {"items": items}}, allowed)
    own, there = run(check_permissions.permissions, session(kube, **config))
    assert own.result == "ok"
    assert there.result == ("ok" if granted else "warn")
    assert granted or "get configmaps in research" in there.found
    assert granted or "podbridge rbac pools research | kubectl" in there.fix
    assert ("serviceaccounts", "token", "research") in asked
    assert not {place for *_, place in asked} & {"physics", "other"}


@pytest.mark.parametrize("good", [True, False])
def test_without_service_accounts_this_user_is_reviewed(good):
    (finding,) = run(check_permissions.permissions, session(Kube(allowed=lambda attributes, user: good)))
    assert finding.result == ("ok" if good else "warn")
    assert good or "more" in finding.found  # not all of them


# --- webhook ----------------------------------------------------------------------------------------------------------
REGISTRATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/podbridge-mutate"
NAMESPACE = "/api/v1/namespaces/slurm-bridge"


def registered(days=90.0):
    pem = make_pair(["x"], days * 86400, now=time.time()).cert
    return {"webhooks": [{"clientConfig": {"caBundle": base64.b64encode(pem).decode()}}]}


@pytest.mark.parametrize(
    ("answer", "result", "words"),
    [
        ("slurm-bridge-scheduler", "ok", "gets the scheduler slurm-bridge-scheduler"),
        ("default-scheduler", "FAIL", "keeps the scheduler default-scheduler"),
        (KubeInvalidError("POST: failed calling webhook: x509"), "FAIL", "cannot call it"),
        (KubeForbiddenError("POST: forbidden"), "warn", "not called"),
    ],
)
def test_the_api_server_calls_the_webhook(answer, result, words):
    kube = Kube({REGISTRATION: registered(), NAMESPACE: {}}, answer=answer)
    _, finding = run(check_webhook.webhook, session(kube))
    assert finding.result == result
    assert words in finding.found


@pytest.mark.parametrize(("days", "result"), [((2, 90), "ok"), ((2, 3), "warn"), ((90, 2), "ok")])
def test_an_authority_counts_until_the_last_one_expires(days, result):
    pem = b"".join(make_pair(["x"], each * 86400, now=time.time()).cert for each in days)
    bundle = {"webhooks": [{"clientConfig": {"caBundle": base64.b64encode(pem).decode()}}]}
    kube = Kube({REGISTRATION: bundle, NAMESPACE: {}}, answer="slurm-bridge-scheduler")
    registration, _ = run(check_webhook.webhook, session(kube))
    assert registration.result == result


def test_a_pod_that_requests_no_pool_may_keep_its_scheduler():
    annotations = {DEFAULT_SCHEDULER_REASON: "it requests no pool"}
    left = {"metadata": {"annotations": annotations}, "spec": {"schedulerName": "default-scheduler"}}
    kube = Kube({REGISTRATION: registered(), NAMESPACE: {}}, answer=left)
    _, finding = run(
        check_webhook.webhook,
        session(kube, slurmRestApi="", pools={"nats": {"servers": ["nats://x"]}, "otherPods": "default-scheduler"}),
    )
    assert (finding.result, "it requests no pool" in finding.found) == ("ok", True)
    _, finding = run(check_webhook.webhook, session(kube))
    assert finding.result == "FAIL"


def test_a_webhook_without_registration():
    for objects in ({}, {REGISTRATION: {"webhooks": []}}):
        (finding,) = run(check_webhook.webhook, session(Kube(objects)))
        assert (finding.result, finding.found) == ("FAIL", "not registered: new pods are not processed")


def test_a_missing_policy_is_named():
    names = [f"podbridge-{name}" for name in check_webhook.POLICIES]
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    items = [{"metadata": {"name": name}} for name in names]
    assert results(run(check_webhook.policies, session(Kube({path: {"items": items}})))) == ["ok"]
    (finding,) = run(check_webhook.policies, session(Kube({path: {"items": items[1:]}})))
    assert finding.found == f"missing: {names[0]}"


# --- Kueue ------------------------------------------------------------------------------------------------------------
SERVED = {"groups": [{"name": "kueue.x-k8s.io", "preferredVersion": {"version": "v1beta2"}, "versions": []}]}
QUEUES_SERVED = {
    "groups": [*SERVED["groups"], {"name": "vk.io", "versions": [{"groupVersion": "vk.io/v1"}], "preferredVersion": {}}]
}
ON = {"queues": {"enabled": True}}


@pytest.mark.parametrize(
    ("groups", "config", "expected"),
    [({"groups": []}, {}, "ok"), ({"groups": []}, ON, "FAIL"), (SERVED, {}, "ok"), (SERVED, ON, "FAIL")],
)
def test_kueue_is_needed_only_for_master_queues(groups, config, expected):
    assert results(run(check_cluster.kueue, session(Kube({"/apis": groups}), **config))) == [expected]


def test_a_master_queue_that_is_not_ready():
    bad = {"type": "Ready", "status": "False", "reason": "Invalid", "message": "spec.flavors: empty"}
    queues = [
        {"metadata": {"name": "good"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"metadata": {"name": "bad"}, "status": {"conditions": [bad]}},
        {"metadata": {"name": "new"}},
    ]
    served = {"resources": [{"name": "masterqueues"}]}
    objects = {"/apis": QUEUES_SERVED, "/apis/vk.io/v1": served, "/apis/vk.io/v1/masterqueues": {"items": queues}}
    found = run(check_cluster.kueue, session(Kube(objects), **ON))
    assert results(found) == ["ok", "FAIL", "warn"]
    assert "bad is not Ready: Invalid: spec.flavors: empty" in found[1].found


# --- clocks and certificates ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seconds", "result", "words"),
    [(0, "ok", "agree"), (60, "warn", "60 s ahead of"), (-60, "warn", "60 s behind"), (400, "FAIL", "400 s ahead of")],
)
def test_the_clock_of_the_api_server(seconds, result, words):
    config = {"slurmRestApi": "http://127.0.0.1:1"}
    (finding,) = run(check_connections.clocks, session(Kube(clock=seconds), **config))
    assert finding.result == result
    assert words in finding.found


@pytest.fixture
def tls_server(request, tmp_path):
    """A server with a certificate that is valid for ``days``; with ``greeting``, it sends this line before TLS."""
    days, greeting = request.param
    pair = make_pair(["localhost"], days * 86400, now=time.time() - (2 * 86400 if days < 2 else 0))
    (tmp_path / "crt").write_bytes(pair.cert)
    (tmp_path / "key").write_bytes(pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        client, _ = listener.accept()
        client.sendall(greeting)
        with context.wrap_socket(client, server_side=True) as secure:
            secure.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    thread.join(5)
    listener.close()


@pytest.mark.parametrize(
    ("tls_server", "scheme", "result"),
    [
        ((90, b""), "https", "ok"),
        ((3, b""), "https", "warn"),
        ((1, b""), "https", "FAIL"),
        ((90, b"INFO {}\r\n"), "tls", "ok"),
    ],
    indirect=["tls_server"],
)
def test_the_certificate_of_a_server(tls_server, scheme, result):
    url = f"{scheme}://127.0.0.1:{tls_server}"
    config = {"pools": {"nats": {"servers": [url], "seedFile": "x"}}} if scheme == "tls" else {"slurmRestApi": url}
    (finding,) = run(check_connections.certificates, session(Kube(), **config))
    assert finding.result == result


def test_a_server_that_does_not_answer_is_a_warning():
    (finding,) = run(check_connections.certificates, session(Kube(), slurmRestApi="https://127.0.0.1:1"))
    assert finding.result == "warn"
    assert "refused" in finding.found


@pytest.mark.parametrize("left", [600, -600])
@pytest.mark.parametrize(
    ("variable", "expected"), [("SLURM_JWT", "set SLURM_JWT"), ("SLURM_JWT_FILE", "the same file")]
)
def test_the_fix_of_an_old_token_is_for_where_it_comes_from(monkeypatch, left, variable, expected):
    for name in ("SLURM_JWT", "SLURM_JWT_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "token")
    made = session(Kube())
    made.slurm.token_expires_in = lambda: left
    (finding,) = run(check_command._token, made)
    assert finding.result == ("warn" if left > 0 else "FAIL")
    assert expected in finding.fix


# --- the command ------------------------------------------------------------------------------------------------------
def test_without_an_api_server_the_other_checks_are_skipped(tmp_path, monkeypatch):
    for name in ("SLURM_JWT", "SLURM_JWT_FILE"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "config.yaml"
    config.write_text("slurmRestApi: http://127.0.0.1:1\n")
    args = ["check", "--kubeconfig", builders.kubeconfig(tmp_path), "--config", str(config)]
    done = CliRunner().invoke(cli, [*args, "-o", "json"])
    assert done.exit_code == 1
    found = [(each["result"], each["what"]) for each in json.loads(done.output)]
    assert found[:3] == [("ok", "configuration"), ("FAIL", "Kubernetes API"), ("warn", "all others")]
    assert found[3:] == [("FAIL", "Slurm token"), ("FAIL", "Slurm")]
    text = CliRunner().invoke(cli, args).output.splitlines()
    assert text[-1] == "1 ok, 1 warning, 3 failed"
    assert sum(line.startswith("         fix: ") for line in text) == 4


@pytest.fixture
def hanging():
    """A slurmrestd that takes connections and never answers; it yields its URL and the list of connections."""
    taken = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take():
            while True:
                try:
                    taken.append(server.accept())
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", taken
        server.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_findings_are_printed_as_they_are_found(tmp_path, hanging):
    config = tmp_path / "config.yaml"
    config.write_text(f"{{slurmRestApi: '{hanging[0]}', slurm: {{readTimeout: 60}}}}")
    code = "from bridge.apps.cli.entry import main; main()"
    words = ["check", "--config", str(config), "--kubeconfig", builders.kubeconfig(tmp_path)]
    env = {"PATH": "/usr/bin:/bin", "SLURM_JWT": "e30.eyJzdW4iOiJzbHVybSJ9.x"}
    process = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True, env=env)
    try:
        lines = [process.stdout.readline() for _ in range(7)]
        assert process.poll() is None, "it still waits for slurmrestd"
    finally:
        process.kill()
        process.communicate()
    assert [line.split()[0] for line in lines] == ["RESULT", "ok", "FAIL", "fix:", "warn", "fix:", "ok"]
    assert lines[-1].startswith("ok       Slurm token")


def test_a_slurmrestd_that_hangs_is_asked_once(monkeypatch, tmp_path, hanging):
    url, taken = hanging
    config = tmp_path / "config.yaml"
    config.write_text(f"{{slurmRestApi: '{url}', slurm: {{readTimeout: 0.3}}}}")
    monkeypatch.setenv("SLURM_JWT", "e30.eyJzdW4iOiJzbHVybSJ9.x")
    kube = Kube({"/version": {"gitVersion": "v1"}, "/api/v1/nodes": {"items": []}})
    monkeypatch.setattr("bridge.apps.cli.session.KubeClient.load", lambda *_, **__: kube)
    for module, name in (
        (check_permissions, "permissions"),
        (check_webhook, "webhook"),
        (check_webhook, "policies"),
        (check_cluster, "collisions"),
        (check_cluster, "kueue"),
        (check_pools, "pools"),
    ):
        monkeypatch.setattr(module, name, lambda _: iter(()))
    monkeypatch.setattr(check_command, "_namespaces", lambda _: iter(()))
    found = list(check_command.findings(ConnectionOptions(config, None, None)))
    slurm = [(finding.result, finding.what) for finding in found if finding.what in ("Slurm", "nodes", "clocks")]
    assert slurm == [("FAIL", "Slurm"), ("warn", "nodes"), ("ok", "clocks")]
    assert len(taken) == 1
