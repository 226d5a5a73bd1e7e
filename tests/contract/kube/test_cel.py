"""Selectors of devices select the devices that Kubernetes' own compiler selects; no cluster is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest

from bridge.workload import quantity
from bridge.workload.devices import cel
from bridge.workload.devices.cel import UnsupportedExpressionError
from bridge.workload.devices.cel_values import Semver, Value
from cluster.systems import oracle

pytestmark = pytest.mark.real

SHORT, LONG = 300, 10_000
DRIVER = "gpu.example.com"
DEVICES: tuple[dict[str, Any], ...] = (
    {},
    {"attributes": {"a": {"string": "x\n"}, "b": {"bool": True}, "c": {"int": 1}, "d": {"version": "1.2.3"}}},
    {"attributes": {"a": {"int": 0}, "b": {"string": "b"}, "c": {"bool": False}, "d": {"int": -3}}},
    {"attributes": {"a": {"bool": False}, "b": {"bool": True}, "c": {"version": "1.2.3-rc.1"}, "d": {"string": "1"}}},
    {"attributes": {"a": {"string": "1.2.3"}, "d": {"version": "2.0.0"}}, "capacity": {"m": {"value": "40Gi"}}},
    {"attributes": {"a": {"string": ""}}, "capacity": {"m": {"value": "1"}, "n": {"value": "1e0003"}}},
)
CONSTANTS = ("1", "0", "-3", "true", "false", '"x"', '""', '"1.2.3"', '"b"', '"1"')
PATTERNS = ("^x$", "x$", "x", "^$", "[$x]$", "1.2", "^[0-9.]*$", "b|$", "x.")
FAMOUS = (
    "ATTR.a == 1 || ATTR.b == true",
    "ATTR.b > false",
    "ATTR.b >= ATTR.c",
    "ATTR.d != 1",
    "ATTR.d == '1'",
    "1 != ATTR.d",
    "CAP.m != 1",
    "1 != CAP.m",
    "ATTR.a.matches('^x$')",
    "CAP.n == quantity('1k')",
)


@dataclass
class Device:
    """A device as podbridge reads it."""

    driver: str = DRIVER
    attributes: dict[str, Value] = field(default_factory=dict)
    capacity: dict[str, Decimal] = field(default_factory=dict)


def read(device: dict[str, Any]) -> Device:
    found = Device()
    for name, entry in device.get("attributes", {}).items():
        ((kind, value),) = entry.items()
        found.attributes[f"{DRIVER}/{name}"] = Semver.parse(value) if kind == "version" else value
    for name, entry in device.get("capacity", {}).items():
        found.capacity[f"{DRIVER}/{name}"] = quantity.parse(entry["value"])
    return found


def term(chance: random.Random) -> str:
    return chance.choice(
        [
            *(f"ATTR.{name}" for name in "abcd"),
            *(f"ATTR.{name}" for name in "abcd"),
            "CAP.m",
            "CAP.n",
            "device.driver",
            chance.choice(CONSTANTS),
            "semver('1.2.3')",
            "quantity('40Gi')",
        ]
    )


def test_part(chance: random.Random) -> str:
    kind = chance.randrange(8)
    if kind < 4:
        return f"{term(chance)} {chance.choice(('==', '!=', '<', '<=', '>', '>='))} {term(chance)}"
    if kind == 4:
        listed = ", ".join(chance.choice(CONSTANTS) for _ in range(chance.randrange(1, 3)))
        return f"{term(chance)} in [{listed}]"
    if kind == 5:
        return f"{term(chance)}.matches('{chance.choice(PATTERNS)}')"
    if kind == 6:
        return f"{term(chance)}.{chance.choice(('compareTo', 'isGreaterThan', 'isLessThan'))}({term(chance)}) == 1"
    return chance.choice((f"has(ATTR.{chance.choice('abcd')})", f"'{chance.choice('mn')}' in CAP", "ATTR.b"))


test_part.__test__ = False  # type: ignore[attr-defined]


def expression(chance: random.Random) -> str:
    parts = [f"{chance.choice(('', '', '!'))}({test_part(chance)})" for _ in range(chance.randrange(1, 4))]
    text = parts[0]
    for part in parts[1:]:
        text += f" {chance.choice(('&&', '||'))} {part}"
    return f"{text} || device.driver == 'other'"


def test_the_devices_that_kubernetes_selects_are_selected(long: bool) -> None:
    chance = random.Random(41)
    count = LONG if long else SHORT
    texts = [*FAMOUS, *(expression(chance) for _ in range(count))]
    texts = [
        text.replace("ATTR", f"device.attributes['{DRIVER}']").replace("CAP", f"device.capacity['{DRIVER}']")
        for text in texts
    ]
    answers = oracle.ask({"cel": text, "driver": DRIVER, "devices": DEVICES} for text in texts)
    wrong, compared = [], 0
    for text, answer in zip(texts, answers, strict=True):
        if "error" in answer:
            continue  # the API server stores no such selector
        try:
            matches = cel.parse(text)
        except UnsupportedExpressionError:
            continue  # a claim with it is refused
        for device, expected in zip(DEVICES, answer["matches"], strict=True):
            compared += 1
            if matches(read(device)) != (expected == "true"):
                wrong.append((text, device, expected))
    assert not wrong, wrong[:5]
    assert compared > count, "most expressions are compared"
