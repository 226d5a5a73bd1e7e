"""What each container runtime is told: programs of their names write down their words and run the command on the host.

The real ones are in ``test_containers.py``, but for enroot; here it is what stands on the command line, how variables
travel, and what follows from a failing pull.
"""

import base64
import os
import shutil

import pytest

from bridge.script.references import Objects
from tests.contract.script.conftest import Site, folder_of_programs
from tests.contract.script.test_variables import NASTY
from tests.pod_specs import EMPTY, mount, spec_of, volumes

pytestmark = pytest.mark.real

RECORD = '{ printf "%s\\0" "$@"; printf "\\1\\0"; } >>"$STUB_FOLDER/${0##*/}.words"\n'
STUBS = {
    "apptainer": """
[[ $1 != --silent ]] || shift
[[ ${!#} != /podbridge-check ]] || { echo "FATAL:   stat /podbridge-check: no such file or directory" >&2; exit 255; }
"""
    + RECORD
    + """
case $1 in
sif) exit 255 ;;
pull) [[ ${@: -1} == *missing* ]] && { echo "FATAL: no such image" >&2; exit 255; }; echo image >"${@: -2:1}"; exit ;;
esac
verb=$1; shift
while [[ $1 == --* ]]; do
    case $1 in
    --env-file) file=$2; shift 2 ;;
    --bind | --pwd | --network | --overlay | --home) shift 2 ;;
    *) shift ;;
    esac
done
shift
[[ $verb == run ]] && set -- echo entry point "$@"
exec env -i PATH="$PATH" bash --norc -c '. "$0"; exec "$@"' "$file" "$@"
""",
    "podman": RECORD
    + """
case $1 in
rm | kill | unshare) exit ;;
inspect) [[ $3 == *Status* ]] && echo running || echo 0; exit ;;
image) exit 1 ;;
start) . "$STUB_FOLDER/$3.made"; exec "${made[@]}" ;;
pull) [[ $3 == *missing* ]] && { echo "Error: no such image" >&2; exit 125; }; exit 0 ;;
exec) shift 2; exec "$@" ;;
esac
shift
names=()
while [[ $1 == --* ]]; do
    case $1 in
    --*=*) shift ;;
    --read-only) shift ;;
    --name) name=$2; shift 2 ;;
    --env) names+=("$2"); shift 2 ;;
    --env-file) file=$2; shift 2 ;;
    --entrypoint) entry=$2; shift 2 ;;
    *) shift 2 ;;
    esac
done
shift
words=()
while IFS= read -r line; do words+=("$line"); done <"$file"
for each in "${names[@]}"; do words+=("$each=${!each}"); done
made=(env -i "${words[@]}" ${entry:+"$entry"} "$@")
declare -p made >"$STUB_FOLDER/$name.made"
""",
    "enroot": RECORD
    + """
case $1 in
import) [[ $4 == *missing* ]] && { echo "[ERROR] no such image" >&2; exit 1; }; echo image >"$3"; exit ;;
create)
    mkdir -p "$ENROOT_DATA_PATH/$3/etc"
    # as enroot writes it for an image with WORKDIR
    printf 'mkdir -p "/usr/bin" 2> /dev/null\ncd "/usr/bin" && unset OLDPWD || exit 1\n' >"$ENROOT_DATA_PATH/$3/etc/rc"
    exit
    ;;
remove) rm -rf "$ENROOT_DATA_PATH/$3"; exit ;;
exec) shift 2; exec "$@" ;;
esac
shift
while [[ $1 == --* ]]; do
    case $1 in
    --rc) rc=$2; shift 2 ;;
    --mount | --env) shift 2 ;;
    *) shift ;;
    esac
done
[[ -d $ENROOT_DATA_PATH/$1 ]] || exit 1
shift
exec env -i PATH="$PATH" sh "$rc" "$@"
""",
    "ch-image": RECORD + '[[ $2 == *missing* ]] && { echo "error: no such image" >&2; exit 1; }; exit 0\n',
    "ch-convert": RECORD + '[[ $* == *"-o tar "* ]] && { : >"${@: -1}"; exit; }\nmkdir -p "${@: -1}"\n',
    "ch-run": RECORD
    + """
words=()
while [[ $1 == --* && $1 != -- ]]; do
    case $1 in
    --set-env=*) while IFS= read -r line; do
        name=${line%%=*} value=${line#*=}
        value=${value#\\'}
        words+=("$name=${value%\\'}")
    done <"${1#*=}" ;;
    esac
    shift
done
shift 2
exec env "${words[@]}" "$@"
""",
}
KINDS = {"apptainer": "apptainer", "podman": "podman", "enroot": "enroot", "charliecloud": "ch-run"}


