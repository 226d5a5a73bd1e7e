"""Submissions to a site without Kubernetes: over NATS, and compared with a bare ``sbatch``."""

from __future__ import annotations

import copy
import json
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bridge.config.pools import NatsSection, PoolsSection
from bridge.core.threads import SWITCH_INTERVAL, Supervisor
from bridge.pools.submitter import site_requests
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.model.requests import EqualPods, JobSubmission, PlaceInJob
from bridge.protocol.model.sessions import CommandOptions, Exit
from bridge.protocol.nats.messages import EMPTY, CancelMessage, Snapshot, SubmitMessage
from bridge.protocol.nats.nats_link import Link
from bridge.protocol.nats.nats_server_config import INBOX
from bridge.protocol.nats.request_client import NatsSession, PoolClient
from bridge.protocol.nats.request_table import CANCEL, SNAPSHOT, STATUS, SUBMIT
from bridge.script import build, library
from bridge.script.buildconfig import BuildConfig
from bridge.script.runtimes import runtime_table as runtimes
from cluster import tools
from cluster.bench import bare, bare_nats, bench_pods, nullsite
from cluster.core import Cluster
from cluster.errors import ClusterError
from cluster.polling import eventually
from cluster.ports import free_block, listening
from cluster.systems import nats

OWNER = "c1"

NULL = "local-site"
SLURM = "slurm-site"
LOCAL = NULL  # without the null batch system
AT_ONCE: int = PoolsSection.model_fields["workers"].default
"""Concurrent submissions, as many as a hub's."""
PERIOD = 1.0
"""Seconds between two queries of the batch system."""
SBATCHES = 40
ECHOES = 200
_BARE_SBATCH = """
import json, subprocess, sys, time
times = []
for _ in range(int(sys.argv[1])):
    began = time.monotonic()
    subprocess.run(["sbatch", "--parsable", "--output=/dev/null", "--wrap=true"], check=True, capture_output=True)
    times.append(time.monotonic() - began)
    time.sleep(0.05)
print(json.dumps(times))
"""


def start_null(cluster: Cluster, states: bool = False) -> None:
    """Start the submitter of the null batch system at :data:`NULL`."""
    overrides = {"batch": {"period": PERIOD}, "resources": {"pods": 100_000}}
    env = {nullsite.STATES: "1"} if states else {}
    cluster.start_submitter(NULL, overrides, env, module="cluster.bench.nullsite")


def stop_null(cluster: Cluster) -> None:
    """Stop it and rename its job directories; deleting them would slow the file system down for minutes."""
    cluster.stop_submitter(NULL)
    work = cluster.sites[NULL].work
    (work / "jobs").rename(work / f"jobs.{time.monotonic_ns()}")


@contextmanager
def hub(cluster: Cluster, pool: str) -> Iterator[PoolClient]:
    """Connect to a pool as the hub."""
    supervisor = Supervisor()
    link = Link(
        NatsSection(servers=[cluster.nats.url], seed_file=cluster.nats.seed("hub"), ca_file=cluster.nats.ca_file),
        "bench",
        INBOX,
    )
    link.start(supervisor)
    eventually(lambda: link.connected, "connected")
    try:
        yield PoolClient(link, nats.PREFIX, pool, OWNER)
    finally:
        supervisor.stop()
        supervisor.join(5)


def submit_rate(cluster: Cluster, count: int) -> float:
    """Build scripts and submit them from several threads; return pods per second."""
    config, made = BuildConfig(), bench_pods.pods(count)
    sys.setswitchinterval(SWITCH_INTERVAL)  # the value of the hub
    with hub(cluster, NULL) as client:

        def work(number: int) -> None:
            for pod in made[number::AT_ONCE]:
                client.call(SUBMIT, str(uuid.uuid4()), _submit(pod, config))

        return count / bare.parallel(AT_ONCE, work)


def bare_rate(cluster: Cluster, size: int, count: int, answer: int = bare_nats.SHORT, at_once: int = AT_ONCE) -> float:
    """Return round trips per second of bare clients on the same connections, with ``size`` bytes to the site.

    ``answer``: bytes to the hub. ``at_once``: round trips at the same time.
    """
    server, home = cluster.nats, "/srv/home"
    options = ["--seed", f"{home}/seed", "--authority", f"{home}/ca.crt", "--pool", NULL, "--answer", str(answer)]
    echo = [*tools.module("cluster.bench.bare_nats"), "--url", server.websocket_url, *options]
    cluster.processes.start("echo", [str(cluster.sites[NULL].as_user), *echo])
    try:
        cluster.processes.wait("echo", lambda: _listens(cluster, f"{nats.PREFIX}.{NULL}.status.bench.*"))
        return bare_nats.round_trips(server.url, server.seed("hub"), server.ca_file, NULL, size, count, at_once)
    finally:
        cluster.processes.stop(["echo"], 0)
        cluster.processes.forget("echo")


