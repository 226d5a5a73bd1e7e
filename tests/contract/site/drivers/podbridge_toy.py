"""A batch system and a container runtime that another package brings: installed beside podbridge, by entry points.

Jobs of the batch system start at once, as processes; files in a directory are its records. The runtime runs commands on
the machine, with the variables of the container and one more.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Collection
from pathlib import Path

from pydantic import Field

from bridge.errors import BatchError, ScriptError
from bridge.script.plan_types import Container, Plan
from bridge.script.quoting import word
from bridge.script.runtimes.runtime_interface import Runtime
from bridge.script.settings import AbsolutePath, BuildSettings, SettingsPart
from bridge.site.batch.batch_interface import (
    Amount,
    BatchJob,
    BatchJobRequest,
    BatchSystem,
    Capacity,
    Site,
    job_environment,
)


class Toy(SettingsPart):
    """``[toybatch]``: used with ``batch.kind = "toybatch"``."""

    read_at_start = True
    records: AbsolutePath | None = Field(None, examples=["/tmp/toy"], description="Directory of the records.")
    cpus: int = 4


class ToyBatch(BatchSystem):
    """A job is a process of this machine. Its records: ``<uid>`` has the pid, ``<uid>.code`` the exit code."""

    kind = "toybatch"
    settings = Toy
    period = 0.3
    lag = 1.0
    eager = True

    def __init__(self, config: Toy, site: Site) -> None:
        self._cpus = config.cpus
        self._records = Path(config.records or site.folder / "toy")
        self._records.mkdir(parents=True, exist_ok=True)

    def version(self) -> str:
        return "toybatch 1.0"

    def submit(self, request: BatchJobRequest) -> str:
        if request.cpus > self._cpus:
            raise BatchError(f"{request.cpus} CPUs: this toy has {self._cpus}")
        script = 'echo $$ >"$1"; bash "$2/job.sh" >>"$2/script.log" 2>&1; echo $? >"$1.code"'
        words = ["bash", "-c", script, "toy", str(self._records / request.uid), str(request.folder)]
        environment = {**job_environment({}), "TOY_JOB": request.uid}
        subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
        return request.uid

    def find(self, uid: str) -> str | None:
        return uid if (self._records / uid).exists() else None

    def cancel(self, ids: Collection[str]) -> None:
        for uid in ids:
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int((self._records / uid).read_text()), signal.SIGTERM)

    def jobs(self) -> dict[str, BatchJob]:
        names = [name for name in os.listdir(self._records) if "." not in name]
        return {name: self._job(name) for name in names}

    def _job(self, uid: str) -> BatchJob:
        code = self._records / f"{uid}.code"
        if not code.exists() or not code.read_text():
            return BatchJob(uid, uid, "running", host="toyhost")
        return BatchJob(uid, uid, "ended", exit_code=int(code.read_text()), by_itself=True)

    def capacity(self) -> Capacity:
        amount = Amount(self._cpus, 2**32)
        return Capacity(amount, amount)


class ToySettings(SettingsPart):
    """``[toyruntime]``: used with ``runtime.kind = "toyruntime"``."""

    greeting: str = Field("hello", description="Value of the variable GREETING in every container.")


class ToyRuntime(Runtime):
    """Commands of the machine, without volumes."""

    kind = library = "toyruntime"
    settings = ToySettings
    schemes = ()
    supports_mpi = False

    def bash(self) -> str:
        return (Path(__file__).parent / "podbridge_toy.bash").read_text()

    def accept(self, container: Container, where: str, config: BuildSettings, image_root: str) -> None:
        if not container.command:
            raise ScriptError(f"{where}.command: must be set at this site: its runtime is a toy")

    def options(self, plan: Plan) -> list[str]:
        return [f"GREETING={word(plan.config.section(ToySettings).greeting)}"]

    def version_command(self, config: BuildSettings) -> list[str]:
        return ["echo", "toyruntime", "2.0"]
