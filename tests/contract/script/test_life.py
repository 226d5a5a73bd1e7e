"""The life of a pod: order of containers, restarts, deadlines, graceful ends, hooks and probes."""

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

import pytest

from tests.pod_specs import DISK, EMPTY, MOUNT, mount, spec_of, volumes

pytestmark = pytest.mark.real


def note(text):
    return f"echo {text} >>/disk/order"


def order(job, last="main"):
    return job.log(last).split()


def test_init_containers_one_after_the_other(site):
    spec = spec_of(
        site.shell("cat /disk/order", **MOUNT),
        init=[
            site.shell(f"sleep 0.5; {note('one')}", name="one", **MOUNT),
            site.shell(note("two"), name="two", **MOUNT),
        ],
        **DISK,
    )
    job = site.run(spec)
    assert order(job) == ["one", "two"]
    assert [job.ended(n)["reason"] for n in ("one", "two", "main")] == ["Completed"] * 3
    assert job.pod()["phase"] == "Succeeded"


def test_failing_init_container_ends_the_pod(site):
    spec = spec_of(site.shell("echo no"), init=[site.shell("exit 9", name="bad"), site.shell("echo no", name="later")])
    job = site.run(spec)
    assert job.pod()["phase"] == "Failed" and job.wait() == 1
    assert job.ended("bad")["exitCode"] == 9
    waiting = {"state": "waiting", "reason": "PodInitializing", "message": "", "startedAt": None, "restarts": 0}
    for name in ("later", "main"):
        assert job.state(name) == {**waiting, "started": False, "ready": False, "ended": None, "last": None}
        assert not (job.folder / "logs" / f"{name}.log").exists()


def test_failing_init_container_is_tried_again(ordinary):
    text = "echo x >>/disk/tries; [ $(wc -l </disk/tries) -ge 3 ]"
    spec = spec_of(
        ordinary.shell("wc -l </disk/tries", **MOUNT),
        init=[ordinary.shell(text, name="init", **MOUNT)],
        **DISK,
        restartPolicy="OnFailure",
    )
    job = ordinary.run(spec)
    assert (job.log().strip(), job.state("init")["restarts"], job.pod()["phase"]) == ("3", 2, "Succeeded")


# Programs open their own output again, by its name in /dev or in /proc (nginx/docker-nginx#87, and any cron job in a
# container). It must be no file that they truncate.
REOPENED = {
    "stderr": ("echo one; echo two; echo error >/dev/stderr; echo three", "one two error three"),
    "stdout": ("echo one; echo two >/dev/stdout; echo three", "one two three"),
    "descriptor": ("echo one; echo two >/proc/self/fd/1; echo three >/dev/fd/2; echo four", "one two three four"),
    "first": ("echo one; echo two >>/proc/1/fd/1; echo three >/proc/$$$$/fd/2", "one two three"),
    "tee": ("echo one; echo two | tee /dev/stderr; echo three", "one two two three"),
    "late": ("echo one; (sleep 0.5; echo two; exec >/dev/null) & wait; echo three", "one two three"),
}


def test_a_program_that_opens_its_output_again_keeps_the_log(site):
    cases = {name: case for name, case in REOPENED.items() if name != "first"}  # its process 1 is the machine's
    job = site.run({"containers": [site.shell(text, name=name) for name, (text, _) in cases.items()]})
    assert {name: job.log(name).split() for name in cases} == {name: said.split() for name, (_, said) in cases.items()}


def test_a_process_that_leaves_its_session_does_not_hold_the_end(ordinary):
    text = "echo one; setsid sleep 30 & sleep 0.2; echo two"
    begun = time.monotonic()
    job = ordinary.run({"containers": [ordinary.shell(text)]})
    assert job.log() == "one\ntwo\n" and job.pod()["phase"] == "Succeeded" and time.monotonic() - begun < 20


