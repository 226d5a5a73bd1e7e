"""The token for slurmrestd. It is never logged."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path

from bridge.errors import SlurmAuthError
from bridge.telemetry import metrics

_PREFIX = "SLURM_JWT="
"""Prefix in the output of ``scontrol token``, and in a file with this output."""


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
