"""Files: read to a limit, written whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.site.files.atomic_files import read_json, read_some, write, write_new
from bridge.site.files.beneath import read_present


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


def test_deep_json_is_no_object(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for text, found in (("[" * 60_000, None), ("[]", None), ("{", None), ('{"a": 1}', {"a": 1})):
        path.write_text(text)
        assert read_json(path, 100_000) == found


def test_a_directory_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "job"
    path.mkdir()
    reads = list[str]()

    def replacing(_folder: int) -> str:
        if not reads:
            path.rename(tmp_path / "old")
            path.mkdir()
        reads.append("read")
        return f"read {len(reads)}"

    def removing(_folder: int) -> str:
        path.rmdir()
        return "of the removed one"

    assert read_present(str(path), replacing, None) == "read 2"
    assert read_present(str(path), removing, None) is None
    assert read_present(str(path), removing, None) is None
