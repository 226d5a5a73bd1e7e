"""The user of the site's jobs, which the hub compares with ``runAsUser`` and ``runAsGroup`` of pods."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from pathlib import Path

from bridge.protocol.model.announcement import JobUser
from bridge.script.runtimes import runtime_table as runtimes
from bridge.site.config.site_config import SiteConfig

ETC = Path("/etc")
# the only line of uid_map in the initial user namespace: see user_namespaces(7)
_ALL = ["0", "0", str(2**32 - 1)]
_MAP = Path("/proc/self/uid_map")


def measure(config: SiteConfig, *, one_machine: bool, etc: Path = ETC) -> JobUser | None:
    """Return the user that every job of the site runs as; ``None`` if the submitter does not know it.

    The jobs of an ordinary user are this user's own, as nobody else can read their directories. Root may submit jobs of
    other users, and with interlink-slurm rules ``runAsUser`` selects the user of a job. ``one_machine``: all jobs run
    on this machine.
    """
    uid, gid = os.geteuid(), os.getegid()
    if config.limits.by_interlink or (uid == 0 and not one_machine) or not _has_own_numbers():
        return None
    name, usual_gid = _account(uid)
    certain_gid = gid if one_machine or gid == usual_gid else None
    if not one_machine or runtimes.of(config).kind != "podman":
        return JobUser(uid=uid, gid=certain_gid)
    return JobUser(
        uid=uid, gid=certain_gid, most_uid=_most(etc, "uid", uid, name), most_gid=_most(etc, "gid", uid, name)
    )


def _has_own_numbers() -> bool:
    """Return whether this process has the ids of the machine; those of a user namespace are not those of jobs."""
    try:
        return _MAP.read_text().split() == _ALL
    except OSError:
        return False


def _account(uid: int) -> tuple[str, int | None]:
    """Return the name and the usual group of a user."""
    with contextlib.suppress(KeyError):
        account = pwd.getpwuid(uid)
        return account.pw_name, account.pw_gid
    return "", None


def _most(etc: Path, kind: str, uid: int, name: str) -> int | None:
    """Return the largest id in a user namespace of podman: 0, and as many others as the user has subordinate ids.

    Source: subuid(5), newuidmap(1). Return ``None`` if another service than the file has the ranges.
    """
    if shutil.which(f"new{kind}map") is None:
        return 0
    with contextlib.suppress(OSError):
        if any(line.startswith("subid:") for line in (etc / "nsswitch.conf").read_text().splitlines()):
            return None
    count = 0
    try:
        for line in (etc / f"sub{kind}").read_text().splitlines():
            owner, _, id_range = line.partition(":")
            if owner in (str(uid), name):
                count += int(id_range.partition(":")[2])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError):
        return None
    return count
