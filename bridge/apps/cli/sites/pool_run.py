"""Runs one pod on a pool and waits for its end: the whole way from the API server to the batch system and back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bridge import names
from bridge.apps.view import pod_view
from bridge.errors import BridgeError, ConfigError, KubeError, KubeNotFoundError
from bridge.kube.kube_client import KubeClient
from bridge.kube.resources import NODES, PODS
from bridge.workload import pool_selection
from bridge.workload.eligibility import readiness

PERIOD = 1.0
"""Seconds between two reads."""
LOG_TIMEOUT = 10.0
"""Seconds to wait for the log of the ended pod."""
OUTPUT = "a pod of podbridge ran here"
"""What the pod prints, before the name of its machine."""


class PodTestError(BridgeError):
    """The pod did not run to its end."""


@dataclass(frozen=True, slots=True)
class PodTest:
    """What runs where. ``timeout``: seconds for all of it. ``keep``: do not delete the pod."""

    pool: str
    namespace: str
    scheduler: str
    image: str
    timeout: float
    keep: bool = False


def manifest(test: PodTest) -> dict[str, Any]:
    """Return the pod: one CPU, 64 MiB, and no token, which a site gets only with its namespace's consent."""
    container = {
        "name": "main",
        "image": test.image,
        "command": ["/bin/sh", "-c", f'echo "{OUTPUT}: $(uname -n)"'],
        "resources": {"requests": {"cpu": "1", "memory": "64Mi"}},
    }
    metadata = {"generateName": "podbridge-test-", "annotations": {names.POOLS: test.pool}}
    spec = {"containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": False}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def run(
    kube: KubeClient, test: PodTest, say: Callable[[str], None], wait: Callable[[float], None] = time.sleep
) -> None:
    """Wait until the pool is ready, run the pod, and print its log; raises :class:`PodTestError` if it failed."""
    progress = _Progress(time.monotonic() + test.timeout, say, wait)
    _wait_ready(kube, test.pool, progress)
    pod = kube.create(PODS.path(test.namespace), manifest(test))
    name = pod["metadata"]["name"]
    path = PODS.path(test.namespace, name)
    try:
        if pod["spec"].get("schedulerName") != test.scheduler:
            raise ConfigError(
                f"namespace {test.namespace}: podbridge does not schedule its pods",
                hint="name a managed namespace (--namespace), and give the hub's configuration (--config)",
            )
        say(f"pod {test.namespace}/{name}: created")
        ended = _wait_ended(kube, path, progress)
        _check_end(ended, test, name)
        say(f"pod {test.namespace}/{name}: succeeded: job {pod_view.job(ended)}")
        say(f"log: {_log(kube, path, wait)}")
    finally:
        if not test.keep:
            _delete(kube, path)


@dataclass
class _Progress:
    """Says each new state once, until the time is over."""

    end: float
    say: Callable[[str], None]
    wait: Callable[[float], None]
    last: str = ""

    def next(self, state: str, hint: str) -> None:
        """Say a state that is not the end and wait; raise :class:`PodTestError` if the time is over."""
        if state != self.last:
            self.say(state)
            self.last = state
        if time.monotonic() > self.end:
            raise PodTestError(f"the time is over (--timeout): {state}", hint=hint)
        self.wait(PERIOD)


def _wait_ready(kube: KubeClient, pool: str, progress: _Progress) -> None:
    hint = "start the submitter at the site and read its log; podbridge check looks at the hub"
    while True:
        try:
            node = kube.get(NODES.path(name=pool))
        except KubeNotFoundError:
            progress.next(f"pool {pool}: no message from its site yet", hint)
            continue
        if not pool_selection.is_virtual(node):
            raise ConfigError(f"node {pool} is not a pool; the pool needs another name")
        condition = readiness(node)
        if condition.get("status") == "True":
            progress.say(f"pool {pool}: Ready")
            return
        progress.next(f"pool {pool}: not ready: {condition.get('reason', '')}: {condition.get('message', '')}", hint)


def _wait_ended(kube: KubeClient, path: str, progress: _Progress) -> dict[str, Any]:
    while True:
        pod = kube.get(path)
        view = pod_view.of(pod)
        if not view.open:
            return pod
        job = f"job {view.job}" if view.job else ""
        parts = (view.state, job, view.reason, view.message)
        metadata = pod["metadata"]
        hint = f"podbridge explain pod {metadata['name']} -n {metadata['namespace']} (with --keep) says why it waits"
        progress.next(f"pod {metadata['namespace']}/{metadata['name']}: " + ": ".join(filter(None, parts)), hint)


def _check_end(pod: dict[str, Any], test: PodTest, name: str) -> None:
    """Raise :class:`PodTestError` unless the pod succeeded on the pool."""
    view = pod_view.of(pod)
    if view.state != pod_view.SUCCEEDED:
        detail = ": ".join(filter(None, (view.reason, view.message)))
        raise PodTestError(
            f"pod {test.namespace}/{name}: {view.state}: {detail}", hint="docs/admins/pools.md has reasons"
        )
    if view.node != test.pool:
        raise PodTestError(f"pod {test.namespace}/{name}: it ran on {view.node}, not on {test.pool}")


def _log(kube: KubeClient, path: str, wait: Callable[[float], None]) -> str:
    """Return what the pod printed; raises :class:`PodTestError` if that does not come."""
    end = time.monotonic() + LOG_TIMEOUT
    while True:
        try:
            text = b"".join(kube.text(f"{path}/log", {}, idle_timeout=LOG_TIMEOUT)).decode(errors="replace").strip()
            problem = f"it has another text: {text[:200]!r}"
        except KubeError as error:
            text, problem = "", str(error)
        if text.startswith(OUTPUT):
            return text
        if time.monotonic() > end:
            raise PodTestError(
                f"the pod succeeded, but its log cannot be read: {problem}",
                hint="podbridge check looks at the kubelet port",
            )
        wait(PERIOD)


def _delete(kube: KubeClient, path: str) -> None:
    with contextlib.suppress(KubeNotFoundError):
        kube.delete(path)
