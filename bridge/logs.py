"""Log records with a constant message and key-value pairs, formatted as JSON or as text.

Use ``log.info("pod bound", extra=kv(pod=..., node=...))``; no f-strings, so that messages can be searched.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

_ENCODER = json.JSONEncoder(default=str)


def kv(**pairs: object) -> dict[str, Any]:
    """Return key-value pairs for ``extra=``."""
    return {"kv": pairs}


class TextFormatter(logging.Formatter):
    """``12:00:01 INFO scheduler: pod bound pod=a/b node=n1``."""

    def format(self, record: logging.LogRecord) -> str:
        """Format as one line, and a traceback."""
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        pairs = " ".join(f"{k}={_plain(v)}" for k, v in getattr(record, "kv", {}).items())
        text = f"{moment}.{int(record.msecs):03d} {record.levelname} {record.name}: {record.getMessage()}"
        if pairs:
            text += " " + pairs
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object per line with ``ts``, ``level``, ``logger``, ``msg`` and the pairs."""

    def format(self, record: logging.LogRecord) -> str:
        """Format as one line."""
        entry: dict[str, Any] = {
            "ts": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        entry.update(getattr(record, "kv", {}))
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return _ENCODER.encode(entry)


def _plain(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and not any(character in ' "' for character in text)
    return text if text and is_plain else json.dumps(text)


def setup(level: str = "info", style: str = "auto") -> None:
    """Write all logs to standard error; ``style`` is ``json``, ``text`` or ``auto`` (text on a terminal)."""
    if style == "auto":
        style = "text" if sys.stderr.isatty() else "json"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if style == "text" else JsonFormatter())
    # no format uses these; without them a record costs half (Python's logging HOWTO, "Optimization")
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("urllib3", "werkzeug", "kubernetes"):
        logging.getLogger(noisy).setLevel("WARNING")
    logging.getLogger("asyncio").setLevel("ERROR")  # it warns of each TLS connection that the server closes
