"""The REST API of the NuNet DMS: paths, the list of peers, the body of ``postJob``, the state of a job. Pure.

Source: NuNet's text on interLink of 2024-03-22, whose parts are all "proposed". Its examples contradict one another,
and no specification of a current DMS is public. So the readers accept every known form, and no other module names a
path or a key of the DMS.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from bridge.clock import parse_rfc3339
from bridge.errors import SiteError
from bridge.pools.nunet.gpus import Kind, kind_of
from bridge.pools.nunet.peer import Gpu, Peer, Resources, Service

PEER_PATHS = ("/api/v1/peers/dht/dump", "/api/v1/network/peers/list/resources")
"""The list of peers: the current path, and that of earlier versions."""
SUBMIT_PATH = "/orchestrator/postJob"
_STATUS_PATH = "/api/v1/job/status/{job}"
MOST_PEERS = 10_000
_MOST_GPUS = 64
_MOST_SERVICES = 1000
_LONGEST = 1024
_MEBI = 2**20
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|h|m|s)")
_BARE_ID = re.compile(r"(?=.*[0-9])[A-Za-z0-9][A-Za-z0-9._:-]{0,127}", re.ASCII)
"""A text that may be the id of a job: one word with a digit."""
_JOB_KEYS = ("job_id", "jobid", "jobId", "JobID", "nunetjobid", "id", "ID")


def status_path(job: str) -> str:
    """Return the path of the state of a job."""
    return _STATUS_PATH.format(job=quote(job, safe=""))


def cancel_path(template: str, job: str) -> str:
    """Return a configured path with the id of a job."""
    return template.replace("{job}", quote(job, safe=""))


# --- the list of peers ------------------------------------------------------------------------------------------------
def peers(answer: object) -> list[Peer]:
    """Return the peers of an answer; an entry without an id is left out. Raises :class:`SiteError`.

    ``ram`` is in MB although the examples also call it ``ram.gb``; ``tot_cpu_hz`` is the sum of all CPUs in MHz.
    """
    if isinstance(answer, dict):  # an envelope, or peers by id
        inner_list = next(
            (answer[key] for key in ("peers", "data", "result") if isinstance(answer.get(key), list | dict)), None
        )
        answer = inner_list if inner_list is not None else list(answer.values())
    if isinstance(answer, dict):
        answer = list(answer.values())
    if not isinstance(answer, list):
        raise SiteError("the DMS's list of peers is not a list")
    if answer and not any(isinstance(entry, dict) for entry in answer):
        raise SiteError("the DMS's list of peers has no peer")
    parsed_peers = (_peer(entry) for entry in answer[:MOST_PEERS] if isinstance(entry, dict))
    return [peer for peer in parsed_peers if peer is not None]


def _peer(entry: Mapping[str, Any]) -> Peer | None:
    peer_id = _text(entry.get("peer_id") or entry.get("id"))
    if not peer_id:
        return None
    amounts = entry.get("available_resources")
    amounts = amounts if isinstance(amounts, dict) else {}
    cards = entry.get("gpu_info")
    jobs = entry.get("services")
    disk = _amount(amounts.get("disk"))
    return Peer(
        id=peer_id,
        available=entry.get("is_available") is True,
        cpus=Decimal(int(_amount(amounts.get("vcpu")))),
        mhz=Decimal(int(_amount(amounts.get("tot_cpu_hz")))),
        memory=int(_amount(amounts.get("ram"))) * _MEBI,
        disk=int(disk) * _MEBI or None,
        gpus=tuple(_gpu(card) for card in _dicts(cards)[:_MOST_GPUS]),
        price=_amount(amounts.get("ntx_price")) or None,
        localities=_words(entry.get("locality") or entry.get("location")),
        channels=_words(entry.get("channels") or entry.get("channel")),
        latency=None if entry.get("latency_ms") is None else _amount(entry.get("latency_ms")),
        services=tuple(_service(job) for job in _dicts(jobs)[:_MOST_SERVICES]),
    )


def _gpu(card: Mapping[str, Any]) -> Gpu:
    total = int(_amount(card.get("tot_vram")))
    free = total if card.get("free_vram") is None else int(_amount(card.get("free_vram")))
    return Gpu(kind_of(_text(card.get("name")), total), total, min(free, total))


def _service(entry: Mapping[str, Any]) -> Service:
    row_id = _text(entry.get("ID"))  # a number alone is that of a row in the peer's own database
    job = next((text for key in _JOB_KEYS[:5] if (text := _text(entry.get(key)))), "" if row_id.isdigit() else row_id)
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
@dataclass(frozen=True, slots=True)
class DmsJobRequest:
    """A job as the DMS gets it.

    Parameters
    ----------
    uid
        UID of the pod; the ``job_id`` of the request.
    command, args
        As in the container: the entry point of the image and its arguments; empty: those of the image.
    env, secrets
        Variables. Those of ``secrets`` come from a Secret.
    registry
        Server, user name and password for the image.
    max_time
        Seconds; ``None``: no limit.
    fields
        Values of annotations by path in the body, for example ``("requiredCapability", "kyc")``.
    """

    uid: str
    image: str
    resources: Resources
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry: Mapping[str, str] | None = field(default=None, repr=False)
    kind: Kind | None = None
    ports: tuple[int, ...] = ()
    max_time: int | None = None
    fields: Mapping[tuple[str, ...], object] = field(default_factory=dict)


def body(request: DmsJobRequest, peer: str, *, peer_field: str, gpu_count_field: str) -> dict[str, Any]:
    """Return the body of ``postJob``. The two names of fields are not published; without one, it is not sent."""
    requested = request.resources
    job: dict[str, Any] = {"image": request.image}
    if request.command:
        job["entrypoint"] = list(request.command)
    if request.registry is not None:
        job["registry"] = dict(request.registry)
    resources: dict[str, Any] = {"cpu": {"cores": int(requested.cpus)}, "ram": _size(requested.memory)}
    if requested.disk:
        resources["disk"] = _size(requested.disk)
    if request.kind is not None:
        gpu: dict[str, Any] = {
            "brand": request.kind.brand,
            "model": request.kind.model,
            "vram": f"{request.kind.vram}Gi",
        }
        if gpu_count_field:
            gpu[gpu_count_field] = requested.gpus[str(request.kind)]
        resources["gpu"] = gpu
    capability: dict[str, Any] = {
        "executor": "docker",
        "type": {"description": "batch"},
        "resources": resources,
        "libraries": [],
        "locality": [],
        "storage": [],
        "network": {"open_ports": list(request.ports)},
        "price": {},
        "time": {"units": "seconds"},
        "kyc": [],
    }
    if request.max_time is not None:
        capability["time"]["max_time"] = request.max_time
    content: dict[str, Any] = {
        "job_id": request.uid,
        "job": job,
        "jobparams": list(request.args),
        "jobenv": dict(request.env),
        "secrets": dict(request.secrets),
        "network": {},
        "requiredCapability": capability,
    }
    for path, value in request.fields.items():
        target: dict[str, Any] = content
        for step in path[:-1]:
            target = target.setdefault(step, {})
        target[path[-1]] = value
    if peer_field:
        content[peer_field] = peer
    return content


def _size(amount: int) -> str:
    """Return bytes in the form of the published body, ``1024Gi``, or in MiB, rounded up."""
    mebi = -(-amount // _MEBI)
    return f"{mebi // 1024}Gi" if mebi and mebi % 1024 == 0 else f"{mebi}Mi"


def submitted_job(answer: object) -> str:
    """Return the DMS's id of a job from the answer to ``postJob``; empty if it has none."""
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if not isinstance(answer, dict):
        text = _text(answer)
        return text if _BARE_ID.fullmatch(text) else ""  # any other text may be the page of a proxy
    data = answer["data"] if isinstance(answer.get("data"), dict) else answer
    return next((text for key in _JOB_KEYS if (text := _text(data.get(key)))), "")


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


# --- values -----------------------------------------------------------------------------------------------------------
def _dicts(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    """Return a text, or a number as text; empty for everything else."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return ""
    return str(value).strip()[:_LONGEST] if isinstance(value, str) or abs(value) < 2**63 else ""


def _words(value: object) -> frozenset[str]:
    """Return the words of a list, or of a text with commas, in lower case."""
    parts = value if isinstance(value, list) else value.split(",") if isinstance(value, str) else []
    return frozenset(text.lower() for part in parts[:100] if (text := _text(part)))


def _amount(value: object) -> float:
    """Return a number that is not negative; 0 for everything else. Numbers in texts are accepted."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0.0
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return 0.0
    return number if 0 <= number < 1e15 else 0.0


def seconds(value: object) -> float | None:
    """Return a duration: a number of seconds, such a text, or Go's form ``1h2m3.5s``; ``None`` if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str):
        text = value.strip().lower()
        parts = _DURATION.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            value = sum(float(number) * {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}[unit] for number, unit in parts)
    try:
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
