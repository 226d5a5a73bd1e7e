"""No text of a pod is ever executed: what bash reads back is what the pod said, whatever was in it.

The scripts' data part is run by a real bash in an empty folder, with functions in the place of the library that print
their words. Nothing else may come out, and no file may appear.
"""

import base64
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bridge.errors import BridgeError, ScriptError
from bridge.script import library, render
from bridge.script.buildconfig import BuildConfig
from bridge.script.plan import make
from bridge.script.quoting import ADDRESS, clean, word
from bridge.script.references import Objects
from bridge.script.runtimes import runtime_table as runtimes
from tests.pod_specs import EMPTY, mount, spec_of, volumes
from tests.unit.script.pods import SITE, UID

RUNTIMES = ("apptainer", "enroot", "podman", "charliecloud", "none")
PIECES = (
    "$(touch CANARY)", "`touch CANARY`", "'; touch CANARY; '", '"; touch CANARY; "', "\ntouch CANARY\n",
    "PODBRIDGE_END\ntouch CANARY\n", "${x:=$(touch CANARY)}", "$((a[$(touch CANARY)]))", ") ;; touch CANARY ;; (",
    "\\", "'", '"', "\r", " ", "!!", "~", "*", "-n", "#", "&", "|", "<(touch CANARY)", ">CANARY", "ä", "\u2028",
    "\x1b", "x",
)  # fmt: skip
TEXT = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
SHOW = r"""
show() { printf '%s\0' "$@"; printf '\1\0'; }
add_mount() { show mount "$@"; }
put() { show put "$@"; base64 -d; printf '\0\1\0'; }
keep() { put "$@"; }
runtime_exec() { show exec "$@"; }
probe_http() { show http "$@"; }
probe_https() { show https "$@"; }
probe_tcp() { show tcp "$@"; }
probe_grpc() { show grpc "$@"; }
sleep() { show sleep "$@"; }
mkdir() { show mkdir "$@"; }
declare -A SCRATCH SIZE_LIMIT HOST_PATH HOST_TYPE HOST_FREE PROBE
ADDRESS=192.0.2.7
"""
ASK = r"""
show names "${NAME[@]}" "${DIRECTORY[@]}" "${IMAGES[@]}" "${OPTIONS[@]}" "${MPI_WORDS[@]}" "$IMAGE_ROOT" "$SCRATCH_AREA"
command_of 0; show command "${COMMAND[@]}"
variables_of 0; show variables "${VARIABLES[@]}"
write_volumes
for volume in "${!HOST_PATH[@]}"; do show host "$volume" "${HOST_PATH[$volume]}" "${HOST_TYPE[$volume]}"; done
mounts_of 0
for f in probe_0_startup probe_0_liveness probe_0_readiness post_start_0 pre_stop_0; do
    declare -F "$f" >/dev/null && "$f"
done
"""


