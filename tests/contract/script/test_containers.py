"""Pods in real containers: rootless podman, charliecloud and apptainer, as an ordinary user."""

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from bridge import names
from bridge.errors import ScriptError, SiteRefusedError
from bridge.script.references import Objects
from bridge.site.sessions.command_process import Started
from bridge.site.sessions.connector_process import Connectors
from bridge.site.sessions.port_sessions import program
from bridge.telemetry.metrics import REACH_BYTES
from cluster.ports import free_block
from controllers.forwarded_socket import ForwardedSocket
from controllers.reach.reach_stream import ReachStream
from tests.contract.script.conftest import NOBODY
from tests.contract.script.containers import fixtures
from tests.contract.script.test_ends import processes_below
from tests.contract.script.test_life import REOPENED
from tests.contract.script.test_variables import BEFORE, FOREIGN, NASTY, SHOW, check_foreign
from tests.fakes.process_session import ProcessSession
from tests.pod_specs import DISK, EMPTY, MOUNT, mount, mounts, spec_of, volumes

pytestmark = pytest.mark.real

RUNTIMES = ("podman", "charliecloud", "apptainer")
WAITS = "while :; do sleep 0.1; done"


home, site = fixtures(*RUNTIMES)
with_podman = pytest.mark.parametrize("home", ["podman"], indirect=True)
OBJECTS = Objects(configmaps={"c": {"data": {"key": "hello\n"}}})


def test_a_pod(site):
    """Init container, two containers, volumes of every access, folder, message and exit code."""
    spec = spec_of(
        site.shell(
            "pwd; cat /disk/x /c/key /one/key /sub/id; exec 2>/errors; (echo no >/c/key); (echo no >/one/key);"
            "touch /ro/no; touch /sub/yes; [ -e /sub/yes ] && echo yes; ls /disk/x; pwd;"
            "grep -c 'ead-only file system' /errors",
            workingDir="/disk/sub",
            volumeMounts=[
                *MOUNT["volumeMounts"],
                mount("c", "/c"),
                mount("c", "/one/key", "key"),
                mount("disk", "/sub", "sub"),
                mount("disk", "/ro", readOnly=True),
            ],
        ),
        site.shell("printf gone >/own/message; exit 3", name="other", terminationMessagePath="/own/message"),
        init=[site.shell("echo first >/disk/x; mkdir /disk/sub; id -u >/disk/sub/id", name="init", **MOUNT)],
        **volumes(disk=EMPTY, c={"configMap": {"name": "c"}}),
    )
    job = site.run(spec, objects=OBJECTS)
    lines = job.log().splitlines()
    own = "0" if site.kind == "podman" else str(NOBODY)
    assert lines == [
        "/disk/sub", "first", "hello", "hello", own, "yes", "/disk/x", "/disk/sub", "3",
    ], job.everything()  # fmt: skip
    ends = {name: job.ended(name) for name in ("init", "main", "other")}
    assert {name: (end["exitCode"], end["reason"]) for name, end in ends.items()} == {
        "init": (0, "Completed"),
        "main": (0, "Completed"),
        "other": (3, "Error"),
    }
    assert job.message("other") == "gone" and job.pod()["phase"] == "Failed"
    assert not list((job.folder / "scratch").iterdir()) and not (job.folder / "run" / "main.image").exists()


def test_a_command_enters_the_running_container(site):
    """It has the container's files, variables, processes and user, and is no other container."""
    variables = [{"name": "WORD", "value": "it's\nthis"}, {"name": "a.b", "value": "dotted"}]
    job = site.job(spec_of(site.shell(f"echo here >/of-the-container; {WAITS}", env=variables))).start()
    job.eventually(lambda: job.state("main").get("state") == "running")
    job.eventually(lambda: job.enter("cat", "/of-the-container").stdout == "here\n")
    done = job.enter("sh", "-c", 'printf "%s|" "$WORD"; id -u; pwd; echo err >&2; exit 7')
    user = "0" if site.kind == "podman" else str(NOBODY)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"it's\nthis|{user}\n/\n", "err\n")
    assert "a.b=dotted\n" in job.enter("env").stdout
    assert job.enter("no-such-program").returncode in ((1,) if site.kind == "charliecloud" else (126, 127))
    assert job.enter("true", container="other").returncode == 126
    job.ask_to_stop(0)
    job.wait()


def test_a_client_is_attached_to_a_container(site):
    text = "[ -t 0 ] && echo terminal $TERM; cat; echo over"
    spec = spec_of(
        site.shell(text, stdin=True, stdinOnce=True),
        site.shell(f"{text}; exit 3", name="with-tty", stdin=True, tty=True),
    )
    job = site.job(spec).start()
    for name in ("main", "with-tty"):
        job.eventually(lambda name=name: job.state(name).get("state") == "running")
    client = job.beside("console", "main", "", "", "1")
    assert client.communicate(b"hello\n", timeout=30) == (b"hello\nover\n", b"")
    client = job.beside("console", "with-tty", "", "", "1")
    client.stdin.write(b"hello\n")
    seen = b""
    while seen.count(b"hello\r\n") < 2:  # the echo, and what cat writes
        seen += client.stdout.read(100)
    client.stdin.write(b"\x04")
    assert client.communicate(timeout=30)[0].endswith(b"over\r\n")
    job.wait()
    assert job.ended("with-tty")["exitCode"] == 3
    assert job.log("with-tty").splitlines()[0] == "terminal xterm", job.everything()


