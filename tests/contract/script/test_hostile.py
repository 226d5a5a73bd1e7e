"""A pod whose every text is meant to be executed, run for real: nothing but its own command runs."""

from pathlib import Path

import pytest

from bridge.script.references import Objects
from tests.pod_specs import EMPTY, mount, spec_of, volumes

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
