"""Isolation: other users of a site's machine, other sites, and malformed messages from either side.

A bare client with real credentials sends the messages over NATS; it ignores podbridge's rules.
"""

import asyncio
import json
import os
import ssl
import subprocess
import time
import zlib

import nats
import pytest

from bridge.protocol.nats.envelope import pack, parse
from bridge.protocol.nats.messages import Announce, Reply, Request
from bridge.protocol.nats.nats_server_config import INBOX
from bridge.protocol.nats.subjects import Subjects
from cluster.polling import eventually
from cluster.systems.nats import PREFIX

pytestmark = pytest.mark.real
POOL, OTHER = "local-site", "slurm-site"
NOBODY = 65534
GARBAGE = {
    "nothing": b"",
    "bytes": bytes(range(256)) * 4,
    "half of json": b'{"v":1,"pool":',
    "no fields": b"{}",
    "another version": b'{"v":2,"pool":"local-site","deadline":1e12}',
    "a list": b"[1,2,3]",
    "deep": b'{"a":' * 100_000,
    "not a number": b'{"v":1,"pool":"local-site","deadline":NaN,"sequence":1e999}',
    "cut off": zlib.compress(b'{"v":1}' * 1000)[:-20],
    "a bomb": zlib.compress(b'{"v":1,"a":"' + b"a" * 80_000_000, 9),
    "large": os.urandom(1) + b"x" * 7_900_000,
}


@pytest.fixture
def world(pools_world):
    """The world without pods, before and after."""
    pools_world.clear()
    yield pools_world
    pools_world.clear()


def speak(world, user, said, asked=(), listen=()):
    """Connect as ``user``; publish, request and subscribe. Return answers, messages and the server's errors."""
    answers, heard, complaints = [], [], []

    async def complain(error):
        complaints.append(str(error))

    async def hear(message):
        heard.append(message.subject)

    async def talk():
        server = world.cluster.nats
        client = await nats.connect(
            server.url,
            tls=ssl.create_default_context(cafile=str(server.ca_file)),
            nkeys_seed=str(server.seed(user)),
            inbox_prefix=(INBOX if user == "hub" else "_INBOX").encode(),
            error_cb=complain,
        )
        for subject in listen:
            await client.subscribe(subject, cb=hear)
        await client.flush(10)
        for subject, data in said:
            await client.publish(subject, data)
            await client.flush(30)
        for subject, data in asked:
            answers.append((await client.request(subject, data, timeout=30)).data)
        await asyncio.sleep(2 if listen else 0.2)
        await client.close()

    asyncio.run(talk())
    return answers, heard, complaints


def owner_of(world):
    """Return the name of the cluster that owns podbridge's jobs."""
    return world.cluster.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}").strip()


def announcement(pool, **changes):
    """Return an announcement of a site."""
    known = {"pool": pool, "submitter": "intruder", "sequences": {}, "time": time.time(), "period": 2, "version": "0"}
    return Announce.model_construct(**{**known, "capacity": {"cpu": "100000", "memory": "1Pi"}, **changes})


def as_user(uid, *argv):
    """Run a program as a user without groups; return its exit code and its output."""
    command = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


class TestOtherUsers:
    @pytest.mark.parametrize("who", ["nobody", "another site's user"])
    def test_a_job_s_folder_is_closed_to_other_users(self, world, who):
        site = world.cluster.sites[POOL]
        uid = NOBODY if who == "nobody" else world.cluster.sites[OTHER].uid
        word = f"between-us-{time.monotonic_ns()}"
        container = {"name": "main", "image": "busybox", "command": ["sh", "-c", f"echo {word}; sleep 120"]}
        container["env"] = [{"name": "WORD", "value": word}]
        pod = world.create_pod({"containers": [container], "restartPolicy": "Never"}, POOL)
        world.running(pod)
        folder = world.job_folder(pod, POOL)
        eventually(lambda: word in (folder / "logs" / "main.log").read_text(), "the log")
        files = [entry for entry in folder.rglob("*") if entry.is_file()]
        assert {"job.sh", "job.id", "logs/main.log"} <= {str(file.relative_to(folder)) for file in files}
        assert as_user(site.uid, "cat", folder / "job.sh")[0] == 0, "its own user can"
        assert as_user(uid, "ls", site.folder)[0] == 0, "the way there is open"
        for file in (*files, site.folder / "home" / "seed"):
            code, text = as_user(uid, "cat", file)
            assert code != 0
            assert "Permission denied" in text
        for place in (folder, site.work, site.work / "jobs", site.folder / "home"):
            assert as_user(uid, "ls", place)[0] != 0
        for file in (folder / "control" / "stop", site.work / "changed" / "x", site.work / "jobs" / "x"):
            assert as_user(uid, "touch", file)[0] != 0
        environments = [entry for entry in self.processes_of(site.uid) if word in self.environment(site.uid, entry)]
        assert environments, "its own user can"
        assert not [entry for entry in environments if word in self.environment(uid, entry)]
        assert world.get(pod)["status"]["phase"] == "Running"

    @staticmethod
    def processes_of(uid):
        """Return the pids of a user's processes."""
        return subprocess.run(["pgrep", "-U", str(uid)], capture_output=True, text=True, check=False).stdout.split()

    @staticmethod
    def environment(uid, pid):
        """Return the environment of a process, as a user sees it."""
        return as_user(uid, "cat", f"/proc/{pid}/environ")[1]


