"""No field of a pod adds, widens or redirects a mount, an option or a variable on the command line of a runtime.

The functions of the library that build a command line run on the data of random pods. The file systems and programs
that they use are left out; a reference parser of the runtime reads the command line. By hand, for more pods::

    PYTHONPATH=. python -m tests.unit.script.test_command_lines 100000 SEED --processes 2
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import itertools
import math
import multiprocessing
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import BridgeError, ScriptError
from bridge.script import library, render
from bridge.script.buildconfig import BuildConfig
from bridge.script.plan import make
from bridge.script.plan_types import Container, Plan
from bridge.script.quoting import ADDRESS
from bridge.script.runtimes import runtime_images
from bridge.script.runtimes import runtime_table as runtimes
from tests.examples import examples
from tests.unit.script import hostile_pods, runtime_syntax
from tests.unit.script.pods import KINDS, OBJECTS, SITE

IP = "192.0.2.7"
LEFT_OUT = {
    # what waits beside the container, and a process that ends at once
    '(become "run/$name.env" "${SETTER[@]}" "$RUNTIME" create': (
        "podman",
        '{ become "run/$name.env" "${SETTER[@]}" "$RUNTIME" create',
    ),
    '"${COMMAND[@]}") >/dev/null': ("podman", '"${COMMAND[@]}"; } >/dev/null'),
    '(tell_when_in "$name" "$BASHPID" "$i" &)': ("podman", ":"),
    '(tell_when_in "$name" "${PID[i]}" "$i" &)': ("charliecloud", ":"),
    'variables_of "$1"\nfor name in $(compgen -e)': (
        "",
        'variables_of "$1"\nfor name in LC_ALL PATH CUDA_VISIBLE_DEVICES',
    ),
}
"""Processes that change no command line, and what replaces them: without them a pod takes half of the time."""
MAPS = ("SCRATCH", "SIZE_LIMIT", "HOST_PATH", "HOST_TYPE", "HOST_FREE", "PROBE")
NOT_IN_EACH_POD = ("SCRATCH_HELD", "WORKDIR_BELOW", "HOST_AREAS", "FUSE_MODE", "FUSE_WAIT", "GRANT_WAIT", "FLUSH_LATER")
"""Variables of one pod that another may not have: one process runs the library for all pods of a batch."""
SHOW = r"""
exec 4>told
show() { printf '%s\0' "$@" $'\1' >&4; }
exec() { show command "$@"; }
become() { show command "${@:2}"; }
cannot() { show cannot "$@"; exit; }
cannot_now() { cannot "$@"; }
find_setter() { SETTER=(setter); }
has_shell() { IMAGE_SHELL=(/bin/sh); }
fetch() { IMAGE=${IMAGE#docker://}; }
mounts_or_cannot() { mounts_of "$1"; }
for f in link_mounts hold_mounts hold_or_cannot make_directory place_for_file place_for_folder copy_image \
    read_only_mount go without_host_variables podman enroot ch-convert mkdir rm mount readlink umask cat; do
    eval "$f() { :; }"
done
into_namespace() { inside "$@"; }
ADDRESS=192.0.2.7 OWN_UID=1 OWN_GID=1 PODBRIDGE_ADDRESS=192.0.2.7
of_container() {
    local i=$1 name=${NAME[$1]} OPTIONS=("${OPTIONS[@]}") files=(env env.more foreign.env) file lines
    show container "$i"
    image_of "$i" || [[ $IMAGE == /images/* ]] || { show cannot image; return; }
    : >"run/$name.foreign.env"
    case $RUNTIME_KIND in
    apptainer)
        files=(env foreign.env) BEFORE=(setsid)
        mounts_of "$i"
        launch "$i" start
        # a command beside the container; one pod of four is enough
        if ((i == 0 && number % 4 == 0)); then
            (
                exec() { show command "$@"; exit; }
                BEFORE=()
                launch "$i" exec probe --bind /:/x
            )
        fi
        ;;
    enroot)
        files=(rc foreign.env) BEFORE=(setsid)
        mounts_of "$i"
        launch "$i"
        ;;
    podman) runtime_start "$i" ;;
    charliecloud)
        write_lines "$i" "run/$name.env" "'"
        write_foreign "$name"
        inside "$i"
        ;;
    esac
    for file in "${files[@]}"; do
        mapfile -d '' -t lines <"run/$name.$file"
        show file "$file" "${lines[@]}"
    done
}
number=0
for data in data.*; do
    show pod "$data"
    forget
    . ./"$data"
    for i in "${!NAME[@]}"; do of_container "$i"; done
    ((number += 1))
done
"""


PROBE = ["probe", "--bind", "/:/x"]


def planned(runtime: str, pods: hostile_pods.Pods) -> Plan | str:
    """Return the plan of a random pod, or why the hub refuses it."""
    config = BuildConfig.model_validate(hostile_pods.site(runtime, pods.rng))
    pod, objects = pods.pod()
    try:
        return make(pod, config, objects, "node")
    except BridgeError as error:
        return str(error)


def data_part(plan: Plan) -> str:
    driver = runtimes.of(plan.config)
    parts = library.split(render.script(plan), library.digest(driver.library))
    assert parts
    return parts[1][: parts[1].rindex("LC_ALL=C")]


@functools.cache
def commands_of(runtime: str) -> str:
    """Return the library without :data:`LEFT_OUT`, and with what shows the command lines."""
    text = library.text(runtime)
    for old, (kind, new) in LEFT_OUT.items():
        if kind in ("", runtime):
            assert text.count(old) == 1, old
            text = text.replace(old, new)
    forget = f"{' '.join(f'{name}=()' for name in MAPS)}; unset -v {' '.join(NOT_IN_EACH_POD)}"
    return f"{text}RUNTIME_KIND={runtime}\nforget() {{ {forget}; }}\n{SHOW}"


def told(runtime: str, plans: list[Plan], folder: Path) -> list[list[list[list[str]]]]:
    """Return, for each plan and each of its containers, the records that the library wrote."""
    (folder / "run" / "fuse").mkdir(parents=True)
    (folder / "run" / "fuse" / "f").touch()
    for index, plan in enumerate(plans):
        (folder / f"data.{index:06}").write_text(data_part(plan))
    (folder / "script").write_text(commands_of(runtime))
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "script"], cwd=folder, capture_output=True, check=False,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
    )  # fmt: skip
    assert done.returncode == 0 and not done.stderr, done.stderr.decode()[-3000:]
    found: list[list[list[list[str]]]] = []
    for part in (folder / "told").read_bytes().decode().split("\1\0")[:-1]:
        record = part.split("\0")[:-1]
        if record[0] == "pod":
            found.append([])
        elif record[0] == "container":
            found[-1].append([])
        else:
            found[-1][-1].append(record)
    return found


def final(text: str) -> str:
    return text.replace(ADDRESS, IP)


def check_mounts(
    runtime: str, container: Container, plan: Plan, found: list[tuple[str, str, str]], folder: Path
) -> None:
    """Compare the mounts of a command line with those of the pod: their number, places, access and sources."""
    expected, fused = [], []
    for mount in container.mounts:
        if mount.kind == "fuse" and runtimes.of(plan.config).fuse_mode(plan.config):
            fused.append(mount)
        elif (
            runtime != "charliecloud"
            or mount.path == "/dev/shm"
            or not mount.path.startswith(("/dev/", "/proc/", "/sys/"))
        ):
            expected.append(mount)
    own = re.compile(rf"{re.escape(str(folder))}/(volumes|scratch|fuse|run)/([a-z0-9][a-z0-9.-]*)")
    rest = [each for each in found if each[2] != "fuse"]
    programs = [each for each in found if each[2] == "fuse"]
    for mount in expected:
        source, place, access = rest.pop(0)
        match = own.fullmatch(source)
        assert match, source
        if match.group(1) == "run":
            assert re.fullmatch(rf"{container.name}\.(held\.\d+|ro\.\d+|message)", match.group(2)), source
        else:
            assert match.group(2) == mount.volume and not mount.sub_path
        linked = runtime == "apptainer" and re.fullmatch(r"/\.podbridge/\d+", place) and mount.path.startswith("/dev/")
        assert place == mount.path or linked, (place, mount)
        assert access == ("ro" if mount.read_only else "rw"), (access, mount)
    for mount in fused:
        if programs[0][0].startswith("container:"):
            source, place, access = rest.pop(0)
            assert (place, access) == (f"/.podbridge/{Path(source).name}", "ro")
        program, place, _ = programs.pop(0)
        assert place == mount.path
        assert re.fullmatch(rf"host:/bin/bash {folder}/run/fuse/\S+|container:/bin/sh /\.podbridge/\S+", program), (
            program
        )
    assert programs == []
    if runtime == "apptainer":
        places = {mount.path for mount in expected}
        private = [place for place in ("/tmp", "/var/tmp") if place not in places]
        assert rest == [(f"{folder}/work/{container.name}{place}", place, "rw") for place in private]
    else:
        assert rest == []


DEVICES = "CUDA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES"
RESERVED = "UID|EUID|GID|PPID|GROUPS|SHELLOPTS|BASH(?!_ENV$)[A-Za-z0-9_]*|PWD|OLDPWD|SHLVL|IFS|_"
"""Names that shells keep for themselves."""


def check_variables(runtime: str, container: Container, files: dict[str, list[str]], handed: list[str]) -> None:
    """Compare what reaches the container with the variables of the pod."""
    got = runtime_syntax.foreign(filter(None, files.get("foreign.env", [])))
    text = "".join(files["rc" if runtime == "enroot" else "env"])
    if runtime in ("apptainer", "enroot"):
        if runtime == "enroot":
            text = re.sub(r"(cd -- \S.* \|\| exit 128\n)?(exec \"\$@\"|\. /etc/rc)\n\Z", "", text)
        got |= runtime_syntax.exports(text)
    else:
        got |= runtime_syntax.lines(text, "'" if runtime == "charliecloud" else "")
        got |= runtime_syntax.exports("".join(files["env.more"]))
    dropped = re.compile(f"{DEVICES}|{RESERVED}" if runtime in ("apptainer", "enroot") else DEVICES)
    expected = {name: final(value) for name, value in container.environment.items() if not dropped.fullmatch(name)}
    assert {name: value for name, value in got.items() if not dropped.fullmatch(name)} == expected
    assert set(handed) <= set(expected) and not [name for name in handed if name.endswith("*")]


def check(runtime: str, plan: Plan, index: int, records: list[list[str]], folder: Path) -> None:
    container = plan.containers[index]
    files = {record[1]: record[2:] for record in records if record[0] == "file"}
    commands = [record[1:] for record in records if record[0] == "command"]
    (prefix, own) = runtime_images.accept_image(
        container, "", plan.config, plan.annotations.image_root, runtimes.of(plan.config).schemes
    )
    assert prefix and own is not None
    # neither an option nor, after a scheme, a path of the machine
    assert re.match(r"([a-z]+://)?[A-Za-z0-9]|/images", prefix), prefix
    handed: list[str] = []
    probes = [words for words in commands if words[-3:] == PROBE]
    assert len(commands) - len(probes) == (2 if runtime == "podman" else 1)
    assert len(probes) <= (runtime == "apptainer" and index == 0)
    for words in commands:
        program = {"charliecloud": "ch-run"}.get(runtime, runtime)
        at = next(number for number, word in enumerate(words) if word == program)
        assert set(words[:at]) <= {"setsid", "setter", f"run/{container.name}.foreign.env"} or runtime != "enroot"
        words = words[at + 1 :]
        if words[:2] == ["start", "--attach"]:
            assert words[2].endswith(f"-{container.name}") and len(words) == 3
            continue
        if runtime == "apptainer" and words[0] == "--silent":
            del words[0]
        verb = [] if runtime == "charliecloud" else [words.pop(0)]
        assert verb in ([], ["exec"], ["run"], ["create"], ["start"])
        command = runtime_syntax.PARSERS[runtime](words)
        check_mounts(runtime, container, plan, command.mounts, folder)
        image, *rest = command.words
        if runtime in ("apptainer", "podman"):
            assert image in (prefix, prefix.removeprefix("docker://")), (image, prefix)
        elif runtime == "enroot":
            assert image == container.name
        else:
            assert image == f"run/{container.name}.image" and rest.pop(0) == "--"
        directory = {"apptainer": "pwd", "podman": "workdir", "charliecloud": "cd"}.get(runtime)
        if directory:
            usual = ["/"] if runtime == "apptainer" else []
            assert command.values(directory) == ([container.directory] if container.directory else usual)
        wanted = [final(word) for word in (*container.command, *container.args)]
        if runtime == "podman":
            assert [*command.values("entrypoint"), *rest] == wanted
            handed += command.values("env")
        elif rest != PROBE:
            assert rest[len(rest) - len(wanted) :] == wanted
            if len(rest) > len(wanted):
                assert runtime == "apptainer" and rest[0] == "/bin/sh"
        check_options(runtime, command, container, folder)
    check_variables(runtime, container, files, handed)


OPTIONS = {
    "apptainer": {"bind", "fusemount", "pwd", "env-file", "home"},
    "podman": {"name", "pull", "network", "init", "log-driver", "env-file", "cap-drop", "security-opt", "env", "volume",
               "workdir", "user", "entrypoint", "read-only-tmpfs"},
    "enroot": {"mount", "env", "rc"},
    "charliecloud": {"unset-env", "uid", "gid", "set-env", "cd", "bind"},
}  # fmt: skip


def check_options(runtime: str, command: runtime_syntax.Command, container: Container, folder: Path) -> None:
    for option, value in command.options:
        if value is None:
            continue
        assert option in OPTIONS[runtime], option
        if option in ("uid", "gid", "user"):
            assert re.fullmatch(r"[0-9]+(:[0-9]+)?", value), value
        elif option in ("env-file", "set-env", "rc"):
            assert re.fullmatch(rf"run/{container.name}\.(env|rc|image/ch/environment)", value), value
        elif option == "env" and runtime == "enroot":
            assert value == "NVIDIA_VISIBLE_DEVICES=void"
        elif option == "home":
            own = final(container.environment["HOME"])
            assert (
                value.split(":") == [f"{folder}/work/{container.name}/home", own]
                and ("no-home", None) in command.options
            ), value
        elif option == "name":
            assert value.endswith(f"-{container.name}")
    assert (("root", None) in command.options) == (runtime == "enroot" and container.run_as.startswith("0:"))


def run(runtime: str, count: int, seed: int, folder: Path) -> Counter[str]:
    """Check random pods of one seed; return how many were sent, and how many were refused."""
    pods = hostile_pods.Pods(seed, runtime)
    made = [planned(runtime, pods) for _ in range(count)]
    plans = [plan for plan in made if isinstance(plan, Plan)]
    return check_all(runtime, plans, folder, f"{runtime}, seed {seed}") + Counter(refused=count - len(plans))


def check_all(runtime: str, plans: list[Plan], folder: Path, what: str) -> Counter[str]:
    found = told(runtime, plans, folder)
    assert len(found) == len(plans)
    results: Counter[str] = Counter(pods=len(plans))
    for number, (plan, containers) in enumerate(zip(plans, found, strict=True)):
        assert len(containers) == len(plan.containers)
        for index, records in enumerate(containers):
            failed = next((record for record in records if record[0] == "cannot"), None)
            results["cannot" if failed else "containers"] += 1
            if failed is None:
                try:
                    check(runtime, plan, index, records, folder)
                except Exception as error:
                    where = f"{what}, pod {number}, container {index}"
                    raise AssertionError(
                        f"{where}: {str(plan.containers[index])[:2000]}\n{str(records)[:2000]}"
                    ) from error
    return results


PARTS = ["'", '"', "\\", "\\'", "'\"'\"'", "'a b'", "''", "$x", "`", ";", " ", "\n", "#", "a", "export "]


@settings(max_examples=examples(60, 500), deadline=None, derandomize=True)
@given(st.lists(st.lists(st.sampled_from(PARTS), max_size=4).map("".join), max_size=3))
def test_text_that_is_read_as_exports_means_the_same_to_a_shell(values):
    """By :mod:`shlex`, which reads more texts as words."""
    text = "".join(f"export V{number}={value}\n" for number, value in enumerate(values))
    try:
        found = runtime_syntax.exports(text)
    except AssertionError:
        return
    words = shlex.split(text)
    assert words[::2] == ["export"] * len(found)
    assert dict(word.split("=", 1) for word in words[1::2]) == found


@pytest.mark.parametrize("quote", ["'\\''", "'\"'\"'"])
@settings(deadline=None, derandomize=True)
@given(values=st.lists(st.text("ab'\"\\ \n$`;#äé", max_size=12), max_size=4))
def test_exports_of_quoted_values_are_read(quote, values):
    variables = {f"V{number}": value for number, value in enumerate(values)}
    text = "".join(f"export {name}='{quote.join(value.split(chr(39)))}'\n" for name, value in variables.items())
    assert runtime_syntax.exports(text) == variables


@pytest.mark.parametrize("runtime", hostile_pods.RUNTIMES)
def test_no_pod_of_a_batch_leaves_a_variable_to_the_next_one(runtime):
    config = BuildConfig.model_validate({**SITE, "runtime": {"kind": runtime}})
    assigned = []
    for pod in KINDS.values():
        try:
            plan = make(pod, config, OBJECTS, "node")
        except ScriptError:
            continue
        for waits in (None, 1.0):
            data = data_part(dataclasses.replace(plan, grant_wait=waits))
            assigned.append(set(re.findall(r"^([A-Z_]+)(?:\[.*?\])?=", data, re.MULTILINE)))
    of_some = set.union(*assigned) - set.intersection(*assigned)
    assert {"SCRATCH", "GRANT_WAIT"} <= of_some <= {*MAPS, *NOT_IN_EACH_POD}


@pytest.mark.parametrize("runtime", hostile_pods.RUNTIMES)
def test_no_field_of_a_pod_changes_a_command_line(runtime, tmp_path, long):
    results = run(runtime, 80 if long else 60, 41, tmp_path)
    # a good part of the pods gets as far as a command line
    assert results["pods"] > 15 and results["containers"] > 2 * results["cannot"], results


@pytest.mark.parametrize("runtime", hostile_pods.RUNTIMES)
def test_no_character_that_a_runtime_gives_a_meaning_to_changes_a_command_line(runtime, tmp_path, long):
    """Each such text in as many fields of a pod as the hub accepts it in; in a short run, each with two runtimes."""
    site = {"runtime": {"kind": runtime}, "volumes": {"host_paths": ["/data"], "scratch_in_job_folder": False}}
    config, plans = BuildConfig.model_validate(site), []
    pieces = hostile_pods.PIECES
    for piece in pieces if long else pieces[hostile_pods.RUNTIMES.index(runtime) % 2 :: 2]:
        pod, objects = hostile_pods.ordinary()
        plan = make(pod, config, objects, "node")
        for change in hostile_pods.each_field(piece):
            changed = copy.deepcopy(pod)
            change(changed)
            try:
                plan, pod = make(changed, config, objects, "node"), changed
            except BridgeError:
                continue
        plans.append(plan)
    results = check_all(runtime, plans, tmp_path, "piece")
    assert results["containers"] > 0.9 * len(plans), results


BATCH = 500
MOST_FAILURES = 10


def one_batch(part: tuple[str, int]) -> tuple[Counter[str], str]:
    """Check the pods of one runtime and seed; return the counts, and what failed."""
    runtime, seed = part
    shared = Path("/dev/shm")
    try:
        with tempfile.TemporaryDirectory(prefix="podbridge-fuzz-", dir=shared if shared.is_dir() else None) as name:
            return run(runtime, BATCH, seed, Path(name)), ""
    except Exception as error:
        return Counter(failed=1), f"FAILED: {runtime}, seed {seed}: {error!r}"


def main() -> int:
    """Check pods of all runtimes in several processes, with progress and the total; return the exit status."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__)
    parser.add_argument("count", type=int, help="number of pods")
    parser.add_argument("seed", type=int, help="seed of the first batch of each runtime; each batch has the next one")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="processes to use (%(default)s)")
    options = parser.parse_args()
    batches = math.ceil(options.count / BATCH)
    runtimes_in_turn = itertools.cycle(hostile_pods.RUNTIMES)
    parts = [
        (runtime, options.seed + number // len(hostile_pods.RUNTIMES))
        for number, runtime in zip(range(batches), runtimes_in_turn, strict=False)
    ]
    total: Counter[str] = Counter()
    with multiprocessing.Pool(options.processes) as processes:
        for number, (results, failure) in enumerate(processes.imap(one_batch, parts), 1):
            total += results
            if failure:
                print(failure, flush=True)
            if failure or number % 20 == 0 or number == batches:
                print(f"{number} of {batches} batches: {dict(total)}", flush=True)
            if total["failed"] == MOST_FAILURES:
                break
    generated = total["pods"] + total["refused"]
    print(f"{generated} pods, of which the hub refused {total['refused']}; batches that failed: {total['failed']}")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
