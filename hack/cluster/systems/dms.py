"""A fake NuNet DMS over HTTP, after the published examples: ``python -m cluster.systems.dms --port PORT``.

The peers are those of the published list, with its inconsistencies: a peer that is not available has GPUs, ``ram`` is
in MB, and the answer to ``/resources`` (:data:`PUBLISHED_RESOURCES`) does not follow from the list. A job runs no
container: it lasts the seconds of its variable ``DMS_SECONDS``, its log has its request, and it fails if its variable
``DMS_FAIL`` is set.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import socket
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]
CURRENT = "/api/v1/peers/dht/dump"
STATUS, SUBMIT, CANCEL, LOGS = "/api/v1/job/status/", "/orchestrator/postJob", "/api/v1/job/", "/logs/"
PUBLISHED_RESOURCES = {
    "nunet.gpu.nvidia.tesla.p100.16gb": 3,  # of a peer that is not available
    "nunet.gpu.nvidia.rtx.3080.10gb": 5,  # the list has 4
    "nunet.gpu.nvidia.rtx.3090.24gb": 2,
    "nunet.cpu.cores": 17,
    "nunet.cpu.mhz": 114299,
    "nunet.ram.gb": 113855,  # MB
}
SECONDS, FAIL = "DMS_SECONDS", "DMS_FAIL"


def _peer(number: int, *, available: bool, cards: list[tuple[str, int]], cpu: int, mhz: int, ram: int) -> Json:
    """Return a peer in the form of the published list."""
    return {
        "peer_id": f"QmPeer{number}",
        "is_available": available,
        "has_gpu": bool(cards),
        "allow_cardano": False,
        "gpu_info": [{"name": name, "tot_vram": vram, "free_vram": vram} for name, vram in cards] or None,
        "tokenomics_addrs": "",
        "tokenomics_blockchain": "",
        "available_resources": {
            "id": 1,
            "tot_cpu_hz": mhz,
            "price_cpu": 0,
            "ram": ram,
            "price_ram": 0,
            "vcpu": cpu,
            "disk": 0,
            "price_disk": 0,
            "ntx_price": 0,
        },
        "services": None,
    }


def published_peers() -> list[Json]:
    """Return the published list."""
    p100, rtx = ("Tesla P100-PCIE-16GB", 16384), "NVIDIA GeForce RTX"
    return [
        _peer(1, available=True, cards=[], cpu=1, mhz=4000, ram=4000),
        _peer(2, available=False, cards=[p100] * 3, cpu=0, mhz=0, ram=0),
        _peer(
            3,
            available=True,
            cards=[(f"{rtx} 3080", 10240)] * 4 + [(f"{rtx} 3090", 24576)] * 2,
            cpu=17,
            mhz=114299,
            ram=113855,
        ),
    ]


@dataclass
class Job:
    """A job. ``began`` in monotonic seconds."""

    id: str
    body: Json
    peer: Json
    began: float
    cancelled: float | None = None
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @property
    def lasts(self) -> float:
        """Seconds."""
        return float(self.body.get("jobenv", {}).get(SECONDS) or 2)

    @property
    def elapsed(self) -> float:
        """Seconds until now, or until the end."""
        return min((self.cancelled or time.monotonic()) - self.began, self.lasts)

    @property
    def state(self) -> str:
        """The DMS's word. Only ``running`` is published."""
        if self.cancelled is not None:
            return "cancelled"
        if self.elapsed < self.lasts:
            return "running"
        return "finished with errors" if self.body.get("jobenv", {}).get(FAIL) else "finished without errors"

    def log(self) -> bytes:
        """Return the log so far: one line each half second."""
        request = self.body.get("requiredCapability", {}).get("resources", {})
        lines = [f"job {self.body.get('job_id')} with image {self.body.get('job', {}).get('image')}"]
        lines += [f"resources {json.dumps(request, sort_keys=True)}", f"arguments {self.body.get('jobparams')}"]
        lines += [f"step {step}" for step in range(1, int(self.elapsed * 2) + 1)]
        return ("\n".join(lines) + "\n").encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._connections: list[socket.socket] = []
        super().__init__(*args)

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def close_connections(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class FakeDms:
    """The DMS; also its own log server.

    Attributes
    ----------
    token
        If set, requests need it as a bearer token.
    cancels
        Whether jobs can be cancelled with ``DELETE /api/v1/job/<job>``, which is not published.
    shows
        Whether the peers' services show the jobs.
    drop, fail
        Number of submissions that are carried out but not answered, and that are answered with HTTP 500.
    requests
        Method and path of each request.
    """

    def __init__(self, port: int = 0) -> None:
        self.peers = published_peers()
        self.jobs: dict[str, Job] = {}
        self.token = ""
        self.cancels = self.shows = True
        self.drop = self.fail = 0
        self.delay = 0.0
        self.requests: list[tuple[str, str]] = []
        self.lock = threading.RLock()
        dms = self

        class Handler(_Handler):
            server_dms = dms

        self._server = _Server(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> FakeDms:
        """Start to serve."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._server.close_connections()
        self._thread.join()

    def __enter__(self) -> FakeDms:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- the API ------------------------------------------------------------------------------------------------------
    def listed(self) -> list[Json]:
        """Return the peers: resources of running jobs are not available, services show all jobs."""
        with self.lock:
            result = copy.deepcopy(self.peers)
            jobs = list(self.jobs.values())
        for peer in result:
            ours = [job for job in jobs if job.peer["peer_id"] == peer["peer_id"]]
            for job in ours:
                if job.state == "running":
                    _take(peer, job.body["requiredCapability"]["resources"])
            if ours and self.shows:
                peer["services"] = [self._service(job) for job in ours]
        return result

    def _service(self, job: Job) -> Json:
        return {
            "ID": job.id,
            "CreatedAt": job.created,
            "UpdatedAt": job.created,
            "DeletedAt": None,
            "TxHash": "",
            "TransactionType": "",
            "JobStatus": job.state,
            "JobDuration": int(job.elapsed),
            "EstimatedJobDuration": int(job.lasts),
            "ServiceName": job.body.get("job_id", ""),
            "ContainerID": f"container-{job.id}",
            "ResourceRequirements": 1,
            "ImageID": job.body.get("job", {}).get("image", ""),
            "LogURL": f"{self.url}{LOGS}{job.id}",
            "LastLogFetch": job.created,
        }

    def submit(self, body: Json) -> Job:
        """Start a job on the peer of the request, or on the first with enough CPUs."""
        cores = body["requiredCapability"]["resources"]["cpu"]["cores"]
        with self.lock:
            wanted = body.get("peer_id")
            peers = [p for p in self.peers if p["is_available"] and wanted in (None, p["peer_id"])]
            peer = next(p for p in peers if p["available_resources"]["vcpu"] >= cores)
            job = Job(f"nunet-{len(self.jobs) + 1}", body, peer, time.monotonic())
            self.jobs[job.id] = job
            return job

    def jobs_of(self, uid: str) -> list[Job]:
        """Return the jobs that were submitted for a pod."""
        with self.lock:
            return [job for job in self.jobs.values() if job.body.get("job_id") == uid]

    def cancel(self, job: Job) -> None:
        """Cancel a job that runs."""
        if job.state == "running":
            job.cancelled = time.monotonic()

    def status(self, job: Job) -> Json:
        """Return the state of a job in the published form."""
        return {
            "jobid": job.id,
            "jobstatus": job.state,
            "starttime": job.created,
            "duration": int(job.elapsed),
            "remainingtime": max(0, int(job.lasts - job.elapsed)),
        }


def _take(peer: Json, asked: Json) -> None:
    """Take the resources of a job from a peer."""
    free = peer["available_resources"]
    free["vcpu"] -= asked["cpu"]["cores"]
    size = asked.get("ram", "0Mi")
    free["ram"] -= int(size[:-2]) * (1024 if size.endswith("Gi") else 1)
    if (gpu := asked.get("gpu")) is not None:
        model = gpu["model"].rpartition(".")[2]
        for card in peer["gpu_info"] or ():
            if model in card["name"].lower() and card["free_vram"] == card["tot_vram"]:
                card["free_vram"] = 0
                return


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_dms: FakeDms

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _answer(self, code: int, content: object) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(content, bytes) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self) -> None:
        dms, method, path = self.server_dms, self.command, self.path
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        dms.requests.append((method, path))
        if method == "GET" and path.startswith(LOGS):
            job = dms.jobs.get(path.removeprefix(LOGS))
            return self._answer(404, b"no log") if job is None else self._answer(200, job.log())
        if dms.token and self.headers.get("Authorization") != f"Bearer {dms.token}":
            return self._answer(401, {"error": "token refused"})
        if method == "GET" and path == CURRENT:
            return self._answer(200, dms.listed())
        if method == "GET" and path.startswith(STATUS):
            job = dms.jobs.get(path.removeprefix(STATUS))
            return self._answer(404, {"error": "no such job"}) if job is None else self._answer(200, dms.status(job))
        if method == "POST" and path == SUBMIT:
            return self._submit(data)
        if method == "DELETE" and path.startswith(CANCEL) and dms.cancels:
            job = dms.jobs.get(path.removeprefix(CANCEL))
            if job is None:
                return self._answer(404, {"error": "no such job"})
            dms.cancel(job)
            return self._answer(200, {})
        return self._answer(404, {"error": "404 page not found"})

    def _submit(self, data: bytes) -> None:
        dms = self.server_dms
        if dms.fail:
            dms.fail -= 1
            return self._answer(500, {"error": "something failed"})
        try:
            job = dms.submit(json.loads(data))
        except StopIteration:
            return self._answer(400, {"error": "no peer fits"})
        except (ValueError, KeyError, TypeError) as error:
            return self._answer(400, {"error": f"malformed request: {error!r}"})
        if dms.drop:
            dms.drop -= 1
            self.close_connection = True
            return None
        return self._answer(200, {"job_id": job.id})

    do_GET = do_POST = do_DELETE = _handle  # noqa: N815


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    dms = FakeDms(parser.parse_args().port).start()
    print(f"fake DMS at {dms.url}", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
