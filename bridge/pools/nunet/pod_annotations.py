"""The annotations ``nunet.bridge.vk.io/*`` of a pod: one table. Pure.

Each row has the field of the request that the value becomes, and how the value is read. docs/admins/nunet.md has the
same table; a test compares them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bridge.errors import ScriptError
from bridge.workload import quantity

PREFIX = "nunet.bridge.vk.io/"
Path = tuple[str, ...]
_CAPABILITY = "requiredCapability"
_LONGEST, _DEEPEST = 16 * 1024, 16
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._:/+-]{0,127}")


@dataclass(frozen=True, slots=True)
class Key:
    """One annotation. ``path``: the field of the body; empty: it affects only podbridge. ``read`` raises ValueError."""

    name: str
    path: Path
    read: Callable[[str], Any]
    allowed: str
    meaning: str

    @property
    def annotation(self) -> str:
        """The whole name."""
        return PREFIX + self.name


def _one_of(*allowed: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in allowed:
            raise ValueError
        return text

    return read


def _number(least: float, most: float) -> Callable[[str], float | int]:
    def read(text: str) -> float | int:
        value = float(text)
        if not least <= value <= most:
            raise ValueError
        return int(value) if value.is_integer() else value

    return read


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return read


def _list(allowed: tuple[str, ...] = ()) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        words = [word.strip() for word in text.split(",")]
        if not all(word in allowed if allowed else _WORD.fullmatch(word) for word in words):
            raise ValueError
        return words

    return read


def _word(text: str) -> str:
    if not _WORD.fullmatch(text):
        raise ValueError
    return text


def _no_constant(text: str) -> None:
    raise ValueError(text)  # NaN and Infinity are no JSON


def _object(text: str) -> dict[str, Any]:
    content = json.loads(text, parse_constant=_no_constant) if len(text) <= _LONGEST else None
    if not isinstance(content, dict) or not _can_be_sent(content, _DEEPEST):
        raise ValueError
    return content


def _can_be_sent(value: object, levels: int) -> bool:
    """Whether a value has at most so many levels, and no number beyond the range of JSON: 1e999 is infinite."""
    if isinstance(value, float):
        return math.isfinite(value)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return children is None or (levels > 0 and all(_can_be_sent(child, levels - 1) for child in children))


def _bytes(text: str) -> int:
    amount = int(quantity.parse(text))
    if not 0 < amount < 2**60:
        raise ValueError
    return amount


STORAGE = ("ramdisk", "localVolume", "ipfs", "aws-s3", "filecoin", "google-drive")
KEYS: dict[str, Key] = {
    key.name: key
    for key in (
        Key(
            "executor",
            (_CAPABILITY, "executor"),
            _one_of("docker", "vm", "wasm"),
            "`docker`, `vm` or `wasm`",
            "executor of the job; default `docker`",
        ),
        Key(
            "type",
            (_CAPABILITY, "type", "description"),
            _word,
            "word such as `batch`",
            "type of the job; default `batch`",
        ),
        Key(
            "cpu-frequency",
            (_CAPABILITY, "resources", "cpu", "frequency"),
            _whole(1, 100_000),
            "whole number of MHz, 1 to 100000",
            "minimum clock rate of a CPU",
        ),
        Key("disk", (), _bytes, "quantity such as `10Gi`", "disk, instead of the request `ephemeral-storage`"),
        Key(
            "power",
            (_CAPABILITY, "resources", "power"),
            _whole(1, 10**6),
            "whole number, 1 to 1000000",
            "sent as it is",
        ),
        Key(
            "vcpu",
            (_CAPABILITY, "resources", "vcpu"),
            _whole(1, 10**6),
            "whole number, 1 to 1000000",
            "sent as it is",
        ),
        Key(
            "libraries",
            (_CAPABILITY, "libraries"),
            _list(),
            "comma list such as `pytorch@1.0.0`",
            "required libraries; checked by the DMS",
        ),
        Key(
            "locality",
            (_CAPABILITY, "locality"),
            _list(),
            "a comma list",
            "places, one of which the peer must have",
        ),
        Key(
            "storage",
            (_CAPABILITY, "storage"),
            _list(STORAGE),
            "comma list of " + ", ".join(f"`{kind}`" for kind in STORAGE),
            "kinds of storage; checked by the DMS",
        ),
        Key(
            "kyc",
            (_CAPABILITY, "kyc"),
            _list(),
            "comma list such as `iamx`",
            "proofs of identity; checked by the DMS",
        ),
        Key(
            "currency",
            (_CAPABILITY, "price", "currency"),
            _word,
            "word such as `ntx`",
            "currency of the prices; default `ntx`",
        ),
        Key(
            "max-price-per-hour",
            (_CAPABILITY, "price", "max_per_hour"),
            _number(0, 1e12),
            "a number, at least 0",
            "maximum price per hour",
        ),
        Key(
            "max-price",
            (_CAPABILITY, "price", "max_total"),
            _number(0, 1e12),
            "a number, at least 0",
            "maximum price of the job",
        ),
        Key(
            "price-preference",
            (_CAPABILITY, "price", "preference"),
            _whole(0, 100),
            "whole number, 0 to 100",
            "rank of the price; 1 is first",
        ),
        Key(
            "time-preference",
            (_CAPABILITY, "time", "preference"),
            _whole(0, 100),
            "whole number, 0 to 100",
            "rank of the time",
        ),
        Key(
            "max-time",
            (),
            _whole(1, 10**9),
            "whole number of seconds, at least 1",
            "time limit, if shorter than `activeDeadlineSeconds`",
        ),
        Key("vpn-subnet", ("network", "vpn_subnet"), _word, "word such as `10.8.0.0/24`", "subnet of a VPN"),
        Key(
            "max-latency",
            ("network", "vpn_maxlatency"),
            _number(0, 1e6),
            "ms, 0 to 1000000",
            "maximum latency of the peer",
        ),
        Key("ip-address", ("network", "ipaddr"), _word, "an IP address", "address of the job"),
        Key("dns-name", ("network", "dnsname"), _word, "a DNS name", "name of the job"),
        Key("ingress-proxy", ("network", "ingressproxyid"), _word, "an id", "proxy for connections to the job"),
        Key("egress-proxy", ("network", "egressproxyid"), _word, "an id", "proxy for connections of the job"),
        Key(
            "firewall-rules",
            ("network", "fwrules"),
            _object,
            "JSON object of at most 16 KiB and 16 levels",
            "sent as it is",
        ),
        Key("channels", (), _list(), "a comma list", "channels, one of which the peer must have"),
        Key("peers", (), _list(), "a comma list", "the only peers for the job"),
        Key(
            "no-job",
            (),
            _word,
            "word such as `true`",
            "the DMS has no job of this pod: see [below](#no-job-twice)",
        ),
    )
}


def read(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a pod's annotations by short name; raises ``ScriptError`` for an unknown or invalid one."""
    values: dict[str, Any] = {}
    for annotation, text in sorted((pod["metadata"].get("annotations") or {}).items()):
        if not annotation.startswith(PREFIX):
            continue
        key = KEYS.get(annotation.removeprefix(PREFIX))
        if key is None:
            raise ScriptError(f"annotation {annotation}: unknown; allowed: {', '.join(PREFIX + name for name in KEYS)}")
        try:
            values[key.name] = key.read(str(text).strip())
        except (ValueError, OverflowError, RecursionError) as error:
            allowed = key.allowed.replace("`", "")
            raise ScriptError(
                f"annotation {annotation}: {str(text)[:100]!r} is not allowed; allowed: {allowed}"
            ) from error
    return values


def no_job(pod: Mapping[str, Any]) -> str:
    """Return the word with which the user has stated that the DMS has no job of the pod; empty: not stated."""
    return str((pod["metadata"].get("annotations") or {}).get(f"{PREFIX}no-job", ""))


def fields(values: Mapping[str, Any]) -> dict[Path, Any]:
    """Return the fields of the body of these values, by path."""
    return {KEYS[name].path: value for name, value in values.items() if KEYS[name].path}
