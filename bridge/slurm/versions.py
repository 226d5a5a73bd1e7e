"""The versions of slurmrestd's API that podbridge supports, and the choice of one.

One row for each version. v0.0.38 (Slurm 22.05), v0.0.40 to v0.0.42 (24.11) and v0.0.42 to v0.0.45 (26.05) were tested
with these daemons; v0.0.39 (23.02) follows its published description. ``jobs/state/`` exists since Slurm 24.05: 24.11
serves it under v0.0.40 too, but 23.11, whose newest version is v0.0.40, does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bridge.errors import ConfigError, SlurmError


@dataclass(frozen=True, slots=True)
class ApiVersion:
    """The features of one ``data_parser`` version of the REST API, and the format of the fields that differ."""

    name: str
    script_in_job: bool = True
    lists: bool = True
    numbers: bool = True
    job_states: bool = True
    external_jobs: bool = False
    exclude_nodes: bool = True
    node_updates: bool = True
    admin_comment: bool = True
    other_users: bool = True
    group_names: bool = False
    """Whether the group of a job may be a name. slurmrestd 24.11.5 ends when it gets one."""
    allocations: bool = False
    """Whether ``resources/{job}`` is served: the nodes of one job, for half of the cost of its details."""
    external_nodes: bool = False
    """Whether ``new/node`` is served: nodes without slurmd."""
    default_partition: bool = False
    """Whether the answer about partitions shows the default partition."""
    heterogeneous: bool = False
    """Whether one job may have components that differ."""
    external_components: bool = False
    """Whether these may be external jobs; depends on the release too (:func:`of_release`)."""

    def missing(self) -> list[str]:
        """Return descriptions of the features that this version lacks."""
        support: dict[str, bool] = {
            "external placeholder jobs (batch ones are used)": self.external_jobs,
            "external nodes (labelled nodes are not registered)": self.external_nodes,
            "exclude nodes (pods that fit only some nodes of a partition are refused)": self.exclude_nodes,
            "drain nodes (a cordon stays in Kubernetes)": self.node_updates,
            "admin_comment (comment is used: the job's owner can change it)": self.admin_comment,
            "jobs of other users (user-id and group-id are refused)": self.other_users,
            "names of groups (group-id must be a number)": self.group_names or not self.other_users,
            "devices of a job (pods with resource claims stay pending)": self.allocations,
            "heterogeneous jobs (groups whose pods request different resources are refused)": self.heterogeneous,
        }
        return [text for text, is_supported in support.items() if not is_supported]


_ROWS = (
    ApiVersion(
        "v0.0.38",
        script_in_job=False,
        lists=False,
        numbers=False,
        job_states=False,
        exclude_nodes=False,
        node_updates=False,
        admin_comment=False,
        other_users=False,
        default_partition=True,
    ),
    ApiVersion("v0.0.39", script_in_job=False, job_states=False),
    ApiVersion("v0.0.40", script_in_job=False, job_states=False),
    ApiVersion("v0.0.41", heterogeneous=True),
    ApiVersion("v0.0.42", heterogeneous=True),
    ApiVersion("v0.0.43", heterogeneous=True, external_jobs=True, group_names=True),
    ApiVersion(
        "v0.0.44", heterogeneous=True, external_jobs=True, group_names=True, allocations=True, external_nodes=True
    ),
    ApiVersion(
        "v0.0.45",
        heterogeneous=True,
        external_jobs=True,
        group_names=True,
        allocations=True,
        external_nodes=True,
        default_partition=True,
    ),
)
EXTERNAL_COMPONENTS = (26, 5, 3)
"""The first release of Slurm whose external jobs may be components of a heterogeneous job."""

VERSIONS: dict[str, ApiVersion] = {row.name: row for row in _ROWS}
"""Oldest first."""


def newest_common(served: Iterable[str], pinned: str | None) -> ApiVersion:
    """Return the newest version that podbridge and slurmrestd know, or the ``pinned`` one.

    Raises :class:`ConfigError` if the pinned version is unknown or not served, :class:`SlurmError` if no version is
    common.
    """
    supported_names, offered = ", ".join(VERSIONS), sorted(set(served))
    served_names = ", ".join(offered) or "none"
    if pinned is not None:
        if pinned not in VERSIONS:
            raise ConfigError(f"slurmApiVersion: {pinned} is not known to podbridge (it knows {supported_names})")
        if pinned not in offered:
            raise ConfigError(f"slurmApiVersion: {pinned} is not served by slurmrestd (it serves {served_names})")
        return VERSIONS[pinned]
    for name in reversed(VERSIONS):
        if name in offered:
            return VERSIONS[name]
    raise SlurmError(
        f"slurmrestd serves no API version that podbridge knows: it serves {served_names}, "
        f"podbridge knows {supported_names}",
        hint="start slurmrestd with one of these data_parser plugins, or update podbridge",
    )


def of_release(version: ApiVersion, release: str) -> ApiVersion:
    """Return the version with the features that depend on the release of slurmrestd, e.g. ``26.05.5``.

    A release that cannot be read counts as an old one.
    """
    match = re.match(r"(\d{1,4})\.(\d{1,4})\.(\d{1,4})", release, re.ASCII)
    is_new_enough = match is not None and tuple(map(int, match.groups())) >= EXTERNAL_COMPONENTS
    return replace(version, external_components=version.external_jobs and version.heterogeneous and is_new_enough)
