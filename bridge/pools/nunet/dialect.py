"""The REST API of the NuNet DMS: paths, and what its answers mean. Pure. The body of ``postJob``: see pod_request.

Source: NuNet's text on interLink of 2024-03-22, whose parts are all "proposed". Its examples contradict one another,
and no specification of a current DMS is public. So the readers accept every known form, and no other module names a
path or a key of an answer. Of the words for the state of a job, only ``running`` is published. The others are those of
public DMS sources and of common schedulers; the configuration adds more (``statuses``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal
from urllib.parse import quote

from bridge import job_ends
from bridge.clock import parse_rfc3339, rfc3339
from bridge.errors import SiteError
from bridge.pools.nunet.peers import Peer, Resources, Service, kind_of
from bridge.protocol.model.jobs import ContainerState, JobStatus, Termination, identity_of

PEER_PATH = "/api/v1/peers/dht/dump"
SUBMIT_PATH = "/orchestrator/postJob"
STATUS_PATH = "/api/v1/job/status/{job}"
LEAST_FREE_VRAM = 0.9
"""Share of the VRAM of a GPU that must be free for it to count: a driver and a desktop use some of an idle GPU."""
MOST_PEERS = 10_000
_MOST_GPUS = 64
_MOST_KINDS = 4
"""Kinds of GPU of one peer: the virtual node has at most 100 resources, and anyone can run peers."""
_MOST_SERVICES = 1000
_MOST_CPUS, _MOST_MHZ = 2**20, 2**40
_MOST_RAM = 2**28
"""MiB. A peer that states more of a resource counts as one without it: the sum of all peers has to be a quantity."""
_LONGEST = 1024
_MEBI = 2**20
_DURATION = re.compile(r"(?:([0-9.]+)h)?(?:([0-9.]+)m)?(?:([0-9.]+)s)?")
_BARE_ID = re.compile(r"(?=.*[0-9])[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
"""A text that may be the id of a job: one word with a digit."""
State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
STATES: tuple[State, ...] = ("queued", "running", "succeeded", "failed", "cancelled")
_WORDS: dict[State, tuple[str, ...]] = {
    "queued": ("queued", "pending", "submitted", "accepted", "created", "waiting", "scheduled", "new", "received"),
    "running": ("running", "started", "starting", "in progress", "active", "executing", "deploying", "pulling"),
    "succeeded": (
        *("succeeded", "success", "successful", "completed", "complete", "finished", "done"),
        "finished without errors",
    ),
    "failed": ("failed", "failure", "error", "errored", "finished with errors", "crashed", "timeout", "timed out"),
    "cancelled": ("cancelled", "canceled", "killed", "stopped", "aborted", "terminated", "deleted"),
}
KNOWN: dict[str, State] = {word: state for state, words in _WORDS.items() for word in words}
_JOB_KEYS = ("job_id", "jobid", "jobId", "JobID", "nunetjobid", "id", "ID")


def job_path(template: str, job: str) -> str:
    """Return a path with the id of a job."""
    return template.replace("{job}", quote(job, safe=""))


# --- the list of peers ------------------------------------------------------------------------------------------------
def peers(answer: object) -> list[Peer]:
    """Return the peers of an answer; an entry without an id is left out. Raises :class:`SiteError`.

    ``ram`` is in MB although the examples also call it ``ram.gb``; ``tot_cpu_hz`` is the sum of all CPUs in MHz.
    """
    if isinstance(answer, dict):  # an envelope, or peers by id
        inner = [answer[key] for key in ("peers", "data", "result") if isinstance(answer.get(key), list | dict)]
        answer = inner[0] if inner else answer
    if isinstance(answer, dict):
        answer = list(answer.values())
    if not isinstance(answer, list):
        raise SiteError("the DMS's list of peers is not a list")
    if answer and not any(isinstance(entry, dict) for entry in answer):
        raise SiteError("the DMS's list of peers has no peer")
    parsed_peers = (_peer(entry) for entry in answer[:MOST_PEERS] if isinstance(entry, dict))
    peers_by_id: dict[str, Peer] = {}
    for peer in filter(None, parsed_peers):
        peers_by_id.setdefault(peer.id, peer)  # each once: a job that one peer shows twice is not a job of two peers
    return [*peers_by_id.values()]


def _peer(entry: Mapping[str, Any]) -> Peer | None:
    peer_id = _text(entry.get("peer_id") or entry.get("id"))
    if not peer_id:
        return None
    amounts = entry.get("available_resources")
    amounts = amounts if isinstance(amounts, dict) else {}
    cards = [_gpu(card) for card in _dicts(entry.get("gpu_info"))[:_MOST_GPUS]]
    kinds = [*dict.fromkeys(kind for kind, _ in cards)][:_MOST_KINDS]
    return Peer(
        id=peer_id,
        available=entry.get("is_available") is True,
        free=Resources(
            cpus=Decimal(int(_amount(amounts.get("vcpu"), _MOST_CPUS))),
            memory=int(_amount(amounts.get("ram"), _MOST_RAM)) * _MEBI,
            mhz=Decimal(int(_amount(amounts.get("tot_cpu_hz"), _MOST_MHZ))),
            gpus=dict(Counter(kind for kind, is_free in cards if is_free and kind in kinds)),
        ),
        gpu_kinds=frozenset(kinds),
        price=_amount(amounts.get("ntx_price")) or None,
        services=tuple(_service(job) for job in _dicts(entry.get("services"))[:_MOST_SERVICES]),
    )


def _gpu(card: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the kind of a GPU, and whether it is free."""
    total = int(_amount(card.get("tot_vram")))
    free = total if card.get("free_vram") is None else int(_amount(card.get("free_vram")))
    return kind_of(_text(card.get("name")), total), free >= LEAST_FREE_VRAM * total


