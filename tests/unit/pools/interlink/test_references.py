import base64
import json

from hypothesis import given
from hypothesis import strategies as st

from bridge.interlink.messages import PodCreateRequests, RetrievedContainer, RetrievedPodData, as_json
from bridge.pools.interlink import references
from bridge.script import environment, volumes
from bridge.script.buildconfig import BuildConfig
from bridge.script.quoting import Allowance
from bridge.script.references import Objects
from tests.fakes.interlink_bodies import body

PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)


def pod_of(*containers, volumes=(), init=()):
    spec = {"containers": list(containers), "initContainers": list(init), "volumes": list(volumes)}
    return {"metadata": {"name": "p", "namespace": "ns", "uid": "u1", "labels": {"a": "b"}}, "spec": spec}


def sent_and_received(pod, objects, hop):
    sent = references.sent_pod(pod, objects, "node")
    if hop == "a":
        wire = json.dumps(as_json(references.sent_request(pod, objects, "node")))
        return references.received_request(PodCreateRequests.model_validate_json(wire))
    wire = json.dumps([as_json(each) for each in references.sent_containers(pod, objects, "node")])
    told = [RetrievedContainer.model_validate(each) for each in json.loads(wire)]
    return references.received_containers(json.loads(json.dumps(sent)), told)


def files(pod, objects):
    made = volumes.make(pod, BuildConfig(), objects, "node", {}, Allowance())
    return sorted((file.path, file.data, file.mode) for file in made.files)


def variables(pod, objects):
    return environment.make(pod, pod["spec"]["containers"][0], "c", objects, "node", {}, Allowance()).values


def test_the_recorded_bodies_have_the_same_objects_on_both_hops():
    by_hop = [
        references.received_request(PodCreateRequests.model_validate(body("create_hop_a"))),
        references.received_containers(
            body("create_hop_b")["pod"], RetrievedPodData.model_validate(body("create_hop_b")).container
        ),
    ]
    for pod, objects in by_hop:
        assert files(pod, objects) == [
            ("credentials/password", b"s3cr\xc3\xa9t\n", 0o400),
            ("credentials/raw", b"\0\xff\1", 0o400),
            ("kube-api-access-x7k2p/ca.crt", b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", 0o644),
            ("kube-api-access-x7k2p/namespace", b"science", 0o644),
            ("kube-api-access-x7k2p/token", b"eyJhbGciOiJSUzI1NiJ9.e30.c2ln", 0o644),
            ("settings/etc/config.yaml", b"rate: 0.1\nname: 'train'\n", 0o400),
        ]
        assert variables(pod, objects) == {"LITERAL": "costs $5 and $(HOME)", "EMPTY": ""}


@given(st.dictionaries(st.sampled_from("ABC"), PLAIN), st.sampled_from("ab"), st.booleans())
def test_a_client_and_a_server_exchange_variables_exactly(values, hop, from_config_map):
    container = {"name": "c", "env": [{"name": name, "value": value} for name, value in values.items()]}
    objects = Objects()
    if from_config_map:
        container = {"name": "c", "envFrom": [{"configMapRef": {"name": "m"}}]}
        objects = Objects(configmaps={"m": {"metadata": {"name": "m"}, "data": values}})
    pod = pod_of(container)
    assert variables(*sent_and_received(pod, objects, hop)) == variables(pod, objects)


MODES = st.one_of(st.none(), st.integers(0, 0o777))
KEYS = st.sampled_from(["a", "b.txt", "c-d"])


@given(
    st.dictionaries(KEYS, st.binary(max_size=20), min_size=1),
    st.sampled_from(["configMap", "secret", "projected", "downwardAPI"]),
    MODES,
    MODES,
    st.sampled_from("ab"),
)
def test_a_client_and_a_server_exchange_volumes_exactly(data, kind, default, mode, hop):
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    objects = Objects(
        configmaps={"m": {"metadata": {"name": "m"}, "binaryData": encoded}},
        secrets={"s": {"metadata": {"name": "s"}, "data": encoded}},
        tokens={("v", "tokens/token"): "secret-token"},
    )
    items = [{"key": key, "path": f"sub/{key}", **({} if mode is None else {"mode": mode})} for key in data]
    downward = {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}
    source = {
        "configMap": {"name": "m", "items": items},
        "secret": {"secretName": "s"},
        "projected": {
            "sources": [
                {"configMap": {"name": "m", "items": items}},
                {"secret": {"name": "s"}},
                {"downwardAPI": downward},
                {"serviceAccountToken": {"path": "tokens/token", "audience": "x"}},
            ]
        },
        "downwardAPI": downward,
    }[kind]
    volume = {"name": "v", kind: {**source, **({} if default is None else {"defaultMode": default})}}
    pod = pod_of({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}, volumes=[volume])
    expected = files(pod, objects)
    assert expected
    assert files(*sent_and_received(pod, objects, hop)) == expected


def test_hop_b_has_an_object_for_each_mount_and_init_containers_first():
    volume = {"name": "v", "secret": {"secretName": "s"}}
    mounts = [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]
    pod = pod_of({"name": "c", "volumeMounts": mounts}, {"name": "d"}, volumes=[volume], init=[{"name": "i"}])
    objects = Objects(secrets={"s": {"metadata": {"name": "s"}, "data": {"k": "dg=="}}})
    told = references.sent_containers(pod, objects, "node")
    assert [(each.name, len(each.secrets)) for each in told] == [("i", 0), ("c", 2), ("d", 0)]


def test_the_address_of_a_pod_is_sent_as_the_local_one():
    source = {"fieldRef": {"fieldPath": "status.podIP"}}
    sent = references.sent_pod(pod_of({"name": "c", "env": [{"name": "IP", "valueFrom": source}]}), Objects(), "node")
    assert sent["spec"]["containers"][0]["env"] == [{"name": "IP", "value": "127.0.0.1"}]


def test_an_optional_object_that_does_not_exist_is_not_sent():
    volume = {"name": "v", "configMap": {"name": "m", "optional": True}}
    pod = pod_of({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}, volumes=[volume])
    assert references.sent_containers(pod, Objects(), "node")[0].config_maps == []
    assert files(*sent_and_received(pod, Objects(), "b")) == []


def test_a_projected_volume_without_content_stays_projected():
    volume = {"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
    received, _ = references.received_containers(pod_of({"name": "c"}, volumes=[volume]), [])
    assert received["spec"]["volumes"] == [volume]