def test_output_is_kept_although_a_signal_goes_to_all_processes(ordinary):
    """As Slurm and HTCondor send it: also to what collects the output."""
    text = "trap 'echo bye; exit 3' TERM; echo hello; while :; do sleep 0.1; done"
    job = ordinary.job({"containers": [ordinary.shell(text)]}).start()
    job.eventually(lambda: job.log_if_any() == "hello\n")
    processes = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process) == job.process.pid:
                os.kill(process, signal.SIGTERM)
    job.wait(20)
    assert job.log() == "hello\nbye\n" and job.ended()["exitCode"] == 3


def test_sidecars_begin_in_order_and_end_in_reverse(site):
    def sidecar(name):
        text = (
            f"trap '{note(name + '-ends')}; exit 0' TERM; {note(name)}; touch /disk/{name}; while :; do sleep 0.1; done"
        )
        probe = {"exec": {"command": ["test", "-e", f"/disk/{name}"]}, "periodSeconds": 1, "timeoutSeconds": 10}
        return site.shell(text, name=name, restartPolicy="Always", startupProbe=probe, **MOUNT)

    spec = spec_of(
        site.shell(f"{note('main')}; sleep 1; cp /disk/order /disk/copy", **MOUNT),
        init=[sidecar("one"), site.shell(note("init"), name="init", **MOUNT), sidecar("two")],
        **DISK,
    )
    job = site.job(spec).start()
    job.eventually(lambda: job.state("two").get("started"))
    assert job.state("one")["ready"] and job.state("one")["state"] == "running"
    scratch = job.folder / "scratch" / "disk" / "order"
    job.eventually(lambda: job.state("main").get("state") == "running")
    text = ""
    while job.process.poll() is None:
        try:
            text = scratch.read_text()
        except FileNotFoundError:
            break
        time.sleep(0.02)
    assert job.wait() == 0
    assert text.split() == ["one", "init", "two", "main", "two-ends", "one-ends"]
    assert (job.pod()["phase"], job.state("one")["state"]) == ("Succeeded", "terminated")


def test_sidecar_is_begun_again_and_does_not_decide(ordinary):
    spec = spec_of(
        ordinary.shell("sleep 2"), init=[ordinary.shell("sleep 0.2; exit 3", name="car", restartPolicy="Always")]
    )
    job = ordinary.run(spec)
    assert job.pod()["phase"] == "Succeeded"
    assert job.state("car")["restarts"] >= 1


def test_restart_backs_off(ordinary):
    spec = {"restartPolicy": "Always", "containers": [ordinary.shell("date +%s.%N; exit 7")]}
    job = ordinary.job(spec).start()
    times, current = [], ""
    job.eventually(lambda: job.state("main").get("reason") == "CrashLoopBackOff")
    state = job.state("main")
    assert state["state"] == "waiting" and state["last"]["exitCode"] == 7 and state["restarts"] == 1
    while len(times) < 4:
        now = job.log().strip() if (job.folder / "logs" / "main.log").exists() else ""
        if now and now != current:
            times.append(float(now))
            current = now
        time.sleep(0.05)
    job.ask_to_stop(1)
    job.wait(20)
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == sorted(gaps) and gaps[-1] >= 1.9
    assert job.state("main")["state"] == "terminated"
    assert float((job.folder / "logs" / "main.previous.log").read_text()) in times
    assert job.pod()["phase"] == "Failed" and job.pod()["reason"] == "Deleted"


def test_a_start_that_fails_is_no_long_run(ordinary):
    """A second counts as the ten minutes after which there is no delay."""
    text = "rm -r /v/sub; ln -s /etc /v/sub; sleep 1.2; exit 1"
    mounts = [mount("v", "/v"), mount("v", "/s", "sub")]
    spec = {"restartPolicy": "Always", **volumes(v=EMPTY), "containers": [ordinary.shell(text, volumeMounts=mounts)]}
    job = ordinary.job(spec)
    script = (job.folder / "job.sh").read_text()
    assert script.count(">= 60000") == 1
    (job.folder / "job.sh").write_text(script.replace(">= 60000", ">= 100"))
    job.start()
    job.eventually(lambda: job.state("main").get("reason") == "CrashLoopBackOff")
    assert job.state("main")["last"]["reason"] == "CreateContainerConfigError"
    job.ask_to_stop(1)
    job.wait(20)


