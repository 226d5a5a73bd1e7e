"""What no site can honour is refused by field, value and what is allowed."""

import copy

import pytest

from bridge.errors import ScriptError
from bridge.script.build import build
from bridge.script.buildconfig import BuildConfig
from bridge.script.check import problems
from bridge.script.plan import make
from bridge.script.references import Objects
from tests.unit.script.pods import KINDS, pod


@pytest.mark.parametrize("kind", KINDS)
def test_good_pods(kind):
    assert problems(KINDS[kind]) == []


def with_container(**fields):
    return {"containers": [{"name": "main", "image": "x", **fields}]}


def with_volume(**source):
    return {"volumes": [{"name": "v", **source}], "containers": [{"name": "main"}]}


MOUNT = {"name": "v", "mountPath": "/v"}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"hostPID": True}, "spec.hostPID: True"),
        ({"hostIPC": True}, "spec.hostIPC: True"),
        ({"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"dnsPolicy": "None"}, "spec.dnsPolicy: 'None'"),
        ({"dnsConfig": {"nameservers": ["1.1.1.1"]}}, "spec.dnsConfig: {'nameservers': ['1.1.1.1']}"),
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims: 'gpu'"),
        ({"os": {"name": "windows"}}, "spec.os.name: 'windows'"),
        ({"securityContext": {"sysctls": [{"name": "x"}]}}, "spec.securityContext.sysctls"),
        ({"securityContext": {"supplementalGroups": [1]}}, "spec.securityContext.supplementalGroups"),
        ({"securityContext": {"runAsUser": 0, "runAsNonRoot": True}}, "spec.securityContext.runAsUser: 0"),
        (
            {"securityContext": {"runAsNonRoot": True}, **with_container(securityContext={"runAsUser": 0})},
            "spec.containers[0].securityContext.runAsUser: 0",
        ),
        (
            {"securityContext": {"runAsUser": 0}, **with_container(securityContext={"runAsNonRoot": True})},
            "spec.securityContext.runAsUser: 0",
        ),
        ({"hostUsers": False}, "spec.hostUsers: False"),
        ({"runtimeClassName": "kata"}, "spec.runtimeClassName: 'kata'"),
        (with_container(securityContext={"privileged": True}), "spec.containers[0].securityContext.privileged: True"),
        (with_container(securityContext={"capabilities": {"add": ["NET_ADMIN"]}}), "capabilities.add: ['NET_ADMIN']"),
        (with_container(securityContext={"procMount": "Unmasked"}), "procMount: 'Unmasked'"),
        (with_container(volumeDevices=[{"name": "d"}]), "spec.containers[0].volumeDevices: 'd'"),
        (with_container(restartPolicy="Always"), "spec.containers[0].restartPolicy"),
        (with_container(name="pod"), "spec.containers[0].name: 'pod'"),
        (with_container(name="a.b"), "spec.containers[0].name: 'a.b'"),
        (with_container(env=[{"name": "A=B"}]), "spec.containers[0].env[0].name: 'A=B'"),
        (with_container(env=[{"name": "a.b"}, {"name": "ä"}]), "spec.containers[0].env[1].name: 'ä'"),
        (with_container(lifecycle={"stopSignal": "SIGINT"}), "stopSignal: 'SIGINT'"),
        (with_container(livenessProbe={"httpGet": {"port": "web"}}), "livenessProbe.httpGet.port: 'web'"),
        (with_container(livenessProbe={"httpGet": {"port": 80, "path": "/\r\nX: y"}}), "control characters"),
        (with_container(livenessProbe={"tcpSocket": {"port": "²"}}), "'²' is no port of the container"),
        (with_container(livenessProbe={"tcpSocket": {"port": 0}}), "0 is not allowed; allowed: 1 to 65535"),
        (with_container(livenessProbe={"exec": {}}), "livenessProbe.exec.command"),
        (with_volume(persistentVolumeClaim={"claimName": "c"}), "spec.volumes[0] (v): 'persistentVolumeClaim'"),
        (with_volume(nfs={"server": "s"}), "'nfs' is not allowed"),
        (with_volume(csi={"driver": "d"}), "'csi' is not allowed"),
        (with_volume(ephemeral={}), "'ephemeral' is not allowed"),
        (with_volume(image={"reference": "x"}), "'image' is not allowed"),
        (with_volume(projected={"sources": [{"clusterTrustBundle": {}}]}), "'clusterTrustBundle'"),
        (with_container(volumeMounts=[{**MOUNT, "mountPropagation": "Bidirectional"}]), "'Bidirectional'"),
        (with_container(volumeMounts=[{**MOUNT, "recursiveReadOnly": "Enabled"}]), "'Enabled'"),
        (with_container(volumeMounts=[{**MOUNT, "subPath": "../x"}]), "subPath: '../x'"),
        (with_container(volumeMounts=[{**MOUNT, "mountPath": "v"}]), "mountPath: 'v'"),
        (with_container(volumeMounts=[{**MOUNT, "mountPath": "/"}]), "mountPath: '/'"),
        (with_container(volumeMounts=[{**MOUNT, "mountPath": "/a:b"}]), "mountPath: '/a:b'"),
    ],
)
def test_refused(spec, field):
    base = with_container()
    base["volumes"] = [{"name": "v", "emptyDir": {}}]
    found = problems(pod({**base, **copy.deepcopy(spec)}))
    assert len(found) == 1 and field in found[0], found
    assert any(why in found[0] for why in ("allowed: ", "is no port", "must not be empty")), found


