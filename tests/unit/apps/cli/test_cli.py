import json
import signal
import subprocess
import sys
import time

import pytest
import yaml
from click.testing import CliRunner

from bridge.apps.cli.main import cli
from bridge.errors import ConfigError

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "slurm-bridge"},
    "spec": {"containers": [{"name": "m", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}]},
}


def run(*args, **kwargs):
    return CliRunner().invoke(cli, args, **kwargs)


def render(manifest, *args):
    return run("render", "-f", "-", "-o", "json", *args, input=yaml.safe_dump(manifest))


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["get"],
        ["get", "queues"],
        ["explain", "pod"],
        ["explain", "queue"],
        ["render"],
        ["check"],
        ["run"],
        ["config"],
    ],
)
def test_help(args):
    result = run(*args, "--help")
    assert result.exit_code == 0
    assert "Usage: " in result.output


def test_help_is_quick_because_nothing_heavy_is_loaded():
    code = (
        "import sys; from click.testing import CliRunner; from bridge.apps.cli.main import cli;"
        "CliRunner().invoke(cli, ['--help']);"
        "print([m for m in ('kubernetes', 'requests', 'flask', 'pydantic', 'nats') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    assert "_PODBRIDGE_COMPLETE" in run("completion", shell).output


def test_render_shows_the_patch_and_what_slurm_is_asked():
    result = render(POD)
    assert result.exit_code == 0, result.output
    (record,) = json.loads(result.output)
    assert {"op": "add", "path": "/spec/schedulerName", "value": "slurm-bridge-scheduler"} in record["patch"]
    assert record["slurm"]["body"]["job"]["flags"] == ["EXTERNAL_JOB"]
    assert record["slurm"]["body"]["job"]["cpus_per_task"] == 2


def test_render_speaks_older_versions():
    (record,) = json.loads(render(POD, "--api", "v0.0.38").output)
    assert "sleep" in record["slurm"]["body"]["script"]
    assert "v0.0.99" in str(render(POD, "--api", "v0.0.99").exception)


def test_render_takes_jobs_and_their_annotations():
    job = {
        "kind": "Job",
        "metadata": {
            "name": "j",
            "namespace": "slurm-bridge",
            "annotations": {"slurmjob.slinky.slurm.net/user-id": "7"},
        },
        "spec": {"template": {"spec": POD["spec"]}},
    }
    (record,) = json.loads(render(job).output)
    assert record["needs"] == ["use slurmjobs.bridge.vk.io/user-id"]
    assert record["slurm"]["body"]["job"]["user_id"] == "7"


def template(**requests):
    return {"spec": {"containers": [{"name": "c", "image": "busybox", "resources": {"requests": requests}}]}}


def test_render_shows_the_one_job_of_a_gang():
    spec = {"completions": 4, "parallelism": 4, "completionMode": "Indexed", "template": template(cpu="2")}
    metadata = {"name": "mpi", "namespace": "slurm-bridge", "annotations": {"bridge.vk.io/gang": "true"}}
    (record,) = json.loads(render({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}).output)
    assert record["group"] == {"kind": "job", "name": "mpi", "index": "", "size": 4, "minimum": 4, "slot": 0}
    body = record["slurm"]["body"]["job"]
    assert (body["minimum_nodes"], body["maximum_nodes"], body["cpus_per_task"], body["name"]) == (4, 4, 2, "mpi")
    metadata["annotations"] = {}
    (record,) = json.loads(render({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}).output)
    assert "group" not in record
    assert record["slurm"]["body"]["job"]["minimum_nodes"] == 1


@pytest.mark.parametrize("gang", ["true", "all"])
@pytest.mark.parametrize("cpu", ["1", "2"])
def test_render_shows_the_groups_of_a_job_set(gang, cpu):
    def job(name, replicas, pods, asked):
        spec = {"completions": pods, "parallelism": pods, "template": template(cpu=asked)}
        return {"name": name, "replicas": replicas, "template": {"spec": spec}}

    metadata = {"name": "train", "namespace": "slurm-bridge", "annotations": {"bridge.vk.io/gang": gang}}
    spec = {"replicatedJobs": [job("leader", 1, 1, "1"), job("workers", 2, 3, cpu)]}
    document = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": metadata, "spec": spec}
    leader, worker = json.loads(render(document).output)
    if gang == "true":
        assert "group" not in leader
        assert (worker["group"]["index"], worker["group"]["size"]) == ("workers", 6)
        assert worker["slurm"]["body"]["job"]["minimum_nodes"] == 6
    elif cpu == "1":
        assert (worker["group"]["index"], worker["group"]["size"], worker["group"]["slot"]) == ("", 7, 1)
        assert leader["slurm"]["body"] == worker["slurm"]["body"]
    else:
        assert leader["slurm"]["body"] == worker["slurm"]["body"]
        parts = worker["slurm"]["body"]["jobs"]
        assert [(part["minimum_nodes"], part["cpus_per_task"]) for part in parts] == [(1, 1), (6, 2)]
        pods = spec["replicatedJobs"][1]["template"]["spec"]["template"]
        pods["metadata"] = {"annotations": {"bridge.vk.io/members-per-node": "2"}}
        parts = json.loads(render(document).output)[0]["slurm"]["body"]["jobs"]
        assert [part["minimum_nodes"] for part in parts] == [1, 3], "each component has its own members per node"


def test_render_shows_a_replica_of_a_leader_worker_set():
    spec = {"leaderWorkerTemplate": {"size": 3, "workerTemplate": template(cpu="1")}}
    metadata = {"name": "serve", "namespace": "slurm-bridge"}
    found = json.loads(render({"kind": "LeaderWorkerSet", "metadata": metadata, "spec": spec}).output)
    assert [(record["pod"], record["group"]["slot"]) for record in found] == [
        ("slurm-bridge/serve-0", 0),
        ("slurm-bridge/serve-0-1", 1),
    ]
    assert found[1]["slurm"]["body"]["job"]["minimum_nodes"] == 3


def test_render_needs_the_owner_of_a_group_in_the_manifest():
    pod = {**POD, "metadata": {**POD["metadata"], "labels": {"scheduling.x-k8s.io/pod-group": "g"}}}
    assert "PodGroup 'g'" in json.loads(render(pod).output)[0]["refused"][0]
    group = {"kind": "PodGroup", "metadata": {"name": "g", "namespace": "slurm-bridge"}, "spec": {"minMember": 3}}
    (record,) = json.loads(render({"kind": "List", "items": [group, pod]}).output)
    assert (record["group"]["kind"], record["group"]["minimum"]) == ("podgroup", 3)


def test_render_refuses_what_admission_would():
    bad = {**POD, "metadata": {**POD["metadata"], "annotations": {"slurmjob.slinky.slurm.net/timelimt": "5"}}}
    result = render(bad)
    assert result.exit_code == 1
    assert "did you mean slurmjob.slinky.slurm.net/timelimit?" in result.output


def test_render_leaves_other_namespaces_alone():
    (record,) = json.loads(render({**POD, "metadata": {"name": "p", "namespace": "default"}}).output)
    assert record["patch"] == []
    assert "not managed" in record["note"]


def test_config_check(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("partition: gpu\n")
    assert yaml.safe_load(run("config", "check", str(file)).output)["partition"] == "gpu"
    file.write_text("partitio: gpu\n")
    assert "did you mean partition?" in str(run("config", "check", str(file)).exception)
    assert "cannot read" in str(run("config", "check", str(tmp_path / "none")).exception)


LATIN = "schedulerName: slurm-ü".encode("latin-1")


def test_a_file_that_is_not_utf_8_is_named(tmp_path):
    file = tmp_path / "latin.yaml"
    file.write_bytes(LATIN)
    assert f"{file}: not UTF-8" in str(run("config", "check", str(file)).exception)
    assert "-: not UTF-8" in str(run("render", "-f", "-", input=LATIN).exception).replace("<stdin>", "-")
    for kind in ("slurm-bridge", "nats-plugin", "kueue-nats"):
        assert f"{file}: not UTF-8" in str(run("convert", kind, str(file)).exception)


def test_an_anchor_of_the_configuration_is_no_duplicate_key(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("slurm: &slow {readTimeout: 30}\nbrake: {least: 5}\n")
    assert yaml.safe_load(run("config", "check", str(file)).output)["slurm"]["readTimeout"] == 30


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ({"kind": "Pod", "metadata": 5}, "Pod: metadata: 5 is not allowed; allowed: a mapping"),
        ({"kind": "Pod", "spec": [1]}, "Pod: spec: [1] is not allowed; allowed: a mapping"),
        ({"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": 5}}, "Job j: spec.template: 5 is not allowed"),
        ({"kind": "CronJob", "spec": {"jobTemplate": 5}}, "CronJob without a name: spec.jobTemplate: 5 is not"),
        (
            {"kind": "JobSet", "spec": {"replicatedJobs": [5]}},
            "spec.replicatedJobs: [5] is not allowed; allowed: a list",
        ),
        ({"kind": "Deployment", "spec": {"template": {"spec": 5}}}, "spec.template.spec: 5 is not allowed"),
        ({"kind": "List", "items": 5}, "items: 5 is not allowed; allowed: a list of mappings"),
        ({"kind": "Pod", "metadata": {"labels": {"n": 5}}}, "metadata.labels.n: 5 is not allowed; allowed: a string"),
        (
            {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template(cpu="two")}},
            "Job j: spec.template.spec.containers[0].resources.requests.cpu: 'two' is not allowed; allowed: a quantity",
        ),
    ],
)
def test_render_names_a_bad_field(manifest, message):
    result = render(manifest)
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_render_takes_no_label_for_a_field():
    free = {"template": "llama", "spec": "x", "containers": "2"}
    spec = {"selector": {"matchLabels": free}, "template": template(cpu="1")}
    manifest = {"kind": "Deployment", "metadata": {"name": "d", "labels": free, "annotations": free}, "spec": spec}
    assert render(manifest).exit_code == 0


