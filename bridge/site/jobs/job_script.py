"""The script of a job as the submitter stores it: with its library, and with the settings that only the site makes."""

from __future__ import annotations

from bridge.errors import SiteRefusedError
from bridge.protocol.nats import messages
from bridge.script import library
from bridge.site.config.site_config import SiteConfig

LARGEST_SCRIPT = 32 * 2**20


def whole(script: str | messages.ScriptWithoutLibrary, config: SiteConfig) -> str:
    """Return the script with the library, if it came without, and with the site's settings before all else."""
    if isinstance(script, messages.ScriptWithoutLibrary):
        text = library.of_digest(script.library)
        if text is None:
            raise SiteRefusedError(
                f"no library {script.library!r} here", reason=messages.UNKNOWN_LIBRARY, retryable=True
            )
        script = f"{script.before}{text}{script.after}"
    if len(script) > LARGEST_SCRIPT:
        raise SiteRefusedError(f"the script is larger than {LARGEST_SCRIPT} bytes", reason="ScriptTooLarge")
    logs = config.container_logs
    # as bridge/script/lib/logs.bash reads them; later lines can't change them
    settings = f"readonly PODBRIDGE_LOG_MAX_SIZE={logs.max_bytes} PODBRIDGE_LOG_MAX_FILES={logs.max_files}"
    first, newline, rest = script.partition("\n")
    return f"{first}\n{settings}\n{rest}" if newline and first.startswith("#!") else f"{settings}\n{script}"
