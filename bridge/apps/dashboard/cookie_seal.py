"""Encryption of the cookie of a user who has signed in.

Browsers send the cookies of a host to all its ports (RFC 6265, section 8.5). With ``kubectl port-forward``, each other
server on 127.0.0.1 receives the cookie of the page, and must not get a token of the API server by it.
"""

from __future__ import annotations

import base64
import secrets
import zlib
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from bridge.clock import Clock

LIFE = 12 * 3600
"""Seconds after which a user must sign in again."""
_PURPOSE = b"podbridge dashboard: cookie, version 1"


class CookieSeal:
    """Encrypts and authenticates tokens.

    The key is derived from the private key of the server's certificate, which the replicas of a page share. Without a
    certificate it is random: a token that another process has sealed cannot be opened.
    """

    def __init__(self, clock: Clock, private_key: Path | None = None) -> None:
        self._clock = clock
        self._private_key = private_key
        self._secret = secrets.token_bytes(32)

    def close(self, token: str) -> str:
        """Return the value of the cookie for a token. It is compressed, because encryption makes it a third longer."""
        return self._cipher().encrypt_at_time(zlib.compress(token.encode(), 9), int(self._clock.time())).decode()

    def open(self, cookie: str) -> str | None:
        """Return the token in a cookie; ``None`` if the cookie has expired or was made with another key."""
        try:
            sealed = cookie.encode("ascii", "replace")
            return zlib.decompress(self._cipher().decrypt_at_time(sealed, LIFE, int(self._clock.time()))).decode()
        except InvalidToken:
            return None

    def _cipher(self) -> Fernet:
        """Return the cipher with the current key: the files of a certificate can be replaced at any time."""
        if self._private_key is not None:
            with suppress(OSError):  # while the file is replaced, the previous key stays valid
                self._secret = self._private_key.read_bytes()
        key = HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=_PURPOSE).derive(self._secret)
        return Fernet(base64.urlsafe_b64encode(key))
