import base64
import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config.nunet import NunetSection
from bridge.errors import MissingReferenceError, ScriptError
from bridge.pools.nunet import pod_annotations, pod_request
from bridge.script.references import Objects
from tests import builders

PAGE = Path(__file__).parents[4] / "docs/admins/nunet.md"
NONE = NunetSection(name="nunet", url="http://dms")
ALL = NONE.model_copy(update={"services": "allow", "send_secrets": True})
PREFIX = "annotation nunet.bridge.vk.io/"


def pod(annotations=None, container=None, **spec):
    main = {"name": "main", "image": "ghcr.io/x/y:1", **(container or {})}
    annotations = {f"nunet.bridge.vk.io/{key}": value for key, value in (annotations or {}).items()}
    spec = {"restartPolicy": "Never", "containers": [main], **spec}
    return builders.pod("u-1", annotations=annotations, metadata={"namespace": "remote", "name": "p"}, **spec)


def secret(**data):
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


def check(found, section=NONE):
    pod_request.check(found, section, pod_annotations.read(found))


def made(found, objects=None, section=ALL):
    check(found, section)
    return pod_request.body(found, objects or Objects(), "nunet", section, pod_annotations.read(found))


def test_what_the_api_server_adds_is_accepted():
    """The fields of a pod from a real API server, without the automatic token."""
    container = {
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always",
        "resources": {},
    }
    found = pod(
        container=container,
        dnsPolicy="ClusterFirst",
        enableServiceLinks=True,
        nodeName="nunet",
        preemptionPolicy="PreemptLowerPriority",
        priority=0,
        schedulerName="slurm-bridge-scheduler",
        securityContext={},
        serviceAccount="default",
        serviceAccountName="default",
        terminationGracePeriodSeconds=30,
        tolerations=[{"operator": "Exists"}],
        hostNetwork=False,
        volumes=[],
    )
    assert made(found, section=NONE)["job"] == {"image": "ghcr.io/x/y:1"}


