"""The token for slurmrestd: its source, and new ones, made with a key of Slurm's ``auth/jwt`` or by ``scontrol token``.

No token is logged.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import threading
from pathlib import Path

from bridge.errors import SlurmAuthError
from bridge.telemetry import metrics

_PREFIX = "SLURM_JWT="
"""Prefix in the output of ``scontrol token``, and in a file with this output."""
SCONTROL_TIMEOUT = 30.0
"""Seconds to wait for ``scontrol``."""


class TokenSource:
    """A Slurm JWT: a constant, or a file that is read again when its time, size or inode changes.

    ``user_name`` is the configured one, else that of the token (``sun``). Each token that is read sets the metric of
    its expiry time.
    """

    def __init__(self, source: Path | str | None, user_name: str | None = None) -> None:
        self._path = source if isinstance(source, Path) else None
        self._configured_name = user_name
        self._token = _clean(source) if isinstance(source, str) else ""
        metrics.SLURM_TOKEN_EXPIRY.set(expiry(self._token) or 0)
        self._stamp: tuple[int, int, int] | None = None
        self._lock = threading.Lock()

    @property
    def token(self) -> str:
        """The current token; raises :class:`SlurmAuthError` if there is none."""
        with self._lock:
            if self._path is not None:
                self._read(self._path)
            if not self._token:
                cause = f"the file {self._path} is empty" if self._path else "no token is configured"
                raise SlurmAuthError(
                    f"no Slurm token: {cause}", hint="set slurm.jwtFile or $SLURM_JWT_FILE; make one by scontrol token"
                )
            return self._token

    @property
    def user_name(self) -> str:
        """The Slurm user as which podbridge sends requests; empty if neither configuration nor token name one."""
        return self._configured_name or str(claims(self.token).get("sun") or "")

    def headers(self) -> dict[str, str]:
        """Return the HTTP headers of one request. Slurm 22.05 refuses a token without the header of the user's name."""
        token = self.token
        name = self._configured_name or str(claims(token).get("sun") or "")
        return {"X-SLURM-USER-TOKEN": token} | ({"X-SLURM-USER-NAME": name} if name else {})

    def _read(self, path: Path) -> None:
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                # the stamp is stored after it: a file that cannot be read is read again at the next request
                self._token = _clean(path.read_text())
                metrics.SLURM_TOKEN_EXPIRY.set(expiry(self._token) or 0)
                self._stamp = stamp
        except (OSError, ValueError) as error:
            cause = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SlurmAuthError(f"can't read the Slurm token from {path}: {cause}") from error


def claims(token: str) -> dict[str, object]:
    """Return the claims of a JWT (``sun``, ``exp``, ...) without a check of its signature; empty if it is no JWT."""
    try:
        payload = token.split(".")[1]
        data = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def expiry(token: str) -> float | None:
    """Return the time at which a JWT expires, in seconds since the epoch; ``None`` if the token has no such time."""
    end = claims(token).get("exp")
    return float(end) if isinstance(end, int | float) else None


def _clean(text: str) -> str:
    token = text.strip().removeprefix(_PREFIX).strip()
    if any(letter.isspace() or not letter.isprintable() or ord(letter) > 126 for letter in token):
        raise SlurmAuthError("the Slurm token is malformed: it has blanks or letters that no token has")
    return token


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
