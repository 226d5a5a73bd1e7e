"""The records of the batch system ``local`` on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import BatchError
from bridge.site.batch import local_records
from bridge.site.batch.batch_interface import Site
from bridge.site.batch.local import LocalBatch
from bridge.site.batch.local_records import Record, Records
from bridge.site.batch.local_resources import Local, MachineResources
from tests.fakes.clock import FakeClock

REQUIRED = {"uid": "u", "folder": "/f", "queued_at": 1.0, "cpus": 1, "memory": 2, "gpus": 2, "time_limit": None}


def read(path: Path, content: str) -> Records:
    records = Records(path)
    (path / "u.json").write_text(content)
    records.read_new()
    return records


def test_a_record_of_another_version_is_read(tmp_path: Path) -> None:
    records = read(tmp_path, json.dumps({**REQUIRED, "devices": [0, 1], "key_of_a_later_version": 1}))
    assert (records.jobs["u"].phase, records.jobs["u"].devices) == ("queued", (0, 1))
    records.write(records.jobs["u"])
    again = Records(tmp_path)
    again.read_new()
    assert again.jobs == records.jobs


@pytest.mark.parametrize("content", ["{}", "[]", "{", json.dumps({**REQUIRED, "cpus": "many"})])
def test_a_record_that_cannot_be_read_stays_and_is_reported_once(tmp_path: Path, caplog: Any, content: str) -> None:
    records = read(tmp_path, content)
    records.read_new()
    assert records.jobs == {}
    assert (tmp_path / "u.json").read_text() == content
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", ["", "\0\0\0"])
def test_a_record_that_a_power_failure_emptied_is_removed(tmp_path: Path, content: str) -> None:
    assert read(tmp_path, content).jobs == {}
    assert not (tmp_path / "u.json").exists()


def test_a_record_that_cannot_be_opened_now_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(local_records, "read_some", lambda *_: None)  # as with too many open files
        records = read(tmp_path, json.dumps(REQUIRED))
    assert records.jobs == {}
    records.read_new()
    assert list(records.jobs) == ["u"]


def test_the_capacity_is_not_known_without_the_directory(tmp_path: Path) -> None:
    batch = LocalBatch(Local(), Site(tmp_path, (), FakeClock()))
    shutil.rmtree(tmp_path / "local")
    with pytest.raises(BatchError) as refused:
        batch.capacity()
    assert refused.value.retryable


@pytest.mark.parametrize(
    ("cpus", "memory", "gpus", "fits"), [(4, 8, 2, True), (5, 0, 0, False), (0, 9, 0, False), (0, 0, 3, False)]
)
def test_a_job_fits_that_needs_no_more_of_anything(cpus: int, memory: int, gpus: int, fits: bool) -> None:
    job = Record("u", "/f", queued_at=1.0, cpus=cpus, memory=memory, gpus=gpus, time_limit=None)
    assert MachineResources(4, 8, [0, 1]).fits(job) is fits