@pytest.mark.parametrize(
    "spec",
    [
        {"hostUsers": True, "runtimeClassName": "nvidia"},
        {"securityContext": {"runAsUser": 0, "runAsNonRoot": True}, **with_container(securityContext={"runAsUser": 1})},
        {"securityContext": {"runAsNonRoot": True}, **with_container(securityContext={"runAsUser": 1})},
        {
            "securityContext": {"runAsNonRoot": True},
            **with_container(securityContext={"runAsUser": 0, "runAsNonRoot": False}),
        },
    ],
)
def test_not_refused(spec):
    assert problems(pod({**with_container(), **spec})) == []


def test_all_are_told_at_once():
    spec = {**with_container(restartPolicy="Always", name="a.b"), "hostPID": True}
    assert len(problems(pod(spec))) == 3


def test_probes_by_network_where_there_is_none():
    spec = with_container(command=["x"], livenessProbe={"tcpSocket": {"port": 80}})
    config = BuildConfig.model_validate({"runtime": {"network": "none"}})
    with pytest.raises(ScriptError, match=r"spec\.containers\[0\]: a probe or hook by tcp is not allowed at this site"):
        make(pod(spec), config, Objects(), "node")


def in_env(name, value="x"):
    return with_container(command=["x"], env=[{"name": "A", "value": "x"}, {"name": name, "value": value}])


@pytest.mark.parametrize(
    ("runtime", "name", "value"),
    [
        ("enroot", "a.b", "x"),
        ("enroot", "1", "x"),
        ("podman", " ", "x"),
        ("podman", " a", "x"),
        ("podman", "a.*", "two\nlines"),
        ("podman", "#*", "x"),
        ("podman", "BASH_FUNC_ls%%", "() {\n:; }"),
        ("charliecloud", "BASH_FUNC_ls%%", "() {\n:; }"),
        ("podman", "LD_a.b", "ä" * 4000),
        ("apptainer", "BASH_FUNC_ls%%", "() { :; }"),
        ("apptainer", "APPTAINER_a.b", "x"),
        ("singularity", "SINGULARITYENV_a.b", "x"),
    ],
)
def test_variables_that_a_runtime_can_not_hand_on(runtime, name, value):
    config = BuildConfig.model_validate({"runtime": {"kind": runtime}})
    start = r"^spec\.containers\[0\]\."
    with pytest.raises(ScriptError, match=start + r"env\[1\]\.name: the variable") as refused:
        make(pod(in_env(name, value)), config, Objects(), "node")
    assert repr(name) in str(refused.value)
    spec = with_container(command=["x"], envFrom=[{"configMapRef": {"name": "c"}}])
    objects = Objects(configmaps={"c": {"data": {name: value}}})
    with pytest.raises(ScriptError, match=start + r"envFrom\[0\], key .*: the variable"):
        make(pod(spec), config, objects, "node")


NAMES = (
    "a.b", "-rf", "--help", "a..b", "..", "1", "7up", "it's", '"', "$x", "$(touch x)", "a b", "`ls`", "a;b", "#a",
    "a*",
)  # fmt: skip


@pytest.mark.parametrize("runtime", ["none", "podman", "charliecloud", "apptainer", "singularity"])
@pytest.mark.parametrize("name", NAMES)
def test_variables_that_runtimes_hand_on(runtime, name):
    config = BuildConfig.model_validate({"runtime": {"kind": runtime}})
    (planned,) = make(pod(in_env(name, "$(A)")), config, Objects(), "node").containers
    assert planned.environment == {"HOSTNAME": "pod", "A": "x", name: "x"}


@pytest.mark.parametrize("option", ["--cleanenv=true", "--containall=1", "-eC", "-ce"])
def test_options_that_would_drop_variables(option):
    config = BuildConfig.model_validate({"runtime": {"kind": "apptainer"}, "apptainer": {"options": [option]}})
    build(pod(in_env("B")), config, Objects(), "node")
    with pytest.raises(ScriptError, match=rf"env\[1\]\.name: .* not allowed with the option '{option}'; allowed: --"):
        build(pod(in_env("a.b")), config, Objects(), "node")
