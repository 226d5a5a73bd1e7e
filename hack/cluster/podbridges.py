"""Processes of podbridge on one cluster: the hub's, and the submitters of its sites."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cluster import tools
from cluster.pools import Pools
from cluster.ports import free_block, http_status
from cluster.processes import Processes
from cluster.systems import kube

MAIN = "podbridge"


class Podbridges:
    """podbridge of the cluster in the folder ``state``; the ports of the one named ``podbridge`` begin at ``port``."""

    def __init__(
        self,
        state: Path,
        processes: Processes,
        pools: Pools,
        port: int,
        slurm_rest_url: Callable[[], str],
        settings: Mapping[str, Any],
    ) -> None:
        self._state = state
        self._processes = processes
        self._pools = pools
        self._port = port
        self._slurm_rest_url = slurm_rest_url
        self._settings = settings

    def configure(self, name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Write the configuration of one hub; return it."""
        port = self._port if name == MAIN else free_block(tools.PODBRIDGE_PORTS)
        own = tools.podbridge_config(self._slurm_rest_url(), port)
        common = tools.merged({**own, **self._pools.settings(port + 3)}, self._settings)
        settings = tools.merged(common, overrides)
        (self._state / f"{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        return settings

    def start(
        self, args: Sequence[str], name: str, overrides: Mapping[str, Any], env: Mapping[str, str], api: kube.Api | None
    ) -> None:
        """Start a hub; with ``api``, wait until it is ready."""
        settings = self.configure(name, overrides)
        file = self._state / f"{name}.yaml"
        self._processes.start(name, [str(self._state / "bin" / "podbridge"), *args, "--config", str(file)], env)
        if api is None:
            return
        port = settings["serving"]["healthPort"]
        self._processes.wait(name, lambda: http_status(f"http://127.0.0.1:{port}/readyz") == 200)
        if args[0] in ("run", "admission") and (not overrides or "installation" in overrides):
            self._processes.wait(name, lambda: _admits(api, settings["managedNamespaces"][0]))

    def stop(self, name: str, grace: float) -> None:
        """Stop a process as Kubernetes or systemd would: SIGTERM, after ``grace`` seconds SIGKILL."""
        self._processes.stop([name], grace)
        self._processes.forget(name)

    def port(self, what: str, name: str) -> int:
        """Return a port of a hub that was started: ``admission``, ``health``, ``metrics`` or ``kubelet``."""
        settings = yaml.safe_load((self._state / f"{name}.yaml").read_text())
        if what == "kubelet":
            return int(settings["pools"]["kubeletPort"])
        return int(settings["admission"]["port"] if what == "admission" else settings["serving"][f"{what}Port"])

    def start_submitter(
        self, site: str, overrides: Mapping[str, Any], env: Mapping[str, str], number: int, module: str
    ) -> str:
        """Start a submitter of a site; return the name of its process."""
        name = submitter(site, number)
        self._pools.configure(site, overrides)
        self._processes.start(name, self._pools.site(site).submitter(env, module))
        return name

    def wait_submitter(self, site: str, name: str) -> None:
        """Wait until as many submitters of the site are subscribed as run."""

        def ready() -> bool:
            ours = [one for one in self._processes.names() if one.startswith(submitter(site))]
            running = len([one for one in ours if self._processes.pid(one)])
            return 0 < running <= self._pools.nats.submitters(site)

        self._processes.wait(name, ready, timeout=90)


def submitter(site: str, number: int = 1) -> str:
    """Return the name of a submitter's process; several may serve a pool."""
    return f"{site}-submitter" + (f"-{number}" if number > 1 else "")


def _admits(api: kube.Api, namespace: str) -> bool:
    """Return whether the API server calls the webhook; it learns of a new registration after a moment."""
    body = {"metadata": {"generateName": "probe-"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    try:
        status, found = api.request("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)
    except (OSError, http.client.HTTPException):
        return False
    return status == 201 and found["spec"]["schedulerName"] != "default-scheduler"
