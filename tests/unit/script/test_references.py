"""What a pod needs."""

import base64
import json
import posixpath
import re

import pytest

from bridge.errors import MissingReferenceError, ScriptError
from bridge.script import check
from bridge.script.build import build, current_files
from bridge.script.buildconfig import BuildConfig
from bridge.script.references import Objects, TokenRequest, at_site, needed
from bridge.script.site_annotations import pull_secret, read
from tests.pod_specs import spec_of, volumes
from tests.unit.script.pods import KINDS, OBJECTS, SITE, pod

NONE = BuildConfig.model_validate({"runtime": {"kind": "none"}})


def test_needed():
    spec = spec_of(
        {
            "name": "m",
            "env": [
                {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "c3", "key": "k"}}},
                {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "s3", "key": "k", "optional": True}}},
            ],
            "envFrom": [{"secretRef": {"name": "s4"}}],
        },
        init=[{"name": "i", "envFrom": [{"configMapRef": {"name": "c3", "optional": True}}]}],
        imagePullSecrets=[{"name": "pull"}],
        **volumes(
            a={"configMap": {"name": "c1"}},
            b={"secret": {"secretName": "s1", "optional": True}},
            p={
                "projected": {
                    "sources": [
                        {"configMap": {"name": "c2", "optional": True}},
                        {"secret": {"name": "s2"}},
                        {"serviceAccountToken": {"path": "t", "audience": "vault", "expirationSeconds": 600}},
                    ]
                }
            },
        ),
    )
    found = needed(pod(spec))
    assert found.configmaps == {"c1", "c2", "c3"} and found.optional_configmaps == {"c2"}
    assert found.secrets == {"s1", "s2", "s3", "s4", "pull"} and found.optional_secrets == {"s1", "s3", "pull"}
    assert found.tokens == (TokenRequest("p", "t", "vault", 600),)


@pytest.mark.parametrize("kind", KINDS)
def test_everything_needed_is_enough(kind):
    found = needed(KINDS[kind])
    had = Objects(
        configmaps={name: OBJECTS.configmaps[name] for name in found.configmaps if name in OBJECTS.configmaps},
        secrets={name: OBJECTS.secrets[name] for name in found.secrets if name in OBJECTS.secrets},
        tokens={request.key: OBJECTS.tokens[request.key] for request in found.tokens},
    )
    config = BuildConfig.model_validate(SITE)
    assert build(KINDS[kind], config, had, "n").script == build(KINDS[kind], config, OBJECTS, "n").script


def test_what_is_missing_is_waited_for():
    with pytest.raises(MissingReferenceError) as told:
        build(KINDS["files"], BuildConfig.model_validate(SITE), Objects(), "n")
    assert told.value.retryable and "ConfigMap 'settings' does not exist" in str(told.value)
    without_token = Objects(configmaps=OBJECTS.configmaps, secrets=OBJECTS.secrets)
    with pytest.raises(MissingReferenceError, match="no token for 'token'"):
        build(KINDS["files"], BuildConfig.model_validate(SITE), without_token, "n")


@pytest.mark.parametrize("path", ["./token", "sub//token"])
def test_a_token_is_found_by_its_path_as_written(path):
    volume = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": path, "audience": "x"}}]}}
    pod = {**KINDS["simple"], "spec": {**KINDS["simple"]["spec"], "volumes": [volume]}}
    tokens = {request.key: "secret" for request in needed(pod).tokens}
    config, objects = BuildConfig.model_validate(SITE), Objects(tokens=tokens)
    [file] = current_files(pod, config, objects, "n").files.values()
    assert file.path == f"t/{posixpath.normpath(path)}" and file.data == b"secret"
    build(pod, config, objects, "n")


def test_pull_secrets_are_merged():
    def secret(auths):
        return {"data": {".dockerconfigjson": base64.b64encode(json.dumps({"auths": auths}).encode()).decode()}}

    objects = Objects(secrets={"a": secret({"x": {"auth": "MTox"}}), "b": secret({"x": {"auth": "Mjoy"}, "y": {}})})
    wanted = pod({"imagePullSecrets": [{"name": "a"}, {"name": "b"}, {"name": "none"}], "containers": []})
    assert json.loads(pull_secret(wanted, objects)) == {"auths": {"x": {"auth": "MTox"}, "y": {}}}
    assert json.loads(pull_secret(KINDS["image"], OBJECTS))["auths"]["registry.example"]["auth"] == "dTpw"
    with pytest.raises(ScriptError, match="does not hold a docker configuration"):
        pull_secret(wanted, Objects(secrets={"a": {"data": {".dockerconfigjson": "e30x"}}}))


@pytest.mark.parametrize(
    "auths",
    [
        "5",
        '{"x": true}',
        '{"x": {"auth": 5}}',
        '{"x": {"auth": "a"}}',
        '{"x": {"auth": "\u00e4"}}',
        '{"x": {"username": ["u"]}}',
        "[" * 100_000,
    ],
)
@pytest.mark.parametrize("key", [".dockerconfigjson", ".dockercfg"])
def test_what_is_no_pull_secret_is_refused(key, auths):
    text = f'{{"auths": {auths}}}' if key == ".dockerconfigjson" else auths
    objects = Objects(secrets={"a": {"data": {key: base64.b64encode(text.encode()).decode()}}})
    with pytest.raises(ScriptError, match="'a' does not hold a docker configuration"):
        pull_secret(pod({"imagePullSecrets": [{"name": "a"}], "containers": []}), objects)


