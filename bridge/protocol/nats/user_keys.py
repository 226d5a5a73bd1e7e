"""Keys of NATS users (nkeys): the seed is secret, the server needs the public key only."""

from __future__ import annotations

import base64
import os
import re

import nkeys  # type: ignore[import-untyped]

from bridge.errors import ConfigError

_PUBLIC_KEY = re.compile(r"U[A-Z2-7]{55}")


def new_seed() -> str:
    """Create a key for a user; return its seed, which is secret."""
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def public_key(seed: str) -> str:
    """Return the public key of a seed; raise ConfigError if the seed is invalid."""
    try:
        key: bytes = nkeys.from_seed(bytearray(seed.encode())).public_key
    except (nkeys.NkeysError, ValueError) as error:
        raise ConfigError("not the seed of an nkey") from error
    return key.decode().rstrip("=")


def checked_public_key(text: str) -> str:
    """Return the public key of a user without surrounding space; raise ConfigError if it is not one.

    A seed is refused without repeating it: errors go to logs.
    """
    key = text.strip()
    if key.startswith("S"):
        raise ConfigError(
            "this is a seed, which is secret; allowed: the public key, which begins with U",
            hint="podbridge submitter init prints it at the site",
        )
    if not _PUBLIC_KEY.fullmatch(key):
        raise ConfigError(f"{key[:80]!r} is not a public key; allowed: U and 55 more of A-Z and 2-7")
    # 56 base32 characters are 35 bytes: the kind, 32 bytes of the key, and their checksum
    content = base64.b32decode(key)
    if nkeys.crc16(content[:-2]).to_bytes(2, "little") != content[-2:]:
        raise ConfigError(f"{key!r}: the checksum is wrong; copy the whole public key again")
    return key
