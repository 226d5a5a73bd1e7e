"""Which of a site's folders a pool's jobs are in: pure.

The virtual node remembers the folder's id, so that a hub that was restarted does not believe a submitter with another
folder, which knows nothing of the pool's jobs. A folder takes another's place by itself only where no pod is bound to
the pool; else an administrator removes the node's annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge import names
from bridge.poolapi.announcement import Announcement


@dataclass(frozen=True, slots=True)
class Choice:
    """The id of the folder to believe (empty: whichever is heard first), and what is wrong."""

    folder: str
    problem: str = ""


def choose(
    pool: str, recorded: str, current: str, heard: Mapping[str, Announcement], *, bound: int | None, remembered: int
) -> Choice:
    """Choose a folder.

    ``recorded``: the folder in the node's annotation; ``current``: the one believed now. ``heard``: what submitters
    announced, by folder, as far as they are not silent. ``bound`` and ``remembered``: pods and jobs of the pool.
    """
    folder = recorded or current
    if heard and folder not in heard and (not recorded or (bound == 0 and not remembered)):
        folder = min(heard)
    others = {other: announce for other, announce in heard.items() if other != folder}
    if not folder or not others:
        return Choice(folder)
    return Choice(
        folder, _different(pool, folder, heard[folder], others) if folder in heard else _replaced(pool, folder, others)
    )


def _different(pool: str, folder: str, announce: Announcement, others: Mapping[str, Announcement]) -> str:
    return (
        f"submitters of this pool use different folders: {_shown({folder: announce, **others})}; only {folder} is used."
        " Start all with the same folder on a file system that they share, or give each a pool of its own"
    )


def _replaced(pool: str, folder: str, others: Mapping[str, Announcement]) -> str:
    return (
        f"the jobs of this pool are in folder {folder}, but only another is announced: {_shown(others)}."
        " Start the submitter with the folder from before; or, if that is lost with its jobs:"
        f" kubectl annotate node {pool} {names.SITE_FOLDER}-"
    )


def _shown(heard: Mapping[str, Announcement]) -> str:
    return ", ".join(
        f"{folder or 'unknown'} (submitter {announce.submitter[:100]})" for folder, announce in heard.items()
    )
