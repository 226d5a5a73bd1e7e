"""A job's directory of the interLink Slurm plugin: what its files say. It is only read.

Source: ``prepare.go`` and ``slurm_script_helpers.go`` of interlink-hq/interlink-slurm-plugin: ``job.sh`` runs init
containers one after the other and ends after the first that fails; it runs the others at the same time and writes their
exit codes in order after each has ended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bridge.errors import ConfigError
from bridge.protocol.model.identifiers import NAMESPACE_PATTERN, UID_PATTERN
from bridge.site.files.atomic_files import read_some, read_word

_CONTAINER = re.compile(r"^run(Init)?Ctn ([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)(?= |$)", re.MULTILINE)
_FILE = re.compile(r"(init|run)-([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)\.(?:out|status)")
_NAME = re.compile(r"^#SBATCH\s+(?:--job-name[= ]|-J[= ]?)(\S+)", re.MULTILINE)
_ID = re.compile(r"\d{1,20}", re.ASCII)
_CODE = re.compile(r"\d{1,3}", re.ASCII)
JOB_SCRIPT = "run-jobScript.status"
"""Written after a script of a job-script builder, which writes the files of the containers itself."""
LARGEST = 8 * 2**20


@dataclass(frozen=True, slots=True)
class OldJob:
    """A job with a ``JobID.jid``. ``name``: of the Slurm job. ``submitted_at``: seconds since 1970."""

    path: Path
    uid: str
    namespace: str
    id: str
    name: str
    submitted_at: float
    user: int | None = None
    """Owner of the directory, if not the user of this process: the plugin gives it to the user of the job."""


@dataclass(frozen=True, slots=True)
class OldContainer:
    """One container. ``code``: its exit code, once it has ended; ``ended_at``, ``seen_at``: seconds since 1970."""

    name: str
    init: bool
    code: int | None = None
    ended_at: float | None = None
    seen_at: float | None = None
    """Last write to its output; ``None``: it has not started."""

    @property
    def log(self) -> str:
        """Name of the file with its output."""
        return f"{'init' if self.init else 'run'}-{self.name}.out"


@dataclass(frozen=True, slots=True)
class OldState:
    """What the files of a job say. ``started_at``: when the plugin first saw the job run."""

    started: bool
    containers: tuple[OldContainer, ...]
    started_at: float | None
    ended: bool

    @property
    def succeeded(self) -> bool:
        """Whether all containers of an ended job ended with exit code 0."""
        return self.ended and all(container.code == 0 for container in self.containers)


def find(root: Path) -> tuple[list[OldJob], list[str]]:
    """Return the jobs below ``DataRootFolder``, and the names of directories with a job that can't be read.

    Raises :class:`ConfigError` if ``DataRootFolder`` exists and can't be read.
    """
    jobs: list[OldJob] = []
    invalid_names: list[str] = []
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise ConfigError(f"adopt_from: {root} can't be read: {error.strerror}") from error
    for name in names:
        try:
            submitted_at = (root / name / "JobID.jid").stat().st_mtime
        except OSError:
            continue
        job = _identified(root / name, submitted_at)
        if job is None:
            invalid_names.append(name)
        else:
            jobs.append(job)
    return jobs, invalid_names


def _identified(path: Path, at: float) -> OldJob | None:
    job_id, uid, namespace = (read_word(path / file) for file in ("JobID.jid", "PodUID.uid", "PodNamespace.ns"))
    usual = f"{namespace}-{uid}"
    if not (_ID.fullmatch(job_id) and re.fullmatch(UID_PATTERN, uid) and re.fullmatch(NAMESPACE_PATTERN, namespace)):
        return None
    if path.name != usual:
        return None
    names = _NAME.findall((read_some(path / "job.slurm", LARGEST) or b"").decode(errors="replace"))
    owner = path.stat().st_uid
    # the last one: a flag of the user replaces the plugin's name, the UID of the pod
    name = names[-1].strip("\"'") if names else uid
    return OldJob(path, uid, namespace, job_id, name, at, None if owner == os.geteuid() else owner)


def containers(job: OldJob) -> list[tuple[str, bool]]:
    """Return the containers of a job, each with whether it is an init container; none for a script of a builder."""
    return containers_of((read_some(job.path / "job.sh", LARGEST) or b"").decode(errors="replace"))


def look(job: OldJob, listed: Sequence[tuple[str, bool]]) -> OldState:
    """Read the state of a job with these containers."""
    try:
        files = {entry.name: entry.stat(follow_symlinks=False).st_mtime for entry in os.scandir(job.path)}
    except OSError:
        files = {}
    codes = {name: read_word(job.path / name) for name in files if name.endswith(".status")}
    return state(listed, files, codes, moment(read_word(job.path / "StartedAt.time")))


def containers_of(script: str) -> list[tuple[str, bool]]:
    """Return the containers of ``job.sh`` in order, each with whether it is an init container."""
    init_by_name = dict.fromkeys((match[2], bool(match[1])) for match in _CONTAINER.finditer(script))
    return list(init_by_name)


def state(
    listed: Sequence[tuple[str, bool]], files: Mapping[str, float], codes: Mapping[str, str], started_at: float | None
) -> OldState:
    """Return the state of a job. ``files``: name -> last write; ``codes``: text of the files with exit codes. Pure."""
    is_without_script = not listed
    if is_without_script:
        listed = sorted({(match[2], match[1] == "init") for name in files if (match := _FILE.fullmatch(name))})
    containers = []
    for name, init in listed:
        stem = f"{'init' if init else 'run'}-{name}"
        text = codes.get(f"{stem}.status", "")
        code = int(text) if _CODE.fullmatch(text) else None
        ended_at = files.get(f"{stem}.status") if code is not None else None
        containers.append(OldContainer(name, init, code, ended_at, files.get(f"{stem}.out")))
    started = "job.out" in files or any(container.seen_at is not None for container in containers)
    failed = any(container.init and container.code for container in containers)
    mains = [container for container in containers if not container.init]
    mains_ended = bool(mains) and all(container.code is not None for container in mains)
    ended = JOB_SCRIPT in codes and bool(codes[JOB_SCRIPT]) if is_without_script else failed or mains_ended
    return OldState(started or ended, tuple(containers), started_at, ended)


def moment(text: str) -> float | None:
    """Read a time as Go prints it: ``2026-07-14 10:11:12.123456789 +0200 CEST``; ``None``: it is none."""
    match = re.match(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))? ([+-]\d{4})", text, re.ASCII)
    if match is None:
        return None
    try:
        whole_seconds = datetime.strptime(f"{match[1]} {match[3]}", "%Y-%m-%d %H:%M:%S %z").timestamp()
    except (ValueError, OverflowError):
        return None
    return whole_seconds + int((match[2] or "0").ljust(9, "0")) / 1e9


def records(seen: OldState, name: OldContainer | None = None) -> dict[str, Any]:
    """Return the record of the pod, or of one container, as podbridge's script writes it (``state/*.json``)."""
    start = seen.started_at
    if name is None:
        ends = [container.ended_at for container in seen.containers if container.ended_at is not None]
        phase = "Running" if not seen.ended else "Succeeded" if seen.succeeded else "Failed"
        return {
            "phase": phase, "reason": "", "message": "", "host": "", "ip": "", "startedAt": start,
            "finishedAt": max(ends, default=None) if seen.ended else None,
        }  # fmt: skip
    if name.code is not None:
        reason = "Completed" if name.code == 0 else "Error"
        ended = {"exitCode": name.code, "reason": reason, "startedAt": start, "finishedAt": name.ended_at}
        return {"state": "terminated", "startedAt": start, "ended": ended, "started": False, "ready": name.init}
    if name.seen_at is not None:
        return {"state": "running", "startedAt": start or name.seen_at, "started": True, "ready": not name.init}
    return {"state": "waiting", "reason": "PodInitializing", "started": False, "ready": False}
