"""Fuzzing of the webhook and the kubelet API of a running podbridge: ``python -m cluster.fuzz --help``.

Hypothesis generates the requests, most of them close to valid ones: a review with parts replaced or removed, a path
of known words. A failure is an answer of 500, no answer within ten seconds, or memory, threads or open files that grow.
"""

from __future__ import annotations

import argparse
import copy
import http.client
import json
import os
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cluster import places
from cluster.bench.reviews import unverified
from cluster.core import Cluster
from cluster.errors import ClusterError

TIMEOUT = 10.0
MEMORY_GROWTH = 64 * 2**10
"""KiB by which the process may grow after the warm-up: caches have limits and fill up slowly."""
SETTLE = 30.0
WARM_UP = 500
TOLD = {500, 505}
"""Statuses that are failures. 501 means not supported by the kubelet API, 502 that a site does not answer."""
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "name": "p",
        "namespace": "slurm-bridge",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"]},
        "object": {
            "metadata": {
                "name": "p",
                "namespace": "slurm-bridge",
                "annotations": {"slurmjob.slinky.slurm.net/timelimit": "10", "bridge.vk.io/pools": "slurm-site"},
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}],
            },
            "spec": {
                "schedulerName": "slurm-bridge-scheduler",
                "tolerations": [{"key": "pool.vk.io", "operator": "Equal", "value": "a", "effect": "NoSchedule"}],
                "nodeSelector": {"a": "b"},
                "containers": [
                    {"name": "main", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
                ],
            },
        },
        "oldObject": None,
        "dryRun": False,
    },
}
_WORDS = [
    "",
    "0",
    "-1",
    "1e400",
    "a" * 300,
    "../..",
    "%2e%2e",
    "é",
    "\x00",
    "true",
    "slurm-bridge",
    "CREATE",
    "UPDATE",
    "DELETE",
]
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(_WORDS))
_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=8), st.sampled_from(["name", "spec", "metadata"])), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
_KUBELET_PARTS = (
    *("containerLogs", "exec", "attach", "portForward", "pods", "runningpods", "stats", "summary", "metrics"),
    *("resource", "healthz", "remote", "slurm-site", "local-site", "p", "main", "", ".", "..", "%2f", "a%00b"),
)
_KUBELET_QUERY = ("follow", "tailLines", "sinceSeconds", "sinceTime", "limitBytes", "timestamps", "previous", "node")


@dataclass(frozen=True)
class Call:
    """One request."""

    target: str
    method: str
    path: str
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def _paths_of(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += _paths_of(child, (*path, key))
    return found


_PLACES = _paths_of(REVIEW)


@st.composite
def reviews(draw: st.DrawFn) -> Call:
    """Generate a request to the webhook."""
    path = draw(st.sampled_from(["/mutate", "/validate", "/mutate/named", "/validate/named", "/mutate", "/", "/x"]))
    if draw(st.integers(0, 9)) == 0:
        return Call(
            "admission", draw(st.sampled_from(["POST", "GET", "PUT", "HEAD"])), path, draw(st.binary(max_size=200))
        )
    review = copy.deepcopy(REVIEW)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.sampled_from(_PLACES))
        holder: Any = review
        try:
            for key in place[:-1]:
                holder = holder[key]
            if draw(st.booleans()):
                holder[place[-1]] = draw(_JSON)
            else:
                del holder[place[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # exchanged before
    return Call("admission", "POST", path, json.dumps(review).encode("utf-8", "surrogatepass"))


@st.composite
def kubelet_calls(draw: st.DrawFn) -> Call:
    """Generate a request to the kubelet API."""
    word = st.one_of(
        st.sampled_from(_KUBELET_PARTS), st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), max_size=8)
    )
    parts = draw(st.lists(word, min_size=1, max_size=5))
    names = st.one_of(st.sampled_from(_KUBELET_QUERY), st.just("x"))
    values = st.one_of(
        st.sampled_from(["1", "true", "-1", "", "2026-01-01T00:00:00Z", "9" * 30, "slurm-site"]), st.just("%ff")
    )
    query = draw(st.dictionaries(names, values, max_size=3))
    path = "/" + "/".join(parts).replace(" ", "").replace("#", "").replace("?", "")
    if query:
        path += "?" + "&".join(f"{key}={value}" for key, value in query.items())
    headers = (
        {"Authorization": draw(st.sampled_from(["Bearer x", "Bearer ", "Basic eDp5", ""]))}
        if draw(st.booleans())
        else {}
    )
    method = draw(st.sampled_from(["GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"]))
    return Call("kubelet", method, path, draw(st.binary(max_size=30)) if method in ("POST", "PUT") else b"", headers)