@with_podman
def test_a_port_in_the_network_of_a_container_is_reached(site):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        spec = spec_of(site.shell(f"cd /etc; exec httpd -f -p 127.0.0.1:{port}"))
        job = site.job(spec, config={"runtime": {"kind": "podman", "network": "none"}}).start()
        job.eventually(lambda: job.state("main").get("state") == "running")

        def start():
            process = job.beside("connector", program(), "alone", "")
            os.set_blocking(process.stdin.fileno(), False)
            return Started(process, process.stdin, {process.stdout: 1, process.stderr: 2})

        connectors = Connectors()

        def page():
            connection = connectors.open("job", start, lambda: not job.state("main"), port)
            connection.send(b"GET /passwd HTTP/1.0\r\n\r\n")
            return b"".join(iter(connection.receive, b""))

        def is_served():
            with contextlib.suppress(SiteRefusedError):
                return b"root:x:0:0" in page()

        job.eventually(is_served)
        server.settimeout(0.1)
        with pytest.raises(TimeoutError):  # the same port of the machine
            server.accept()
    job.ask_to_stop(0)
    job.wait()


def test_a_container_reaches_a_service_by_its_name(site):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = free_block(1)
        spec = spec_of(site.shell(f"wget -q -O - http://web.team.svc:{port}/x; sleep 100"))
        config = {"limits": {"allow_reach": True}}
        job = site.job(spec, config=config, annotations={names.REACH: f"web.team:{port}:80"}).start()
        job.eventually(lambda: job.state("main").get("state") == "running")
        accepted = []
        stream = ReachStream(ProcessSession(job.beside("reach")), lambda *found: accepted.append(found))
        threading.Thread(target=stream.run, daemon=True).start()
        job.eventually(lambda: accepted)
        text, connection = accepted[0]
        assert text == "web.team:80"
        with socket.create_connection(server.getsockname()) as sock:
            forward = ForwardedSocket(sock, REACH_BYTES).forward
            forwarding = threading.Thread(target=forward, args=(connection,), daemon=True)
            forwarding.start()
            with server.accept()[0] as peer:
                assert peer.recv(1000).startswith(b"GET /x ")
                peer.sendall(b"HTTP/1.0 200 OK\r\n\r\nhello")
            job.eventually(lambda: job.log("main") == "hello")
            forwarding.join(10)
        stream.close()
    job.ask_to_stop(0)
    job.wait()


def test_a_folder_of_the_site_is_no_image(site):
    """Refused by the hub when named, and by the site when a link in the folder for images leads there."""
    folder = site.own.folder
    for image in ("/", "/home/x", str(folder), "instance://x"):
        with pytest.raises(ScriptError, match=r"spec\.containers\[0\]\.image"):
            site.job({"containers": [site.shell("ls /", image=image)]})
    with pytest.raises(ScriptError, match="image-root"):
        site.job({"containers": [site.shell("ls /", image="home")]}, annotations={"slurm-job.vk.io/image-root": "/"})
    link = folder / "linked"
    link.symlink_to("/")
    try:
        volumes = {"image_dir": str(folder)}
        job = site.run({"containers": [site.shell("ls /", image="linked")]}, config={"volumes": volumes})
        inside = site.run(
            {"containers": [site.shell("echo yes", image=str(folder / "busybox"))]}, config={"volumes": volumes}
        )
    finally:
        link.unlink()
    assert job.ended()["reason"] == "InvalidImageName", job.everything()
    assert job.message() == f"the image {link} leads to /, which is in no folder that this site keeps for images\n"
    assert inside.log() == "yes\n", inside.everything()


@pytest.mark.parametrize("link", ["/run", "../run", "../../run", "/gone/there"])
def test_a_mount_behind_a_link_of_the_image(site, link):
    """In most images /var/run is a link, and each pod has a volume below it: the files of its service account."""
    if site.kind == "podman":
        pytest.skip("its images are in its own store: test_images.py has the same")
    image = site.own.folder / "linked"
    shutil.copytree(site.own.folder / "busybox", image, symlinks=True)
    try:
        (image / "var").mkdir(exist_ok=True)
        (image / "var/run").symlink_to(link)
        folder = "/var/run/secrets/kubernetes.io/serviceaccount"
        place = mount("c", folder)
        text = f"cat {folder}/key; echo no >{folder}/key; [ -e /run/secrets -o -e /gone ] && echo there"
        spec = volumes(c={"configMap": {"name": "c"}})
        job = site.run(
            {"containers": [site.shell(text, image="linked", volumeMounts=[place])], **spec}, objects=OBJECTS
        )
        outside = [Path(place).exists() for place in ("/run/secrets/kubernetes.io", "/gone")]
    finally:
        shutil.rmtree(image)
    assert [line for line in job.log().splitlines() if "ead-only" not in line] == ["hello", "there"], job.everything()
    assert "ead-only file system" in job.log() and not any(outside)