@pytest.mark.parametrize(
    ("found", "field"),
    [
        (pod(initContainers=[{"name": "i"}]), "spec.initContainers"),
        (pod(volumes=[{"name": "v", "emptyDir": {}}]), "spec.volumes"),
        (pod(hostNetwork=True), "spec.hostNetwork"),
        (pod(hostname="x"), "spec.hostname"),
        (pod(securityContext={"runAsUser": 1000}), "spec.securityContext"),
        (pod(securityContext={"runAsUser": 0}), "spec.securityContext"),
        (pod(container={"securityContext": {"runAsGroup": 0}}), "spec.containers[0].securityContext"),
        (pod(runtimeClassName="kata"), "spec.runtimeClassName"),
        (pod(newFieldOfNextYear="x"), "spec.newFieldOfNextYear"),
        (pod(container={"workingDir": "/x"}), "spec.containers[0].workingDir"),
        (pod(container={"livenessProbe": {"exec": {"command": ["x"]}}}), "spec.containers[0].livenessProbe"),
        (pod(container={"volumeMounts": [{"name": "v"}]}), "spec.containers[0].volumeMounts"),
        (pod(container={"securityContext": {"privileged": True}}), "spec.containers[0].securityContext"),
        (pod(container={"stdin": True}), "spec.containers[0].stdin"),
        (pod(container={"ports": [{"containerPort": 1, "hostPort": 2}]}), "spec.containers[0].ports[0].hostPort"),
        (pod(containers=[{"name": "a"}, {"name": "b"}]), "spec.containers: 2"),
        (pod(container={"resources": {"limits": {"nvidia.com/gpu": "1"}}}), "'nvidia.com/gpu'"),
        (pod(container={"resources": {"limits": {"nunet.io/gpu.x": "1"}}}), "nunet.io/gpu.x"),
        (pod(container={"resources": {"limits": {"nunet.gpu.nvidia.v100.40gb": 2}}}), "2 GPUs"),
        (
            pod(container={"resources": {"limits": {"nunet.gpu.nvidia.v100.40gb": 1, "nunet.gpu.amd.x.8gb": 1}}}),
            "one kind of GPU",
        ),
        (pod(restartPolicy="Always"), "spec.restartPolicy"),
        (pod({"colour": "red"}), "nunet.bridge.vk.io/colour: unknown"),
        (pod({"libraries": "pytorch"}), "fields that only the DMS reads are in request"),
        (pod({"peers": "a b"}), "nunet.bridge.vk.io/peers: 'a b'"),
        (pod({"max-price-per-hour": "inf"}), "nunet.bridge.vk.io/max-price-per-hour: 'inf'"),
        (pod({"max-time": "-1"}), "nunet.bridge.vk.io/max-time"),
        (pod({"max-time": "0"}), "nunet.bridge.vk.io/max-time"),
        (pod({"request": "[1]"}), "nunet.bridge.vk.io/request"),
        (pod({"request": '{"job_id": "u-2"}'}), "JSON object with requiredCapability or network"),
        (pod({"request": '{"network": 1}'}), "nunet.bridge.vk.io/request"),
        (pod({"request": '{"network":' + '{"a":' * 16 + "1" + "}" * 17}), "at most 16 KiB and 16 levels"),
        (pod({"request": '{"network":{"a":' + "[" * 15 + "]" * 15 + "}}"}), "at most 16 KiB and 16 levels"),
        (pod({"request": '{"network":' + '{"a":' * 990 + "1" + "}" * 991}), "at most 16 KiB and 16 levels"),
        (pod({"request": '{"network":{"a":"' + "x" * 16384 + '"}}'}), "at most 16 KiB and 16 levels"),
        (pod({"request": '{"network":{"a": 1e999}}'}), "nunet.bridge.vk.io/request"),
        (pod({"request": '{"network":{"a": NaN}}'}), "nunet.bridge.vk.io/request"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(found, field):
    with pytest.raises(ScriptError) as caught:
        check(found)
    assert field in str(caught.value)


def test_services_are_allowed_by_configuration_or_with_a_time_limit():
    check(pod(restartPolicy="Always"), ALL)
    check(pod(restartPolicy="Always", activeDeadlineSeconds=60))
    check(pod({"max-time": "60"}, restartPolicy="Always"))
    for found, seconds in (
        (pod(activeDeadlineSeconds=600), 600),
        (pod({"max-time": "60"}, activeDeadlineSeconds=600), 60),
        (pod({"max-time": "600"}, activeDeadlineSeconds=60), 60),
    ):
        assert made(found)["requiredCapability"]["time"] == {"units": "seconds", "max_time": seconds}


def test_resources_are_those_of_the_pod():
    limits = {"cpu": "1500m", "memory": "2Gi", "nunet.gpu.nvidia.rtx.3080.10gb": "2", "ephemeral-storage": "1Gi"}
    requested = pod_request.resources(pod(container={"resources": {"limits": limits}}))
    assert (requested.cpus, requested.memory, requested.disk) == (2, 2 * 2**30, 2**30)
    assert requested.gpus == {"nvidia.rtx.3080.10gb": 2}
    assert pod_request.resources(pod()).cpus == 1


def test_the_whole_body():
    limits = {
        "cpu": "4",
        "memory": str(2**30 + 1),
        "nunet.io/gpu.nvidia.rtx.3080.10gb": "1",
        "ephemeral-storage": "2Gi",
    }
    auth = {"auths": {"ghcr.io": {"auth": base64.b64encode(b"me:pw").decode()}}}
    container = {
        "command": ["python"],
        "args": ["-m", "train"],
        "env": [{"name": "A", "value": "1"}, {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
        "ports": [{"containerPort": 8080}],
        "resources": {"limits": limits},
    }
    fields = {
        "requiredCapability": {
            "executor": "vm",
            "kyc": ["iamx"],
            "price": {"max_total": 10000, "currency": "ada"},
            "time": {"preference": 2},
            "resources": {"cpu": {"frequency": 2400}, "power": 3},
            "network": {"vpn": True},
        },
        "network": {"dnsname": "a.example"},
    }
    found = pod(
        {"max-price-per-hour": "500", "request": json.dumps(fields)},
        container,
        activeDeadlineSeconds=6300,
        imagePullSecrets=[{"name": "pull"}],
    )
    objects = Objects(secrets={"s": secret(k="s3cret"), "pull": secret(**{".dockerconfigjson": json.dumps(auth)})})
    assert made(found, objects) == {
        "job_id": "u-1",
        "job": {
            "image": "ghcr.io/x/y:1",
            "entrypoint": ["python"],
            "registry": {"server": "ghcr.io", "username": "me", "password": "pw"},
        },
        "jobparams": ["-m", "train"],
        "jobenv": {"A": "1"},
        "secrets": {"KEY": "s3cret"},
        "network": {"dnsname": "a.example"},
        "requiredCapability": {
            "executor": "vm",
            "type": {"description": "batch"},
            "resources": {
                "cpu": {"cores": 4, "frequency": 2400},
                "ram": "1025Mi",
                "disk": "2Gi",
                "power": 3,
                "gpu": {"brand": "nvidia", "model": "rtx.3080", "vram": "10Gi"},
            },
            "libraries": [],
            "locality": [],
            "storage": [],
            "network": {"open_ports": [8080], "vpn": True},
            "price": {"currency": "ada", "max_total": 10000, "max_per_hour": 500},
            "time": {"units": "seconds", "preference": 2, "max_time": 6300},
            "kyc": ["iamx"],
        },
    }
    assert made(pod())["requiredCapability"]["price"] == {"currency": "ntx"}, "the defaults are not changed"
    assert "gpu" not in made(pod(), section=NONE)["requiredCapability"]["resources"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"resources": {"ram": "1Ti"}}, "requiredCapability.resources.ram"),
        ({"resources": {"cpu": 4}}, "requiredCapability.resources.cpu"),
        ({"resources": []}, "requiredCapability.resources"),
        ({"network": {"open_ports": [22]}}, "requiredCapability.network.open_ports"),
        ({"price": {"max_per_hour": 1}}, "requiredCapability.price.max_per_hour"),
        ({"time": {"max_time": 1}}, "requiredCapability.time.max_time"),
        ({"time": 1}, "requiredCapability.time"),
    ],
)
def test_a_field_that_the_pod_determines_is_refused(fields, path):
    values = {"max-price-per-hour": "5", "max-time": "60", "request": json.dumps({"requiredCapability": fields})}
    with pytest.raises(ScriptError) as caught:
        made(pod(values))
    assert str(caught.value) == f"{PREFIX}request: {path} is not allowed; podbridge derives it from the pod"


def test_values_of_secrets_are_sent_apart_and_only_by_the_switch():
    env = [
        {"name": "PLAIN", "value": "x"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "URL", "value": "https://u:$(KEY)@host"},
    ]
    found = pod(container={"env": env, "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}]})
    objects = Objects(secrets={"s": secret(k="abc")})
    request = made(found, objects)
    assert request["jobenv"] == {"PLAIN": "x"}
    assert request["secrets"] == {"P_k": "abc", "KEY": "abc", "URL": "https://u:abc@host"}
    with pytest.raises(ScriptError, match=r"KEY, P_k, URL: values of Secrets are not allowed .*sendSecrets"):
        made(found, objects, NONE)
    with pytest.raises(MissingReferenceError):
        made(found)


def test_a_secret_is_not_written_into_the_arguments():
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    found = pod(container={"env": env, "args": ["run", "--key=$(KEY)"]})
    with pytest.raises(ScriptError, match=r"args\[1\]"):
        made(found, Objects(secrets={"s": secret(k="abc")}))
    found = pod(container={"env": [{"name": "A", "value": "1"}], "command": ["x"], "args": ["$(A)", "$$(A)"]})
    assert made(found)["jobparams"] == ["1", "$(A)"]


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30))
def test_no_value_of_a_secret_is_among_the_plain_variables(text):
    env = [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "B", "value": "<$(A)>"},
        {"name": "C", "value": "plain"},
    ]
    request = made(pod(container={"env": env}), Objects(secrets={"s": secret(k=text)}))
    assert request["jobenv"] == {"C": "plain"}
    assert request["secrets"] == {"A": text, "B": f"<{text}>"}


def test_credentials_of_the_images_registry():
    auths = {
        "https://index.docker.io/v1/": {"username": "hub", "password": "h"},
        "ghcr.io": {"auth": base64.b64encode(b"me:p:w").decode()},
    }
    objects = Objects(secrets={"pull": secret(**{".dockerconfigjson": json.dumps({"auths": auths})})})
    found = pod(imagePullSecrets=[{"name": "pull"}, {"name": "missing"}])
    assert made(found, objects)["job"]["registry"] == {"server": "ghcr.io", "username": "me", "password": "p:w"}
    with pytest.raises(ScriptError, match=r"spec.imagePullSecrets: credentials for ghcr.io"):
        made(found, objects, NONE)
    hub = copy.deepcopy(found)
    hub["spec"]["containers"][0]["image"] = "busybox"
    assert made(hub, objects)["job"]["registry"] == {"server": "docker.io", "username": "hub", "password": "h"}
    other = copy.deepcopy(found)
    other["spec"]["containers"][0]["image"] = "quay.io/x"
    assert "registry" not in made(other, objects, NONE)["job"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("max-price-per-hour", " 500 ", 500),
        ("max-price-per-hour", "0.5", 0.5),
        ("max-time", "6300", 6300),
        ("peers", "QmPeer1, QmPeer3", ["QmPeer1", "QmPeer3"]),
        ("request", '{"network": {"fwrules": {}}}', {"network": {"fwrules": {}}}),
        ("no-job", "true", "true"),
    ],
)
def test_each_annotation_is_read(name, text, value):
    assert pod_annotations.read(pod({name: text})) == {name: value}


def test_an_object_may_have_sixteen_levels():
    deep = '{"network":' + '{"a":' * 14 + "[1.5]" + "}" * 15
    assert pod_annotations.read(pod({"request": deep}))["request"]
    with pytest.raises(ScriptError):
        pod_annotations.read(pod({"request": deep.replace("1.5", "[]")}))


@given(st.sampled_from(sorted(pod_annotations.KEYS)), st.text(max_size=60))
def test_no_value_of_an_annotation_breaks_the_reader(name, text):
    found = pod({name: text})
    try:
        check(found, ALL)
    except ScriptError as error:
        assert f"{PREFIX}{name}" in str(error)
    else:
        json.dumps(made(found), allow_nan=False)


def test_the_table_in_the_documentation_is_that_of_the_code():
    rows = [f"| `{name}` | {key.meaning} | {key.allowed} |" for name, key in pod_annotations.KEYS.items()]
    text = PAGE.read_text()
    assert "\n".join(rows) in text, "docs/admins/nunet.md: replace the table by:\n" + "\n".join(rows)
