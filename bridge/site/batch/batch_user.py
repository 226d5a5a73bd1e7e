"""Jobs that run as another user than the submitter, which must be root (``sbatch --uid``)."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from bridge.errors import BatchError
from bridge.site.batch import adopted

_OPTION = "--uid="
NO_USER = 2**32 - 1
"""The smallest number that is no user: chown(2) reads it as "no change"."""


def users(site: Path) -> set[int]:
    """Return the other users whose jobs are in the directories of a site and among its adopted jobs."""
    if os.geteuid() != 0:
        return set()
    uids = {job.user for job in adopted.read(site).values() if job.user is not None}
    with contextlib.suppress(FileNotFoundError):
        uids |= {entry.stat(follow_symlinks=False).st_uid for entry in os.scandir(site / "jobs")}
    return uids - {0}


def hand_over(folder: Path, words: Sequence[str]) -> int | None:
    """Change the owner of a job's directory to the user in the words of sbatch, and return this user.

    Return ``None`` if they name none; then nothing happens.

    The directories above stay the submitter's. Others may pass through them, and create notifications in ``changed/``;
    they can't list or read them. Raises :class:`BatchError` if the submitter may not change owners.
    """
    named = [word.removeprefix(_OPTION) for word in words if word.startswith(_OPTION)]
    if not named:
        return None
    try:
        user = pwd.getpwuid(int(named[-1])) if named[-1].isdecimal() else pwd.getpwnam(named[-1])
        owner, group = user.pw_uid, user.pw_gid
    except KeyError as error:
        if not named[-1].isdecimal():
            raise BatchError(f"user {named[-1]} of the job is unknown on this machine") from error
        owner, group = int(named[-1]), -1
        if owner >= NO_USER:
            raise BatchError(f"user {named[-1]} of the job is not allowed; allowed: 0 to {NO_USER - 1}") from error
    site = folder.parent.parent
    try:
        has = folder.stat().st_uid
        if has not in (owner, os.geteuid()):
            raise BatchError(f"the job can't run as user {named[-1]}: its directory belongs to user {has} already")
        # 1733: users of jobs create notifications, and cannot list, rename or remove those of others
        for path, mode in ((site, 0o711), (folder.parent, 0o711), (site / "changed", 0o1733)):
            path.chmod(mode)
        # only once: by a second submission, the user may have moved a file of root into the directory
        if has != owner:
            # the directory last: until then, the user can change nothing in it
            for path in (*folder.iterdir(), folder):
                os.chown(path, owner, group, follow_symlinks=False)
    except OSError as error:
        raise BatchError(f"the job can't run as user {named[-1]}: {error}") from error
    return owner
