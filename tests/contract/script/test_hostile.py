"""A pod whose every text is meant to be executed, run for real: nothing but its own command runs."""

import base64
from pathlib import Path

import pytest

from bridge.script.references import Objects
from tests.pod_specs import EMPTY, mount, mounts, spec_of, volumes

pytestmark = pytest.mark.real

TEXTS = [
    "$(touch CANARY)", "`touch CANARY`", "'; touch CANARY; '", '"; touch CANARY; "', "\ntouch CANARY\n",
    "PODBRIDGE_END\ntouch CANARY\nPODBRIDGE_END", "${x:=$(touch CANARY)}", "a[$(touch CANARY)]", "$((CANARY=1))",
    "\\'; touch CANARY #",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_every_text_is_data(ordinary, text):
    canary = ordinary.home_for_host_path() / "canary"
    text = text.replace("CANARY", str(canary))
    path = "".join(letter for letter in text if letter not in ',:"\\\n')
    part = path.replace("/", "_")
    place = f" {path}".rstrip()  # a mount path has no blank at its end
    spec = spec_of(
        {
            "name": "main",
            "image": text,
            "command": ["sh", "-c", 'printf "%s\\0" "$0" "$V" "$PWD"; cat "$1"; sleep 2'],
            "args": [text.replace("$", "$$"), f"/c{place.replace('$', '$$')}/{part.replace('$', '$$')}"],
            "workingDir": f"/e{place}/{part}",
            "env": [{"name": "V", "value": text.replace("$", "$$")}],
            "volumeMounts": [mount("e", f"/e{place}", part), mount("c", f"/c{place}")],
            "terminationMessagePath": f"/m{place}",
            "livenessProbe": {"exec": {"command": ["printf", text]}, "periodSeconds": 1},
            "readinessProbe": {"exec": {"command": ["test", "x", "=", text]}, "periodSeconds": 1},
            "lifecycle": {
                "postStart": {"exec": {"command": ["printf", "%s", text]}},
                "preStop": {"exec": {"command": [text]}},
            },
        },
        **volumes(e=EMPTY, c={"configMap": {"name": "c", "items": [{"key": part, "path": part}]}}),
    )
    objects = Objects(configmaps={"c": {"data": {part: text}}})
    job = ordinary.run(spec, objects=objects, annotations={"a": text, "slurm-job.vk.io/image-root": text})
    assert job.pod()["phase"] == "Succeeded", job.everything()
    first, second, third, rest = job.log().split("\0")
    assert (first, second, third, rest) == (text, text, f"/e{place}/{part}", text)
    assert not canary.exists()
    assert [each for each in Path(job.folder).rglob("*") if "canary" in each.name.lower() and each.is_file()] in (
        [],
        [job.folder / "volumes" / "c" / part],
    )


KEYS = ("-rf", "--help", "a..b")


def test_every_field_is_data(ordinary):
    canary = ordinary.home_for_host_path() / "canary"
    text = f"x'\"`touch {canary}`$(touch {canary});touch {canary}&|<>\\\ntouch {canary}\nEOF\n#"
    path = "".join(letter for letter in text if letter not in ',:"\\\n')
    line, encoded = text.replace("\n", " "), base64.b64encode(text.encode()).decode()
    annotation = {"fieldRef": {"fieldPath": "metadata.annotations['evil']"}}
    script = (
        'sleep 2; printf "%s\\0" "$0" "$V" "$C" "$S" "$F"; for file in "$@"; do cat "$file"; printf "\\0"; done; '
        'printf "%s\\0" "$PWD"; cat "./sub/$P"; printf "\\0\\0"; printf %s "$V" >"$M"; cat /proc/$$$$/environ; :'
    )
    main = {
        "name": "main",
        "image": text.rstrip(),
        "command": ["sh", "-c", script],
        "args": [text, f"/c {path}/-rf", f"/s {path}/{path}", f"/p {path}/note {path}", f"/p {path}/token {path}"],
        "workingDir": f"/w {path}",
        "terminationMessagePath": f"/m {path}",
        "env": [
            {"name": "V", "value": text},
            {"name": "M", "value": f"/m {path}"},
            {"name": "P", "value": path},
            {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "hostile", "key": "--help"}}},
            {"name": "S", "valueFrom": {"secretKeyRef": {"name": "hostile", "key": "a..b"}}},
            {"name": "F", "valueFrom": annotation},
            {"name": f"$(touch {canary})", "value": text},
        ],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "hostile"}}, {"secretRef": {"name": "hostile"}}],
        **mounts(
            ("c", f"/c {path}"),
            ("s", f"/s {path}"),
            ("p", f"/p {path}"),
            ("e", f"/w {path}", f"a {path}"),
            ("p", f"/w {path}/sub"),
        ),
        "securityContext": {"seLinuxOptions": dict.fromkeys(("user", "role", "type", "level"), text)},
        "startupProbe": {"exec": {"command": ["test", text]}, "periodSeconds": 1, "timeoutSeconds": 10},
        "livenessProbe": {"exec": {"command": ["test", text, "=", text]}, "periodSeconds": 1, "timeoutSeconds": 10},
        "readinessProbe": {
            "httpGet": {"path": f"/{line}", "port": 1, "httpHeaders": [{"name": "X-Evil", "value": line}]},
            "periodSeconds": 1,
        },
        "lifecycle": {"postStart": {"exec": {"command": ["test", text]}}, "preStop": {"exec": {"command": [text]}}},
    }
    other = {
        "name": "other",
        "image": "busybox",
        "command": ["sleep", "3"],
        "readinessProbe": {"exec": {"command": [text, text]}, "periodSeconds": 1},
        "lifecycle": {"preStop": {"httpGet": {"path": f"/{line}", "port": 1}}},
    }
    first = {"name": "first", "image": "busybox", "command": ["sh", "-c", "exit 0"], "args": [text]}
    sources = [
        {"downwardAPI": {"items": [{"path": f"note {path}", **annotation}]}},
        {"configMap": {"name": "hostile", "items": [{"key": "a..b", "path": path}]}},
        {"serviceAccountToken": {"path": f"token {path}", "audience": text}},
    ]
    spec = spec_of(
        main,
        other,
        init=[first],
        **volumes(
            c={"configMap": {"name": "hostile", "items": [{"key": key, "path": key} for key in KEYS]}},
            s={"secret": {"secretName": "hostile", "items": [{"key": "-rf", "path": path}]}},
            p={"projected": {"sources": sources}},
            e=EMPTY,
        ),
    )
    objects = Objects(
        {"hostile": {"data": dict.fromkeys(KEYS, text)}},
        {"hostile": {"data": dict.fromkeys(KEYS, encoded)}},
        {("p", f"token {path}"): text},
    )
    job = ordinary.run(spec, objects=objects, annotations={"evil": text})
    assert job.pod()["phase"] == "Succeeded", job.everything()
    printed = job.log().split("\0")
    expected = [text] * 9 + [f"/w {path}", text, ""]
    assert printed[: len(expected)] == expected
    given = [part for part in printed if part.startswith(("P_", "-rf=", "--help=", "a..b=", "$("))]
    names = (*(f"P_{key}" for key in KEYS), *KEYS, f"$(touch {canary})")
    assert sorted(given) == sorted(f"{name}={text}" for name in names)
    assert job.message() == text
    assert not canary.exists()
