"""``podbridge plugin`` as a process, and a client that sends requests as interLink's Go programs do."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.polling import eventually
from cluster.ports import free_block
from tests.fakes.virtual_kubelet import phase

CHECKOUT = Path(__file__).resolve().parents[3]
_RUN = "from bridge.apps.cli.main import main; main()"


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: str, timeout: float) -> None:
        super().__init__("unix" if address.startswith("unix://") else address, timeout=timeout)
        self.address = address

    def connect(self) -> None:
        if not self.address.startswith("unix://"):
            super().connect()
            return
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.address.removeprefix("unix://"))


class Client:
    """Requests to interLink's REST API. ``address``: ``host:port`` or ``unix:///path``."""

    def __init__(self, address: str, **headers: str) -> None:
        self.address, self.headers = address, headers

    @contextlib.contextmanager
    def open(
        self, method: str, path: str, content: Any = None, timeout: float = 30.0
    ) -> Iterator[http.client.HTTPResponse]:
        connection = _Connection(self.address, timeout)
        try:
            data = None if content is None else json.dumps(content)
            connection.request(method, path, data, {"Content-Type": "application/json", **self.headers})
            with connection.getresponse() as answer:
                yield answer
        finally:
            connection.close()

    def call(self, method: str, path: str, content: Any = None) -> tuple[int, bytes]:
        with self.open(method, path, content) as answer:
            return answer.status, answer.read()

    def good(self, method: str, path: str, content: Any = None) -> Any:
        status, data = self.call(method, path, content)
        assert status == 200, (status, data)
        return json.loads(data) if path in ("/create", "/status", "/pinglink", "/system-info") else data.decode()

    def create(self, pod: dict[str, Any]) -> dict[str, str]:
        containers = [
            {"name": each["name"]} for each in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
        ]
        made: dict[str, str] = self.good("POST", "/create", {"pod": pod, "container": containers, "jobConfig": {}})
        return made

    def status(self, pod: dict[str, Any]) -> dict[str, Any]:
        (told,) = self.good("GET", "/status", [pod])
        return dict(told)

    def wait(self, pod: dict[str, Any], wanted: str, timeout: float = 60.0) -> dict[str, Any]:
        """Wait until the virtual kubelet shows this phase."""
        last: dict[str, Any] = {}

        def look() -> bool:
            last.update(self.status(pod))
            return phase(last) == wanted

        eventually(look, f"phase {wanted}, not {last}", timeout)
        return last

    def log(self, pod: dict[str, Any], container: str = "main", **opts: Any) -> str:
        return str(self.good("GET", "/getLogs", log_request(pod, container, **opts)))

    def delete(self, pod: dict[str, Any]) -> None:
        self.good("DELETE", "/delete", pod)


def log_request(pod: dict[str, Any], container: str = "main", **opts: Any) -> dict[str, Any]:
    metadata = pod["metadata"]
    return {
        "Namespace": metadata["namespace"],
        "PodUID": metadata["uid"],
        "PodName": metadata["name"],
        "ContainerName": container,
        "Opts": {"SinceTime": "0001-01-01T00:00:00Z", **opts},
    }


def make_pod(command: str, *, init: str = "", **spec: Any) -> dict[str, Any]:
    """Return a pod with one container ``main`` that runs a command of ``sh``, and perhaps an init container."""
    uid = str(uuid.uuid4())

    def container(name: str, text: str) -> dict[str, Any]:
        return {"name": name, "image": "none", "command": ["sh", "-c", text]}

    made: dict[str, Any] = {"containers": [container("main", command)], "restartPolicy": "Never", **spec}
    if init:
        made["initContainers"] = [container("first", init)]
    metadata = {"name": f"pod-{uid[:8]}", "namespace": "default", "uid": uid}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made}


class Submitter:
    """The process of a site."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder, self._config = folder, config
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self._folder / "submitter.log").open("ab") as log:
            words = [sys.executable, "-c", _RUN, "submitter", "--config", str(self._config)]
            self._process = subprocess.Popen(words, cwd=CHECKOUT, stdout=log, stderr=log)

    def stop(self, number: int = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)


class PluginProcess:
    """The process. ``start`` waits until a pool accepts jobs. ``submitter``: that of its pool, if it is another one."""

    submitter: Submitter

    def __init__(self, folder: Path, address: str, *arguments: str) -> None:
        self.folder, self.address, self.arguments = folder, address, arguments
        self.client = Client(address)
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0

    def start(self) -> None:
        self.started += 1
        with (self.folder / f"plugin-{self.started}.log").open("wb") as log:
            words = ["plugin", "--listen", self.address, "--allow-local-users", *self.arguments]
            self.process = subprocess.Popen([sys.executable, "-c", _RUN, *words], cwd=CHECKOUT, stdout=log, stderr=log)
        eventually(self.answers, "the plugin's answer to a ping", 60)

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log()
        with contextlib.suppress(OSError):
            return self.client.call("POST", "/pinglink")[0] == 200
        return False

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("plugin-*.log")))

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


def free_address() -> str:
    return f"127.0.0.1:{free_block(1)}"


def write_site(folder: Path, pool: str, text: str = "") -> Path:
    """Write the configuration of a site with the batch system ``local`` and without a container runtime."""
    path = folder / "site.toml"
    path.write_text(
        f'pool = "{pool}"\nfolder = "{folder}/site"\n[runtime]\nkind = "none"\n[batch]\nkind = "local"\n'
        f'[local]\ncpus = 4\nmemory = "4Gi"\n[announce]\nperiod = 1\ncapacity_period = 1\n{text}'
    )
    return path


def jobs_of(folder: Path) -> list[str]:
    """Return the UIDs of the jobs in a site's folder."""
    jobs = folder / "site" / "jobs"
    return sorted(os.listdir(jobs)) if jobs.is_dir() else []


def follow(client: Client, pod: dict[str, Any], lines: list[tuple[float, str]]) -> None:
    """Read a followed log to its end; append each line with the time of its arrival."""
    with client.open("GET", "/getLogs", log_request(pod, Follow=True)) as answer:
        assert answer.status == 200, answer.read()
        for line in answer:
            lines.append((time.time(), line.decode().rstrip()))