def test_a_program_that_opens_its_output_again_keeps_the_log(site):
    # process 1 of podman's and charliecloud's containers is that of another user, or of the machine
    cases = {name: case for name, case in REOPENED.items() if name != "first" or site.kind == "apptainer"}
    job = site.run({"containers": [site.shell(text, name=name) for name, (text, _) in cases.items()]})
    said = {name: job.log(name).split() for name in cases}
    if site.kind == "podman":  # it has a pipe for the output and one for the errors: which comes first is not said
        said = {name: sorted(words) for name, words in said.items()}
        cases = {name: (text, " ".join(sorted(words.split()))) for name, (text, words) in cases.items()}
    assert said == {name: words.split() for name, (_, words) in cases.items()}, job.everything()


OF_THE_MACHINE = """
[[ ${AGAIN-} ]] || { rm -r started; AGAIN=1 exec env OF.THE.MACHINE=x 1ST=x "$BASH" "${BASH_SOURCE[0]}" "$@"; }
"""
"""A header that starts the script again, with names that no shell can assign in its own environment."""


def test_variables_byte_by_byte(site):
    values = {name: value for name, value in NASTY.items() if len(value) < 50_000}
    env = [{"name": name, "value": value.replace("$", "$$")} for name, value in values.items()]
    env += [{"name": "PATH", "value": "/bin:/usr/bin"}, {"name": "LD_LIBRARY_PATH", "value": "/none"}]
    text = f"env -0; {SHOW.replace('$', '$$')}; :"
    job = site.run({"containers": [site.shell(text, env=env)]}, config={"header": OF_THE_MACHINE})
    got = dict(pair.split("=", 1) for pair in job.log().split("\0") if "=" in pair)
    if site.kind == "apptainer":
        # its own shell drops a carriage return at the end of a line, whichever way a variable comes
        values["CARRIAGE"] = values["CARRIAGE"].replace("\r\n", "\n")
    assert {name: got.get(name) for name in values} == values
    # apptainer adds a folder of its own
    assert got["PATH"] == "/bin:/usr/bin" and got["LD_LIBRARY_PATH"].split(":")[0] == "/none"
    assert not {"PODBRIDGE_ADDRESS", "XDG_RUNTIME_DIR", "OF.THE.MACHINE", "1ST"} & set(got)


def test_names_that_no_shell_assigns(site):
    names = FOREIGN if site.kind == "podman" else FOREIGN | BEFORE
    if site.kind != "apptainer":
        names = names | {"BASH_FUNC_ls%%": "() { :; }", "APPTAINERENV_a.b": "x"}
    environment = {"LANG": "xx", "CLEAN": "no"}
    got = check_foreign(site, names=names, environment=environment, config={"header": OF_THE_MACHINE})
    own = {"PERL_BADLANG", "CLEAN", "TMPDIR", "XDG_RUNTIME_DIR", "SINGULARITY_TMPDIR", "APPTAINER_TMPDIR"}
    assert not {"OF.THE.MACHINE", "1ST", *own} & set(got)
    assert got.get("LANG") != "xx"


@pytest.mark.parametrize("home", ["apptainer"], indirect=True)
@pytest.mark.parametrize(("image", "message"), [("/media", "a.b=x"), ("busybox", "")])
def test_a_termination_message_beside_names_that_no_shell_assigns(site, image, message):
    """A shell of the image makes the place for the message: bash alone hands on such names."""
    text = "tr '\\0' '\\n' </proc/$$$$/environ | grep ^a >/dev/termination-log; :"
    container = site.shell(text, image=image, env=[{"name": "a.b", "value": "x"}])
    job = site.run({"containers": [container]}, config={"volumes": {"image_paths": ["/media"]}})
    assert job.pod()["phase"] == "Succeeded", job.everything()
    assert job.message().strip() == message


def test_working_directory_is_made(site):
    places = ["/disk/new/er"] + (["/made/h ere"] if site.kind != "apptainer" else [])
    containers = [
        site.shell("pwd; touch x && echo yes", name=f"c{index}", workingDir=place, **MOUNT)
        for index, place in enumerate(places)
    ]
    job = site.run({**DISK, "containers": containers})
    for index, place in enumerate(places):
        assert job.log(f"c{index}") == f"{place}\nyes\n", job.everything()


