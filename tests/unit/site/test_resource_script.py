"""The program of ``resources.script``, which prints what an interLink plugin's ping does (interlink.md 1.3)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import BatchError
from bridge.site.config.site_config import Resources
from bridge.site.measuring import parse_resources, resources

PRINTED = {
    "cpu": "128",
    "memory": "512Gi",
    "pods": "1000",
    "accelerators": [{"resourceType": "nvidia.com/gpu", "available": "8"}],
}
READ = {"cpu": "128", "memory": "512Gi", "pods": 1000, "extended": {"nvidia.com/gpu": "8"}}


def test_a_ping_and_its_resources() -> None:
    assert parse_resources(json.dumps(PRINTED)) == READ
    assert parse_resources(json.dumps({"status": "ok", "resources": PRINTED, "taints": []})) == READ
    assert parse_resources("{}") == {}


def program(path: Path, text: str) -> Resources:
    file = path / "resources"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return Resources(cpu="1", script=str(file))


def test_the_program_runs(tmp_path: Path) -> None:
    found = resources(program(tmp_path, f"echo '{json.dumps({'cpu': 3})}'"))
    assert (found.cpu, found.pods) == ("3", 10_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("echo none; echo broken >&2; exit 3", "resources: broken"),
        ("echo {", "Expecting property name"),
        ("echo []", "no JSON object"),
        ("""echo '{"pods": -1}'""", "pods: -1 is not allowed"),
        ("""echo '{"cpu": "many"}'""", "'many' is not a quantity"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BatchError, match=r"resources\.script") as wrong:
        resources(program(tmp_path, text))
    assert words in str(wrong.value)


@given(
    st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_json_is_read_or_refused(data: object) -> None:
    with contextlib.suppress(ValueError):
        Resources.model_validate(parse_resources(json.dumps({"resources": {"accelerators": data, "cpu": data}})))
