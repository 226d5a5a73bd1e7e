"""The token that slurmrestd asks for. It is never logged."""

from __future__ import annotations

import base64
import json
import threading
from pathlib import Path

from bridge.errors import SlurmAuthError

_PREFIX = "SLURM_JWT="
"""``scontrol token`` prints it in front; a file made by redirecting that output has it too."""


class TokenSource:
    """A Slurm JWT: a constant, or a file that is read again when its time, size or inode changes.

    ``user_name`` is the configured one or else the token's own (``sun``).
    """

    def __init__(self, source: Path | str | None, user_name: str | None = None) -> None:
        self._path = source if isinstance(source, Path) else None
        self._configured_name = user_name
        self._token = _clean(source) if isinstance(source, str) else ""
        self._stamp: tuple[int, int, int] | None = None
        self._lock = threading.Lock()

    @property
    def token(self) -> str:
        """The token as of now; raises :class:`SlurmAuthError` where there is none."""
        with self._lock:
            if self._path is not None:
                self._read(self._path)
            if not self._token:
                where = f"the file {self._path} is empty" if self._path else "no token is configured"
                raise SlurmAuthError(
                    f"no Slurm token: {where}", hint="set slurm.jwtFile or $SLURM_JWT_FILE; make one by scontrol token"
                )
            return self._token

    @property
    def user_name(self) -> str:
        """The Slurm user that podbridge acts as; empty where neither the configuration nor the token says it."""
        return self._configured_name or str(claims(self.token).get("sun") or "")

    def headers(self) -> dict[str, str]:
        """The HTTP headers of one request. Slurm 22.05 refuses a token without the user's name beside it."""
        token = self.token
        name = self._configured_name or str(claims(token).get("sun") or "")
        return {"X-SLURM-USER-TOKEN": token} | ({"X-SLURM-USER-NAME": name} if name else {})

    def _read(self, path: Path) -> None:
        try:
            facts = path.stat()
            stamp = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if stamp != self._stamp:
                self._token = _clean(path.read_text())
                self._stamp = stamp
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SlurmAuthError(f"can't read the Slurm token from {path}: {why}") from error


def claims(token: str) -> dict[str, object]:
    """Read what a JWT says (``sun``, ``exp``, ...) without checking its signature; empty where it is none."""
    try:
        payload = token.split(".")[1]
        data = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _clean(text: str) -> str:
    token = text.strip().removeprefix(_PREFIX).strip()
    if any(letter.isspace() or not letter.isprintable() or ord(letter) > 126 for letter in token):
        raise SlurmAuthError("the Slurm token is malformed: it has blanks or letters that no token has")
    return token