def _service(entry: Mapping[str, Any]) -> Service:
    row_id = _id(entry.get("ID"))  # a number alone is that of a row in the peer's own database
    job = next((text for key in _JOB_KEYS[:5] if (text := _id(entry.get(key)))), "" if row_id.isdigit() else row_id)
    texts = frozenset(value[:_LONGEST] for value in entry.values() if isinstance(value, str) and value)
    return Service(job, _text(entry.get("JobStatus")), _text(entry.get("LogURL")), texts)


def services_of(peers: Iterable[Peer], *, job: str = "", uid: str = "") -> list[tuple[Peer, Service]]:
    """Return the peers that show a job, each with its first entry of it.

    ``job``: the DMS's id. ``uid``: the ``job_id`` of the request (the pod's UID). A peer states its entries itself, so
    an entry is no proof that the peer has the job.
    """
    shown: list[tuple[Peer, Service]] = []
    for peer in peers:
        for service in peer.services:
            if (job and service.job == job) or (uid and service.names(uid)):
                shown.append((peer, service))
                break
    return shown


# --- a job ------------------------------------------------------------------------------------------------------------
def submitted_job(answer: object) -> str:
    """Return the DMS's id of a job from the answer to ``postJob``; empty if it has none."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, dict):
        text = _text(answer)
        return text if _BARE_ID.fullmatch(text) else ""  # any other text may be the page of a proxy
    data = answer["data"] if isinstance(answer.get("data"), dict) else answer
    return next((text for key in _JOB_KEYS if (text := _id(data.get(key)))), "")


@dataclass(frozen=True, slots=True)
class JobAnswer:
    """The state of a job. ``status``: the DMS's word. ``remaining``, ``duration``: seconds. ``started_at``: UNIX."""

    job: str
    status: str
    started_at: float | None = None
    duration: float | None = None
    remaining: float | None = None
    exit_code: int | None = None
    message: str = ""
    log_url: str = ""


