"""The annotations about a pod's job (``slurmjob.slinky.slurm.net/*``): a table to validate, read and document them."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from bridge import names
from bridge.config.policies import MOST_CPUS
from bridge.errors import BridgeError
from bridge.gres_text import Gres
from bridge.workload import quantity
from bridge.workload.devices import gres
from bridge.workload.resources import Resources

_ZERO = Decimal(0)
LONGEST_DEADLINE = 2**31 - 1
"""Seconds: the largest deadline of a pod. The API server accepts a longer one of a Job."""


class InvalidAnnotationsError(BridgeError):
    """Invalid annotations; the message has the name, the value and the allowed values of each."""

    reason = "InvalidAnnotation"


@dataclass(frozen=True, slots=True)
class Key:
    """One annotation: ``allowed`` as text, ``read`` (raises ``ValueError``), and whether it needs a ``permission``."""

    name: str
    allowed: str
    read: Callable[[str], Any]
    example: str
    meaning: str
    permission: bool = False


def _matching(pattern: str) -> Callable[[str], str]:
    compiled = re.compile(pattern, re.ASCII)

    def read(text: str) -> str:
        if len(text) > 1024 or not compiled.fullmatch(text):
            raise ValueError
        return text

    return read


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,10}", text, re.ASCII) or not low <= int(text) <= high:
            raise ValueError
        return int(text)

    return read


def _boolean(text: str) -> bool:
    booleans = {"true": True, "false": False, "1": True, "0": False}
    if text.lower() not in booleans:
        raise ValueError
    return booleans[text.lower()]


def _cpus(text: str) -> int:
    cpus = quantity.whole(quantity.parse(text))
    if not 1 <= cpus <= MOST_CPUS:
        raise ValueError
    return cpus


def _mebibytes(text: str) -> int:
    mebibytes = quantity.mebibytes(quantity.parse(text))
    if not 1 <= mebibytes < 2**40:
        raise ValueError
    return mebibytes


def _gres(text: str) -> tuple[str, ...]:
    return tuple(map(str, gres.parse(text)))


_DAYS = re.compile(r"(\d{1,4})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,5}):)?(\d{1,5}):(\d{1,2})", re.ASCII)
_UNITS = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,8})m)?(?:(\d{1,8})s)?", re.ASCII)


def minutes(text: str) -> int:
    """Read a time limit in the format of Slurm or with units (``1h30m``), rounded up to whole minutes."""
    if re.fullmatch(r"\d{1,8}", text, re.ASCII):
        total = int(text)
    elif match := _DAYS.fullmatch(text) or _UNITS.fullmatch(text):
        days, hours, mins, secs = (int(part or 0) for part in match.groups())
        total = math.ceil(((days * 24 + hours) * 60 + mins) + secs / 60)
    elif match := _CLOCK.fullmatch(text):
        hours, mins, secs = (int(part or 0) for part in match.groups())
        total = math.ceil(hours * 60 + mins + secs / 60)
    else:
        raise ValueError
    if not 1 <= total <= 5_256_000:
        raise ValueError
    return total


_NAME = _matching(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*")
_NAMES = _matching(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]*(,[A-Za-z0-9_][A-Za-z0-9_.@+-]*)*")
_ACCOUNT_ID = _matching(r"[0-9]{1,10}|[A-Za-z_][A-Za-z0-9_.-]*")
_NAME_RULE = "letters, digits and _ . @ + -"

KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key(names.ACCOUNT, _NAME_RULE, _NAME, "physics", "Slurm account"),
        Key(
            names.CONSTRAINTS,
            "a Slurm constraint expression (letters, digits and _ . : = & | , * ! ( ) [ ] -)",
            _matching(r"[\w.:=&|,*!()\[\]-]+"),
            "haswell&ssd",
            "node features the job needs",
        ),
        Key(
            names.CPU_PER_TASK,
            f"a quantity from 1 to {MOST_CPUS}, rounded up",
            _cpus,
            "4",
            "CPUs, at least the requests",
        ),
        Key(names.EXCLUSIVE, "true or false", _boolean, "true", "whether the job takes whole nodes"),
        Key(
            names.GRES,
            "name[:type][:count], comma separated, each once",
            _gres,
            "gpu:a100:2",
            "generic resources, at least the requests",
        ),
        Key(names.GROUP_ID, "a group's number or name", _ACCOUNT_ID, "2000", "group of the Slurm job"),
        Key(
            names.JOB_NAME,
            "1 to 200 printable characters without line breaks",
            _matching(r"[^\x00-\x1f\x7f]{1,200}"),
            "train-7",
            "name of the Slurm job",
        ),
        Key(
            names.LICENSES,
            "name[@server][:count], separated by , or ;",
            _matching(r"[\w.-]+(@[\w.-]+)?(:\d{1,6})?([,;|][\w.-]+(@[\w.-]+)?(:\d{1,6})?)*"),
            "matlab:2",
            "licenses",
        ),
        Key(
            names.MAX_NODES, "a whole number from 1 to 1000000", _integer(1, 1_000_000), "1", "maximum number of nodes"
        ),
        Key(names.MEM_PER_NODE, "a quantity of at least 1Mi", _mebibytes, "8Gi", "memory, at least the requests"),
        Key(
            names.MIN_NODES, "a whole number from 1 to 1000000", _integer(1, 1_000_000), "1", "minimum number of nodes"
        ),
        Key(names.PARTITION, f"partition names, comma separated ({_NAME_RULE})", _NAMES, "gpu", "Slurm partition"),
        Key(
            names.PRIORITY,
            "a whole number from 0 to 4294967293",
            # Slurm's NO_VAL is 4294967294 and INFINITE 4294967295: they are no priorities
            _integer(0, 4_294_967_293),
            "1000",
            "priority of the job",
            True,
        ),
        Key(names.QOS, _NAME_RULE, _NAME, "high", "quality of service"),
        Key(names.RESERVATION, f"names, comma separated ({_NAME_RULE})", _NAMES, "course", "reservation"),
        Key(
            names.TIME_LIMIT,
            "1h30m or 2d, or as in Slurm: minutes[:seconds], hours:minutes:seconds, days-hours[:minutes[:seconds]]",
            minutes,
            "1-12:00:00",
            "time limit",
        ),
        Key(names.USER_ID, "a user's number or name", _ACCOUNT_ID, "20001", "user of the Slurm job"),
        Key(
            names.JOB_DEADLINE,
            f"a whole number of seconds from 1 to {LONGEST_DEADLINE}",
            _integer(1, LONGEST_DEADLINE),
            "3600",
            "`activeDeadlineSeconds` of the pod's Job; admission copies it. Without `timelimit`, it limits the job",
        ),
        Key(names.WCKEY, _NAME_RULE, _NAME, "wc1", "workload characterisation key"),
    )
}

LONGEST = 1024
"""Characters of a value."""
Layers = tuple[tuple[str, Mapping[str, str]], ...]
"""Kind and name of each object that a pod inherits annotations from, and all its annotations, the nearest first."""
_NAMED = re.compile(r"annotation ([^\s:]+)")
MOST_UNKNOWN = 10
"""Number of unknown annotations that messages name."""
JobSettings = dict[str, Any]
"""Values by the name of the annotation, as its ``read`` returns them."""


def check(annotations: Mapping[str, str]) -> list[str]:
    """Return the problems of the annotations, one sentence each, sorted by name; empty if all are valid."""
    problems: list[str] = []
    settings: JobSettings = {}
    job_names = [name for name in sorted(annotations) if name.startswith(names.JOB_ANNOTATION_PREFIX) or name in KEYS]
    unknown = [name for name in job_names if name not in KEYS]
    problems += [_unknown_message(name) for name in unknown[:MOST_UNKNOWN]]
    if len(unknown) > MOST_UNKNOWN:
        problems.append(f"{len(unknown) - MOST_UNKNOWN} more annotations {names.JOB_ANNOTATION_PREFIX}... are unknown")
    for name in job_names:
        key = KEYS.get(name)
        if key is None:
            continue
        value = annotations[name]
        try:
            settings[name] = key.read(value[: LONGEST + 1])
        except ValueError:
            shown = repr(value if len(value) <= 120 else value[:120] + "...")
            problems.append(f"annotation {name}: {shown} is not allowed; allowed: {key.allowed}")
            continue
        if len(value) > LONGEST:
            text = f"a value of {len(value)} characters is not allowed; allowed: at most {LONGEST}"
            problems.append(f"annotation {name}: {text}")
    max_nodes, min_nodes = settings.get(names.MAX_NODES), settings.get(names.MIN_NODES)
    if max_nodes is not None and min_nodes is not None and max_nodes < min_nodes:
        problems.append(
            f"annotation {names.MAX_NODES}: {max_nodes} is not allowed; allowed: at least {names.MIN_NODES} "
            f"({min_nodes})"
        )
    return problems


def read(annotations: Mapping[str, str]) -> JobSettings:
    """Read the values; raises :class:`InvalidAnnotationsError` if :func:`check` finds a problem."""
    problems = check(annotations)
    if problems:
        raise InvalidAnnotationsError("; ".join(problems), hint="correct the annotation on the pod or on its owner")
    return {name: KEYS[name].read(text) for name, text in annotations.items() if name in KEYS}


def needed_permissions(annotations: Collection[str]) -> list[str]:
    """Return the permissions (``user-id`` ...) that the annotations with these names need, sorted."""
    return sorted(
        name.removeprefix(names.JOB_ANNOTATION_PREFIX)
        for name, key in KEYS.items()
        if key.permission and name in annotations
    )


def merge(chain: list[Mapping[str, str]]) -> dict[str, str]:
    """Merge the annotations of a pod and its owners: those of the first in the chain (the pod) take precedence.

    The result has the job annotations and those of groups.
    """
    merged: dict[str, str] = {}
    for layer in reversed(chain):
        merged.update({k: v for k, v in layer.items() if is_inherited(k)})
    return merged


def with_sources(problems: Iterable[str], annotations: Mapping[str, str], layers: Layers) -> list[str]:
    """Return the problems of a pod's annotations, each with the object from which the pod inherited the annotation.

    A pod does not record this object: the first layer with the pod's value counts.
    """
    messages = []
    for problem in problems:
        named = _NAMED.match(problem)
        key = named[1] if named else ""
        source = next(
            (
                layer
                for layer, layer_annotations in layers
                if key in layer_annotations and layer_annotations[key] == annotations.get(key)
            ),
            "",
        )
        messages.append(f"{problem} (the annotation is that of {source})" if source else problem)
    return messages


def is_inherited(name: str) -> bool:
    """Whether a pod without this annotation gets that of its owners."""
    others = (names.GANG, names.ARRAY, names.MEMBERS_PER_NODE, names.JOB_DEADLINE)
    return name.startswith(names.JOB_ANNOTATION_PREFIX) or name in others


def _unknown_message(name: str) -> str:
    prefix = names.JOB_ANNOTATION_PREFIX
    known_names = sorted(key.removeprefix(prefix) for key in KEYS if key.startswith(prefix))
    near = difflib.get_close_matches(name.removeprefix(prefix), known_names, n=1, cutoff=0.5)
    if near:
        return f"annotation {name} is unknown; did you mean {prefix}{near[0]}?"
    return f"annotation {name} is unknown; known under {prefix}: {', '.join(known_names)}"


def below_requests(settings: JobSettings, requests: Resources, table: Mapping[str, str]) -> list[str]:
    """Return the problems of annotations below the pod's ``requests``; ``table`` maps extended resources to gres.

    The kubelet reserves the pod's requests on the node, whatever Slurm has allocated to the job. It would take the
    difference from other jobs on the node. An annotation may request more. A pod runs on one node, so any number of
    nodes is enough for it.
    """
    messages = []
    cpus = quantity.whole(requests.get("cpu", _ZERO))
    if 0 < settings.get(names.CPU_PER_TASK, 0) < cpus:
        messages.append(_below(names.CPU_PER_TASK, settings[names.CPU_PER_TASK], f"{cpus}, the pod's request for cpu"))
    memory = quantity.mebibytes(requests.get("memory", _ZERO))
    if 0 < settings.get(names.MEM_PER_NODE, 0) < memory:
        least = f"{memory}Mi, the pod's request for memory"
        messages.append(_below(names.MEM_PER_NODE, f"{settings[names.MEM_PER_NODE]}Mi", least))
    annotated_gres = settings.get(names.GRES, ())
    if annotated_gres:
        short = gres.missing(gres.of_parts(annotated_gres), gres.of_requests(requests, table))
        if short:
            least = ",".join(str(Gres(name, kind, count)) for (name, kind), count in sorted(short.items()))
            messages.append(
                _below(names.GRES, ",".join(annotated_gres), f"{least}, the pod's requests for extended resources")
            )
    return messages


def _below(name: str, value: object, least: str) -> str:
    return f"annotation {name}: {value} is below the requests of the pod; allowed: at least {least}"