def test_render_leaves_other_objects_of_a_manifest_alone():
    workflow = {"kind": "Workflow", "spec": {"template": "main", "labels": [5]}}
    assert render({"kind": "List", "items": [workflow, POD]}).exit_code == 0


def test_config_schema_is_json():
    assert "schedulerName" in json.loads(run("config", "schema").output)["properties"]


def test_a_crash_in_a_library_prints_the_stacks_of_all_threads():
    code = (
        "import faulthandler, bridge.apps.cli.main; bridge.apps.cli.main.main = faulthandler._sigsegv;"
        "from bridge.apps.cli.entry import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in done.stderr
    assert "bridge/apps/cli/entry.py" in done.stderr


STUCK = """
import atexit, sys, threading, time, bridge.apps.cli.main as program
def command(*_):
    threading.Thread(target=time.sleep, args=(60,)).start()
    atexit.register(lambda: print("at exit"))
    print("last line")
    {end}
program.main = command
sys.argv[1:] = {words}
from bridge.apps.cli.{module} import {function}
{function}()
"""


@pytest.mark.parametrize(("module", "function"), [("entry", "main"), ("kubectl", "plugin")])
@pytest.mark.parametrize(
    ("end", "status", "told"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('wrong')", 1, "wrong"),
        ("raise RuntimeError('bug')", 1, "RuntimeError: bug"),
        ("sys.stdout.close()", 0, ""),
    ],
)
def test_a_command_ends_after_its_last_line_whatever_its_threads_wait_for(module, function, end, status, told):
    code = STUCK.format(end=end, words=["check"], module=module, function=function)
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert time.monotonic() - began < 30, "the thread waits for 60 s"
    assert done.returncode == status
    assert done.stdout.startswith("last line\n")
    assert end == "sys.stdout.close()" or done.stdout == "last line\nat exit\n"
    assert told in done.stderr


WRONG_NAMES = ["", ".", "..", "a/b", "a b", "A", "a?b", "-", "\n", "a" * 254]


@pytest.mark.parametrize("name", WRONG_NAMES)
@pytest.mark.parametrize("words", [("explain", "pod"), ("explain", "pool"), ("explain", "queue"), ("explain", "node")])
def test_a_word_that_is_no_name_is_refused_before_a_request(words, name):
    done = run(*words, "--", name)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert "is not a name" in done.output or "Name one object" in done.output


@pytest.mark.parametrize("namespace", WRONG_NAMES[1:])
def test_a_word_that_is_no_namespace_is_refused_before_a_request(namespace):
    for words in (("explain", "pod", "p"), ("get", "pods")):
        done = run(*words, f"--namespace={namespace}")
        assert done.exit_code == 2, done.output
        assert "is not a name" in done.output


def configured(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return f"--config={path}"


def test_render_knows_the_device_classes_of_the_configuration():
    requests = {"deviceclass.resource.kubernetes.io/gpu.nvidia.com": "1"}
    spec = {**POD["spec"], "containers": [{"name": "c", "image": "x", "resources": {"requests": requests}}]}
    (record,) = json.loads(render({**POD, "spec": spec}).output)
    assert "refused" not in record


def test_render_leaves_pods_to_the_default_scheduler_as_admission_does(tmp_path):
    pools = '{nats: {servers: ["nats://x"]}, otherPods: default-scheduler}'
    config = configured(tmp_path, f'slurmRestApi: ""\npools: {pools}\n')
    result = render(POD, config)
    (record,) = json.loads(result.output)
    assert result.exit_code == 0 and "keeps the scheduler default-scheduler: it requests no pool" in record["note"]
    assert "slurm" not in record


def test_render_asks_slurm_for_nothing_for_a_pod_of_pools():
    metadata = {**POD["metadata"], "annotations": {"bridge.vk.io/pools": "site"}}
    metadata["labels"] = {"scheduling.x-k8s.io/pod-group": "elsewhere"}
    (record,) = json.loads(render({**POD, "metadata": metadata}).output)
    assert "slurm" not in record and "group" not in record
