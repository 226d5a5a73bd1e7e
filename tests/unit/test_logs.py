"""Log records: users and sites are the authors of many values."""

from __future__ import annotations

import json
import logging

import pytest

from bridge.logs import JsonFormatter, TextFormatter, kv


def record(value: str) -> logging.LogRecord:
    made = logging.LogRecord("controllers", logging.INFO, "", 0, "pod failed", (), None)
    made.__dict__.update(kv(error=value))
    return made


@pytest.mark.parametrize(
    "value", ["\x1b[2Jgone", "a\nb", "\r12:00:00", "\x9b31m", "\u202etxt", "two words", "", "\ud800"]
)
def test_no_value_writes_another_line_or_changes_a_terminal(value: str) -> None:
    text = TextFormatter().format(record(value))
    assert text.isprintable()
    assert json.loads(text.partition("error=")[2]) == value
    assert json.loads(JsonFormatter().format(record(value)))["error"] == value


def test_plain_values_stand_as_they_are() -> None:
    assert TextFormatter().format(record("team/pod-1")).endswith("controllers: pod failed error=team/pod-1")
    assert TextFormatter().format(record("für")).endswith("error=für")