def test_the_message_of_the_run_before_is_kept(ordinary):
    text = "n=$(cat /v/n); echo x$n >/v/n; echo run $n >/dev/termination-log; [ -z $n ] && exit 1; sleep 1000"
    mounts = [mount("v", "/v")]
    spec = {"restartPolicy": "Always", **volumes(v=EMPTY), "containers": [ordinary.shell(text, volumeMounts=mounts)]}
    job = ordinary.job(spec).start()
    job.eventually(lambda: job.state("main").get("restarts") == 1 and job.state("main")["state"] == "running")
    assert job.message("main.previous") == "run\n" and not (job.folder / "termination" / "main").exists()
    job.ask_to_stop(0)
    job.wait(20)
    assert job.message("main.previous") == "run\n" and job.message() == "run x\n"


@pytest.mark.parametrize(("policy", "code", "restarts"), [("OnFailure", 0, 0), ("Never", 1, 0)])
def test_what_is_not_begun_again(ordinary, policy, code, restarts):
    job = ordinary.run({"restartPolicy": policy, "containers": [ordinary.shell(f"exit {code}")]})
    assert job.state("main")["restarts"] == restarts


def test_previous_log(ordinary):
    text = "if [ -e /disk/second ]; then echo second; else echo first; touch /disk/second; exit 1; fi"
    job = ordinary.run({**DISK, "restartPolicy": "OnFailure", "containers": [ordinary.shell(text, **MOUNT)]})
    assert job.log() == "second\n" and job.log("main.previous") == "first\n"
    state = job.state("main")
    assert state["restarts"] == 1 and state["last"]["exitCode"] == 1 and state["ended"]["exitCode"] == 0
    assert (job.folder / "logs" / "main.previous.index").exists()


def test_deadline(site):
    spec = spec_of(
        site.shell("trap '' TERM; while :; do sleep 0.1; done"),
        activeDeadlineSeconds=2,
        terminationGracePeriodSeconds=1,
    )
    before = time.monotonic()
    job = site.run(spec)
    assert 2.5 < time.monotonic() - before < 8
    assert (job.pod()["phase"], job.pod()["reason"], job.ended()["exitCode"]) == ("Failed", "DeadlineExceeded", 137)


def test_deadline_is_failure_even_if_the_container_ends_well(ordinary):
    text = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    job = ordinary.run({"activeDeadlineSeconds": 3, "containers": [ordinary.shell(text)]})
    assert (job.pod()["phase"], job.pod()["reason"], job.ended()["exitCode"]) == ("Failed", "DeadlineExceeded", 0)


@pytest.mark.parametrize("how", ["file", "signal"])
def test_graceful_end(site, how):
    text = "trap 'echo caught; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    job = site.job({"terminationGracePeriodSeconds": 20, "containers": [site.shell(text)]}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    if how == "file":
        job.ask_to_stop(20)
    else:
        job.process.send_signal(signal.SIGTERM)
    assert (job.wait(10), job.log(), job.ended()["exitCode"]) == (1, "ready\ncaught\n", 7)
    assert job.pod()["reason"] == ("Deleted" if how == "file" else "Terminated")


