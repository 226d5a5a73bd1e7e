"""Isolation of defects: an unexpected error about one object costs that object alone.

Caches, loops and workers catch each exception where they handle one object, and report it here.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator

from bridge.core.retries import Reports
from bridge.errors import LostLeadershipError, UnexpectedError, unexpected
from bridge.logs import kv
from bridge.telemetry.metrics import ISOLATED_ERRORS

log = logging.getLogger(__name__)

REMEMBERED = 1000
"""Number of errors that are not logged again."""
_reports = Reports(every=1.0)
_logged: OrderedDict[tuple[str, str, str], None] = OrderedDict()
_lock = threading.Lock()


@contextlib.contextmanager
def isolated(part: str, subject: str) -> Iterator[None]:
    """Run what a ``part`` of podbridge does with one object, and report an unexpected error; OSError passes."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        report(part, subject, error)


def report(part: str, subject: str, error: Exception) -> UnexpectedError:
    """Count an error of a ``part`` of podbridge about one object, and log it once; return it without its values.

    A part logs at most one error per second: many objects may have the same defect. Raises the error if it says that
    this process is not the leader.
    """
    if isinstance(error, LostLeadershipError):
        raise error
    stripped = unexpected(error)
    ISOLATED_ERRORS.labels(part).inc()
    key = (part, subject, str(stripped))
    with _lock:
        if key in _logged:
            _logged.move_to_end(key)
            return stripped
        unreported = _reports.due(part)
        if unreported is None:
            return stripped
        _logged[key] = None
        if len(_logged) > REMEMBERED:
            _logged.popitem(last=False)
    extra = kv(part=part, object=subject, unreported=unreported)
    log.error("unexpected error about one object; all others are handled", exc_info=error, extra=extra)
    return stripped
