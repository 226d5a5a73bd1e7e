"""Readers and writers of the JSON of slurmrestd, for the fields that podbridge uses, in the formats of all versions.

Unknown fields are ignored, missing ones are read as unset. :mod:`bridge.slurm.slurm_values` reads single values.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from bridge.errors import SlurmRefusedError
from bridge.slurm import allotments, components, hostlist, link
from bridge.slurm.allotments import Allotment
from bridge.slurm.models import Job, JobRequest, JsonObject, Node, Partition
from bridge.slurm.slurm_values import exit_code, hosts_of, job_id, name_of, number, states, text, time_of, words
from bridge.slurm.versions import ApiVersion

PLACEHOLDER_SCRIPT = """\
#!/bin/sh
# Placeholder of podbridge: it holds the resources of a Kubernetes pod until it is cancelled.
# After a requeue it ends at once: its node was lost, and podbridge submits a new job itself.
[ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 0
exec sleep 2147483647
"""
_COMPONENT = re.compile(r"([0-9]{1,18})\+([0-9]{1,9})", re.ASCII)
_TASK = re.compile(r"[0-9]{1,18}_[0-9]{1,9}", re.ASCII)
_SAME_NAME = ("partition", "account", "qos", "constraints", "licenses", "reservation", "wckey", "mcs_label", "tasks")
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"


def job_body(request: JobRequest, version: ApiVersion) -> JsonObject:
    """Return the body of ``POST job/submit``.

    Raises :class:`SlurmRefusedError` if the version has no field for a part of the request: without this part, Slurm
    would run another job than requested.
    """
    if request.components:
        if not version.heterogeneous or len(request.components) >= components.MOST:
            raise SlurmRefusedError(
                f"API version {version.name} of slurmrestd can't make a heterogeneous job of "
                f"{len(request.components) + 1} components"
            )
        all_components = (replace(request, components=()), *request.components)
        return {"jobs": [job_body(component, version)["job"] for component in all_components]}
    _require_supported(request, version)
    fields: JsonObject = {
        "name": request.name,
        "current_working_directory": "/",
        # only operators may change admin_comment; v0.0.38 has comment only, which the owner of the job may change
        ("admin_comment" if version.admin_comment else "comment"): link.encode(request.link),
        **{key: getattr(request, key) or None for key in _SAME_NAME},
        "cpus_per_task": request.cpus or None,
        # without it, and without DefMemPerCPU, Slurm gives the job the whole memory of its node
        "memory_per_node": _number(request.memory_mib or None, version),
        "time_limit": _number(request.time_limit or None, version),
        **(_new_fields(request) if version.numbers else _old_fields(request)),
    }
    if version.admin_comment:
        # for people and sacct; podbridge never reads it, because the owner of the job may change it
        fields["comment"] = ", ".join(request.link.names)
    job = {key: value for key, value in fields.items() if value is not None}
    if request.external:
        job["flags"] = ["EXTERNAL_JOB"]
        return {"job": job}
    # by default, Slurm writes slurm-JOBID.out to the working directory on the node
    job["standard_output"] = "/dev/null"
    if version.script_in_job:
        # from v0.0.41 on, the script is a field of the job; before, it is beside the job
        return {"job": {**job, "script": PLACEHOLDER_SCRIPT}}
    return {"script": PLACEHOLDER_SCRIPT, "job": job}


def _require_supported(request: JobRequest, version: ApiVersion) -> None:
    features = [
        (request.external and not version.external_jobs, "make external jobs"),
        (request.link.parts > 1 and request.external and not version.external_components, "make external components"),
        (request.excluded_nodes and not version.exclude_nodes, "exclude nodes"),
        ((request.user_id or request.group_id) and not version.other_users, "submit jobs of other users"),
        # slurmrestd 24.11.5 ends with "fatal: invalid type"
        (
            request.group_id and not re.fullmatch("[0-9]+", request.group_id) and not version.group_names,
            f"resolve the name of group {request.group_id} (use its number)",
        ),
    ]
    unsupported = [feature for is_unsupported, feature in features if is_unsupported]
    if unsupported:
        raise SlurmRefusedError(f"API version {version.name} of slurmrestd can't {' or '.join(unsupported)}")


def _new_fields(request: JobRequest) -> JsonObject:
    return {
        "environment": [f"PATH={SEARCH_PATH}"],
        # Slurm requeues the batch jobs of a failed node by default; podbridge submits a new job instead
        "requeue": False,
        "minimum_nodes": request.min_nodes,
        "maximum_nodes": request.max_nodes,
        "priority": _set(request.priority),
        "tasks_per_node": request.tasks_per_node or None,
        "tres_per_node": ",".join("gres/" + item for item in _bare_gres(request)) or None,
        # the word for an exclusive node: the job gets all its CPUs and GPUs
        "shared": ["none"] if request.exclusive else None,
        "excluded_nodes": [hostlist.compressed(request.excluded_nodes)] if request.excluded_nodes else None,
        "user_id": request.user_id or None,
        "group_id": request.group_id or None,
    }


def _old_fields(request: JobRequest) -> JsonObject:
    # with one task on a node and no number of tasks, 22.05 starts on no more than the fewest nodes; without both, it
    # starts on all free nodes up to the most, and each has the CPUs of one task
    counts_tasks = request.tasks_per_node > 1 or (request.tasks_per_node and request.tasks)
    highest = request.max_nodes
    return {
        "environment": {"PATH": SEARCH_PATH},
        # 22.05 reads "requeue": false as true and ignores a list of nodes, both without an error
        "no_requeue": True,
        "nodes": str(request.min_nodes) if highest is None else f"{request.min_nodes}-{highest}",
        "priority": None if request.priority is None else str(request.priority),
        "tasks_per_node": request.tasks_per_node if counts_tasks else None,
        "gres": ",".join(_bare_gres(request)) or None,
        # the published description has true, but slurmrestd accepts only this word
        "exclusive": "exclusive" if request.exclusive else None,
    }


def _bare_gres(request: JobRequest) -> Iterable[str]:
    for item in request.gres:
        for part in item.split(","):
            yield part.strip().removeprefix("gres/").removeprefix("gres:")


def _number(value: int | None, version: ApiVersion) -> object:
    return _set(value) if version.numbers else value


def _set(value: int | None) -> JsonObject | None:
    return None if value is None else {"set": True, "infinite": False, "number": value}


def read_job(obj: JsonObject, own_user: str = "", *, all_nodes: bool = False) -> Job:
    """Read one job.

    The pods are read from ``admin_comment``, which only operators may write. They are read from ``comment``, which the
    owner of the job may write, only if the job belongs to ``own_user``. The nodes of a job without pods are left out,
    unless ``all_nodes``.
    Raises ``ValueError`` if there is no job id.
    """
    user = text(obj.get("user_name"))
    job_link = link.decode(text(obj.get("admin_comment")))
    # v0.0.38 shows no admin_comment; a comment of another user could name any pod
    if job_link is None and own_user and user == own_user:
        job_link = link.decode(text(obj.get("comment")))
    reason = text(obj.get("state_reason"))
    nodes = hosts_of(text(obj.get("nodes"))) if job_link or all_nodes else ()
    number_of_job, array = job_id(obj), int(number(obj.get("array_job_id")))
    return Job(
        job_id=number_of_job,
        states=states(obj.get("job_state")),
        link=job_link,
        nodes=nodes,
        reason="" if reason == "None" else reason,
        description=text(obj.get("state_description")),
        name=text(obj.get("name")),
        partition=text(obj.get("partition")),
        user_name=user,
        submit_time=time_of(obj.get("submit_time")),
        start_time=time_of(obj.get("start_time")),
        time_limit=int(number(obj.get("time_limit"))),
        restarts=int(number(obj.get("restart_cnt"))),
        exit_code=exit_code(obj.get("exit_code")),
        excluded=sys.intern(text(obj.get("excluded_nodes"))) if job_link else "",
        priority=int(number(obj.get("priority"))),
        # the job with the id of the array got it at the submission, as any other job
        is_array_task=array not in (0, number_of_job),
        allotment=_allotment(obj) if nodes else None,
        # an external job has no script, so no node that it must keep
        batch_host=text(obj.get("batch_host")) if nodes and obj.get("batch_flag") else "",
        request=allotments.of_request(
            text(obj.get("tres_req_str")), text(obj.get("tres_per_node")), text(obj.get("tres_per_job"))
        )
        if job_link
        else None,
        end_time=time_of(obj.get("end_time")),
    )


def _allotment(obj: JsonObject) -> Allotment:
    cpus, nodes, tasks = (number(obj.get(key)) for key in ("cpus", "node_count", "tasks"))
    by_node = (
        allotments.of_job_nodes(obj["job_resources"], obj.get("gres_detail"), cpus) if "job_resources" in obj else ()
    )
    return allotments.of_job(
        cpus, nodes, tasks, {key: text(obj[key]) for key in obj if key.startswith("tres_")}, by_node
    )


def read_component(obj: JsonObject, own_user: str = "", *, all_nodes: bool = False) -> components.Component:
    """Read one job, which may be a component of a heterogeneous job; raises as :func:`read_job`."""
    leader, offset = int(number(obj.get("het_job_id"))), int(number(obj.get("het_job_offset")))
    return components.Component(leader, offset, read_job(obj, own_user, all_nodes=all_nodes))


def read_node(obj: JsonObject) -> Node:
    """Read one node; raises ``ValueError`` if it has no name."""
    return Node(
        name=name_of(obj),
        states=states(obj.get("state"), obj.get("state_flags")),
        reason=text(obj.get("reason")),
        cpus=int(number(obj.get("cpus"))),
        memory_mib=int(number(obj.get("real_memory"))),
        gres=text(obj.get("gres")),
        partitions=words(obj.get("partitions")),
        features=words(obj.get("features")),
        usable_cpus=int(number(obj.get("effective_cpus"))),
        reserved_mib=int(number(obj.get("specialized_memory"))),
        held_cpus=int(number(obj.get("alloc_cpus"))),
        held_mib=int(number(obj.get("alloc_memory"))),
        held_gres=text(obj.get("gres_used")),
    )


def read_partition(obj: JsonObject) -> Partition:
    """Read one partition. Some versions do not show the default one (``ApiVersion.default_partition``)."""
    nodes, limits = obj.get("nodes"), obj.get("maximums")
    configured = nodes.get("configured") if isinstance(nodes, dict) else nodes
    defaults = each if isinstance(each := obj.get("defaults"), dict) else {}
    longest = limits.get("time") if isinstance(limits, dict) else obj.get("max_time_limit")
    return Partition(
        name=name_of(obj),
        nodes=hosts_of(text(configured)),
        default="DEFAULT" in states(obj.get("flags")),
        max_minutes=int(number(longest)),
        default_memory=any(number(defaults.get(f"partition_memory_per_{per}")) for per in ("cpu", "node")),
    )


def read_job_count(data: JsonObject) -> float:
    """Return the number of pending and running jobs from the answer of ``diag``."""
    statistics = data.get("statistics")
    counts = statistics if isinstance(statistics, dict) else {}
    return sum(number(counts.get(key)) for key in ("jobs_pending", "jobs_running"))


def read_states(
    entries: Iterable[JsonObject], array_tasks: Counter[frozenset[str]] | None = None
) -> dict[int, frozenset[str]]:
    """Read ``jobs/state``. A heterogeneous job (``12+0``, ``13+1``) has the id of its leader, 12.

    Tasks of arrays (``12_3``) are only counted by their states, in ``array_tasks``: podbridge submits none, and an
    answer about one of them has the whole array.
    """
    states_by_id = {}
    parts: dict[int, tuple[int, frozenset[str]]] = {}
    combinations: dict[str, frozenset[str]] = {}  # thousands of jobs have a dozen combinations
    for entry in entries:
        raw = entry.get("state")
        key = str(raw)
        if key not in combinations:
            combinations[key] = _shared(states(raw))
        try:
            states_by_id[job_id(entry)] = combinations[key]
        except ValueError:
            shown = text(entry.get("job_id"))
            match = _COMPONENT.fullmatch(shown)
            if match is not None and int(match[1]) > 0:
                parts[int(match[1])] = int(match[2]), combinations[key]
            elif array_tasks is not None and _TASK.fullmatch(shown):
                array_tasks[combinations[key]] += 1
    for leader, now in components.joined_states(parts).items():
        # one key for all: each component would be read as a job of its own
        states_by_id[leader] = _shared(now)
    return states_by_id


@lru_cache(maxsize=1024)
def _shared(states_of_job: frozenset[str]) -> frozenset[str]:
    """Return the same object for equal states, so that the lists of two polls are compared by identity."""
    return states_of_job
