"""Jaeger, a distribution of the OpenTelemetry Collector with a store in memory and a query API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import yaml

from cluster.ports import free_block, listening
from cluster.processes import Processes
from cluster.systems import install

NAME = "jaeger"


class Jaeger:
    """A Jaeger in the folder ``state`` that receives OTLP over HTTP at ``url``."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._processes = Processes(state / "run", state / "logs")
        self._port = free_block(3)
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, and wait until it receives spans and answers queries."""
        self._state.mkdir(parents=True, exist_ok=True)
        file = self._state / "jaeger.yaml"
        file.write_text(yaml.safe_dump(self._settings(), sort_keys=False))
        command = [str(install.binaries(install.JAEGER.packages)[NAME]), f"--config={file}"]
        self._processes.start(NAME, command)
        self._processes.wait(NAME, lambda: listening(self._port) and listening(self._port + 1))

    def stop(self) -> None:
        """Stop it."""
        self._processes.stop([NAME], 5)
        self._processes.forget(NAME)

    def spans(self, trace: str) -> list[dict[str, Any]]:
        """Return the spans of a trace in Jaeger's own JSON; none if it does not have the trace."""
        found = self._get(f"/api/traces/{trace}")
        return [span for item in found for span in item["spans"]]

    def services(self) -> set[str]:
        """Return the names of the services that have sent spans."""
        return set(self._get("/api/services"))

    def _get(self, path: str) -> list[Any]:
        try:
            with urlopen(f"http://127.0.0.1:{self._port + 1}{path}", timeout=10) as answer:
                return json.load(answer)["data"] or []
        except HTTPError as error:
            if error.code == 404:
                return []
            raise

    def _settings(self) -> dict[str, Any]:
        otlp = {"protocols": {"http": {"endpoint": f"127.0.0.1:{self._port}"}}}
        query = {
            "storage": {"traces": "memory"},
            "http": {"endpoint": f"127.0.0.1:{self._port + 1}"},
            "grpc": {"endpoint": f"127.0.0.1:{self._port + 2}"},
        }
        return {
            "service": {
                "extensions": ["jaeger_storage", "jaeger_query"],
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
            "extensions": {
                "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 1000}}}},
                "jaeger_query": query,
            },
            "receivers": {"otlp": otlp},
            "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
        }