@dataclass
class Usage:
    """Resources of a process: resident KiB, threads, open files."""

    memory: int
    threads: int
    files: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        """Read it."""
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
        return cls(int(lines["VmRSS"].split()[0]), int(lines["Threads"]), len(os.listdir(f"/proc/{pid}/fd")))


class Sender:
    """Sends calls over connections that are kept alive if the server keeps them."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        context = unverified()
        kube = cluster.state / "kube"
        context.load_cert_chain(kube / "kubelet-client.crt", kube / "kubelet-client.key")
        self._contexts: dict[str, ssl.SSLContext] = {"admission": unverified(), "kubelet": context}
        self._open: dict[str, http.client.HTTPSConnection] = {}
        self.statuses: Counter[tuple[str, int]] = Counter()
        self.longest = 0.0

    def send(self, call: Call) -> None:
        """Send a call; raise :class:`ClusterError` for an answer that is a failure."""
        began = time.monotonic()
        for attempt in range(2):
            connection = self._open.get(call.target) or self._connect(call.target)
            try:
                connection.request(call.method, call.path, call.body or None, call.headers)
                response = connection.getresponse()
                response.read()
                break
            except TimeoutError as error:
                raise ClusterError(f"no answer within {TIMEOUT:.0f} s: {call}") from error
            except (OSError, http.client.HTTPException) as error:
                self._open.pop(call.target).close()
                if attempt:
                    raise ClusterError(f"{error!r}: {call}") from error
        self.longest = max(self.longest, time.monotonic() - began)
        self.statuses[call.target, response.status] += 1
        if response.status in TOLD:
            raise ClusterError(f"answered {response.status}: {call}")

    def _connect(self, target: str) -> http.client.HTTPSConnection:
        port = self._cluster.podbridge_port(target)
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=TIMEOUT, context=self._contexts[target])
        self._open[target] = connection
        return connection

    def close(self) -> None:
        """Close the connections."""
        for connection in self._open.values():
            connection.close()


def run(cluster: Cluster, requests: int) -> str:
    """Send half of the requests to each server; return the figures. Raise :class:`ClusterError` for a failure."""
    pid = cluster.pid("podbridge")
    if pid is None:
        raise ClusterError("podbridge does not run")
    sender = Sender(cluster)
    began = time.monotonic()

    def send(strategy: st.SearchStrategy[Call], count: int) -> None:
        @settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(strategy)
        def each(call: Call) -> None:
            sender.send(call)

        each()

    kinds = (reviews(), kubelet_calls())
    for kind in kinds:
        send(kind, min(WARM_UP, requests) // 2)
    before = Usage.of(pid)
    for kind in kinds:
        send(kind, requests // 2)
    sender.close()
    end = time.monotonic() + SETTLE
    while (after := Usage.of(pid)).threads > before.threads and time.monotonic() < end:
        time.sleep(0.2)
    statuses = ", ".join(f"{target} {status}: {count}" for (target, status), count in sorted(sender.statuses.items()))
    figures = (
        f"{sum(sender.statuses.values())} requests in {time.monotonic() - began:.0f} s, the longest "
        f"{sender.longest:.2f} s; {statuses}; before {before}, after {after}"
    )
    if (
        after.memory > before.memory + MEMORY_GROWTH
        or after.threads > before.threads + 2
        or after.files > before.files + 10
    ):
        raise ClusterError(f"podbridge has grown: {figures}")
    return figures


def main() -> None:
    """Run against the cluster in a state folder."""
    parser = argparse.ArgumentParser(prog="cluster.fuzz", description=__doc__)
    parser.add_argument(
        "--state", type=Path, default=places.default_state(), metavar="DIR", help="the cluster's folder (%(default)s)"
    )
    parser.add_argument("--requests", type=int, default=100_000, metavar="N", help="how many (%(default)s)")
    options = parser.parse_args()
    print(run(Cluster.load(options.state), options.requests))


if __name__ == "__main__":
    main()
