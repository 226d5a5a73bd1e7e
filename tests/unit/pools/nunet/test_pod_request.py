import base64
import copy
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import MissingReferenceError, ScriptError
from bridge.pools.nunet import dialect, pod_annotations, pod_request
from bridge.pools.nunet.pod_request import RequestSettings
from bridge.script.references import Objects

PAGE = Path(__file__).parents[4] / "docs/admins/nunet.md"
ALL = RequestSettings(services=True, secrets=True, gpu_count=True)
NONE = RequestSettings()


def pod(annotations=None, container=None, **spec):
    main = {"name": "main", "image": "ghcr.io/x/y:1", **(container or {})}
    return {
        "metadata": {
            "namespace": "remote",
            "name": "p",
            "uid": "u-1",
            "annotations": {f"nunet.bridge.vk.io/{key}": value for key, value in (annotations or {}).items()},
        },
        "spec": {"restartPolicy": "Never", "containers": [main], **spec},
    }


def secret(**data):
    return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}}


def made(found, objects=None, settings=ALL):
    pod_request.check(found, settings)
    return pod_request.make(found, objects or Objects(), "nunet", settings)


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
    assert made(found, settings=NONE).image == "ghcr.io/x/y:1"


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
        (pod({"storage": "floppy"}), "nunet.bridge.vk.io/storage: 'floppy'"),
        (pod({"max-time": "-1"}), "nunet.bridge.vk.io/max-time"),
        (pod({"firewall-rules": "[1]"}), "nunet.bridge.vk.io/firewall-rules"),
        (pod({"firewall-rules": '{"a":' * 17 + "1" + "}" * 17}), "at most 16 KiB and 16 levels"),
        (pod({"firewall-rules": '{"a":' + "[" * 16 + "]" * 16 + "}"}), "at most 16 KiB and 16 levels"),
        (pod({"firewall-rules": '{"a":' * 990 + "1" + "}" * 990}), "at most 16 KiB and 16 levels"),
        (pod({"firewall-rules": '{"a":"' + "x" * 16384 + '"}'}), "at most 16 KiB and 16 levels"),
        (pod({"firewall-rules": '{"a": 1e999}'}), "nunet.bridge.vk.io/firewall-rules"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(found, field):
    with pytest.raises(ScriptError) as caught:
        pod_request.check(found, NONE)
    assert field in str(caught.value)


def test_services_are_allowed_by_configuration_or_with_a_time_limit():
    pod_request.check(pod(restartPolicy="Always"), RequestSettings(services=True))
    pod_request.check(pod(restartPolicy="Always", activeDeadlineSeconds=60), NONE)
    pod_request.check(pod({"max-time": "60"}, restartPolicy="Always"), NONE)
    assert made(pod(activeDeadlineSeconds=600), settings=NONE).max_time == 600
    assert made(pod({"max-time": "60"}, activeDeadlineSeconds=600)).max_time == 60
    assert made(pod(), settings=RequestSettings(max_time=99)).max_time == 99


def test_resources_become_those_of_the_request():
    limits = {"cpu": "1500m", "memory": "2Gi", "nunet.gpu.nvidia.rtx.3080.10gb": "2", "ephemeral-storage": "1Gi"}
    request = made(pod(container={"resources": {"limits": limits}}))
    assert (request.resources.cpus, request.resources.memory, request.resources.disk) == (2, 2 * 2**30, 2**30)
    assert request.resources.gpus == {"nvidia.rtx.3080.10gb": 2}
    assert str(request.kind) == "nvidia.rtx.3080.10gb"
    assert made(pod({"disk": "5Gi"})).resources.disk == 5 * 2**30
    assert made(pod()).resources.cpus == 1


def test_values_of_secrets_are_sent_apart_and_only_by_the_switch():
    env = [
        {"name": "PLAIN", "value": "x"},
        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "URL", "value": "https://u:$(KEY)@host"},
    ]
    found = pod(container={"env": env, "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}]})
    objects = Objects(secrets={"s": secret(k="abc")})
    request = made(found, objects)
    assert request.env == {"PLAIN": "x"}
    assert request.secrets == {"P_k": "abc", "KEY": "abc", "URL": "https://u:abc@host"}
    with pytest.raises(ScriptError, match=r"KEY, P_k, URL: values of Secrets are not allowed .*sendSecrets"):
        made(found, objects, NONE)
    with pytest.raises(MissingReferenceError):
        made(found)


def test_a_secret_is_not_written_into_the_arguments():
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    found = pod(container={"env": env, "args": ["run", "--key=$(KEY)"]})
    with pytest.raises(ScriptError, match=r"args\[1\]"):
        made(found, Objects(secrets={"s": secret(k="abc")}))
    assert made(
        pod(container={"env": [{"name": "A", "value": "1"}], "command": ["x"], "args": ["$(A)", "$$(A)"]})
    ).args == (
        "1",
        "$(A)",
    )


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=30))
def test_no_value_of_a_secret_is_among_the_plain_variables(text):
    env = [
        {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        {"name": "B", "value": "<$(A)>"},
        {"name": "C", "value": "plain"},
    ]
    request = made(pod(container={"env": env}), Objects(secrets={"s": secret(k=text)}))
    assert request.env == {"C": "plain"}
    assert request.secrets == {"A": text, "B": f"<{text}>"}


def test_credentials_of_the_images_registry():
    auths = {
        "https://index.docker.io/v1/": {"username": "hub", "password": "h"},
        "ghcr.io": {"auth": base64.b64encode(b"me:p:w").decode()},
    }
    objects = Objects(secrets={"pull": secret(**{".dockerconfigjson": json.dumps({"auths": auths})})})
    found = pod(imagePullSecrets=[{"name": "pull"}, {"name": "missing"}])
    assert made(found, objects).registry == {"server": "ghcr.io", "username": "me", "password": "p:w"}
    with pytest.raises(ScriptError, match=r"spec.imagePullSecrets: credentials for ghcr.io"):
        made(found, objects, NONE)
    hub = copy.deepcopy(found)
    hub["spec"]["containers"][0]["image"] = "busybox"
    assert made(hub, objects).registry == {"server": "docker.io", "username": "hub", "password": "h"}
    other = copy.deepcopy(found)
    other["spec"]["containers"][0]["image"] = "quay.io/x"
    assert made(other, objects, NONE).registry is None


EXAMPLES = {
    "executor": ("vm", "vm"),
    "type": ("batch", "batch"),
    "cpu-frequency": ("2400", 2400),
    "disk": ("10Gi", 10 * 2**30),
    "power": ("3", 3),
    "vcpu": ("4", 4),
    "libraries": ("pytorch@1.0.0, numpy", ["pytorch@1.0.0", "numpy"]),
    "locality": ("it,fr", ["it", "fr"]),
    "storage": ("ipfs,localVolume", ["ipfs", "localVolume"]),
    "kyc": ("iamx", ["iamx"]),
    "currency": ("ntx", "ntx"),
    "max-price-per-hour": ("500", 500),
    "max-price": ("10000.5", 10000.5),
    "price-preference": ("1", 1),
    "time-preference": ("2", 2),
    "max-time": ("6300", 6300),
    "vpn-subnet": ("10.8.0.0/24", "10.8.0.0/24"),
    "max-latency": ("20", 20),
    "ip-address": ("10.8.0.7", "10.8.0.7"),
    "dns-name": ("a.example", "a.example"),
    "ingress-proxy": ("in-1", "in-1"),
    "egress-proxy": ("out-1", "out-1"),
    "firewall-rules": ('{"allow": [80]}', {"allow": [80]}),
    "channels": ("lab", ["lab"]),
    "peers": ("QmPeer1", ["QmPeer1"]),
    "no-job": ("true", "true"),
}


def test_an_object_may_have_sixteen_levels():
    deep = '{"a":' * 15 + "[1.5]" + "}" * 15
    assert pod_annotations.read(pod({"firewall-rules": deep}))["firewall-rules"]


@pytest.mark.parametrize("name", pod_annotations.KEYS)
def test_each_annotation_is_read_and_reaches_its_field(name):
    text, value = EXAMPLES[name]
    found = pod({name: text})
    assert pod_annotations.read(found) == {name: value}
    body = dialect.body(made(found), "QmP", peer_field="", gpu_count_field="")
    for step in pod_annotations.KEYS[name].path:
        body = body[step]
    assert not pod_annotations.KEYS[name].path or body == value


@given(st.sampled_from(sorted(pod_annotations.KEYS)), st.text(max_size=60))
def test_no_value_of_an_annotation_breaks_the_reader(name, text):
    found = pod({name: text})
    try:
        pod_request.check(found, ALL)
    except ScriptError as error:
        assert f"nunet.bridge.vk.io/{name}" in str(error)
    else:
        json.dumps(dialect.body(made(found), "QmP", peer_field="", gpu_count_field=""), allow_nan=False)


def test_wishes_and_defaults():
    settings = RequestSettings(defaults={"max-price-per-hour": 5, "channels": ["Lab"], "currency": "eur"})
    requirements = pod_request.requirements(pod({"max-price-per-hour": "7", "locality": "IT"}), settings)
    assert (requirements.max_price, requirements.localities, requirements.channels) == (7, {"it"}, {"lab"})
    assert made(pod(), settings=settings).fields[("requiredCapability", "price", "currency")] == "eur"
    assert made(pod()).fields[("requiredCapability", "price", "currency")] == "ntx"


def test_the_table_in_the_documentation_is_that_of_the_code():
    rows = [f"| `{key.name}` | {key.meaning} | {key.allowed} |" for key in pod_annotations.KEYS.values()]
    text = PAGE.read_text()
    assert "\n".join(rows) in text, "docs/admins/nunet.md: replace the table by:\n" + "\n".join(rows)