def pod(text, image, path):
    """A pod with the text in every field that takes one."""
    variable = {"name": "V", "value": text}
    return {
        "metadata": {
            "name": text,
            "namespace": text,
            "uid": UID,
            "labels": {"l": text, text: "v"},
            "annotations": {"slurm-job.vk.io/image-root": text, "slurm-job.vk.io/pre-exec": text, "other/x": text},
        },
        "spec": spec_of(
            {
                "name": "main",
                "image": image,
                "command": ["run", text],
                "args": [text, "$(V)", "$(IP)" + text],
                "workingDir": text,
                "env": [
                    variable,
                    {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                    {"name": "L", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['l']"}}},
                    {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['other/x']"}}},
                    {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    {"name": text, "value": text},
                ],
                "envFrom": [{"configMapRef": {"name": "c"}, "prefix": text}],
                "volumeMounts": [mount("e", "/e/" + path, path), mount("e", "/e2", subPathExpr=path)],
                "startupProbe": {"exec": {"command": [text]}},
                "livenessProbe": {"httpGet": {"port": 80, "path": text, "host": text}},
                "readinessProbe": {"grpc": {"port": 80, "service": text}},
                "lifecycle": {
                    "postStart": {"exec": {"command": [text, text]}},
                    "preStop": {
                        "httpGet": {"scheme": "HTTPS", "port": 80, "httpHeaders": [{"name": "X-Test", "value": text}]}
                    },
                },
            },
            restartPolicy="Never",
            serviceAccountName=text,
            **volumes(
                c={"configMap": {"name": "c"}},
                s={"secret": {"secretName": "s", "items": [{"key": "k", "path": path}]}},
                e=EMPTY,
                h={"hostPath": {"path": "/data/" + path}},
                d={"downwardAPI": {"items": [{"path": path, "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            ),
        ),
    }


def objects(text, key):
    return Objects(
        configmaps={"c": {"data": {key: text}}},
        secrets={"s": {"data": {"k": base64.b64encode(text.encode()).decode()}}},
    )


def outcome(plan, folder):
    """Run the data part; give what it printed, list by list, and its errors."""
    runtime = runtimes.of(plan.config)
    body = render.script(plan)
    start = body.index(library.text(runtime.library)) + len(library.text(runtime.library))
    data = body[start : body.rindex("LC_ALL=C")]
    done = subprocess.run(
        ["bash", "--norc", "--noprofile"],
        input=(SHOW + data + ASK).encode(),
        capture_output=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        timeout=20,
        check=False,
    )
    lists = [part.split(b"\0")[:-1] for part in done.stdout.split(b"\1\0")]
    return [[item.decode() for item in each] for each in lists if each], done.stderr


def told(plan):
    """What must come out, from the plan itself."""
    container = plan.containers[0]

    def final(text):
        return text.replace(ADDRESS, "192.0.2.7")

    yield ["command", *map(final, (*container.command, *container.args))]
    yield ["variables", *(final(text) for pair in container.environment.items() for text in pair)]
    for each in container.mounts:
        words = ["mount", each.kind, each.volume, each.sub_path, "ro" if each.read_only else "rw", each.path]
        yield [*words, "shared"] if each.shared else words
    for name, host in plan.volumes.host.items():
        yield ["host", name, host.path, host.type]
    for file in plan.volumes.files:
        yield ["put", file.path, f"{file.mode:o}"]
        yield [file.data.decode()]
    for action in (*(probe.action for probe in container.probes), container.post_start, container.pre_stop):
        yield [action.how, *(["0"] if action.how == "exec" else []), *map(final, action.words)]


def fields(pod):
    """Every path to a text of the pod, for leaving out what is refused."""
    spec = pod["spec"]
    container = spec["containers"][0]
    yield lambda: container["livenessProbe"]["httpGet"].pop("host", None)
    yield lambda: container["livenessProbe"]["httpGet"].pop("path", None)
    yield lambda: container["lifecycle"]["preStop"]["httpGet"].pop("httpHeaders", None)
    yield lambda: container["volumeMounts"].clear()
    yield lambda: spec["volumes"][1]["secret"].pop("items", None)
    yield lambda: spec["volumes"].pop(4)
    yield lambda: spec["volumes"].pop(3)
    yield lambda: container.update(image="busybox")
    yield lambda: container["envFrom"][0].pop("prefix")
    yield lambda: container["env"].pop()
    yield lambda: container.pop("envFrom")
    yield lambda: pod["metadata"]["annotations"].pop("slurm-job.vk.io/image-root")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=TEXT, image=TEXT, path=TEXT, key=TEXT, runtime=st.sampled_from(RUNTIMES))
@example("$(touch CANARY)", "x", "p", "a.b", "podman")
@example("$(touch CANARY)", "x", "a'b$c", "k", "apptainer")
@example("PODBRIDGE_END\ntouch CANARY", "`touch CANARY`", "$(touch CANARY)", "it's", "none")
def test_nothing_but_data_comes_out(tmp_path, text, image, path, key, runtime):
    wanted = pod(text, image, path)
    settings_ = BuildConfig.model_validate({**SITE, "runtime": {"kind": runtime}, "header": "", "footer": ""})
    key = "k" if any(ord(letter) < 32 or letter == "/" for letter in key) else key
    for leave_out in (lambda: None, *fields(wanted)):
        leave_out()
        try:
            plan = make(wanted, settings_, objects(text, key), "node")
        except ScriptError:
            continue
        break
    else:
        raise AssertionError("every field was refused")
    lists, errors = outcome(plan, tmp_path)
    for expected in told(plan):
        assert expected in lists
    # pre-exec is run by before_all alone, which nobody called
    assert [each for each in lists if each[0] == "put" and each[1] == "pre-exec"] == []
    assert errors == b""
    assert list(Path(tmp_path).iterdir()) == []


@given(st.text().filter(lambda text: "\x00" not in text))
@settings(max_examples=40, deadline=None)
def test_words_come_back(text):
    try:
        clean(text, "x")
    except ScriptError:
        return
    done = subprocess.run(
        ["bash", "-c", f"printf %s {word(text)}"], capture_output=True, check=True, env={"LC_ALL": "C"}
    )
    assert done.stdout == text.encode()


@pytest.mark.parametrize("text", ["a\x00b", ADDRESS, "\ud800"])
def test_what_can_not_be_told_is_refused(text):
    wanted = pod("fine", "busybox", "p")
    for change in (
        lambda c: c.update(command=[text]),
        lambda c: c.update(args=[text]),
        lambda c: c["env"][0].update(value=text),
        lambda c: c.update(workingDir=text),
        lambda c: c["startupProbe"]["exec"].update(command=[text]),
        lambda c: c["volumeMounts"][0].update(mountPath="/" + text),
        lambda c: c["volumeMounts"][0].update(subPath=text),
    ):
        fresh = pod("fine", "busybox", "p")
        change(fresh["spec"]["containers"][0])
        with pytest.raises(BridgeError):
            make(fresh, BuildConfig.model_validate(SITE), objects("x", "k"), "node")
    make(wanted, BuildConfig.model_validate(SITE), objects("x", "k"), "node")


@pytest.mark.parametrize("image", ["-x", "--privileged", "a b", "a;b", "$(x)", "", "a\nb", "/a/../b", "docker://../x"])
@pytest.mark.parametrize("runtime", RUNTIMES[:-1])
def test_images_that_are_none(image, runtime):
    wanted = pod("fine", image, "p")
    settings_ = BuildConfig.model_validate({**SITE, "runtime": {"kind": runtime}})
    with pytest.raises(ScriptError, match=r"spec\.containers\[0\]\.image"):
        make(wanted, settings_, objects("x", "k"), "node")
