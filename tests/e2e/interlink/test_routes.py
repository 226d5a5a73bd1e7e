"""Pods on each route to podbridge's plugin, with a real Slurm behind it.

All pods are created at once; each test then checks those of one route.
"""

import base64
import os
import shutil

import pytest
import requests

from bridge.telemetry import tracing
from cluster import pki
from cluster.interlink_pods import HUB_PLUGIN, OTHER_SITE, ROUTES, SITE, Route
from cluster.polling import eventually
from tests.e2e.pools.cases import mount, pod, secret, sh, volume

pytestmark = pytest.mark.real

SETTINGS = {"config.yaml": "level: info\n", "other": "not mounted"}
BLOB = bytes(range(256))
OBJECTS = (
    {
        "kind": "ConfigMap",
        "metadata": {"name": "settings"},
        "data": SETTINGS,
        "binaryData": {"blob": base64.b64encode(BLOB).decode()},
    },
    secret("credentials", password="it's $ecret"),
)
FILES = """cat /etc/settings/etc/config.yaml; stat -L -c %a /etc/settings/etc/config.yaml
ls /etc/settings; cat /etc/credentials/password; echo; od -An -v -tu1 /etc/all/blob | tr -s ' \\n' '  '; echo
cat /scratch/from-init; echo "$LEVEL $NODE"
"""