class Stubs:
    """A folder of programs, and what they were told."""

    def __init__(self, site: Site) -> None:
        self.folder = site.home_for_host_path()
        self.told = site.home_for_host_path()
        for name, text in STUBS.items():
            path = self.folder / name
            path.write_text(f"#!/bin/bash\nSTUB_FOLDER={self.told}\n{text}")
            path.chmod(0o755)

    def settings(self, kind: str, **more: object) -> dict[str, object]:
        return {
            "runtime": {"kind": kind},
            "volumes": {"additional_directories_in_path": [str(self.folder)], **dict(more.pop("volumes", {}))},
            **more,
        }

    def calls(self, program: str) -> list[list[str]]:
        path = self.told / f"{program}.words"
        if not path.exists():
            return []
        return [part.split("\0")[:-1] for part in path.read_bytes().decode().split("\1\0") if part]


@pytest.fixture
def stubs(ordinary: Site) -> Stubs:
    return Stubs(ordinary)


@pytest.mark.parametrize("kind", KINDS)
def test_variables_and_words(ordinary, stubs, kind):
    env = [{"name": name, "value": value.replace("$", "$$")} for name, value in NASTY.items() if len(value) < 50_000]
    env += [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "PATH", "value": "/usr/bin:/bin"},
    ]
    container = {"name": "main", "image": "busybox:1", "command": ["/usr/bin/env", "-0"], "env": env}
    job = ordinary.run({"containers": [container]}, config=stubs.settings(kind))
    assert job.pod()["phase"] == "Succeeded", job.everything()
    got = dict(pair.split("=", 1) for pair in job.log().split("\0") if "=" in pair)
    expected = {name: value for name, value in NASTY.items() if len(value) < 50_000}
    assert {name: got.get(name) for name in expected} == expected
    assert got["IP"] == job.pod()["ip"]
    everything = [word for program in STUBS for call in stubs.calls(program) for word in call]
    assert not any(NASTY["UNICODE"] in word for word in everything)


