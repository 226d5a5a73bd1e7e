"""A Prometheus that scrapes podbridge on a cluster, and its tool promtool: Debian's package, unpacked in the cache."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from cluster import places
from cluster.ports import free_block, http_status
from cluster.processes import Processes
from cluster.systems import debian

PACKAGE = "prometheus"
NAME = "prometheus"
FILES = places.CHECKOUT / "helm" / "podbridge" / "files"
RULES = FILES / "alerts.yaml"
DASHBOARDS = FILES / "dashboards"


def program(name: str = "prometheus") -> Path:
    """Return the path of ``prometheus`` or ``promtool``."""
    return debian.unpacked(PACKAGE) / name


def ensure() -> None:
    """Unpack the package, unless that was done."""
    debian.ensure_unpacked(PACKAGE)


class Prometheus:
    """A Prometheus in the folder ``state`` that scrapes ``targets`` (job -> ports on the loopback) every second."""

    def __init__(self, state: Path, targets: Mapping[str, Sequence[int]]) -> None:
        self._state = state
        self._processes = Processes(state / "run", state / "logs")
        self._targets = targets
        self.port = free_block(1)

    def start(self) -> None:
        """Start it with the alert rules of the chart, and wait until it is ready."""
        self._state.mkdir(parents=True, exist_ok=True)
        scrapes = [
            {"job_name": job, "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in ports]}]}
            for job, ports in self._targets.items()
        ]
        settings: dict[str, Any] = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": scrapes,
        }
        file = self._state / "prometheus.yaml"
        file.write_text(yaml.safe_dump(settings, sort_keys=False))
        command = [
            str(program()),
            f"--config.file={file}",
            f"--storage.tsdb.path={self._state / 'tsdb'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]
        self._processes.start(NAME, command)
        self._processes.wait(NAME, lambda: http_status(f"http://127.0.0.1:{self.port}/-/ready") == 200)

    def stop(self) -> None:
        """Stop it."""
        self._processes.stop([NAME], 5)
        self._processes.forget(NAME)

    def get(self, path: str, **params: str) -> Any:
        """Return ``data`` of an answer of its HTTP API, such as ``query``; an error is an exception of urllib."""
        with urlopen(f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(params)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query."""
        result: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return result


def promtool(*args: str, folder: Path | None = None) -> str:
    """Run promtool; return its output. Raises :class:`subprocess.CalledProcessError`."""
    command = [str(program("promtool")), *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder, timeout=60).stdout