def payload_size() -> int:
    """Return the mean length of a submission on the wire, in bytes."""
    from bridge.protocol.nats.envelope import pack
    from bridge.protocol.nats.messages import Request

    config, made = BuildConfig(), bench_pods.pods(len(bench_pods.KINDS))
    requests = [
        Request(
            pool=NULL, owner=OWNER, job="x", deadline=time.time(), body=_submit(pod, config).model_dump(mode="json")
        )
        for pod in made
    ]
    return sum(len(pack(request)) for request in requests) // len(requests)


def sbatch_times(cluster: Cluster) -> tuple[list[float], list[float]]:
    """Submit to the site's Slurm, bare and through podbridge; return the seconds of each submission."""
    site = cluster.sites[SLURM]
    straight = json.loads(site.run("python3", "-c", _BARE_SBATCH, str(SBATCHES)))
    pod = bench_pods.pods(1)[0]
    ours = []
    with hub(cluster, SLURM) as client:
        for _ in range(SBATCHES):
            job = str(uuid.uuid4())
            began = time.monotonic()
            client.call(SUBMIT, job, _submit(pod, BuildConfig.model_validate({"runtime": {"kind": "none"}})))
            ours.append(time.monotonic() - began)
            client.call(CANCEL, job, CancelMessage(grace=0, forget=True))
            time.sleep(0.05)
    return straight, ours


@dataclass(frozen=True)
class ArrayCosts:
    """Seconds: from the first submission until each pod has a batch job, and of CPUs meanwhile."""

    arrays: int
    wall: float
    submitter: float
    slurmctld: float


def array_costs(cluster: Cluster, count: int, owner: str) -> ArrayCosts:
    """Submit equal pods to the site's Slurm, where they wait; ``owner``: of an array, empty for single jobs."""
    overrides = {"limits": {"allow_user_flags": True}, "batch": {"array_wait": 60}, "runtime": {"kind": "none"}}
    name = cluster.start_submitter(SLURM, overrides)
    pod, config = bench_pods.pods(1)[0], BuildConfig.model_validate({"runtime": {"kind": "none"}})
    array = EqualPods(owner=owner, wanted=True) if owner else None
    more = {"array": array, "flags": ["--begin=now+1hour"]}
    message = _submit(pod, config).model_copy(update=more)
    with hub(cluster, SLURM) as client:

        def all_jobs() -> dict[str, str]:
            ids, after = dict[str, str](), ""
            while True:
                page = client.call(SNAPSHOT, "", Snapshot(after=after))
                ids.update((job.job, job.job_id) for job in page.jobs if isinstance(job, JobStatus))
                if not page.more:
                    return ids
                after = page.jobs[-1].job

        def work(number: int) -> None:
            for _ in range(number, count, AT_ONCE):
                client.call(SUBMIT, str(uuid.uuid4()), message)

        pids = [cluster.pid(name), cluster.pid(f"{SLURM}-slurmctld")]
        before, began = [_cpu_with_children(pid) for pid in pids], time.monotonic()
        bare.parallel(AT_ONCE, work)
        eventually(lambda: len(all_jobs()) == count and all(all_jobs().values()), "a job for each pod", 300)
        wall = time.monotonic() - began
        after = [_cpu_with_children(pid) for pid in pids]
        jobs = all_jobs()
        for job in jobs:
            client.call(CANCEL, job, CancelMessage(grace=0, forget=True))
        eventually(lambda: not all_jobs(), "nothing is left", 300)
    cluster.stop_submitter(SLURM)
    arrays = {job_id.partition("_")[0] for job_id in jobs.values()}
    return ArrayCosts(len(arrays), wall, after[0] - before[0], after[1] - before[1])


@dataclass(frozen=True)
class GroupStart:
    """Seconds from the begin of a group's job to the first command of its first and its last pod.

    ``parsed``: seconds in which this machine reads the scripts of as many pods, all at once.
    """

    first: float
    last: float
    parsed: float


def group_start(cluster: Cluster, size: int) -> GroupStart:
    """Start a group as one job on the machine of the batch system ``local``."""
    cluster.start_submitter(LOCAL, {"local": {"cpus": 2 * size, "memory": "1Ti"}, "runtime": {"kind": "none"}})
    pod = copy.deepcopy(bench_pods.pods(1)[0])
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", "date +%s.%N; sleep 60"]
    message = _submit(pod, BuildConfig.model_validate({"runtime": {"kind": "none"}}))
    gang, jobs = str(uuid.uuid4()), [str(uuid.uuid4()) for _ in range(size)]
    folder = cluster.sites[LOCAL].work / "jobs"
    with hub(cluster, LOCAL) as client:
        for rank, job in enumerate(jobs):
            place = PlaceInJob(gang=gang, rank=rank, size=size, per_node=size)
            client.call(SUBMIT, job, message.model_copy(update={"place": place}))

        def starts() -> list[float]:
            texts = [log.read_text() for job in jobs for log in folder.glob(f"{job}/logs/*.log")]
            return sorted(float(text) for text in texts if text.endswith("\n"))

        # seldom: it takes the pods' CPU time to look
        eventually(lambda: len(starts()) == size, "all pods have started", 60, every=0.5)
        began, times = (folder / gang / "started").stat().st_ctime, starts()
        parsed = _seconds_to_parse(folder / jobs[0] / "job.sh", size)
        for job in jobs:
            client.call(CANCEL, job, CancelMessage(grace=0, forget=True))
        eventually(lambda: not any((folder / job).exists() for job in jobs), "nothing is left", 120)
    cluster.stop_submitter(LOCAL)
    return GroupStart(times[0] - began, times[-1] - began, parsed)


