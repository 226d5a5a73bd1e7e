"""Converts an answer of slurmrestd to data, or to one of the project's errors.

An answer is Slurm's own only if it is the JSON object that slurmrestd writes, with ``meta``. Any other answer (an HTML
page, a 404 of a proxy, a truncated answer) contains no information about jobs. Observed with 22.05, 24.11 and 26.05:

- 22.05 has error numbers in ``error_number``, ``error_code`` or ``errno``, and 500 where newer versions have 404.
- A job may be queued although ``errors`` (22.05, e.g. 2015) or ``warnings`` (26.05) is not empty: the id decides.
- Reads return 500 and -1 while slurmctld is down or hangs, and on 22.05 if it refuses the token. 1800: not reachable.
- DELETE returns 500 or 403 and error 1, "Operation not permitted", while slurmctld (24.11, 26.05) is down or hangs.
- DELETE of an unknown job returns 500 and 2017 on 22.05; newer versions return 200, with a result in ``status``.
- ``jobs`` is null or empty in answers that report a failure: a list is valid only with 200 and without errors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from bridge.errors import (
    SlurmAuthError,
    SlurmError,
    SlurmNotFoundError,
    SlurmRefusedError,
    SlurmUnavailableError,
    SlurmUnknownOutcomeError,
)
from bridge.slurm.models import JsonObject
from bridge.slurm.versions import ApiVersion

T = TypeVar("T")

WRITES = frozenset({"submit", "cancel", "set_job", "set_node", "add_node", "delete_node"})
LISTS = {"job": "jobs", "jobs": "jobs", "jobs/state": "jobs", "nodes": "nodes", "partitions": "partitions"} | {
    "resources": "nodes"
}
"""The list that an answer must contain."""

UNKNOWN_JOB, UNKNOWN_NODE, ALREADY_DONE = 2017, 2018, 2021
NO_NODE_NOW = 2015
"""No node can run the job now. With a job id, or after an update, it is a warning: the request was carried out."""
ALREADY_SO = {
    "cancel": frozenset({UNKNOWN_JOB, ALREADY_DONE}),
    "set_job": frozenset({NO_NODE_NOW}),
    "delete_node": frozenset({UNKNOWN_NODE}),
}
"""Errors that mean that the request was carried out, or was not needed."""
AUTHENTICATION = 1007
NOT_REACHED = frozenset({1800, 2027})
"""slurmctld was not reachable, or is a backup in standby: the request was certainly not carried out."""
BROKEN_OFF = frozenset({-1, 1801, 1802, 1803, 1804, 1805, 5004, 5005})
"""The connection between slurmrestd and slurmctld failed: a write may have been carried out."""
_NOT_PERMITTED = 1
_GENERAL = frozenset({-1, 0, 9001})
"""Numbers that are less specific than others in the same answer."""
_JOB_KEYS = frozenset(
    (
        *("job_id", "array_job_id", "job_state", "name", "partition", "user_name", "admin_comment", "comment", "nodes"),
        *("state_reason", "state_description", "submit_time", "start_time", "end_time", "time_limit"),
        *("cpus", "node_count", "tasks", "tres_req_str", "tres_alloc_str"),
        *("tres_per_node", "tres_per_job", "tres_per_task"),
        *("restart_cnt", "exit_code", "excluded_nodes", "priority", "het_job_id", "het_job_offset"),
        *("batch_flag", "batch_host"),
    )
)


def judge(version: ApiVersion | None, endpoint: str, status: int, body: bytes) -> JsonObject:
    """Return the data of an answer, or raise its error.

    ``endpoint`` is one of ping, diag, submit, cancel, job, jobs, jobs/state, resources, nodes, partitions, set_job,
    node, set_node, add_node, delete_node. The data is empty if nothing has changed (304).
    """
    if status == 304:
        return {}
    data = read_answer(body)
    if data is None:
        raise _foreign_answer_error(endpoint, status, body)
    if endpoint == "submit" and _job_id(data):
        return data  # the job is queued, even if 22.05 reports errors beside the id (2015, 2068)
    code, text = _first_error(data)
    if not code and endpoint == "cancel":
        code, text = _cancel_result(data)
    # a repeated cancellation must succeed: after a crash, the successor sends it again
    if code in ALREADY_SO.get(endpoint, ()):
        return data
    if status < 400 and not code:
        key = LISTS.get(endpoint)
        # null in place of the list, or errors without a number: a job that is not in such an answer is not gone
        if key and (not isinstance(data.get(key), list) or data.get("errors")):
            raise SlurmUnavailableError(f"{endpoint}: slurmrestd's answer has no list of {key}: {text}", status=status)
        if endpoint == "submit":
            raise SlurmUnknownOutcomeError("submit: slurmrestd's answer has no job id", status=status)
        return data
    raise _slurm_error(version, endpoint, status, code, text)


def read_answer(body: bytes) -> JsonObject | None:
    """Read an answer of slurmrestd itself; ``None`` for any other answer."""
    data = json_object(body)
    if data is None or not isinstance(data.get("meta"), dict):
        return None
    return data if "plugin" in data["meta"] and isinstance(data.get("errors"), list) else None


def served(body: bytes) -> set[str]:
    """Return the API versions in an answer of ``/openapi/v3``; empty for any other answer."""
    data = json_object(body)
    paths = data.get("paths") if data else None
    return {path.split("/")[2] for path in paths or () if path.startswith("/slurm/v")}


def json_object(body: bytes) -> JsonObject | None:
    """Read a JSON object; ``None`` if the text is not one.

    slurmrestd copies the names, directories and comments of jobs byte by byte, and they need not be UTF-8.
    """
    try:
        data = json.loads(body.decode("utf-8", "replace"), object_hook=_used_fields)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def warning(data: JsonObject) -> str:
    """Return the messages that slurmctld returned with a job id, in one line."""
    entries = [*_objects(data.get("errors")), *_objects(data.get("warnings"))]
    raw_messages = [
        data.get("job_submit_user_msg"),
        *(entry.get("error") or entry.get("description") for entry in entries),
    ]
    messages = dict.fromkeys(note.strip() for note in raw_messages if isinstance(note, str) and note.strip())
    # 26.05 returns the same message twice, once with a prefix
    return "; ".join(
        message
        for message in messages
        if not any(message != shorter and message.endswith(shorter) for shorter in messages)
    )[:500]


def release(data: JsonObject) -> str:
    """Read the release of Slurm, e.g. ``26.05.5``, from any answer of slurmrestd."""
    slurm = data["meta"].get("slurm") or data["meta"].get("Slurm")
    text = slurm.get("release") if isinstance(slurm, dict) else ""
    return text if isinstance(text, str) else ""


def read_all(entries: Iterable[object], read: Callable[[JsonObject], T]) -> list[T]:
    """Read every entry. Raises if one cannot be read: without this entry, its job would seem to be gone."""
    results = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise SlurmUnavailableError("slurmrestd's answer has something else in place of an object")
        try:
            results.append(read(entry))
        except ValueError as error:
            raise SlurmUnavailableError(f"slurmrestd's answer can't be read: {error}") from error
    return results


def _used_fields(fields: dict[str, Any]) -> object:
    """Keep only the fields of a job that podbridge uses, while the JSON is read: thousands of jobs are many MB."""
    if "job_state" in fields:
        used = {key: value for key, value in fields.items() if key in _JOB_KEYS}
        if (
            (job_resources := fields.get("job_resources"))
            and _has_several_nodes(job_resources)
            # podbridge's jobs only: their comment is JSON in 22.05, and plain names in later versions
            and str(fields.get("comment")).startswith("{")
        ):
            used |= {"job_resources": job_resources, "gres_detail": fields.get("gres_detail")}
        return used
    return fields


def _has_several_nodes(resources: object) -> bool:
    """Whether the resources of a job list several nodes, as 22.05 does for every job."""
    nodes = resources.get("allocated_nodes") if isinstance(resources, dict) else None
    return isinstance(nodes, list) and len(nodes) > 1


def _foreign_answer_error(endpoint: str, status: int, body: bytes) -> SlurmError:
    text = " ".join(body[:120].decode("utf-8", "replace").split())
    if status == 401:
        return SlurmAuthError(f"{endpoint}: slurmrestd refuses the token: {text}", status=status)
    message = f"{endpoint}: the answer is not Slurm's own: HTTP {status} {text}".rstrip()
    # 4xx: the server or proxy has refused the request; with any other status, it may have passed the request on
    if endpoint in WRITES and (not 400 <= status < 500 or status == 408):
        return SlurmUnknownOutcomeError(message, status=status)
    return SlurmUnavailableError(message, status=status)


def _slurm_error(version: ApiVersion | None, endpoint: str, status: int, code: int, text: str) -> SlurmError:
    message = f"{endpoint}: {text or 'no reason given'} ({f'Slurm error {code}' if code else f'HTTP {status}'})"
    if code == AUTHENTICATION or status == 511:
        return SlurmAuthError(message, code=code, status=status, hint="is the token expired, or of another cluster?")
    if code in NOT_REACHED:
        return SlurmUnavailableError(message, code=code, status=status)
    if code in BROKEN_OFF or (not code and status >= 500) or (endpoint == "cancel" and code == _NOT_PERMITTED):
        hint = None
        if version is not None and not version.numbers and code in (-1, 5005):
            hint = "this version of Slurm returns the same error if it does not accept the token"
        kind = SlurmUnknownOutcomeError if endpoint in WRITES else SlurmUnavailableError
        return kind(message, code=code, status=status, hint=hint)
    unknown = UNKNOWN_NODE if endpoint == "set_node" else UNKNOWN_JOB
    if code == unknown and endpoint in ("job", "set_job", "set_node"):
        return SlurmNotFoundError(message, code=code, status=status)
    return SlurmRefusedError(message, code=code, status=status)


def _first_error(data: JsonObject) -> tuple[int, str]:
    """Return the most specific number in ``errors`` (0: none) and all texts."""
    code, texts = 0, []
    for entry in _objects(data.get("errors")):
        numbers = [entry.get(key) for key in ("error_number", "error_code", "errno")]
        number = next((n for n in numbers if isinstance(n, int)), 0)
        if number and (not code or code in _GENERAL):
            code = number
        texts += [text for text in (entry.get("error"), entry.get("description")) if isinstance(text, str) and text]
    return code, ": ".join(dict.fromkeys(texts))[:300]


def _cancel_result(data: JsonObject) -> tuple[int, str]:
    for entry in _objects(data.get("status")):
        error = entry.get("error")
        if isinstance(error, dict) and isinstance(error.get("code"), int) and error["code"]:
            return error["code"], str(error.get("message") or error.get("string") or "")
    return 0, ""


def _job_id(data: JsonObject) -> bool:
    job_id = data.get("job_id")
    return isinstance(job_id, int) and not isinstance(job_id, bool) and job_id > 0


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