@pytest.mark.parametrize("home", ["charliecloud"], indirect=True)
def test_what_ch_image_says_of_an_image(site):
    """Images from a registry are in test_images.py: ch-image itself is not here."""
    image = site.own.folder / "of-ch-image"
    shutil.copytree(site.own.folder / "busybox", image, symlinks=True)
    (image / "ch").mkdir()
    (image / "work").mkdir()
    (image / "ch" / "metadata.json").write_text(json.dumps({"arch": "amd64", "cwd": "/work", "env": {}}, indent=2))
    (image / "ch" / "environment").write_text("HOME=/work/home\n")
    try:
        show = "pwd; echo $$HOME"
        containers = [
            site.shell(show, image="of-ch-image"),
            site.shell(show, name="own", image="of-ch-image", workingDir="/tmp", env=[{"name": "HOME", "value": "/h"}]),
        ]
        job = site.run({"containers": containers})
    finally:
        shutil.rmtree(image)
    assert (job.log().split(), job.log("own").split()) == (["/work", "/work/home"], ["/tmp", "/h"]), job.everything()


GIVEN = {
    "CUDA_VISIBLE_DEVICES": "1,3",
    "GPU_DEVICE_ORDINAL": "1,3",
    "SLURM_JOB_ID": "17",
    "SLURM_NTASKS": "3",
    "SLURM_JWT": "a token",
    "OTHER": "of the machine",
}


@pytest.mark.parametrize("home", ["charliecloud", "apptainer"], indirect=True)
def test_variables_of_the_batch_system(site):
    """A pod sees the devices that it was given, whatever it writes itself, and no token of Slurm's.

    Here are no devices that podman could be given; ``test_runtimes.py`` has what it is told.
    """
    gpus = {"resources": {"limits": {"nvidia.com/gpu": 2}}}
    env = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1,2,3"}, {"name": "SLURM_NTASKS", "value": "its own"}]
    text = 'echo "$CUDA_VISIBLE_DEVICES $GPU_DEVICE_ORDINAL $SLURM_JOB_ID $SLURM_NTASKS <$SLURM_JWT$OTHER>"'
    config = {"apptainer": {"nvidia_support": "never"}}
    job = site.run({"containers": [site.shell(text, env=env, **gpus)]}, environment=GIVEN, config=config)
    assert job.log() == "1,3 1,3 17 its own <>\n", job.everything()
    without = {name: value for name, value in GIVEN.items() if name != "CUDA_VISIBLE_DEVICES"}
    text = 'echo "<${CUDA_VISIBLE_DEVICES-not set}>"'
    job = site.run({"containers": [site.shell(text, env=env[:1])]}, environment=without)
    assert job.log() == "<>\n", job.everything()


MPIEXEC = """#!/bin/bash
[[ $1 == -np ]] || exit 9
for ((rank = 0; rank < $2; rank++)); do
    PMI_RANK=$rank PMI_SIZE=$2 PMIX_RANK=$rank SLURM_PROCID=$rank "${@:3}" &
done
wait
"""


@pytest.mark.parametrize("home", ["charliecloud", "apptainer"], indirect=True)
def test_each_process_of_mpi_knows_which_it_is(site):
    """With podman, mpi-flags are refused."""
    programs = site.home_for_host_path()
    (programs / "mpiexec").write_text(MPIEXEC)
    (programs / "mpiexec").chmod(0o755)
    count = "$(tr '\\0' '\\n' </proc/$$/environ | grep -c -e '^a[.]b=one$' -e '^a-b=x$')"
    text = f'echo "$PMI_RANK of $PMI_SIZE, $PMIX_RANK, $SLURM_PROCID, $V $SLURM_JWT {count}"'
    env = [{"name": "a.b", "value": "one\ntwo"}, {"name": "a-b", "value": "x"}]
    job = site.run(
        {"containers": [site.shell(text, env=env)]},
        config={
            "limits": {"allow_runtime_options": True},
            "volumes": {"additional_directories_in_path": [str(programs)]},
        },
        annotations={"slurm-job.vk.io/mpi-flags": "true"},
        environment=GIVEN | {"SLURM_PROCID": "0"},
    )
    assert sorted(job.log().splitlines()) == [f"{rank} of 3, {rank}, {rank},   2" for rank in range(3)], (
        job.everything()
    )


SWAPS = """
mkdir /all/d; echo good >/all/d/file; ln -s OUTSIDE /all/l; touch /all/go
while :; do mv /all/d /all/t; mv /all/l /all/d; usleep 9000; mv /all/d /all/l; mv /all/t /all/d; usleep 9000; done
"""
"""A folder and a link out of the volume take turns."""


