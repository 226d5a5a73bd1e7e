"""Admission reviews per second, and their latency at 200 a second, compared with a handler that answers at once."""

from __future__ import annotations

import json
import ssl
import statistics
import subprocess
import sys
import time
from typing import Any

from cluster import places
from cluster.bench import bare
from cluster.polling import eventually
from cluster.ports import free_block
from cluster.world import World

CONNECTIONS = 4
SECONDS = 6.0
RATE = 200

AT_ONCE = """
import json, sys, time, threading
import flask
from bridge.serving.certificates import Certificates, make_pair
from bridge.serving.https import Server
app = flask.Flask("at-once")
@app.post("/validate")
def validate():
    uid = flask.request.get_json()["request"]["uid"]
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {"uid": uid, "allowed": True}}
pair = make_pair(["127.0.0.1"], 3600, now=time.time())
server = Server(app, "127.0.0.1", int(sys.argv[1]), threads=16, certificates=Certificates(pair))
server.start()
server.run(threading.Event())
"""


def measure(table: Any, world: World) -> None:
    """Measure, and add the rows to the table."""
    cluster = world.cluster
    cluster.start_podbridge(("admission",))
    body = json.dumps(review(world)).encode()
    port = free_block(1)
    command = [sys.executable, "-c", AT_ONCE, str(port)]
    env = {"PYTHONPATH": str(places.CHECKOUT), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(command, env=env)
    try:
        eventually(lambda: _answers(port, body), "the other handler", 20)
        for title, where in (
            ("podbridge", cluster.podbridge_port("admission")),
            ("a handler that answers at once", port),
        ):
            rate, _ = load(where, body, None)
            _, times = load(where, body, RATE)
            times.sort()
            p50, p99 = statistics.median(times), times[int(len(times) * 0.99) - 1]
            note = f"at {RATE} reviews/s" + ("; to reach: p99 20 ms" if title == "podbridge" else "")
            table.add(
                f"admission reviews, {title}", f"{rate:.0f} /s, p50 {p50 * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms", note
            )
    finally:
        process.terminate()
        process.wait(10)
        cluster.stop_podbridge()


def review(world: World) -> dict[str, Any]:
    """Return a review of a pod as the API server sends it."""
    pod = world.manifest("reviewed", job={"timelimit": "10", "partition": "main"})
    pod["metadata"]["namespace"] = "slurm-bridge"
    pod["spec"]["schedulerName"] = "slurm-bridge-scheduler"
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "reviewed",
        "namespace": "slurm-bridge",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": pod,
        "oldObject": None,
        "dryRun": False,
        "options": None,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def load(port: int, body: bytes, rate: float | None) -> tuple[float, list[float]]:
    """Send reviews at full speed or at a rate; return reviews per second and their latencies (seconds)."""
    times: list[float] = []
    stop = time.monotonic() + SECONDS

    def work(number: int) -> None:
        connection = bare.Connection(f"https://127.0.0.1:{port}", unverified())
        turn = time.monotonic() + number / (rate or 1) if rate else 0.0
        while time.monotonic() < stop:
            if rate:
                time.sleep(max(0.0, turn - time.monotonic()))
                turn += CONNECTIONS / rate
            began = time.monotonic()
            connection("POST", "/validate", json.loads(body))
            times.append(time.monotonic() - began)

    seconds = bare.parallel(CONNECTIONS, work)
    return len(times) / seconds, times


def unverified() -> ssl.SSLContext:
    """Return a TLS context that trusts any certificate: both servers use self-signed ones."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _answers(port: int, body: bytes) -> bool:
    try:
        bare.Connection(f"https://127.0.0.1:{port}", unverified())("POST", "/validate", json.loads(body))
    except (OSError, RuntimeError):
        return False
    return True