def files():
    """Return the spec of a pod with each kind of volume that interLink's virtual kubelet sends."""
    mounts = {"settings": "/etc/settings", "credentials": "/etc/credentials", "scratch": "/scratch"}
    scratch = [mount("scratch", "/scratch")]
    env = [
        {"name": "LEVEL", "value": "a b"},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    items = [{"key": "config.yaml", "path": "etc/config.yaml", "mode": 256}]
    volumes = [
        volume("settings", configMap={"name": "settings", "items": items}),
        volume("credentials", secret={"secretName": "credentials"}),
        volume("all", configMap={"name": "settings"}),
        volume("scratch", emptyDir={}),
    ]
    mounted = [mount(name, path) for name, path in (mounts | {"all": "/etc/all"}).items()]
    return pod(
        sh(FILES, env=env, volumeMounts=mounted),
        initContainers=[sh("echo written by the init container > /scratch/from-init", "first", volumeMounts=scratch)],
        volumes=volumes,
    )


SPECS = {
    "succeeds": pod(sh("echo hello")),
    "fails": pod(sh("echo no disk >&2; exit 7"), sh("exit 0", "other")),
    "files": files(),
    "init-fails": pod(sh("echo never"), initContainers=[sh("exit 0", "first"), sh("echo no; exit 3", "second")]),
}


@pytest.fixture(scope="module")
def created(interlink_world):
    """Create the pods of all routes; return them by route and name."""
    interlink_world.add_objects(*OBJECTS)
    made = {
        (route, name): interlink_world.put(route, spec, f"{name}-{route}")
        for route in ROUTES
        for name, spec in SPECS.items()
    }
    yield made
    interlink_world.clear()


@pytest.fixture(params=ROUTES, ids=str)
def route(request):
    """Each route."""
    return request.param


def codes(found, kind="containerStatuses"):
    """Return the exit code of each container of a pod, by name."""
    return {status["name"]: status["state"]["terminated"]["exitCode"] for status in found["status"][kind]}


def test_a_pod_runs_as_one_slurm_job(interlink_world, created, route):
    one = created[route, "succeeds"]
    found = interlink_world.ended(one)
    assert found["status"]["phase"] == "Succeeded"
    assert codes(found) == {"main": 0}
    assert interlink_world.logs(one) == "hello\n"
    jobs = interlink_world.cluster.site_slurm(SITE, "squeue", "-h", "--states=all", "-o", "%j %T").splitlines()
    assert [job.split()[1] for job in jobs if one["metadata"]["uid"] in job] == ["COMPLETED"]


def test_the_trace_of_a_pod_that_the_hub_sends_over_rest(interlink_world, created, receiver):
    one = created[HUB_PLUGIN, "succeeds"]
    interlink_world.ended(one)
    name, expected = one["metadata"]["name"], tracing.SPANS.keys()
    eventually(lambda: {span.name for span in receiver.of(name)} >= expected, "every span", 30)
    spans = {span.name: span for span in receiver.of(name)}
    assert len(receiver.of(name)) == len(expected), "no span arrived twice"
    assert len({span.trace for span in spans.values()}) == 1
    by_id = {span.id: span.name for span in spans.values()}
    assert {name: by_id.get(span.parent, "") for name, span in spans.items()} == {
        name: parent for name, (parent, _) in tracing.SPANS.items()
    }
    assert {name: span.service for name, span in spans.items() if span.service != "podbridge"} == {
        "site.submit": "podbridge-plugin"
    }
    job = spans["site.submit"].attributes["podbridge.job.id"]
    comment = interlink_world.cluster.site_slurm(SITE, "squeue", "-h", "--states=all", f"--jobs={job}", "-o", "%k")
    assert comment.strip() == f"traceparent=00-{spans['submit'].trace}-{spans['submit'].id}-01"


def test_exit_codes_and_logs_of_several_containers(interlink_world, created, route):
    one = created[route, "fails"]
    found = interlink_world.ended(one)
    assert found["status"]["phase"] == "Failed"
    assert codes(found) == {"main": 7, "other": 0}
    assert interlink_world.logs(one, "-c", "main") == "no disk\n"
    assert interlink_world.logs(one, "-c", "other") == ""


def test_config_maps_secrets_and_variables_arrive(interlink_world, created, route):
    one = created[route, "files"]
    found = interlink_world.ended(one)
    said = interlink_world.logs(one, "-c", "main")
    assert found["status"]["phase"] == "Succeeded", said
    assert said.splitlines() == [
        "level: info",
        "400",
        "etc",
        "it's $ecret",
        " " + " ".join(str(byte) for byte in BLOB) + " ",
        "written by the init container",
        f"a b {route}",
    ]


def test_a_failed_init_container_fails_the_pod(interlink_world, created, route):
    one = created[route, "init-fails"]
    found = interlink_world.ended(one)
    assert found["status"]["phase"] == "Failed"
    inits = codes(found, "initContainerStatuses")
    assert inits["second"] == 3
    # interLink's virtual kubelet writes the exit code of a container that it sees for the first time to the first one
    assert route.upstream or inits["first"] == 0
    assert interlink_world.logs(one, "-c", "second") == "no\n"
    assert "never" not in interlink_world.logs(one, "-c", "main", check=False)


def test_a_log_is_followed_to_its_end(interlink_world, route):
    one = interlink_world.put_script(route, "for i in 1 2 3 4; do echo line $i; sleep 1; done")
    # interLink's virtual kubelet says Running of a pod whose container has not started
    eventually(lambda: "line 1" in interlink_world.logs(one, check=False), "the container runs")
    follow = interlink_world.follow(one)
    assert follow.communicate(timeout=30)[0] == "".join(f"line {number}\n" for number in range(1, 5))
    assert interlink_world.logs(one, "--tail=2") == "line 3\nline 4\n"
    assert interlink_world.logs(one, "--limit-bytes=6") == "line 1"


def test_a_deleted_pod_leaves_no_job(interlink_world, route):
    one = interlink_world.put_script(route, "echo started; sleep 600", terminationGracePeriodSeconds=1)
    uid = one["metadata"]["uid"]
    eventually(lambda: any(uid in job for job in interlink_world.queue_at_site()), "its job in the queue")
    _delete(interlink_world, one, SITE)
    eventually(lambda: not any(uid in job for job in interlink_world.queue_at_site()), "its job gone")


def _delete(world, one, site):
    """Delete a pod, and wait until it and the folder of its job are gone."""
    world.delete(one)
    world.gone(one)
    eventually(lambda: one["metadata"]["uid"] not in world.jobs_at(site), "its folder gone")


def test_interlinks_node_shows_the_answer_to_its_ping(interlink_world):
    for route in ROUTES:
        if not route.upstream:
            continue
        ready = eventually(lambda node=str(route): interlink_world.readiness(node).get("status") == "True", "Ready", 45)
        assert ready
        node = interlink_world.kube_node(str(route))
        condition = next(c for c in node["status"]["conditions"] if c["type"] == "InterlinkConnectivity")
        assert '"cpu"' in condition["message"]


def test_a_virtual_kubelet_with_a_token_and_a_client_certificate(interlink_world):
    world, user = interlink_world, interlink_world.cluster.sites[OTHER_SITE]
    authority = pki.Authority(world.cluster.state / "kube", "ca")
    home, own = user.folder / "home", world.interlink.folder / "client"
    pair = authority.write(home / "plugin", "plugin", hosts=("127.0.0.1",))
    token = home / "token"
    token.write_text("t0ken")
    shutil.copyfile(authority.certificate, home / "clients.crt")
    for file in (*pair, token, home / "clients.crt"):
        os.chown(file, user.uid, user.uid)
        file.chmod(0o600)
    files = {"tls-cert": "plugin.crt", "tls-key": "plugin.key", "client-ca": "clients.crt", "token-file": "token"}
    options = [f"--{option}=/srv/home/{file}" for option, file in files.items()]
    url = world.interlink.start_plugin(OTHER_SITE, "plugin-tls", options, https=True)
    certificate, key = authority.write(own, "client")
    tls = {"Enabled": True, "CertFile": str(certificate), "KeyFile": str(key), "CACertFile": str(authority.certificate)}
    world.interlink.start_virtual_kubelet("secured", url, {"TLS": tls, "VKTokenFile": str(token)})
    one = world.put_script(Route("secured", upstream=True, api=False), "echo hello")
    assert world.ended(one)["status"]["phase"] == "Succeeded"
    assert world.logs(one) == "hello\n"
    trusted = {"json": [], "verify": authority.certificate, "timeout": 10}
    bearer = {"Authorization": "Bearer t0ken"}
    assert requests.get(f"{url}/status", cert=(certificate, key), **trusted).status_code == 401
    assert requests.get(f"{url}/status", headers=bearer, **trusted).status_code == 401
    assert requests.get(f"{url}/status", headers=bearer, cert=(certificate, key), **trusted).status_code == 200
    _delete(world, one, OTHER_SITE)
    world.interlink.remove("secured-virtual-kubelet", "plugin-tls")


def test_an_api_server_with_a_unix_socket(interlink_world):
    world = interlink_world
    plugin = world.interlink.start_plugin(OTHER_SITE, "plugin-unix", socket="interlink.sock")
    api = world.interlink.start_api(plugin, "interlink-api-unix")
    world.interlink.start_virtual_kubelet("by-socket", api)
    one = world.put_script(Route("by-socket", upstream=True, api=True), "echo hello")
    assert world.ended(one)["status"]["phase"] == "Succeeded"
    assert world.logs(one) == "hello\n"
    _delete(world, one, OTHER_SITE)
    world.interlink.remove("by-socket-virtual-kubelet", "interlink-api-unix", "plugin-unix")


def test_a_second_plugin_of_a_site_takes_over(interlink_world):
    def status(url):
        return requests.get(f"{url}/status", json=[], timeout=30).status_code

    interlink = interlink_world.interlink
    first = interlink.start_plugin(OTHER_SITE, "first")
    eventually(lambda: status(first) == 200, "the first serves")
    second = interlink.start_plugin(OTHER_SITE, "second")
    interlink.kill("first")
    eventually(lambda: status(second) == 200, "the second serves")
    interlink.remove("first", "second")


def test_every_part_may_be_killed_while_a_job_runs(interlink_world):
    world = interlink_world
    gate, marks = "/srv/home/gate", "/srv/home/marks"
    world.cluster.sites[SITE].run("mkdir", "-p", marks)
    script = f"echo ran >>{marks}/$NAME; until [ -e {gate} ]; do sleep 0.1; done; echo $NAME ends; exit 5"
    pods = {}
    for route in ROUTES:
        spec = pod(sh(script, env=[{"name": "NAME", "value": str(route)}]))
        pods[route] = world.put(route, spec, f"held-{route}")
    for one in pods.values():
        world.running(one)
    eventually(lambda: len(_marks(world, marks)) == len(ROUTES), "every script runs")
    for name in world.interlink.names:
        world.interlink.kill(name)
        world.interlink.start(name)
    world.kill_hub()
    late = {route: world.put_script(route, "echo late", f"late-{route}") for route in ROUTES}
    for one in late.values():
        assert world.ended(one)["status"]["phase"] == "Succeeded"
    world.cluster.sites[SITE].run("touch", gate)
    for route, one in pods.items():
        found = world.ended(one)
        assert codes(found) == {"main": 5}
        assert world.logs(one) == f"{route} ends\n"
    assert _marks(world, marks) == {str(route): 1 for route in ROUTES}


def _marks(world, folder):
    """Return how often the script of each route ran."""
    lines = world.cluster.sites[SITE].run("sh", "-c", f"cd {folder} && grep -c ran * /dev/null").splitlines()
    counts = (line.rpartition(":") for line in lines)
    return {name: int(count) for name, _, count in counts if name != "/dev/null"}
