"""Files: whole or not there, and forced to disk by rounds that are shared."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.site import files
from bridge.site.files import SharedSync, read_some, write, write_new
from bridge.threads import at_once


@given(content=st.binary(max_size=3000), most=st.integers(1, 2000))
def test_the_first_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes, most: int) -> None:
    path = tmp_path_factory.mktemp("read") / "file"
    write_new(path, content)
    assert read_some(path, most) == content[:most]


def test_a_file_is_replaced_or_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write(path, b"old")
    assert path.stat().st_mode & 0o777 == 0o600

    def full(_descriptor: int, _content: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space"):
            write(path, b"new")
    assert path.read_bytes() == b"old"


def test_short_writes_are_carried_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, content: real(descriptor, bytes(content[:3])))
    write_new(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_everybody_waits_for_a_round_that_began_after_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[tuple[float, float]] = []

    def slow(_path: Path) -> None:
        began = time.monotonic()
        time.sleep(0.02)
        rounds.append((began, time.monotonic()))

    monkeypatch.setattr(files, "sync_folder", slow)
    sync = SharedSync(tmp_path)
    calls: list[tuple[float, float]] = []

    def ask(_: int) -> None:
        for _ in range(5):
            called = time.monotonic()
            sync()
            calls.append((called, time.monotonic()))

    at_once(8, ask, range(8))
    assert len(calls) == 40
    for called, returned in calls:
        assert any(called <= began and ended <= returned for began, ended in rounds)
    assert len(rounds) < 20, "rounds are shared"


def test_a_round_that_fails_is_told_to_all_who_counted_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_path: Path) -> None:
        time.sleep(0.01)
        raise OSError(errno.EIO, "disk broken")

    monkeypatch.setattr(files, "sync_folder", broken)
    sync = SharedSync(tmp_path)
    told: list[str] = []

    def ask(_: int) -> None:
        try:
            sync()
        except OSError as error:
            told.append(str(error))

    at_once(4, ask, range(4))
    assert len(told) == 4