def test_a_pull_secret_is_read_as_by_a_kubelet():
    """Null and unknown fields are omitted, and the padding of ``auth`` may be missing."""
    auths = {
        "none": None,
        "short": {"auth": "dTpwdw", "email": None, "expires_in": 3600},
        "wrapped": {"auth": base64.encodebytes(b"u:" + b"p" * 100).decode()},
        "pair": {"auth": None, "username": "u", "password": "p"},
    }
    text = base64.b64encode(json.dumps({"auths": auths}).encode()).decode()
    wanted = pod({"imagePullSecrets": [{"name": "a"}], "containers": []})
    found = json.loads(pull_secret(wanted, Objects(secrets={"a": {"data": {".dockerconfigjson": text}}})))["auths"]
    assert {name: (entry["auth"], "email" in entry) for name, entry in found.items()} == {
        "short": ("dTpwdw==", False),
        "wrapped": (base64.b64encode(b"u:" + b"p" * 100).decode(), False),
        "pair": ("dTpw", False),
    }


@pytest.mark.parametrize(
    ("key", "switch"),
    [
        ("flags", "allow_user_flags"),
        ("pre-exec", "allow_pre_exec"),
        ("mpi-flags", "allow_runtime_options"),
        ("singularity-options", "allow_runtime_options"),
        ("singularity-mounts", "allow_runtime_options"),
        ("enroot-options", "allow_runtime_options"),
        ("enroot-mounts", "allow_runtime_options"),
    ],
)
def test_annotations_need_the_sites_permission(key, switch):
    wanted = pod({"containers": []}, annotations={f"slurm-job.vk.io/{key}": "--x 'y z'"})
    with pytest.raises(ScriptError, match=f"slurm-job.vk.io/{key} is not allowed at this site .limits.{switch}"):
        read(wanted, NONE)
    allowed = BuildConfig.model_validate({"limits": {switch: True}, "runtime": {"kind": "apptainer"}})
    found = read(wanted, allowed)
    if key == "flags":
        assert found.flags == ["--x", "y z"]
    if key.startswith("singularity"):
        assert found.options == ["--x", "y z"]


@pytest.mark.parametrize("kind", ["podman", "none"])
def test_mpi_flags_are_refused_where_they_would_be_ignored(kind):
    wanted = pod({"containers": []}, annotations={"slurm-job.vk.io/mpi-flags": "true"})
    config = BuildConfig.model_validate({"limits": {"allow_runtime_options": True}, "runtime": {"kind": kind}})
    with pytest.raises(ScriptError, match=f"mpi-flags is not possible at this site, whose runtime is {kind}"):
        read(wanted, config)


@pytest.mark.parametrize("value", ["'open", "a\x00b"])
def test_annotations_that_can_not_be_read(value):
    config = BuildConfig.model_validate({"limits": {"allow_user_flags": True}})
    with pytest.raises(ScriptError, match=r"annotation slurm-job\.vk\.io/flags"):
        read(pod({"containers": []}, annotations={"slurm-job.vk.io/flags": value}), config)


def test_workdir_is_below_what_the_site_allows():
    wanted = pod({"containers": []}, annotations={"slurm-job.vk.io/job-workdir": "/etc"})
    with pytest.raises(ScriptError, match="job-workdir: '/etc' is not allowed"):
        read(wanted, BuildConfig.model_validate(SITE))


ITEMS = [{"key": "k", "path": "a/b"}, {"key": "k", "path": "a"}]


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"configMap": {"name": "c", "items": ITEMS}}, "'a/b' is not allowed beside the file 'a'"),
        ({"secret": {"secretName": "s", "items": ITEMS[::-1]}}, "'a/b' is not allowed beside the file 'a'"),
        ({"secret": {"secretName": "s", "items": [{"key": "k", "path": "./."}]}}, "'.' is not allowed"),
        (
            {
                "projected": {
                    "sources": [
                        {"configMap": {"name": "c", "items": [{"key": "k", "path": "k/x/y"}]}},
                        {"secret": {"name": "s"}},
                    ]
                }
            },
            "'k/x/y' is not allowed beside the file 'k'",
        ),
        (
            {
                "downwardAPI": {
                    "items": [
                        {"path": path, "fieldRef": {"fieldPath": "metadata.name"}} for path in ("l/./m", "l/m/n", "l.m")
                    ]
                }
            },
            "'l/m/n' is not allowed beside the file 'l/m'",
        ),
    ],
)
def test_a_file_of_a_volume_that_would_have_to_be_a_directory_is_refused(volume, message):
    """The script could write only one of the two, and a kubelet mounts no such volume."""
    objects = Objects(configmaps={"c": {"data": {"k": "1"}}}, secrets={"s": {"data": {"k": "MQ=="}}})
    spec = {"volumes": [{"name": "v", **volume}], "containers": [{"name": "main", "image": "x", "command": ["x"]}]}
    with pytest.raises(ScriptError, match=re.escape(message)):
        build(pod(spec), NONE, objects, "node")


@pytest.mark.parametrize(
    "volume",
    [
        {"projected": {"sources": [{"configMap": {"name": f"c{n}", "optional": True}} for n in range(501)]}},
        {"projected": {"sources": [{"secret": {"name": f"s{n}"}} for n in range(501)]}},
        {"projected": {"sources": [{"serviceAccountToken": {"path": f"t{n}", "audience": "a"}} for n in range(501)]}},
    ],
)
def test_a_pod_that_would_cost_thousands_of_requests_is_refused_before_one_is_sent(volume):
    found = pod({"containers": [{"name": "c"}], **volumes(v=volume)})
    told = "501 ConfigMaps, Secrets and tokens are not allowed on a pool; allowed: at most 500"
    assert [told] == [text.removeprefix("spec: ") for text in check.problems(found)]
    for has_api_server in (False, True):
        with pytest.raises(ScriptError, match=told):
            at_site(found, api_server=has_api_server)
    volume["projected"]["sources"].pop()
    assert check.problems(found) == []
    assert at_site(found, api_server=False) == found
