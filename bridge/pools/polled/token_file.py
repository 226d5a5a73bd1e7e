"""The bearer token for the API of a site, from a file."""

from __future__ import annotations

from pathlib import Path

from bridge.errors import SiteDownError


def authorization(path: Path | None) -> dict[str, str]:
    """Return the header with the token of a file, which is read for each request; none without a file."""
    if path is None:
        return {}
    try:
        text = path.read_text().strip().removeprefix("Bearer ").strip()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SiteDownError(f"cannot read tokenFile {path}: {reason}") from error
    if not text or any(not 32 < ord(letter) < 127 for letter in text):
        raise SiteDownError(f"tokenFile {path} is empty or has characters that no token has")
    return {"Authorization": f"Bearer {text}"}