@pytest.mark.parametrize("kind", ["apptainer", "podman", "charliecloud"])
def test_names_that_no_shell_assigns_without_perl_and_python(ordinary, stubs, kind):
    for name in ("perl", "python3"):
        (stubs.folder / name).symlink_to("/bin/false")
    env = [{"name": "a.b", "value": "two\nlines"}]
    container = {"name": "main", "image": "busybox:1", "command": ["true"], "env": env}
    job = ordinary.run({"containers": [container]}, config=stubs.settings(kind))
    ended = job.ended()
    assert (ended["exitCode"], ended["reason"]) == (128, "ContainerCannotRun"), job.everything()
    assert "need perl or python3 on this machine" in job.message()
    assert not any("exec" in call or "create" in call or "--" in call for call in stubs.calls(KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_exit_code_and_restart(ordinary, stubs, kind):
    text = "if [ -e /tmp/script-stub-%s ]; then rm /tmp/script-stub-%s; exit 0; fi; touch /tmp/script-stub-%s; exit 7"
    mark = f"{kind}-{os.getpid()}"
    container = {"name": "main", "image": "busybox", "command": ["sh", "-c", text % (mark, mark, mark)]}
    job = ordinary.run({"restartPolicy": "OnFailure", "containers": [container]}, config=stubs.settings(kind))
    state = job.state("main")
    assert (state["ended"]["exitCode"], state["last"]["exitCode"], state["restarts"]) == (0, 7, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_pull_that_fails(ordinary, stubs, kind):
    container = {"name": "main", "image": "registry.example/missing:1", "command": ["true"]}
    job = ordinary.run({"containers": [container]}, config=stubs.settings(kind))
    ended = job.ended()
    assert (ended["reason"], ended["exitCode"]) == ("ErrImagePull", 128)
    assert "no such image" in job.message() and job.pod()["phase"] == "Failed"


@pytest.mark.parametrize("kind", KINDS)
def test_runtime_that_is_not_there(ordinary, kind):
    section = {"executable": "/no/such/program"}
    config = {"runtime": {"kind": kind}, **({kind: section} if kind != "charliecloud" else {})}
    spec = {"containers": [{"name": "main", "image": "x", "command": ["true"]}]}
    job = ordinary.run(spec, config=config, environment={"PATH": folder_of_programs(ordinary, KINDS[kind])})
    assert (job.pod()["phase"], job.pod()["reason"]) == ("Failed", "RuntimeNotFound")
    assert job.wait() == 1 and "there is no " in (job.folder / "script.log").read_text()


def words_of(stubs, program, verb):
    """The words of the call that started the container, or of the pull."""
    calls = [call for call in stubs.calls(program) if call[0] == verb]
    return next((call for call in calls if "--env-file" in call or "--rc" in call), calls[0])


def pod(**container):
    return spec_of(
        {
            "name": "main",
            "image": "busybox:1",
            "workingDir": "/e",
            "volumeMounts": [mount("c", "/c"), mount("e", "/e")],
            **container,
        },
        **volumes(c={"configMap": {"name": "c"}}, e=EMPTY),
    )


OBJECTS = Objects(configmaps={"c": {"data": {"k": "v"}}})


def test_apptainer_is_told(ordinary, stubs):
    probe = {"exec": {"command": ["true"]}, "periodSeconds": 1}
    spec = pod(command=["sh", "-c", "sleep 6"], readinessProbe=probe, resources={"limits": {"nvidia.com/gpu": 1}})
    config = stubs.settings("apptainer", apptainer={"options": ["--dns", "1.1.1.1"]})
    job = ordinary.run(spec, objects=OBJECTS, config=config, environment=GPUS)
    # on a busy machine a probe may be told first
    words = next(call for call in stubs.calls("apptainer") if call[-1] == "sleep 6")
    folder = str(job.folder)
    assert words_of(stubs, "apptainer", "pull")[2:] == [f"{folder}/run/main.sif", "docker://busybox:1"]
    for flag in ("--containall", "--no-home", "--cleanenv", "--no-eval", "--no-umask", "--overlay", "--nv"):
        assert flag in words
    binds = [words[index + 1] for index, word in enumerate(words) if word == "--bind"]
    assert binds == [
        f"{folder}/volumes/c:/c:ro",
        f"{folder}/scratch/e:/e:rw",
        f"{folder}/run/main.message:/.podbridge/2:rw",
        f"{folder}/work/main/tmp:/tmp:rw",
        f"{folder}/work/main/var/tmp:/var/tmp:rw",
    ]
    assert f"{folder}/run/main.sif" in words
    assert words[words.index("--pwd") + 1] == "/e" and words[-3:] == ["sh", "-c", "sleep 6"]
    probes = [call for call in stubs.calls("apptainer") if call[-1] == "true"]
    # a probe gets the same image, volumes and variables, but an overlay can be mounted once only
    at, end = words.index("--overlay"), words.index("--env-file")
    expected = [*words[:at], "--writable-tmpfs", *words[at + 2 : end]]
    assert probes and probes[0][: probes[0].index("--env-file")] == expected


def test_apptainer_runs_the_images_own(ordinary, stubs):
    job = ordinary.run(
        pod(args=["--help"], securityContext={"readOnlyRootFilesystem": True}),
        objects=OBJECTS,
        config=stubs.settings("apptainer"),
    )
    assert job.log() == "entry point --help\n"
    assert "--writable-tmpfs" not in words_of(stubs, "apptainer", "run")


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("{dir}/x.sif", "{dir}/x.sif"),
        ("linked", "{dir}/x.sif"),
        ("oras://registry/x:1", "pull oras://registry/x:1"),
        ("tool:1", "{dir}/tool_1"),
        ("docker://tool:1", "{dir}/tool_1"),
        ("lab/other:2", "{dir}/unpacked/lab/other:2"),
        ("third", "pull docker://third"),
        ("../x", None),
    ],
)
def test_where_images_come_from(ordinary, stubs, image, expected):
    images = ordinary.home_for_host_path()
    (images / "tool_1").write_text("image")
    (images / "x.sif").write_text("image")
    (images / "linked").symlink_to("x.sif")
    image = image.format(dir=images)
    (images / "unpacked" / "lab" / "other:2").mkdir(parents=True)
    volumes = {"image_dir": str(images), "cvmfs_unpacked_path": str(images / "unpacked")}
    spec = {"containers": [{"name": "main", "image": image, "command": ["true"]}]}
    if expected is None:
        with pytest.raises(Exception, match="image"):
            ordinary.job(spec, config=stubs.settings("apptainer", volumes=volumes))
        return
    job = ordinary.run(spec, config=stubs.settings("apptainer", volumes=volumes))
    assert job.pod()["phase"] == "Succeeded", job.everything()
    if expected.startswith("pull "):
        assert words_of(stubs, "apptainer", "pull")[-1] == expected[5:]
    else:
        words = words_of(stubs, "apptainer", "exec")
        assert words[words.index("--env-file") + 2] == expected.format(dir=images)


def test_podman_is_told(ordinary, stubs):
    spec = pod(command=["sh", "-c", "true"], securityContext={"runAsUser": 1000, "runAsGroup": 5})
    job = ordinary.run(spec, objects=OBJECTS, config=stubs.settings("podman"))
    words = words_of(stubs, "podman", "create")
    folder = str(job.folder)
    volumes = [words[index + 1] for index, word in enumerate(words) if word == "--volume"]
    assert volumes[:2] == [f"{folder}/volumes/c:/c:ro", f"{folder}/scratch/e:/e:rw"]
    assert words[words.index("--user") + 1] == "1000:5" and words[words.index("--network") + 1] == "host"
    assert words[words.index("--entrypoint") + 1] == "sh" and words[-3:] == ["busybox:1", "-c", "true"]
    assert words[words.index("--cap-drop") + 1] == "all"


def test_enroot_is_told(ordinary, stubs):
    spec = pod(command=["pwd"], image="registry.example/team/tool:2", workingDir="/usr")
    job = ordinary.run(spec, objects=OBJECTS, config=stubs.settings("enroot"))
    assert words_of(stubs, "enroot", "import")[-1] == "docker://registry.example#team/tool:2"
    words = words_of(stubs, "enroot", "start")
    assert f"{job.folder}/volumes/c:/c:none:x-create=dir,rbind,ro" in words and "--rw" in words
    assert words[-2:] == ["main", "pwd"] and job.log() == "/usr\n"
    job = ordinary.run(pod(command=["pwd"], workingDir=""), objects=OBJECTS, config=stubs.settings("enroot"))
    assert job.log() == "/usr/bin\n", "the image's own"


def test_charliecloud_is_told(ordinary, stubs):
    job = ordinary.run(pod(command=["true"]), objects=OBJECTS, config=stubs.settings("charliecloud"))
    words = stubs.calls("ch-run")[0]
    assert f"--bind={job.folder}/scratch/e:/e" in words and "--cd=/e" in words
    assert f"--bind={job.folder}/run/main.ro.0:/c" in words and words[-2:] == ["--", "true"]
    assert stubs.calls("ch-image") == [["pull", "busybox:1"]]


def test_logins_for_registries(ordinary, stubs):
    text = '{"auths":{"registry.example":{"username":"u","password":"very-secret"}}}'
    objects = Objects(secrets={"r": {"data": {".dockerconfigjson": base64.b64encode(text.encode()).decode()}}})
    spec = spec_of({"name": "main", "image": "x", "command": ["sleep", "60"]}, imagePullSecrets=[{"name": "r"}])
    for kind, path in (
        ("apptainer", "run/docker/config.json"),
        ("podman", "run/docker/config.json"),
        ("enroot", "run/enroot.config/.credentials"),
    ):
        job = ordinary.job(spec, objects=objects, config=stubs.settings(kind)).start()
        job.eventually(lambda job=job: job.state("main").get("state") == "running")
        login = job.folder / path
        assert login.stat().st_mode & 0o777 == 0o600
        assert "dTp2ZXJ5LXNlY3JldA==" in login.read_text() or "password very-secret" in login.read_text()
        job.ask_to_stop(0)
        job.wait()
        words = [word for program in STUBS for call in stubs.calls(program) for word in call]
        assert not any("very-secret" in word for word in words)


@pytest.mark.parametrize("kind", ["apptainer", "podman", "enroot", "charliecloud"])
@pytest.mark.parametrize("name", ["out", "inner/out", "{dir}/out"])
def test_a_link_out_of_the_folders_for_images_is_no_image(ordinary, stubs, kind, name):
    """What the hub can't see: the site follows links before it uses a path."""
    images, home = ordinary.home_for_host_path(), ordinary.home_for_host_path()
    (home / "notes").write_text("of the site's user")
    (images / "inner").mkdir()
    for link in (images / "out", images / "inner" / "out"):
        link.symlink_to(home)
    spec = {"containers": [{"name": "main", "image": name.format(dir=images), "command": ["true"]}]}
    job = ordinary.run(spec, config=stubs.settings(kind, volumes={"image_dir": str(images)}))
    ended = job.ended()
    assert (ended["exitCode"], ended["reason"]) == (128, "InvalidImageName"), job.everything()
    assert f"leads to {home}" in job.message()
    assert not [call for call in stubs.calls(kind) if str(home) in " ".join(call)]


@pytest.mark.parametrize("link", [None, "environment", "ch"])
def test_charliecloud_reads_variables_of_the_image_and_of_no_file_of_the_machine(ordinary, stubs, link):
    """ch-run reads it outside of the container, so a link in an image would lead to any file of the site's user."""
    images, home = ordinary.home_for_host_path(), ordinary.home_for_host_path()
    for folder, text in ((images / "x" / "ch", "A=1\n"), (home, "PASSWORD=of-the-site\n")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "environment").write_text(text)
        (folder / "metadata.json").write_text('{"cwd": "/of/' + folder.name + '"}')
    if link == "environment":
        for name in ("environment", "metadata.json"):
            (images / "x" / "ch" / name).unlink()
            (images / "x" / "ch" / name).symlink_to(home / name)
    elif link == "ch":
        shutil.rmtree(images / "x" / "ch")
        (images / "x" / "ch").symlink_to(home)
    spec = {"containers": [{"name": "main", "image": "x", "command": ["true"]}]}
    ordinary.run(spec, config=stubs.settings("charliecloud", volumes={"image_dir": str(images)}))
    words = stubs.calls("ch-run")[0]
    own = {"--set-env=run/main.image/ch/environment", "--cd=/of/ch"}
    assert own & set(words) == (set() if link else own), words
    assert not any(word.startswith("--cd=") and word not in own for word in words)


GPUS = {"SLURM_JOB_GPUS": "2,5", "CUDA_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "0,1"}


def gpu_pod(resource="nvidia.com/gpu", **more):
    container = {"name": "main", "image": "busybox:1", "command": ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"], **more}
    return {"containers": [{**container, "resources": {"limits": {resource: 2}}}]}


def devices(words):
    return [words[index + 1] for index, word in enumerate(words) if word == "--device"]


@pytest.mark.parametrize(
    ("given", "named", "seen"),
    [(GPUS, ["2", "5"], "0,1\n"), ({"CUDA_VISIBLE_DEVICES": "GPU-1a,MIG-2b"}, ["GPU-1a", "MIG-2b"], "GPU-1a,MIG-2b\n")],
    ids=["numbers", "names"],
)
def test_podman_gets_the_gpus_that_the_batch_system_gave(ordinary, stubs, given, named, seen):
    """Slurm tells numbers of the machine in SLURM_JOB_GPUS; a container counts those that it has from 0."""
    job = ordinary.run(gpu_pod(), config=stubs.settings("podman"), environment=given)
    assert devices(words_of(stubs, "podman", "create")) == [f"nvidia.com/gpu={name}" for name in named]
    assert job.log() == seen, job.everything()


def test_podman_gets_gpus_of_amd(ordinary, stubs):
    nodes = ordinary.home_for_host_path()
    for number, minor in enumerate([0, 128, 129, 130]):  # the first is the processor
        (nodes / str(number)).mkdir()
        (nodes / str(number) / "properties").write_text(f"cpu_cores_count 8\ndrm_render_minor {minor}\n")
    variables = {"ROCR_VISIBLE_DEVICES": "0,2", "PODBRIDGE_KFD_NODES": str(nodes)}
    ordinary.run(gpu_pod("amd.com/gpu"), config=stubs.settings("podman"), environment=variables)
    assert devices(words_of(stubs, "podman", "create")) == ["/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD130"]


@pytest.mark.parametrize("kind", ["apptainer", "podman", "enroot", "charliecloud"])
@pytest.mark.parametrize("variables", [{}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, {"CUDA_VISIBLE_DEVICES": "1 --x"}])
def test_a_pod_gets_no_gpus_that_nobody_gave(ordinary, stubs, kind, variables):
    job = ordinary.run(gpu_pod(), config=stubs.settings(kind), environment=variables)
    assert job.ended()["reason"] == "CreateContainerConfigError", job.everything()
    assert "the batch system named no devices" in job.message()


def test_enroots_hook_is_told_the_gpus(ordinary, stubs):
    ordinary.run(gpu_pod(), config=stubs.settings("enroot"), environment=GPUS)
    assert "NVIDIA_VISIBLE_DEVICES=2,5" in words_of(stubs, "enroot", "start")
    ordinary.run(pod(command=["true"]), objects=OBJECTS, config=stubs.settings("enroot"), environment=GPUS)
    assert "NVIDIA_VISIBLE_DEVICES=void" in [call for call in stubs.calls("enroot") if call[0] == "start"][-1]


@pytest.mark.parametrize(
    ("kind", "program", "verb"), [("enroot", "enroot", "import"), ("charliecloud", "ch-image", "pull")]
)
def test_what_a_pull_makes_is_kept(ordinary, stubs, kind, program, verb):
    """The image itself in a cache for all jobs, without links to it once it is unpacked."""
    site = ordinary.home_for_host_path()
    cache = site / "image-cache"
    cache.mkdir(mode=0o700)
    (cache / "on").touch()
    os.chown(cache, ordinary.user or os.getuid(), -1)
    spec = {"containers": [{"name": "main", "image": "tool:1", "command": ["true"]}]}
    for _ in range(2):
        job = ordinary.job(spec, config=stubs.settings(kind))
        (job.home / "image-cache").symlink_to(cache)
        job.start().wait()
        assert job.pod()["phase"] == "Succeeded", job.everything()
    assert len([call for call in stubs.calls(program) if call[0] == verb]) == 1
    (image,) = cache.glob("*/image")
    assert (image.stat().st_nlink, image.stat().st_mode & 0o777) == (1, 0o400)
