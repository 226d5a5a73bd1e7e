"""Makes tokens for slurmrestd: with a key of Slurm's ``auth/jwt``, or by ``scontrol token``. No token is logged."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
from pathlib import Path

from bridge.errors import SlurmAuthError
from bridge.slurm.auth import TokenSource

SCONTROL_TIMEOUT = 30.0
"""Seconds to wait for ``scontrol``."""


def signed(key: bytes, user: str, lifespan: int, now: int) -> str:
    """Return a JWT (HS256) of ``user``, valid for ``lifespan`` seconds from ``now``, in seconds since the epoch."""
    parts = ({"alg": "HS256", "typ": "JWT"}, {"exp": now + lifespan, "iat": now, "sun": user})
    text = ".".join(_encoded(json.dumps(part, separators=(",", ":")).encode()) for part in parts)
    return f"{text}.{_encoded(hmac.new(key, text.encode(), hashlib.sha256).digest())}"


def read_key(file: Path) -> bytes:
    """Return the key in a file, the ``jwt_key`` of slurm.conf; raises :class:`SlurmAuthError`."""
    try:
        key = file.read_bytes()
    except OSError as error:
        raise SlurmAuthError(
            f"can't read the key {file}: {error.strerror}", hint="run it as SlurmUser or root"
        ) from error
    if not key:
        raise SlurmAuthError(f"the key {file} is empty", hint="see jwt_key in slurm.conf")
    return key


def by_scontrol(user: str, lifespan: int) -> str:
    """Return a token that ``scontrol token`` makes; raises :class:`SlurmAuthError` if it can't."""
    command = ["scontrol", "token", f"username={user}", f"lifespan={lifespan}"]
    hint = "run it as SlurmUser or root on a host of Slurm, or give the key of slurm.conf's jwt_key with --key-file"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SCONTROL_TIMEOUT, check=False)
    except FileNotFoundError as error:
        raise SlurmAuthError("scontrol is not installed on this host", hint=hint) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmAuthError(f"scontrol token: {error}", hint=hint) from error
    if done.returncode != 0 or not done.stdout.strip():
        raise SlurmAuthError(f"scontrol token: {done.stderr.strip() or 'no token'}", hint=hint)
    return TokenSource(done.stdout).token


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
