import base64
import json
import os
from pathlib import Path

import pytest

from bridge.errors import SlurmAuthError
from bridge.slurm.auth import TokenSource, claims, expiry
from bridge.telemetry.metrics import SLURM_TOKEN_EXPIRY


def jwt(**said: object) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({}, said)]
    return ".".join([*parts, "c2ln"])


def test_a_constant_token() -> None:
    tokens = TokenSource(f"SLURM_JWT={jwt(sun='slurm')}\n")
    assert tokens.headers() == {"X-SLURM-USER-TOKEN": jwt(sun="slurm"), "X-SLURM-USER-NAME": "slurm"}


def test_the_configured_name_wins() -> None:
    assert TokenSource(jwt(sun="slurm"), "alice").user_name == "alice"
    assert TokenSource(jwt(sun="slurm"), "alice").headers()["X-SLURM-USER-NAME"] == "alice"


def test_a_token_that_is_no_jwt_goes_without_a_name() -> None:
    assert TokenSource("opaque").headers() == {"X-SLURM-USER-TOKEN": "opaque"}
    assert claims("a.!!!.c") == {}
    assert claims("a.W10.c") == {}


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "jwt"
    file.write_text("SLURM_JWT=one\n")
    tokens = TokenSource(file)
    assert tokens.token == "one"
    file.write_text("longer\n")
    assert tokens.token == "longer"
    # same size and time, other file: as a mounted Secret changes
    stamp = file.stat()
    other = tmp_path / "other"
    other.write_text("LONGER\n")
    os.utime(other, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    other.replace(file)
    assert tokens.token == "LONGER"


def test_an_unchanged_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jwt"
    file.write_text("one")
    tokens = TokenSource(file)
    assert tokens.token == "one"
    monkeypatch.setattr(Path, "read_text", lambda self: pytest.fail("read again"))
    assert tokens.token == "one"


def test_the_metric_follows_the_token_that_is_read(tmp_path: Path) -> None:
    file = tmp_path / "jwt"
    file.write_text(jwt(exp=1_900_000_000))
    tokens = TokenSource(file)
    assert SLURM_TOKEN_EXPIRY._value.get() == 0
    for text, expected in (
        (file.read_text(), 1_900_000_000),
        (jwt(exp=2_000_000_000.5), 2_000_000_000.5),
        ("opaque", 0),
    ):
        file.write_text(text)
        assert tokens.token == text
        assert SLURM_TOKEN_EXPIRY._value.get() == expected
    TokenSource(jwt(exp=1_800_000_000))
    assert SLURM_TOKEN_EXPIRY._value.get() == 1_800_000_000


def test_a_token_without_a_time_never_expires() -> None:
    assert expiry(jwt(sun="slurm")) is None
    assert expiry(jwt(exp="tomorrow")) is None
    assert expiry("opaque") is None


def test_what_is_wrong_is_said_without_the_token(tmp_path: Path) -> None:
    with pytest.raises(SlurmAuthError, match="No such file"):
        _ = TokenSource(tmp_path / "none").token
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(SlurmAuthError, match="is empty"):
        _ = TokenSource(empty).token
    with pytest.raises(SlurmAuthError, match="no token is configured"):
        _ = TokenSource(None).token
    for bad in ("secret\r\nX-Evil: 1", "secret with blank", "sécret"):
        with pytest.raises(SlurmAuthError) as told:
            _ = TokenSource(bad).token
        assert "cret" not in str(told.value).replace("Slurm token", "")
