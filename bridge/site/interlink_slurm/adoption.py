"""Adopts jobs that the interLink Slurm plugin left running: they appear as jobs of podbridge with their Slurm ids.

:meth:`Adoption.begin` creates a directory of podbridge for each job of the plugin, without a script, and lists them in
``adopted.json``, so that the driver finds them by id. :meth:`Adoption.refresh` then does what podbridge's script does
for its own jobs: it writes the state of the containers, and links their output. The plugin's directory is removed with
the job. Each step may be repeated after a crash: a job that is listed and has no directory was forgotten.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from pathlib import Path

from bridge.core.isolation import isolated
from bridge.logs import kv
from bridge.site.batch import adopted
from bridge.site.batch.adopted import AdoptedJob
from bridge.site.files.atomic_files import open_plain, put, read_json
from bridge.site.files.removal import remove_tree
from bridge.site.interlink_slurm import adopted_jobs
from bridge.site.interlink_slurm.adopted_jobs import OldJob, OldState
from bridge.site.jobs.job_folder import LARGEST_STATE, JobFolder
from bridge.site.jobs.job_record import Meta
from bridge.site.jobs.site_folder import Folder

log = logging.getLogger(__name__)

NO_SCRIPT = "#!/bin/bash\n# The interLink Slurm plugin submitted this job; podbridge only watches it.\nexit 1\n"


class Adoption:
    """The plugin's jobs below ``root``, its ``DataRootFolder``."""

    def __init__(self, root: Path, folder: Folder) -> None:
        self._root, self._folder = root, folder
        self._jobs: dict[str, OldJob] = {}
        self._containers: dict[str, list[tuple[str, bool]]] = {}
        self._done: set[str] = set()
        self._copied: set[Path] = set()

    def begin(self) -> int:
        """Adopt every job that is new; return the number of adopted jobs."""
        adopted_by_uid = adopted.read(self._folder.path)
        forgotten_uids = self._folder.all_forgotten()
        plugin_jobs, invalid_names = adopted_jobs.find(self._root)
        for name in invalid_names:
            log.warning("no job of the interLink Slurm plugin", extra=kv(folder=self._root / name))
        new_jobs = 0
        for job in plugin_jobs:
            if job.uid in adopted_by_uid:
                self._jobs[job.uid] = job
                continue
            with self._folder.locked(job.uid):
                job_folder = self._folder.job(job.uid)
                meta = job_folder.meta() if job_folder.exists() else None
                if job.uid in forgotten_uids or (meta is not None and not meta.adopted):
                    continue
                # a kill after create() leaves a directory without an id
                if meta is None or not (job_folder.path / "job.id").exists():
                    job_folder.remove()
                    job_folder.create(NO_SCRIPT, _meta(job))
                    job_folder.write_id(job.id)
            adopted_by_uid[job.uid] = AdoptedJob(job.uid, job.id, job.name, job.path.name, job.user)
            self._jobs[job.uid] = job
            new_jobs += 1
        # last: a job that is listed and has no directory counts as forgotten
        if new_jobs:
            adopted.put(self._folder.path, adopted_by_uid)
        if self._jobs:
            log.info(
                "jobs of the interLink Slurm plugin", extra=kv(jobs=len(self._jobs), new=new_jobs, folder=self._root)
            )
        return len(self._jobs)

    @property
    def period(self) -> float:
        """Seconds between two calls of :meth:`refresh`: at most a hundred directories are read in a second."""
        return max(1.0, len(self._jobs) / 100)

    def refresh(self) -> None:
        """Write the state of each job that has changed; remove the plugin's directory of each that was forgotten."""
        forgotten_uids = []
        for uid, job in self._jobs.items():
            job_folder = self._folder.job(uid)
            if not job_folder.exists():
                forgotten_uids.append(uid)
            elif uid not in self._done:
                try:
                    with contextlib.suppress(FileNotFoundError), isolated("site", uid):  # it is being forgotten
                        self._translate(job, job_folder)
                except OSError as error:  # a full disk, or a directory that its job has spoiled: others come after it
                    log.warning("the state of an adopted job is not written yet", extra=kv(job=uid, why=error.strerror))
        # the plugin's directory first: after a kill, a job that is no longer listed would be adopted again
        for uid in forgotten_uids:
            remove_tree(self._jobs.pop(uid).path)
        if forgotten_uids:
            remaining_jobs = {
                uid: job for uid, job in adopted.read(self._folder.path).items() if uid not in forgotten_uids
            }
            adopted.put(self._folder.path, remaining_jobs)

    def _translate(self, job: OldJob, job_folder: JobFolder) -> None:
        containers = self._containers.get(job.uid) or adopted_jobs.containers(job)
        self._containers[job.uid] = containers
        state = adopted_jobs.look(job, containers)
        if not state.started:
            return
        for name in ("state", "logs", "started"):
            (job_folder.path / name).mkdir(mode=0o700, exist_ok=True)
        changed = not (job_folder.path / "started/job").exists()
        if changed:
            put(job_folder.path / "started/job", job.id.encode() + b"\n")
        for container in state.containers:
            self._link(job.path / container.log, job_folder.path / "logs" / f"{container.name}.log", state)
            changed |= _replace(
                job_folder.path / "state" / f"{container.name}.json", adopted_jobs.records(state, container)
            )
        # last: it says that all others are complete
        changed |= _replace(job_folder.path / "state/pod.json", adopted_jobs.records(state))
        if changed:
            self._folder.touch(job.uid)
        if state.ended:
            self._done.add(job.uid)

    def _link(self, source: Path, target: Path, state: OldState) -> None:
        """Link the output of a container; copy it at the end where no link is possible."""
        if target.exists() or target in self._copied:
            return
        try:
            os.link(source, target, follow_symlinks=False)
        except FileNotFoundError:
            pass  # it has not started
        except OSError as error:
            if state.ended:
                self._copied.add(target)
                with contextlib.suppress(OSError):
                    _copy(source, target)
                log.warning("output copied at the end of its job only", extra=kv(file=source, why=error))


def _copy(source: Path, target: Path) -> None:
    """Copy a plain file; the user of the job may put a link in its place."""
    descriptor = open_plain(source)
    if descriptor is not None:
        with open(descriptor, "rb") as old, open(target, "xb") as new:
            shutil.copyfileobj(old, new)


def _replace(path: Path, content: dict[str, object]) -> bool:
    """Replace a file if its content differs; return whether it did."""
    old_content = read_json(path, LARGEST_STATE)
    if old_content is not None and old_content.get("state") == content.get("state") == "running":
        content = {**content, "startedAt": old_content.get("startedAt")}
    if old_content == content:
        return False
    put(path, json.dumps(content).encode())
    return True


def _meta(job: OldJob) -> Meta:
    """Return a request without sizes; the plugin records no name of the pod, so its UID stands for it."""
    return Meta(
        namespace=job.namespace,
        name=job.uid.lower(),
        cpus=1,
        memory=0,
        gpus=0,
        gpu_resource="",
        time_limit=None,
        flags=(),
        flavor="",
        grace=30.0,
        submitted_at=job.submitted_at,
        attempted_at=job.submitted_at,
        adopted=True,
    )
