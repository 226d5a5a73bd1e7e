"""A small pod does not become a large script: what its fields repeat has a limit."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from bridge.config.nunet import NunetSection
from bridge.errors import ScriptError
from bridge.pools.interlink import references as interlink
from bridge.pools.nunet import pod_request
from bridge.script import plan, references, volume_files
from bridge.script.buildconfig import BuildConfig
from bridge.script.quoting import MOST
from bridge.script.references import Objects
from tests.pod_specs import mount
from tests.unit.script.pods import pod

TIMES, LARGE = 40, "x" * 2**20
NOTE = "y" * 2**18
VALUE = {"name": "A", "value": "z" * 100_000}


def objects() -> Objects:
    secret = base64.b64encode(LARGE.encode()).decode()
    return Objects(
        {"c": {"metadata": {"name": "c"}, "data": {"K": LARGE}}},
        {"s": {"metadata": {"name": "s"}, "data": {"K": secret}}},
    )


def container(**more: Any) -> dict[str, Any]:
    return {"name": "c", "image": "i", **more}


def refers(**source: Any) -> list[dict[str, Any]]:
    return [{"name": f"V{n}", "valueFrom": source} for n in range(TIMES * 4)]


DOUBLED = [{"name": "A0", "value": "xx"}, *({"name": f"A{n}", "value": f"$(A{n - 1})" * 2} for n in range(1, 25))]
HOSTILE: dict[str, dict[str, Any]] = {
    "variables that name the one before twice": {"containers": [container(env=DOUBLED)]},
    "variables": {"containers": [container(env=[VALUE, *({"name": f"B{n}", "value": "$(A)"} for n in range(400))])]},
    "arguments": {"containers": [container(env=[VALUE], args=["$(A)"] * 400)]},
    "an argument": {"containers": [container(env=[VALUE], command=["$(A)" * 400])]},
    "a probe": {
        "containers": [container(env=[VALUE], livenessProbe={"exec": {"command": ["$(A)"] * 400}})],
    },
    "all keys": {
        "containers": [container(envFrom=[{"prefix": f"P{n}", "configMapRef": {"name": "c"}} for n in range(TIMES)])]
    },
    "keys": {"containers": [container(env=refers(secretKeyRef={"name": "s", "key": "K"}))]},
    "annotations": {"containers": [container(env=refers(fieldRef={"fieldPath": "metadata.annotations['a']"}))]},
    "containers": {
        "containers": [container(envFrom=[{"secretRef": {"name": "s"}}]) | {"name": f"c{n}"} for n in range(TIMES)]
    },
    "volumes": {"volumes": [{"name": f"v{n}", "configMap": {"name": "c"}} for n in range(TIMES)]},
    "sources": {
        "volumes": [
            {
                "name": "v",
                "projected": {
                    "sources": [
                        {"secret": {"name": "s", "items": [{"key": "K", "path": f"p{n}"}]}} for n in range(TIMES)
                    ]
                },
            }
        ]
    },
    "items": {
        "volumes": [
            {
                "name": "v",
                "downwardAPI": {
                    "items": [
                        {"path": f"p{n}", "fieldRef": {"fieldPath": "metadata.annotations"}} for n in range(TIMES * 4)
                    ]
                },
            }
        ]
    },
}


def hostile(name: str) -> dict[str, Any]:
    return pod({"containers": [container()], **HOSTILE[name]}, annotations={"a": NOTE})


@pytest.mark.parametrize("name", HOSTILE)
def test_a_small_pod_makes_no_large_script(name: str) -> None:
    with pytest.raises(ScriptError, match=r"too (large|long)"):
        plan.make(hostile(name), BuildConfig(), objects(), "node")


@pytest.mark.parametrize(
    "name", sorted(HOSTILE.keys() - {"arguments", "an argument", "a probe"})
)  # which go as they are
def test_a_small_pod_makes_no_large_request_to_a_plugin(name: str) -> None:
    found = hostile(name)
    for each in found["spec"]["containers"]:
        each.setdefault("volumeMounts", [mount(volume["name"], "/m") for volume in found["spec"].get("volumes", ())])
    with pytest.raises(ScriptError, match=r"too (large|long)"):
        interlink.sent_containers(found, objects(), "node")
        interlink.sent_pod(found, objects(), "node")


def test_a_volume_with_many_mounts_makes_no_large_request_to_a_plugin() -> None:
    mounts = [mount("v", f"/m{n}") for n in range(TIMES)]
    volumes = [{"name": "v", "configMap": {"name": "c"}}]
    found = pod({"containers": [container(volumeMounts=mounts)], "volumes": volumes})
    with pytest.raises(ScriptError, match=r"spec\.containers\[0\]\.volumeMounts: .*too large"):
        interlink.sent_containers(found, objects(), "node")
    assert plan.make(found, BuildConfig(), objects(), "node").volumes.files


@pytest.mark.parametrize(
    "name", ["variables that name the one before twice", "variables", "arguments", "an argument", "all keys"]
)
def test_a_small_pod_makes_no_large_request_to_a_dms(name: str) -> None:
    with pytest.raises(ScriptError, match=r"too (large|long)"):
        pod_request.body(
            hostile(name), objects(), "node", NunetSection(name="n", url="http://dms", send_secrets=True), {}
        )


@pytest.mark.parametrize("name", ["volumes", "sources", "items"])
def test_files_that_have_become_too_large_together_stay_as_they_are(name: str) -> None:
    now = volume_files.current(hostile(name), objects(), "node")
    assert now.files and sum(len(file.data) for file in now.files.values()) <= MOST
    assert len(now.problems) == 1 and "too large" in now.problems[0]
    assert now.incomplete, "the files that are left out are not removed from the volume"


def test_an_object_is_decoded_once_however_often_a_pod_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[str] = []
    monkeypatch.setattr(references, "_decode", lambda text, field_path: decoded.append(text) or b"v")
    plan.make(hostile("keys"), BuildConfig(), objects(), "node")
    assert len(decoded) == 1


def test_a_path_in_a_volume_has_the_length_of_a_path() -> None:
    mounted = {**mount("v", "/m"), "subPathExpr": "$(A)"}
    found = pod(
        {"containers": [container(env=[VALUE], volumeMounts=[mounted])], "volumes": [{"name": "v", "emptyDir": {}}]}
    )
    with pytest.raises(ScriptError, match="subPath: a path of more than 4096"):
        plan.make(found, BuildConfig(), objects(), "node")
    item = {"path": "a/" * 100_000 + "b", "fieldRef": {"fieldPath": "metadata.name"}}
    found = pod({"containers": [container()], "volumes": [{"name": "v", "downwardAPI": {"items": [item]}}]})
    with pytest.raises(ScriptError, match=r"items\[0\]\.path: a path of more than 4096"):
        plan.make(found, BuildConfig(), objects(), "node")


def test_variables_and_files_within_the_limit_are_those_of_the_pod() -> None:
    env = [VALUE, {"name": "B", "value": "<$(A)>"}, *refers(configMapKeyRef={"name": "c", "key": "K"})[:10]]
    volumes = [{"name": f"v{n}", "configMap": {"name": "c"}} for n in range(10)]
    found = pod({"containers": [container(env=env, args=["$(B)"])], "volumes": volumes})
    planned = plan.make(found, BuildConfig(), objects(), "node")
    assert planned.containers[0].args == [f"<{VALUE['value']}>"]
    assert [len(file.data) for file in planned.volumes.files] == [2**20] * 10