class TestForgery:
    def test_nats_9_12_nonsense_from_one_site_stops_no_other(self, world):
        before = {site: world.kube_node(site) for site in (POOL, OTHER)}
        pid = world.cluster.pid("podbridge")
        running = world.run("sleep 10; exit 3", OTHER)
        own = Subjects(PREFIX, POOL, owner_of(world))
        labels = {"no value": "x" * 1000, "": "", "a/b/c": "-", "kubernetes.io/hostname": OTHER}
        capacity = {"cpu": "many", "memory": "-5Gi", "": "1", "a b": "1", "pods": "1e999", "nvidia.com/gpu": "0.5"}
        taints = ["nonsense", "=:", "pool.vk.io=x:NoSchedule", "a=b:Sometimes"]
        bad = announcement(POOL, labels=labels, capacity=capacity, taints=taints, period=float("1e300"))
        said = [(subject, data) for subject in self.subjects(own) for data in GARBAGE.values()]
        said += [(own.announce, pack(bad)), (own.event, self.nonsense(POOL))]
        _, _, complaints = speak(world, POOL, said)
        assert not complaints
        here = world.run("echo here", POOL)
        assert world.ended(here, 60)["status"]["phase"] == "Succeeded"
        assert world.logs(here) == "here\n"
        assert world.ended(running, 60)["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3
        assert world.cluster.pid("podbridge") == pid
        for site, node in before.items():
            world.ready(site, 60)
            # the next announcement of the site counts again
            eventually(lambda s=site, n=node: self.offer(world.kube_node(s)) == self.offer(n), "as before", 60)

    @staticmethod
    def subjects(own):
        return [own.announce, own.buildconfig, own.event, own.stream("abcdefgh")]

    @staticmethod
    def offer(node):
        """Return the parts of a node that come from its site."""
        return node["status"]["capacity"], node["metadata"]["labels"], node["spec"]["taints"]

    @staticmethod
    def nonsense(pool):
        """Return an event with a valid form and invalid content."""
        status = {"job": "not-a-job", "namespace": "\x00", "name": "../..", "phase": "ended", "started_at": -1e300}
        return json.dumps({"v": 1, "pool": pool, "submitter": "", "sequence": -7, "status": status}).encode()


def request(subjects, job="", body=None, **changes):
    """Return a request as the hub writes it."""
    known = {
        "pool": subjects.pool,
        "owner": subjects.owner,
        "job": job,
        "deadline": time.time() + 60,
        "body": body or {},
    }
    return Request.model_construct(**{**known, **changes})


class TestGarbage:
    def test_malformed_and_oversized_requests_are_answered_and_disturb_nothing(self, world):
        gate = f"/srv/home/gate-{time.monotonic_ns()}"
        running = world.run(f"until [ -e {gate} ]; do sleep 0.1; done; echo undisturbed; exit 4", POOL)
        world.running(running)
        name = f"{POOL}-submitter"
        pid, jobs = world.cluster.pid(name), world.jobs_at(POOL)
        own, uid = Subjects(PREFIX, POOL, owner_of(world)), running["metadata"]["uid"]
        places = {kind: pattern.replace("*", uid) for kind, pattern in own.requests().items()}
        asked = [(subject, data) for subject in places.values() for data in GARBAGE.values()]
        asked += [(places[kind], data) for kind, data in self.misfits(own, Subjects(PREFIX, OTHER, own.owner), uid)]
        answers, _, complaints = speak(
            world, "hub", [(own.input("abcdefgh"), data) for data in GARBAGE.values()], asked
        )
        assert not complaints
        problems = [parse(Reply, answer).error for answer in answers]
        assert len(problems) == len(asked)
        assert None not in problems
        assert "InternalError" not in {problem.reason for problem in problems}
        assert world.cluster.pid(name) == pid
        assert world.jobs_at(POOL) == jobs
        site = world.cluster.sites[POOL]
        assert not list(site.folder.rglob("*escaped*"))
        assert world.ended(world.run("echo next", POOL))["status"]["phase"] == "Succeeded"
        site.run("touch", gate)
        found = world.ended(running)
        assert found["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 4
        assert world.logs(running) == "undisturbed\n"
        site.run("rm", gate)

    @staticmethod
    def misfits(own, other, uid):
        """Return requests with a valid form that must not be carried out, each with its kind."""
        submit = {"namespace": "n", "name": "p", "script": "touch escaped"}
        outside = [{"path": path, "data": "eA=="} for path in ("../escaped", "/srv/home/escaped", "a/../../escaped")]
        return [
            ("submit", pack(request(own, "../../escaped", submit))),
            ("submit", pack(request(other, uid, submit))),
            ("submit", pack(request(own, "another", submit))),
            ("submit", pack(request(own, uid, submit, deadline=time.time() - 60))),
            ("submit", pack(request(own, uid, {**submit, "cpus": -1}))),
            ("submit", pack(request(own, uid, {**submit, "script": 7}))),
            ("logs", pack(request(own, uid, {"container": "../../seed", "stream": "abcdefgh"}))),
            ("logs", pack(request(own, uid, {"container": "main", "stream": "> *"}))),
            *[("files", pack(request(own, uid, {"files": [file]}))) for file in outside],
            ("snapshot", pack(request(own, "", {"limit": 10**9}))),
        ]
