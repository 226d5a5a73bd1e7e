"""The choice of the site's folder that holds a pool's jobs. Pure.

The virtual node records the folder's id, so that a restarted hub ignores a submitter with another folder, which does
not know the pool's jobs. Another folder replaces it automatically only if no pod is bound to the pool. Otherwise an
administrator must remove the node's annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bridge import names
from bridge.protocol.model.announcement import Announcement


@dataclass(frozen=True, slots=True)
class Choice:
    """The id of the chosen folder (empty: that of the first announcement), and the problem, if any."""

    folder: str
    problem: str = ""


def choose(
    pool: str, recorded: str, current: str, heard: Mapping[str, Announcement], *, bound: int | None, remembered: int
) -> Choice:
    """Choose a folder.

    ``recorded``: the folder in the node's annotation. ``current``: the chosen one until now. ``heard``: the last
    announcement of each folder, without those of silent submitters. ``bound`` and ``remembered``: numbers of pods and
    jobs of the pool.
    """
    folder = recorded or current
    if heard and folder not in heard and (not recorded or (bound == 0 and not remembered)):
        folder = min(heard)
    others = {other: announce for other, announce in heard.items() if other != folder}
    if not folder or not others:
        return Choice(folder)
    if folder in heard:
        return Choice(
            folder,
            f"submitters of this pool use different folders: {_listed({folder: heard[folder], **others})}; only "
            f"{folder} is used. Start all with the same folder on a file system that they share, or give each a pool "
            "of its own",
        )
    return Choice(
        folder,
        f"the jobs of this pool are in folder {folder}, but only another is announced: {_listed(others)}. Start the "
        "submitter with the folder from before; or, if that is lost with its jobs: "
        f"kubectl annotate node {pool} {names.SITE_FOLDER}-",
    )


def _listed(heard: Mapping[str, Announcement]) -> str:
    submitters = ((folder or "unknown", announce.submitter[:100]) for folder, announce in heard.items())
    return ", ".join(f"{folder} (submitter {submitter})" for folder, submitter in submitters)