@dataclass(frozen=True)
class SessionSpeed:
    """Seconds until a byte comes back (median) and until a command has run, and bytes of output per second."""

    echo: float
    start: float
    rate: float


def session_speed(cluster: Cluster, size: int) -> SessionSpeed:
    """Run commands in a container of a plain host: without a terminal, ``size`` bytes of output."""
    with _running(cluster, "sleep", "600") as (client, job):

        def run(*command: str, stdin: bool = False) -> NatsSession:
            return client.open_session(job, CommandOptions(container="main", command=list(command), stdin=stdin))

        began = time.monotonic()
        _output(run("true"))
        start = time.monotonic() - began
        session, echoes = run("cat", stdin=True), []
        for _ in range(ECHOES):
            began = time.monotonic()
            session.send(b"x")
            session.receive()
            echoes.append(time.monotonic() - began)
        session.close()
        began = time.monotonic()
        received = _output(run("head", "-c", str(size), "/dev/zero"))
        rate = received / (time.monotonic() - began - start)
    return SessionSpeed(p50(echoes), start, rate)


@contextmanager
def _running(cluster: Cluster, *command: str) -> Iterator[tuple[PoolClient, str]]:
    """Run a pod on a plain host; yield the hub's client, and the UID of the pod."""
    limits = {"allow_ports": True}
    cluster.start_submitter(
        LOCAL, {"local": {"cpus": 4, "memory": "1Ti"}, "runtime": {"kind": "none"}, "limits": limits}
    )
    pod = copy.deepcopy(bench_pods.pods(1)[0])
    pod["spec"]["containers"][0]["command"] = list(command)
    job = str(uuid.uuid4())
    with hub(cluster, LOCAL) as client:
        client.call(SUBMIT, job, _submit(pod, BuildConfig.model_validate({"runtime": {"kind": "none"}})))

        def is_running() -> bool:
            status = client.call(STATUS, job, EMPTY).status
            return status is not None and any(container.state == "running" for container in status.containers)

        eventually(is_running, "the container runs", 60)
        yield client, job
        client.call(CANCEL, job, CancelMessage(grace=0, forget=True))
    cluster.stop_submitter(LOCAL)


@dataclass(frozen=True)
class PortSpeed:
    """Seconds of one HTTP request with a connection of its own: the first one, and the median of later ones."""

    first: float
    request: float


def port_speed(cluster: Cluster) -> PortSpeed:
    """Send requests to an HTTP server in a pod on a plain host, through a port that is forwarded."""
    port = free_block(1)
    times: list[float] = []
    with _running(cluster, "python3", "-m", "http.server", "--bind=127.0.0.1", str(port)) as (client, job):
        eventually(lambda: listening(port), "the server listens", 60)
        for _ in range(ECHOES):
            began = time.monotonic()
            with closing(client.connect(job, port)) as connection:
                connection.send(b"HEAD / HTTP/1.0\r\n\r\n")
                answer = b""
                while data := connection.receive():
                    answer += data
            if b" 200 " not in answer:
                raise ClusterError(f"the server answered {answer[:100]!r}")
            times.append(time.monotonic() - began)
    return PortSpeed(times[0], p50(times[1:]))


def _output(session: NatsSession) -> int:
    """Receive all output, and return the number of its bytes."""
    count = 0
    while not isinstance(item := session.receive(), Exit):
        count += len(item.data)
    session.close()
    return count


def _seconds_to_parse(script: Path, count: int) -> float:
    began = time.monotonic()
    for shell in [subprocess.Popen(["bash", "-n", str(script)]) for _ in range(count)]:
        shell.wait()
    return time.monotonic() - began


def _cpu_with_children(pid: int | None) -> float:
    """Return the CPU seconds of a process and of those of its children that have ended, as commands have."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / 100


def p50(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def _submit(pod: bench_pods.Object, config: BuildConfig) -> SubmitMessage:
    job = build.build(pod, config, bench_pods.OBJECTS, bench_pods.NODE)
    metadata = pod["metadata"]
    whole = JobSubmission(
        namespace=metadata["namespace"],
        name=metadata["name"],
        script=job.script,
        cpus=job.cpus,
        memory=job.memory,
        time_limit=job.time_limit,
        grace=job.grace,
    )
    return SubmitMessage.of(
        whole, script=site_requests.without_library(job.script, library.digest(runtimes.of(config).library))
    )


def _listens(cluster: Cluster, subject: str) -> bool:
    connections = cluster.nats.monitor("connz?subs=1&limit=1000")["connections"]
    return any(subject in (one.get("subscriptions_list") or ()) for one in connections)


def questions(folder: Path) -> int:
    """Return the number of queries of the null batch system so far."""
    file = folder / "questions"
    return file.stat().st_size if file.exists() else 0
