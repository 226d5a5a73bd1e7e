"""``adopted.json`` in the submitter's directory: batch jobs that another program submitted, whose names differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from bridge.site.files.atomic_files import read_valid, write

FILE = "adopted.json"
LARGEST = 64 * 2**20


@dataclass(frozen=True, slots=True)
class AdoptedJob:
    """A batch job: its id, its name in the batch system, and the name of its directory at the other program.

    ``user``: the owner of this directory, where that is not the user of this process.
    """

    uid: str
    id: str
    name: str
    folder: str
    user: int | None = None


_JOBS = TypeAdapter(dict[str, AdoptedJob])


def read(folder: Path) -> dict[str, AdoptedJob]:
    """Return the adopted jobs by UID; none if there is no such file."""
    return read_valid(_JOBS, folder / FILE, LARGEST) or {}


def put(folder: Path, jobs: Mapping[str, AdoptedJob]) -> None:
    """Replace the file."""
    write(folder / FILE, _JOBS.dump_json(dict(jobs)), sync=True)


def names(folder: Path) -> dict[str, tuple[str, str]]:
    """Return batch id -> UID and name: an id that the batch system assigned again has another name."""
    return {job.id: (job.uid, job.name) for job in read(folder).values()}
