"""Errors of a site's folder, as problems of the site: a restart would not free a full disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from bridge.logs import kv

log = logging.getLogger(__name__)


class FolderProblems:
    """The last error of each step that needs the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_step: dict[str, str] = {}

    @property
    def first(self) -> str:
        """An error of the last use of the folder, for example a full disk; empty: there is none."""
        return next(iter(self._by_step.values()), "")

    @contextlib.contextmanager
    def noted(self, step: str) -> Iterator[None]:
        """Run a step; an error of the folder ends the step, and is noted until the step succeeds."""
        problem = ""
        try:
            yield
        except OSError as error:
            problem = f"folder {self._path}: {error.strerror}"
        if problem and self._by_step.get(step) != problem:
            log.warning("the folder can't be used", extra=kv(step=step, why=problem))
        elif step in self._by_step and not problem:
            log.info("the folder can be used again", extra=kv(step=step))
        if problem:
            self._by_step[step] = problem
        else:
            self._by_step.pop(step, None)
