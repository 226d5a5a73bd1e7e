"""A site for measurements: the real submitter with a batch system that does nothing.

``python -m cluster.bench.nullsite --pool POOL --config FILE`` runs it; with ``--plugin HOST:PORT``, ``podbridge
plugin`` with this batch system runs instead. A job counts as running as soon as it is submitted,
and never ends; with ``$NULLSITE_STATES`` its folder has the state of one container ``main``, as from a script. Each
query of the batch system adds a byte to the file ``questions`` in the submitter's folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

from bridge.apps.cli import main as cli
from bridge.site import service
from bridge.site.batch.batch_interface import Amount, BatchJob, BatchJobRequest, BatchSystem, Capacity, Site
from bridge.site.batch.batch_table import SYSTEMS
from bridge.site.batch.local_resources import Local

STATES = "NULLSITE_STATES"
QUESTIONS = "questions"
CONTAINER = "main"
_PLENTY = Amount(cpus=1_000_000, memory=2**50, extended={})


class NullBatch(BatchSystem):
    """A batch system in memory, in the place of ``local``."""

    kind = "local"
    settings = Local
    period = 1.0
    lag = 1.0

    def __init__(self, config: Local, site: Site) -> None:
        self._folder = site.folder
        self._clock = site.clock
        self._states = bool(os.environ.get(STATES))
        self._jobs: dict[str, BatchJob] = {}
        self._lock = threading.Lock()

    def version(self) -> str:
        """Return the version, for the announcement."""
        return "none"

    def submit(self, request: BatchJobRequest) -> str:
        """Accept a job; its id is the UID."""
        now = self._clock.time()
        with self._lock:
            self._jobs[request.uid] = BatchJob(
                id=request.uid, uid=request.uid, phase="running", host="nowhere", started_at=now
            )
        if self._states:
            (request.folder / "started").mkdir()
            (request.folder / "state").mkdir()
            pod = {"phase": "Running", "reason": "", "message": "", "host": "nowhere", "ip": "", "startedAt": now}
            states = {"pod": {**pod, "finishedAt": None}, CONTAINER: container(now, ready=False)}
            for name, state in states.items():  # no submitter reads it yet
                (request.folder / "state" / f"{name}.json").write_text(json.dumps(state) + "\n")
        return request.uid

    def find(self, uid: str) -> str | None:
        """Return the id of a job; ``None`` if there is none."""
        return uid if uid in self._jobs else None

    def cancel(self, ids: Collection[str]) -> None:
        """Remove jobs."""
        with self._lock:
            for uid in ids:
                self._jobs.pop(uid, None)

    def jobs(self) -> dict[str, BatchJob]:
        """Return all jobs."""
        with (self._folder / QUESTIONS).open("ab") as file:
            file.write(b".")
        with self._lock:
            return dict(self._jobs)

    def past(self, ids: Collection[str]) -> dict[str, BatchJob]:
        """Return each of these jobs as cancelled."""
        now = self._clock.time()
        return {uid: BatchJob(id=uid, uid=uid, phase="ended", reason="Cancelled", ended_at=now) for uid in ids}

    def capacity(self) -> Capacity:
        """Return resources that are larger than any request."""
        return Capacity(total=_PLENTY, free=_PLENTY)


def container(started_at: float, ready: bool) -> dict[str, object]:
    """Return the state of a running container."""
    over = {"ended": None, "restarts": 0, "last": None}
    return {"state": "running", "reason": "", "startedAt": started_at, "started": True, "ready": ready, **over}


def write_end(folder: Path, now: float) -> None:
    """Write the success of a job's container and of the job, as a script does at its end."""
    ended = {"exitCode": 0, "signal": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    over = {"state": "terminated", "reason": "", "startedAt": now, "started": False, "ready": False, "ended": ended}
    write_state(folder, CONTAINER, {**over, "restarts": 0, "last": None})
    pod = {"phase": "Succeeded", "reason": "", "message": "", "host": "nowhere", "ip": "", "startedAt": now}
    write_state(folder, "pod", {**pod, "finishedAt": now})


def write_state(folder: Path, name: str, state: dict[str, object]) -> None:
    """Replace a file in a job's folder ``state``, as a script does; all users may read it."""
    aside = folder / "state" / f".{name}.{time.monotonic_ns()}"
    aside.write_text(json.dumps(state) + "\n")
    aside.chmod(0o644)
    aside.replace(folder / "state" / f"{name}.json")


def main() -> int:
    """Run the submitter, or the plugin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool", required=True)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--plugin", metavar="HOST:PORT")
    options = parser.parse_args()
    SYSTEMS["local"] = NullBatch
    if options.plugin:
        sys.argv[1:] = ["plugin", "--site", str(options.config), "--listen", options.plugin, "--allow-local-users"]
        cli.main()
    return service.run(options.config, options.pool)


if __name__ == "__main__":
    sys.exit(main())
