"""What a site measures of itself for its announcement: resources that a program prints, and the user of its jobs.

``resources.script`` is such a program, as upstream's ``ResourceScriptPath``. It prints a JSON object: the ``resources``
of interLink's PingResponse, or a PingResponse that contains them. The hub compares the user with ``runAsUser`` and
``runAsGroup`` of pods.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
from pathlib import Path
from typing import Any

from bridge.errors import BatchError
from bridge.protocol.model.announcement import JobUser
from bridge.script.runtimes import runtime_table as runtimes
from bridge.site.batch.commands import Commands
from bridge.site.config.site_config import Resources, SiteConfig
from bridge.workload import quantity

TIMEOUT = 30.0
ETC = Path("/etc")
# the only line of uid_map in the initial user namespace: see user_namespaces(7)
_ALL_IDS = ["0", "0", str(2**32 - 1)]
_UID_MAP = Path("/proc/self/uid_map")


def resources(configured: Resources) -> Resources:
    """Run the program and return the configuration with what it prints; raises :class:`BatchError`."""
    script = str(configured.script)
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "USER") if name in os.environ}
    try:
        printed = Commands(None, TIMEOUT, environment).ask(script).out
        return configured.model_copy(update=parse_resources(printed))
    except (BatchError, ValueError) as error:
        raise BatchError(f"resources.script: {error}", retryable=True) from error


def parse_resources(text: str) -> dict[str, Any]:
    """Return ``cpu``, ``memory``, ``pods`` and ``extended``, as far as they are printed; raises ``ValueError``."""
    data = json.loads(text)
    if isinstance(data, dict) and isinstance(data.get("resources"), dict):
        data = data["resources"]
    if not isinstance(data, dict):
        raise ValueError("no JSON object was printed")  # noqa: TRY004 (a value of the program, not of a caller)
    values: dict[str, Any] = {}
    for name in ("cpu", "memory"):
        if data.get(name) is not None:
            quantity.parse(data[name])
            values[name] = str(data[name])
    if data.get("pods") is not None:
        values["pods"] = _count("pods", data["pods"])
    listed = data.get("accelerators") or []
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise ValueError("accelerators: a list of objects is expected")
    extended = {str(item["resourceType"]): item.get("available") for item in listed if item.get("resourceType")}
    if extended:
        values["extended"] = {name: str(_count(name, value)) for name, value in extended.items()}
    return values


def _count(name: str, value: object) -> int:
    text = str(value)
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{name}: {value!r} is not allowed; allowed: a whole number")
    return int(text)


def job_user(config: SiteConfig, *, one_machine: bool, etc: Path = ETC) -> JobUser | None:
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
        uid=uid, gid=certain_gid, most_uid=_most_ids(etc, "uid", uid, name), most_gid=_most_ids(etc, "gid", uid, name)
    )


def _has_own_numbers() -> bool:
    """Return whether this process has the ids of the machine; those of a user namespace are not those of jobs."""
    try:
        return _UID_MAP.read_text().split() == _ALL_IDS
    except OSError:
        return False


def _account(uid: int) -> tuple[str, int | None]:
    """Return the name and the usual group of a user."""
    with contextlib.suppress(KeyError):
        account = pwd.getpwuid(uid)
        return account.pw_name, account.pw_gid
    return "", None


def _most_ids(etc: Path, kind: str, uid: int, name: str) -> int | None:
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
