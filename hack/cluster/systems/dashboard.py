"""A running ``podbridge dashboard`` of a cluster: for tests and for the benchmark."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import yaml

from cluster.errors import ClusterError
from cluster.world import World


class Page:
    """The dashboard at the URL that it prints, and an HTTP client; ``pid`` is the process of the dashboard."""

    def __init__(self, url: str, pid: int) -> None:
        self.url, self.pid = url, pid
        self.base = url.partition("?")[0]
        self._cookies = CookieJar()
        self._client = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self._cookies))

    def get(self, path: str) -> tuple[float, str]:
        """Return the seconds that a page takes, and its text."""
        if not self._cookies:  # the URL has a token, which later requests have as a cookie
            self._client.open(self.url, timeout=60).read()
        began = time.perf_counter()
        text = self._client.open(self.base + path, timeout=60).read().decode()
        return time.perf_counter() - began, text


@contextmanager
def served(world: World, *args: str, kubeconfig: Path | None = None) -> Iterator[Page]:
    """Run the dashboard with the configuration of the hub, until the block ends."""
    state = world.cluster.state
    file = state / "podbridge.yaml"
    config = yaml.safe_load(file.read_text()) if file.exists() else {}
    # the hub has the other ports
    config["serving"] = {**config.get("serving", {}), "healthPort": 0, "metricsPort": None}
    (state / "dashboard.yaml").write_text(yaml.safe_dump(config))
    files = ["--config", str(state / "dashboard.yaml"), "--kubeconfig", str(kubeconfig or world.cluster.kubeconfig)]
    command = [str(state / "bin" / "podbridge"), "dashboard", "--port", "0", *files, *args]
    with (
        (state / "logs" / "dashboard.log").open("ab") as log,
        subprocess.Popen(command, env=world.cluster.env, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            line = process.stdout.readline() if process.stdout else ""
            yield Page(line.rpartition(" ")[2].strip(), process.pid)
        finally:
            process.terminate()
            status = process.wait(10)
    if status:
        raise ClusterError(f"podbridge dashboard ended with status {status}")