def test_a_link_that_comes_between_check_and_mount_leads_nowhere(site):
    """One container swaps a folder for a link while eight others get it by its subPath."""
    outside = site.home_for_host_path()
    (outside / "file").write_text("of the site's user\n")
    (outside / "file").chmod(0o666)
    swapping = site.shell(
        SWAPS.replace("OUTSIDE", str(outside)),
        name="swapping",
        restartPolicy="Always",
        startupProbe={"exec": {"command": ["test", "-e", "/all/go"]}, "periodSeconds": 1, "failureThreshold": 30},
        **mounts(("disk", "/all")),
    )
    place = mount("disk", "/sub", "d")
    looking = [
        site.shell("cat /sub/file; echo changed >/sub/file", name=f"c{number}", volumeMounts=[place])
        for number in range(8)
    ]
    spec = {**DISK, "terminationGracePeriodSeconds": 1, "initContainers": [swapping], "containers": looking}
    job = site.run(spec)
    logs = [job.log_if_any(f"c{number}") for number in range(8)]
    assert not [log for log in logs if "site's user" in log], job.everything()
    assert (outside / "file").read_text() == "of the site's user\n"
    ends = [job.ended(f"c{number}") for number in range(8)]
    for log, end in zip(logs, ends, strict=True):
        if end["exitCode"] == 128:
            assert end["reason"] == "CreateContainerConfigError" and "out of the volume" in log
        else:
            # empty: another container was writing; a folder that was missing for a moment was made anew
            assert log in ("", "good\n", "changed\n") or "can't open" in log, job.everything()
    assert not list((job.folder / "run").glob("*.held.*"))


def test_a_sub_path_of_what_others_write(site):
    """A folder, a file, one that is missing, and a link inside of the volume."""
    making = site.shell("mkdir -p /disk/d; echo one >/disk/d/file; ln -s d /disk/l", name="making", **MOUNT)
    mounts = [
        mount("disk", "/d", "d"),
        mount("disk", "/f", "d/file", readOnly=True),
        mount("disk", "/new", "deep/new"),
        mount("disk", "/l", "l"),
    ]
    text = "cat /d/file /f /l/file; touch /d/x /new/y; (echo no >/f) 2>/dev/null || id -u"
    probe = {"exec": {"command": ["test", "-e", "/d/file"]}, "periodSeconds": 1}
    other = site.shell("sleep 2", name="other", **MOUNT)
    job = site.job(
        spec_of(site.shell(f"{text}; sleep 3", volumeMounts=mounts, readinessProbe=probe), other, init=[making], **DISK)
    ).start()
    job.eventually(lambda: job.state("main").get("ready"))
    job.eventually(lambda: (job.folder / "scratch/disk/deep/new/y").exists())
    assert (job.folder / "scratch/disk/d/x").exists()
    assert job.wait() == 0, job.everything()
    assert job.log().splitlines() == ["one", "one", "one", "0" if site.kind == "podman" else str(NOBODY)], (
        job.everything()
    )


@pytest.mark.parametrize("home", ["apptainer"], indirect=True)
def test_a_probe_runs_in_the_container_and_follows_no_link_that_it_makes(site):
    mounts = [*MOUNT["volumeMounts"], mount("disk", "/d", "d")]
    probe = {"exec": {"command": ["test", "-e", "/d/file"]}, "periodSeconds": 1, "failureThreshold": 1}
    text = f"touch /d/file; until [ -e /disk/go ]; do sleep 0.1; done; mv /disk/d /disk/t; ln -s / /disk/d; {WAITS}"
    job = site.job({**DISK, "containers": [site.shell(text, volumeMounts=mounts, readinessProbe=probe)]}).start()
    job.eventually(lambda: job.state("main").get("ready"))
    (job.folder / "scratch/disk/go").touch()
    job.eventually((job.folder / "scratch/disk/d").is_symlink)
    time.sleep(2.5)  # two probes
    assert job.state("main")["ready"], job.everything()
    job.ask_to_stop(1)
    job.wait(20)
    assert job.ended()["reason"] == "Error", job.everything()


def test_files_of_volumes_can_be_read_by_the_user_of_a_container(site):
    mounts = [mount("c", "/c"), mount("p", "/p"), mount("e", "/e")]
    item = {"key": "key", "path": "deep/er/key"}
    context = {"runAsUser": NOBODY if site.kind == "apptainer" else 1000}
    spec = spec_of(
        site.shell("cat /c/key /p/deep/er/key; stat -c %a /c /p/deep /e", securityContext=context, volumeMounts=mounts),
        **volumes(
            c={"configMap": {"name": "c"}},
            p={"projected": {"sources": [{"configMap": {"name": "c", "items": [item]}}]}},
            e={"configMap": {"name": "none", "optional": True}},
        ),
    )
    job = site.run(spec, objects=Objects(configmaps={"c": {"data": {"key": "text\n"}}}))
    assert job.log().split() == ["text", "text", "755", "755", "755"], job.everything()