def job_answer(answer: object) -> JobAnswer:
    """Return the state of a job from an answer; raises :class:`SiteError` if it has no status."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, dict):
        raise SiteError("the DMS's answer about a job is not an object")
    values_by_key = {str(key).lower().replace("_", "").replace("-", ""): value for key, value in answer.items()}
    status = _text(values_by_key.get("jobstatus")) or _text(values_by_key.get("status"))
    if not status:
        raise SiteError("the DMS's answer about a job has no jobstatus")
    exit_code = values_by_key.get("exitcode")
    return JobAnswer(
        job=_text(values_by_key.get("jobid") or values_by_key.get("nunetjobid")),
        status=status,
        started_at=_time(values_by_key.get("starttime")),
        duration=seconds(values_by_key.get("duration")),
        remaining=seconds(values_by_key.get("remainingtime")),
        exit_code=exit_code
        if isinstance(exit_code, int) and not isinstance(exit_code, bool) and 0 <= exit_code < 256
        else None,
        message=_text(values_by_key.get("message") or values_by_key.get("error") or values_by_key.get("reason")),
        log_url=_text(values_by_key.get("logurl")),
    )


# --- the state of a pod's job -----------------------------------------------------------------------------------------
def normal(word: str) -> str:
    """Return a word in the form of :data:`KNOWN`: lower case, words separated by one blank."""
    return re.sub(r"[\s_-]+", " ", word).strip().lower()


def state_of(word: str, configured: Mapping[str, State]) -> State | None:
    """Return the meaning of a word; ``None`` if it has none. ``configured`` replaces :data:`KNOWN`."""
    key = normal(word)
    return configured.get(key) or KNOWN.get(key)


def job_status(
    pod: Mapping[str, Any],
    answer: JobAnswer,
    job: str,
    configured: Mapping[str, State],
    *,
    peer: str = "",
    last_status: JobStatus | None = None,
    now: float,
) -> JobStatus:
    """Return the state of a pod's job. ``last_status``: the last known state. ``now``: seconds since 1970.

    The DMS reports no exit code in the published form: it is 0 for a job that succeeded, and 1 for one that failed.
    A word without a meaning leaves the last known state.
    """
    state = state_of(answer.status, configured)
    container = _container_name(pod, last_status)
    common_fields: dict[str, Any] = {
        **identity_of(pod),
        "job_id": job,
        "host": peer or (last_status.host if last_status else ""),
    }
    started_at = answer.started_at or (last_status.started_at if last_status else None)
    if state is None:
        return JobStatus(**common_fields, phase="unknown", started_at=started_at, message=unknown(answer.status))
    if state == "queued":
        return JobStatus(
            **common_fields, phase="queued", message=answer.message, containers=[ContainerState(name=container)]
        )
    if state == "running":
        started_at = started_at or now
        running = ContainerState(name=container, state="running", started_at=started_at, started=True, ready=True)
        last_message = last_status.message if last_status and last_status.phase == "running" else ""
        # the text stays: a new one for each answer would be written to the pod
        latest = f"the DMS ends it at {rfc3339(now + answer.remaining)} at the latest" if answer.remaining else ""
        return JobStatus(
            **common_fields,
            phase="running",
            started_at=started_at,
            message=last_message or latest,
            containers=[running],
        )
    if last_status is not None and last_status.phase == "ended":
        return last_status
    exit_code = answer.exit_code if answer.exit_code is not None else 0 if state == "succeeded" else 1
    reason = job_ends.CANCELLED.site_reason if state == "cancelled" else "" if exit_code == 0 else "Error"
    ended_at = started_at + answer.duration if started_at and answer.duration else now
    ended = Termination(exit_code=exit_code, message=answer.message, started_at=started_at, finished_at=ended_at)
    return JobStatus(
        **common_fields,
        phase="ended",
        outcome="Succeeded" if state == "succeeded" and exit_code == 0 else "Failed",
        reason=reason,
        message=answer.message,
        started_at=started_at,
        ended_at=ended_at,
        containers=[ContainerState(name=container, state="terminated", ended=ended)],
    )


def unknown(word: str) -> str:
    """Return a message about a word that has no meaning."""
    return f"the DMS's status {word[:60]!r} has no meaning here: add it to statuses of the pool; allowed: {STATES}"


def _container_name(pod: Mapping[str, Any], last_status: JobStatus | None) -> str:
    """Return the name of the pod's only container, also for a job whose pod is gone."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    if containers:
        return str(containers[0]["name"])
    return last_status.containers[0].name if last_status is not None and last_status.containers else "main"


# --- values -----------------------------------------------------------------------------------------------------------
def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return a text, or a number as text; empty for everything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value).strip()[:_LONGEST] if isinstance(value, str) or abs(value) < 2**63 else ""


def _id(value: object) -> str:
    """Return the id of a job; empty for one that is no step of a path: ``..`` would name another request."""
    text = _text(value)
    return "" if text in (".", "..") else text


def _amount(value: object, most: float = 1e15) -> float:
    """Return a number from 0 to ``most``; 0 for everything else. Numbers in texts are accepted."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return 0.0
    return number if 0 <= number <= most else 0.0


def seconds(value: object) -> float | None:
    """Return a duration: a number of seconds, such a text, or Go's form ``1h2m3.5s``; ``None`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        if isinstance(value, str) and value[-1:] in ("h", "m", "s") and (match := _DURATION.fullmatch(value)):
            value = sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True))
        duration = float(value)
    except (ValueError, OverflowError):
        return None
    return duration if 0 <= duration < 1e9 else None


def _time(value: object) -> float | None:
    """Return seconds since 1970 from RFC 3339, or from a number of seconds or milliseconds; ``None``: no time."""
    if isinstance(value, str):
        try:
            timestamp = parse_rfc3339(value.strip())
        except (ValueError, OverflowError):
            number = seconds(value)
            timestamp = -1.0 if number is None else number
    else:
        timestamp = _amount(value)
    timestamp = timestamp / 1000 if timestamp > 1e11 else timestamp
    return timestamp if 1e8 < timestamp < 1e11 else None