def test_grace_runs_out(site):
    text = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    job = site.job({"containers": [site.shell(text)]}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    before = time.monotonic()
    job.ask_to_stop(2)
    job.wait(15)
    assert 1.8 < time.monotonic() - before < 5
    assert job.ended()["exitCode"] == 137 and job.ended()["signal"] == 9


def test_a_shorter_grace_counts(ordinary):
    text = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    job = ordinary.job({"containers": [ordinary.shell(text)]}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    job.ask_to_stop(600)
    time.sleep(1)
    job.ask_to_stop(0)
    job.wait(10)
    assert job.ended()["exitCode"] == 137


def test_stop_before_the_main_containers(ordinary):
    spec = {"initContainers": [ordinary.shell("sleep 1000", name="init")], "containers": [ordinary.shell("echo no")]}
    job = ordinary.job(spec).start()
    job.eventually(lambda: job.state("init").get("state") == "running")
    job.ask_to_stop(5)
    assert job.wait(10) == 1
    assert job.pod()["phase"] == "Failed" and job.ended("init")["exitCode"] == 143
    assert not (job.folder / "logs" / "main.log").exists()


def test_hooks(site):
    text = "trap 'echo term >>/disk/order; cat /disk/order; exit 0' TERM; while :; do sleep 0.1; done"
    lifecycle = {
        "postStart": {"exec": {"command": ["sh", "-c", note("postStart")]}},
        "preStop": {"exec": {"command": ["sh", "-c", f"sleep 0.5; {note('preStop')}"]}},
    }
    job = site.job({**DISK, "containers": [site.shell(text, lifecycle=lifecycle, **MOUNT)]}).start()
    job.eventually(lambda: job.state("main").get("started"))
    job.ask_to_stop(10)
    job.wait(15)
    assert order(job) == ["postStart", "preStop", "term"]


def test_failing_post_start_kills(ordinary):
    lifecycle = {"postStart": {"exec": {"command": ["false"]}}}
    job = ordinary.run({"containers": [ordinary.shell("exec sleep 1000", lifecycle=lifecycle)]})
    assert job.ended()["exitCode"] == 143 and job.pod()["phase"] == "Failed"


def test_pre_stop_that_hangs_is_cut(ordinary):
    lifecycle = {"preStop": {"sleep": {"seconds": 1000}}}
    text = "trap 'echo term; exit 0' TERM; echo ready; while :; do sleep 0.1; done"
    job = ordinary.job({"containers": [ordinary.shell(text, lifecycle=lifecycle)]}).start()
    job.eventually(lambda: job.log_if_any() == "ready\n")
    before = time.monotonic()
    job.ask_to_stop(2)
    job.wait(15)
    assert 1.8 < time.monotonic() - before < 5 and job.log() == "ready\nterm\n"


def test_liveness_failure_restarts(site):
    text = "echo run; touch /disk/healthy; sleep 1; rm /disk/healthy; exec sleep 1000"
    probe = {"exec": {"command": ["cat", "/disk/healthy"]}, "periodSeconds": 1, "failureThreshold": 2}
    spec = spec_of(
        site.shell(text, livenessProbe={**probe, "initialDelaySeconds": 1}, **MOUNT), **DISK, restartPolicy="Always"
    )
    job = site.job(spec).start()
    job.eventually(lambda: job.state("main").get("restarts", 0) >= 1)
    assert job.state("main")["last"]["exitCode"] == 143
    job.ask_to_stop(1)
    job.wait(15)


@pytest.mark.parametrize("kind", ["livenessProbe", "startupProbe"])
def test_probe_failure_restarts_a_container_that_ends_with_0(ordinary, kind):
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    text = "trap 'exit 0' TERM; while :; do sleep 0.1; done"
    job = ordinary.job({"restartPolicy": "OnFailure", "containers": [ordinary.shell(text, **{kind: probe})]}).start()
    seen = []

    def again():
        seen.append(job.state("main"))
        return seen[-1].get("restarts", 0) >= 1

    job.eventually(again)
    assert seen[-1]["last"]["exitCode"] == 0 and "terminated" not in [state.get("state") for state in seen]
    job.ask_to_stop(1)
    job.wait(15)


def test_a_killed_container_is_not_out_of_memory_because_another_one_was(ordinary):
    stubborn = {**ordinary.shell("trap '' TERM; while :; do sleep 0.1; done"), "name": "stubborn"}
    job = ordinary.job({"containers": [ordinary.shell("sleep 1; kill -9 $$$$"), stubborn]})
    script = job.folder / "job.sh"
    count = job.folder / "oom_kill"
    count.write_text("0")
    # the kernel's counter of the job is a file of this test
    counter = "oom_count() { read -r RESULT <oom_kill; }"
    changed = script.read_text().replace("\nLC_ALL=C\ncase", f"\n{counter}\nLC_ALL=C\ncase")
    assert changed != script.read_text()
    script.write_text(changed)
    job.start()
    job.eventually(lambda: job.state("stubborn").get("state") == "running")
    count.write_text("1")
    job.eventually(lambda: job.state("main").get("state") == "terminated")
    job.ask_to_stop(1)
    job.wait(20)
    assert job.ended("main")["reason"] == "OOMKilled" and job.ended("stubborn")["reason"] == "Error"


def test_liveness_failure_with_its_own_grace_and_never(ordinary):
    probe = {"exec": {"command": ["false"]}, "periodSeconds": 1, "failureThreshold": 1}
    text = "trap '' TERM; while :; do sleep 0.1; done"
    container = ordinary.shell(text, livenessProbe={**probe, "terminationGracePeriodSeconds": 1})
    job = ordinary.run({"terminationGracePeriodSeconds": 600, "containers": [container]})
    assert job.ended()["exitCode"] == 137 and job.pod()["phase"] == "Failed"


def test_readiness(site):
    probe = {"exec": {"command": ["test", "-e", "/disk/ready"]}, "periodSeconds": 1, "failureThreshold": 1}
    text = "until [ -e /disk/end ]; do sleep 0.1; done"
    job = site.job({**DISK, "containers": [site.shell(text, readinessProbe=probe, **MOUNT)]}).start()
    job.eventually(lambda: job.state("main").get("started"))
    assert not job.state("main")["ready"]
    disk = job.folder / "scratch" / "disk"
    (disk / "ready").touch()
    job.eventually(lambda: job.state("main").get("ready"))
    (disk / "ready").unlink()
    job.eventually(lambda: not job.state("main").get("ready"))
    assert job.state("main")["state"] == "running"
    (disk / "end").touch()
    assert job.wait() == 0


def test_startup_probe_holds_the_others_back(ordinary):
    startup = {"exec": {"command": ["test", "-e", "/disk/up"]}, "periodSeconds": 1, "failureThreshold": 30}
    liveness = {"exec": {"command": ["test", "-e", "/disk/up"]}, "periodSeconds": 1, "failureThreshold": 1}
    container = ordinary.shell(
        "sleep 3; touch /disk/up; sleep 2", startupProbe=startup, livenessProbe=liveness, **MOUNT
    )
    job = ordinary.run({**DISK, "containers": [container]})
    assert job.pod()["phase"] == "Succeeded"


@pytest.mark.parametrize(("path", "good"), [("/good?x=1", True), ("/bad", False)])
def test_http_probe(ordinary, path, good, http_port):
    probe = {
        "httpGet": {"port": http_port, "path": path, "httpHeaders": [{"name": "X-Test", "value": "it's $HOME"}]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    job = ordinary.job({"containers": [ordinary.shell("exec sleep 4", readinessProbe=probe)]}).start()
    job.eventually(lambda: job.state("main").get("started"))
    time.sleep(2)
    assert job.state("main")["ready"] is good
    job.ask_to_stop(1)
    job.wait()


def test_tcp_probe(ordinary, http_port, closed_port):
    containers = [
        ordinary.shell("exec sleep 3", name=name, readinessProbe={"tcpSocket": {"port": port}, "periodSeconds": 1})
        for name, port in (("open", http_port), ("closed", closed_port))
    ]
    job = ordinary.job({"containers": containers}).start()
    job.eventually(lambda: job.state("open").get("ready"))
    assert not job.state("closed")["ready"]
    job.ask_to_stop(1)
    job.wait()


def events(job, container="main"):
    return {each["reason"]: each["message"] for each in job.state(container).get("occurrences", ())}


NASTY = "printf 'no \\\\ \"database\"\\n\\t\\303 $HOME'"
"""Output that is no text, and no part of a JSON string as it is."""


def test_failed_probes_and_hooks_are_told_with_their_output(site):
    """kubernetes/kubernetes#6532: why a container is killed must be visible to its owner."""
    waits = "trap 'exit 0' TERM; while :; do sleep 0.1; done"

    def probe(command):
        command = ["sh", "-c", command]
        return {"exec": {"command": command}, "periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 10}

    containers = [
        site.shell(waits, name="liveness", livenessProbe=probe(f"{NASTY}; exit 1")),
        site.shell(waits, name="startup", startupProbe=probe("exit 7")),
        site.shell(
            waits,
            name="late",
            livenessProbe=probe("echo begun; sleep 60") | {"timeoutSeconds": 6, "failureThreshold": 1},
        ),
        site.shell(waits, name="much", livenessProbe=probe("yes | head -c 3000000; exit 1")),
        site.shell(
            waits,
            name="start",
            lifecycle={"postStart": {"exec": {"command": ["sh", "-c", "echo 'not now' >&2; exit 3"]}}},
        ),
        site.shell(
            "sleep 1000", name="stop", lifecycle={"preStop": {"exec": {"command": ["sh", "-c", "echo no; exit 4"]}}}
        ),
    ]
    job = site.job({"terminationGracePeriodSeconds": 2, "containers": containers}).start()
    for name in ("liveness", "startup", "late", "much", "start"):
        job.eventually(lambda name=name: job.state(name).get("state") == "terminated")
    job.ask_to_stop(2)
    job.wait(20)
    killed = "Container {0} failed {1} probe"
    assert events(job, "liveness") == {
        "Unhealthy": 'Liveness probe failed: no \\ "database"  ? $HOME',
        "Killing": killed.format("liveness", "liveness"),
    }, job.everything()
    assert events(job, "startup") == {
        "Unhealthy": "Startup probe failed: exit code 7",
        "Killing": killed.format("startup", "startup"),
    }
    assert events(job, "late")["Unhealthy"] == "Liveness probe failed after 6 s without an answer: begun"
    assert events(job, "much")["Unhealthy"].startswith("Liveness probe failed: y y y")
    assert len(events(job, "much")["Unhealthy"]) <= 512
    assert events(job, "start") == {
        "FailedPostStartHook": "PostStartHook failed (exit code 3): not now",
        "Killing": "Container start failed its postStart hook",
    }
    assert events(job, "stop") == {
        "FailedPreStopHook": "PreStopHook failed (exit code 4): no",
        "Killing": "Stopping container stop",
    }
    assert not [path for path in (job.folder / "run").iterdir() if path.suffix in (".hook", ".liveness", ".startup")]


def test_probes_by_network_tell_why_they_failed(ordinary, http_port, closed_port):
    def probe(**how):
        return {"readinessProbe": {**how, "periodSeconds": 1}}

    containers = [
        ordinary.shell("exec sleep 4", name="http", **probe(httpGet={"port": http_port, "path": "/bad"})),
        ordinary.shell("exec sleep 4", name="closed", **probe(httpGet={"port": closed_port})),
        ordinary.shell("exec sleep 4", name="tcp", **probe(tcpSocket={"port": closed_port})),
    ]
    job = ordinary.run({"containers": containers})
    refused = f"Readiness probe failed: no connection to {job.pod()['ip']} port {closed_port}"
    assert {name: events(job, name) for name in ("http", "closed", "tcp")} == {
        "http": {"Unhealthy": "Readiness probe failed: HTTP probe failed with statuscode: 500"},
        "closed": {"Unhealthy": refused},
        "tcp": {"Unhealthy": refused},
    }, job.everything()


def test_a_hook_that_leaves_a_process_does_not_wait_for_it(ordinary):
    lifecycle = {"postStart": {"exec": {"command": ["sh", "-c", "echo begun; sleep 300 &"]}}}
    job = ordinary.run({"containers": [ordinary.shell("exec sleep 3", lifecycle=lifecycle)]}, timeout=20)
    assert job.pod()["phase"] == "Succeeded" and events(job) == {}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"command": ["true", "x" * 131_072]}, "argument 1 has 131072 bytes"),
        ({"env": [{"name": "BIG", "value": "x" * 131_069}]}, "the variable BIG has 131073 bytes"),
        ({"args": ["y" * 100_000] * 70}, "arguments and variables have 7"),
    ],
    ids=["argument", "variable", "all"],
)
def test_what_linux_cannot_start_is_refused_by_its_size(ordinary, more, said):
    """No restart would change it, and the pod would hold its resources: it ends, with its other containers."""
    container, other = ordinary.shell("true") | more, ordinary.shell("sleep 300", name="other")
    spec = {"restartPolicy": "Always", "terminationGracePeriodSeconds": 1, "containers": [other, container]}
    job = ordinary.run(spec)
    ended, pod = job.ended(), job.pod()
    assert (ended["exitCode"], ended["reason"]) == (128, "ContainerCannotRun"), job.everything()
    assert job.message().startswith(said) and "this machine starts no program with" in job.message()
    assert (pod["phase"], pod["reason"]) == ("Failed", "ContainerCannotRun") and job.state("main")["restarts"] == 0
    assert pod["message"] == f"container main: {job.message().strip()}" and job.ended("other")["exitCode"] != 0


def test_the_longest_argument_is_no_problem(ordinary):
    job = ordinary.run(
        {"containers": [ordinary.shell("true") | {"command": ["sh", "-c", "echo $0 | wc -c", "x" * 131_071]}]}
    )
    assert job.log().split() == ["131072"], job.everything()


def test_hostname_is_the_pods(ordinary):
    """As a container runtime sets it: programs use it as their own name."""
    show = "echo $$HOSTNAME"
    own = ordinary.shell(show, name="own", env=[{"name": "HOSTNAME", "value": "mine"}])
    job = ordinary.run({"containers": [ordinary.shell(show), own]})
    assert (job.log(), job.log("own")) == ("pod\n", "mine\n")
    assert ordinary.run({"hostname": "h-1", "containers": [ordinary.shell(show)]}).log() == "h-1\n"


def test_http_hook(ordinary, http_port):
    lifecycle = {"postStart": {"httpGet": {"port": http_port, "path": "/bad"}}}
    job = ordinary.run({"containers": [ordinary.shell("exec sleep 1000", lifecycle=lifecycle)]})
    assert job.ended()["exitCode"] == 143


MEMORY = "python3 -c 'x = bytearray(120 << 20); import time; print(len(x), flush=True); time.sleep(1000)'"


def test_memory_limit(site, python):
    container = site.shell(MEMORY.replace("python3", python), resources={"limits": {"memory": "64Mi"}})
    job = site.run({"containers": [container]})
    ended = job.ended()
    assert (ended["exitCode"], ended["signal"], ended["reason"]) == (137, 9, "OOMKilled")
    assert job.pod()["phase"] == "Failed"


@pytest.mark.parametrize(("limit", "watched"), [("400Mi", True), ("64Mi", False)], ids=["below", "not-watched"])
def test_memory_that_ends_no_container(ordinary, python, limit, watched):
    text = MEMORY.replace("python3", python).replace("1000", "3")
    container = ordinary.shell(text, resources={"limits": {"memory": limit}})
    job = ordinary.run({"containers": [container]}, config={"limits": {"watch_memory": watched}})
    assert job.pod()["phase"] == "Succeeded"


def test_oom_of_one_container_is_begun_again(ordinary, python):
    container = ordinary.shell(
        f"[ -e /disk/x ] && exit 0; touch /disk/x; {MEMORY.replace('python3', python)}",
        resources={"limits": {"memory": "64Mi"}},
        **MOUNT,
    )
    job = ordinary.run({**DISK, "restartPolicy": "OnFailure", "containers": [container]})
    assert job.state("main")["last"]["reason"] == "OOMKilled" and job.pod()["phase"] == "Succeeded"


def test_a_terminal_on_a_machine_without_python_is_refused(site):
    """Of its programs, all but Python are there."""
    programs = site.home_for_host_path()
    for path in (*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()):
        if not path.name.startswith("python") and not (programs / path.name).is_symlink():
            (programs / path.name).symlink_to(path)
    job = site.run(spec_of(site.shell("true", tty=True)), environment={"PATH": str(programs)})
    assert job.ended()["reason"] == "ContainerCannotRun"
    assert "stdin and tty need python3" in job.log()
