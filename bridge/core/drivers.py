"""Drivers of other Python packages, discovered through their entry points.

A package installed beside podbridge adds a batch system or a container runtime with an entry point that names a class::

    [project.entry-points."podbridge.batch_systems"]
    mybatch = "my_package.mybatch:MyBatch"
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from importlib import metadata
from typing import ClassVar, Protocol, TypeVar

log = logging.getLogger(__name__)

BATCH_SYSTEMS, RUNTIMES = "podbridge.batch_systems", "podbridge.runtimes"
_KIND = re.compile(r"[a-z][a-z0-9_]{0,30}")


class Driver(Protocol):
    """``kind`` is the value of ``batch.kind`` or ``runtime.kind``, and the name of the driver's section."""

    kind: ClassVar[str]


D = TypeVar("D", bound=Driver)


def table(group: str, base: type[D], builtin: Iterable[type[D]], reserved: Iterable[str] = ()) -> dict[str, type[D]]:
    """Return podbridge's own drivers and those of an entry point group, by kind.

    A driver of another package is left out, with a warning, if it can't be imported, is no subclass of ``base``, or if
    its kind is malformed, is taken, or is ``reserved`` (the name of another section).
    """
    driver_by_kind: dict[str, type[D]] = {driver.kind: driver for driver in builtin}
    for entry in metadata.entry_points(group=group):
        try:
            driver = entry.load()
            if not (isinstance(driver, type) and issubclass(driver, base)):
                raise TypeError(f"{entry.value} is no subclass of {base.__module__}.{base.__qualname__}")
            if driver.kind in driver_by_kind or driver.kind in reserved or not _KIND.fullmatch(driver.kind):
                raise ValueError(f"the kind {driver.kind!r} is taken, or is not made of a-z, 0-9 and _")
        except Exception as error:
            log.warning("entry point %s of group %s is not used: %s", entry.name, group, error)
        else:
            driver_by_kind[driver.kind] = driver
    return driver_by_kind
