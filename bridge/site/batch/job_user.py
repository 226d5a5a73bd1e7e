"""Jobs that run as another user than the submitter, which must be root (``sbatch --uid``)."""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from pathlib import Path

from bridge.errors import BatchError

_OPTION = "--uid="


def hand_over(folder: Path, words: Sequence[str]) -> None:
    """Give a job's directory to the user that the words of sbatch name; nothing happens without ``--uid``.

    The directories above stay the submitter's. Others may pass through them, and create notifications in ``changed/``;
    they can't list or read them. Raises :class:`BatchError` if the submitter may not change owners.
    """
    users = [word.removeprefix(_OPTION) for word in words if word.startswith(_OPTION)]
    if not users:
        return
    try:
        user = pwd.getpwuid(int(users[-1])) if users[-1].isdecimal() else pwd.getpwnam(users[-1])
        owner, group = user.pw_uid, user.pw_gid
    except KeyError as error:
        if not users[-1].isdecimal():
            raise BatchError(f"user {users[-1]} of the job is unknown on this machine") from error
        owner, group = int(users[-1]), -1
    site = folder.parent.parent
    try:
        for path, mode in ((site, 0o711), (folder.parent, 0o711), (site / "changed", 0o1733)):
            path.chmod(mode)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner, group, follow_symlinks=False)
    except OSError as error:
        raise BatchError(f"the job can't run as user {users[-1]}: {error}") from error