def test_graceful_end(site):
    text = f"trap 'echo caught; exit 7' TERM; echo ready; {WAITS}"
    job = site.job({"containers": [site.shell(text)]}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    job.ask_to_stop(20)
    assert job.wait(15) == 1 and job.log() == "ready\ncaught\n"
    assert job.ended()["exitCode"] == 7, job.everything()


def test_grace_runs_out(site):
    job = site.job({"containers": [site.shell(f"trap '' TERM; echo ready; {WAITS}")]}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    before = time.monotonic()
    job.ask_to_stop(1)
    job.wait(15)
    assert 0.8 < time.monotonic() - before < 6
    ended = job.ended()
    assert (ended["exitCode"], ended["signal"]) == (137, 9), job.everything()


def test_restart(site):
    text = "[ -e /written ] && exit 9; touch /written; [ -e /disk/x ] && exit 0; touch /disk/x; exit 7"
    job = site.run({**DISK, "restartPolicy": "OnFailure", "containers": [site.shell(text, **MOUNT)]})
    state = job.state("main")
    # a new run begins with the image as it was
    assert (state["ended"]["exitCode"], state["last"]["exitCode"], state["restarts"]) == (0, 7, 1), job.everything()


def test_probes_and_hooks_run_in_the_container(site):
    readiness = {"exec": {"command": ["sh", "-c", '[ "$X" = "it\'s" ] && test -e /tmp/ready']}, "periodSeconds": 1}
    liveness = {"exec": {"command": ["test", "!", "-e", "/tmp/sick"]}, "periodSeconds": 1, "failureThreshold": 1}
    lifecycle = {"postStart": {"exec": {"command": ["touch", "/tmp/ready"]}}}
    text = "trap 'exit 4' TERM; until [ -e /disk/go ]; do sleep 0.1; done; touch /tmp/sick; " + WAITS
    container = site.shell(
        text,
        env=[{"name": "X", "value": "it's"}],
        readinessProbe=readiness,
        livenessProbe=liveness,
        lifecycle=lifecycle,
        **MOUNT,
    )
    job = site.job({**DISK, "containers": [container]}).start()
    job.eventually(lambda: job.state("main").get("ready"))
    (job.folder / "scratch" / "disk" / "go").touch()
    assert job.wait(15) == 1 and job.ended()["exitCode"] == 4, job.everything()


def test_memory_limit(site):
    text = "dd if=/dev/zero bs=200M count=1 2>/dev/null | sleep 1000"
    job = site.run({"containers": [site.shell(text, resources={"limits": {"memory": "64Mi"}})]})
    ended = job.ended()
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled"), job.everything()


def cannot_be_given(site, spec):
    """Try a user that the runtime cannot give, at a site that refuses and at one that ignores it."""
    said = f"runAsUser: 1000 is not allowed; allowed: {NOBODY}, the user of this site"
    refused = site.run({**spec, "restartPolicy": "Always"}).pod()
    assert (refused["phase"], refused["reason"]) == ("Failed", "NotPossibleAtSite")
    assert refused["message"] == f"container main: {said}"
    job = site.run(spec, config={"runtime": {"kind": site.kind, "run_as_user": "ignore"}})
    assert job.pod()["phase"] == "Succeeded" and job.log().split() == [str(NOBODY)] * 2, job.everything()
    events = {each["reason"]: each["message"] for each in job.state("main")["occurrences"]}
    ignored = "; the site ignores it (runtime.run_as_user)"
    assert events == {
        "RunAsUserIgnored": said + ignored,
        "RunAsGroupIgnored": f"runAsGroup: 5 is not allowed; allowed: {NOBODY}, the group of this site{ignored}",
    }


def test_users_of_a_container(site):
    spec = spec_of(
        site.shell(
            "id -u; id -g; mkdir -m 700 /disk/x; touch /disk/x/y",
            securityContext={"runAsUser": 1000, "runAsGroup": 5, "runAsNonRoot": True},
            **MOUNT,
        ),
        **DISK,
    )
    if site.kind == "apptainer":
        cannot_be_given(site, spec)
        return
    job = site.run(spec)
    assert job.log().split() == ["1000", "5"], job.everything()
    assert job.pod()["phase"] == "Succeeded" and not list((job.folder / "scratch").iterdir())


def test_command_that_is_not_there(site):
    job = site.run({"containers": [site.shell("", command=["/no/such/program"])]})
    ended = job.ended()
    # apptainer has a shell of the image run it
    assert (ended["exitCode"], ended["reason"]) == (127, "Error" if site.kind == "apptainer" else "ContainerCannotRun")
    assert "/no/such/program" in (job.log() if site.kind == "apptainer" else job.message())


def test_script_that_ends_where_it_must_not_leaves_no_container(site):
    spec = {"containers": [site.shell("echo ready; exec sleep 12349")]}
    # not `exit`: bash 5.2 itself may crash where a trap does that
    job = site.job(spec, config={"header": "trap 'set -u; unset STAGE' USR1"}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    job.process.send_signal(signal.SIGUSR1)
    assert job.wait(15) == 1 and job.pod()["reason"] == "ScriptError"
    assert processes_below(job, "sleep\x0012349") == []


def test_what_a_killed_script_left_ends(site):
    job = site.job({"containers": [site.shell("echo ready; exec sleep 12350", **MOUNT)], **DISK}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    assert processes_below(job, "sleep\x0012350") != []
    job.process.kill()
    job.wait(5)
    job.eventually(lambda: processes_below(job, "sleep\x0012350") == [], 15)
    job.eventually(lambda: not list((job.folder / "scratch").iterdir()), 15)
    # the guard truncates the script last; bash exits with status 2 if it reads the script meanwhile
    job.eventually(lambda: len((job.folder / "job.sh").read_text().splitlines()) == 2, 15)
    assert job.spawn("leftovers").wait(30) == 0  # by a batch system, too


def test_options_that_the_header_sets_are_not_the_scripts(site):
    job = site.run({"containers": [site.shell("echo fine")]}, config={"header": "set -efuC -o pipefail"})
    assert job.log() == "fine\n" and job.pod()["phase"] == "Succeeded", job.everything()


def test_read_only_root(site):
    text = "touch /written || echo read-only; touch /disk/x && echo fine; echo x >/dev/null"
    spec = {**DISK, "containers": [site.shell(text, securityContext={"readOnlyRootFilesystem": True}, **MOUNT)]}
    if site.kind == "charliecloud":
        with pytest.raises(ScriptError, match="readOnlyRootFilesystem"):
            site.job(spec)
        return
    job = site.run(spec)
    lines = [line for line in job.log().splitlines() if not line.startswith("touch: ")]
    assert lines == ["read-only", "fine"] and job.pod()["phase"] == "Succeeded", job.everything()


@with_podman
@pytest.mark.parametrize("form", ["folder", "docker-archive", "oci-archive"])
@pytest.mark.parametrize("read_only", [False, True])
def test_podman_takes_images_that_are_files_of_the_site(site, form, read_only):
    folder = site.own.folder
    if form != "folder" and not (folder / "home" / form).exists():
        site.own.run("save", "--quiet", "--format", form, "--output", str(folder / "home" / form), "busybox:1")
    image = str(folder / "busybox" if form == "folder" else folder / "home" / form)
    container = site.shell(
        "touch /written; cat /c/key; pwd",
        image=image,
        securityContext={"readOnlyRootFilesystem": read_only},
        **mounts(("c", "/c")),
    )
    spec = {**volumes(c={"configMap": {"name": "c"}}), "containers": [container]}
    job = site.run(spec, objects=OBJECTS, config={"volumes": {"image_paths": [str(folder)]}})
    assert job.pod()["phase"] == "Succeeded", job.everything()
    # which of output and errors comes first is not said
    assert {"hello", "/"} <= set(job.log().splitlines()) and ("ead-only" in job.log()) is read_only
    assert not (folder / "busybox" / "written").exists() and not (folder / "busybox" / "c").exists()
    assert not list((job.folder / "run").glob("*.image"))


@with_podman
def test_podman_does_not_run_the_images_root_where_the_pod_forbids_it(site):
    job = site.run({"containers": [site.shell("id", securityContext={"runAsNonRoot": True})]})
    assert (
        job.ended()["reason"] == "CreateContainerConfigError" and "the user of the container is root" in job.message()
    )


@with_podman
def test_podman_without_subordinate_ids(site):
    ids = site.own.folder / "subids"
    before = ids.read_text()
    ids.write_text("")
    try:
        job = site.run({"containers": [site.shell("id -u")]})
        assert job.log().splitlines()[-1] == "0" and job.pod()["phase"] == "Succeeded", job.everything()
        job = site.run({"containers": [site.shell("id -u", securityContext={"runAsUser": 1000})]})
        assert job.pod()["reason"] == "NotPossibleAtSite", job.everything()
        assert "runAsUser: 1000 is not allowed; allowed: 0 to 0" in job.pod()["message"]
    finally:
        ids.write_text(before)


@pytest.mark.parametrize("separator", [",", ":", "^", " "])
def test_a_path_that_a_runtime_takes_apart_is_one_mount(site, separator):
    """A subPath was a second bind of apptainer, which the container could write to; others split at ":"."""
    home = site.home_for_host_path()
    (home / "secret").write_text("of the site's user\n")
    os.chown(home / "secret", NOBODY, NOBODY)
    part = f"a{separator}{home}"
    making = site.shell(f"mkdir -p '/all/{part}'; echo mine >'/all/{part}/x'; touch '/all/{part}.go'", name="making")
    mounted = [
        mount("disk", "/m", part),
        mount("disk", "/e", subPathExpr="$(PART)"),
        mount("c", "/c", f"it{separator}{home}/em"),
        mount("h", "/h"),
    ]
    allowed = site.home_for_host_path()
    item = {"key": "key", "path": f"it{separator}{home}/em"}
    spec = spec_of(
        site.shell(
            f"cat /m/x /e/x /c; ls -A /h; ls {home}; cat {home}/secret; echo no >>{home}/secret",
            env=[{"name": "PART", "value": part}],
            volumeMounts=mounted,
        ),
        init=[making | mounts(("disk", "/all"))],
        volumes=[
            *DISK["volumes"],
            {"name": "c", "configMap": {"name": "c", "items": [item]}},
            {"name": "h", "hostPath": {"path": f"{allowed}/{part}", "type": "DirectoryOrCreate"}},
        ],
    )
    job = site.run(spec, objects=OBJECTS, config={"volumes": {"host_paths": [str(allowed)]}})
    assert job.log().startswith("mine\nmine\nhello\n"), job.everything()
    assert "site's user" not in job.log() and "secret\n" not in job.log().replace(f"{home}/secret", "")
    assert (home / "secret").read_text() == "of the site's user\n" and (allowed / part).is_dir()
    with pytest.raises(ScriptError, match="mountPath"):
        place = mount("disk", f"/x{separator}{home}{separator}")
        site.job({**DISK, "containers": [site.shell("true", volumeMounts=[place])]})


def test_a_host_path_that_an_init_container_replaces_leads_nowhere(site):
    allowed, outside = site.home_for_host_path(), site.home_for_host_path()
    (outside / "x").write_text("of the site's user\n")
    for name in ("set", "stays"):
        (allowed / name).mkdir()
        (allowed / name / "x").write_text("of the pod\n")
        os.chown(allowed / name, NOBODY, NOBODY)
    paths = {"all": allowed, "v": allowed / "set", "w": allowed / "stays"}
    text = f"mv /all/set /all/moved; ln -s {outside} /all/set"
    spec = spec_of(
        site.shell("cat /v/x", **mounts(("v", "/v"))),
        site.shell("cat /w/x; id -u", name="other", **mounts(("w", "/w"))),
        init=[site.shell(text, name="init", **mounts(("all", "/all")))],
        volumes=[{"name": name, "hostPath": {"path": str(path)}} for name, path in paths.items()],
    )
    job = site.run(spec, config={"volumes": {"host_paths": [str(allowed)]}})
    ended = job.ended()
    assert (ended["exitCode"], ended["reason"]) == (128, "CreateContainerConfigError"), job.everything()
    assert "site's user" not in job.log()
    assert job.log("other").split("\n")[:2] == ["of the pod", "0" if site.kind == "podman" else str(NOBODY)], (
        job.everything()
    )


def test_shared_memory(site):
    """Each pod of PyTorch or Ray has such a volume (apptainer/apptainer#3001, galaxyproject/galaxy#20395)."""
    mount = mounts(("shm", "/dev/shm"))
    spec = spec_of(
        site.shell("stat -f -c %T /dev/shm; cat /dev/shm/seed; echo data >/dev/shm/data; sleep 60", **mount),
        site.shell(
            "until [ -s /dev/shm/data ]; do sleep 0.1; done; cat /dev/shm/data;head -c 20000000 /dev/zero >/dev/shm/x",
            name="reader",
            **mount,
        ),
        init=[site.shell("echo seed >/dev/shm/seed", name="seed", **mount)],
        **volumes(shm={"emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}),
    )
    job = site.run(spec, timeout=40)
    assert job.log().split()[:2] == ["tmpfs", "seed"] and job.log("reader") == "data\n", job.everything()
    assert (job.pod()["phase"], job.pod()["reason"]) == ("Failed", "Evicted"), job.everything()


@pytest.mark.parametrize("home", ["apptainer", "podman"], indirect=True)
def test_volumes_below_dev(site):
    mounts = [mount("disk", "/dev/x/one"), mount("c", "/dev/two", "key")]
    text = "echo yes >/dev/x/one/file; cat /dev/two; echo message >/dev/termination-log"
    spec = spec_of(
        site.shell(text, volumeMounts=mounts),
        site.shell("until cat /disk/file; do sleep 0.1; done 2>/dev/null", name="other", **MOUNT),
        volumes=[*DISK["volumes"], {"name": "c", "configMap": {"name": "c"}}],
    )
    job = site.run(spec, objects=OBJECTS)
    assert (job.log(), job.log("other")) == ("hello\n", "yes\n"), job.everything()
    assert job.message() == "message\n"


@pytest.mark.parametrize("home", ["podman", "charliecloud"], indirect=True)
def test_a_name_that_is_also_a_path_of_the_job_is_no_folder(site):
    """An init container could make a link in its emptyDir, which the next one then named as an image."""
    link = site.shell("ln -s / /disk/link", name="init", **MOUNT)
    container = site.shell("ls /", image="scratch/disk/link", imagePullPolicy="Never")
    job = site.run(
        {**DISK, "initContainers": [link], "containers": [container]},
        config={"runtime": {"kind": site.kind, "image_prefix": ""}},
    )
    assert job.ended()["reason"] in ("ErrImageNeverPull", "ErrImagePull"), job.everything()
