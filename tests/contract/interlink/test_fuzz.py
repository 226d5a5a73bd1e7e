"""Requests made from the OpenAPI document, valid and invalid ones, to a running server whose pool runs nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from bridge.apps.plugin.listen import Address
from bridge.apps.plugin.openapi import document
from bridge.apps.plugin.process import Options, Plugin
from bridge.core.threads import Supervisor
from bridge.script.references import Objects
from tests.builders import site_pod as pod
from tests.contract.interlink.plugin_process import Client
from tests.fakes.interlink_bodies import body
from tests.fakes.pool import FakePool, FakePools

pytestmark = pytest.mark.real

VICTIM = "5e3c0000-1111-4222-8333-444455556666"
SECRET = "value-of-another-pod"
EXAMPLES = 8
TIMEOUT = 5.0
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
QUICK = settings(
    max_examples=EXAMPLES,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class _Pool(FakePool):
    """A pool that accepts jobs and runs nothing; a log has the name of its container."""

    def logs(self, pod: Mapping[str, Any], options: Any) -> Iterator[bytes]:
        yield f"log of {options.container}\n".encode()


class _Source(FakePools):
    """The pool of this test as the source of a plugin."""

    every_pod = True


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A running server with a pod of somebody else."""
    pool = _Pool("pool", period=600)
    pool.submit(pod(VICTIM, "victim", "private", PASSWORD=SECRET), Objects())
    pool.run(VICTIM, "main")
    supervisor = Supervisor()
    plugin = Plugin(_Source(pool), Options(Address("127.0.0.1", 0), local_users=True), supervisor)
    plugin.start()
    try:
        yield f"127.0.0.1:{plugin.port}"
    finally:
        supervisor.stop()
        plugin.stop()


def _check(text: str) -> None:
    assert VICTIM not in text
    assert SECRET not in text
    assert "victim" not in text
    assert "Traceback" not in text


SCHEMA = schemathesis.openapi.from_dict(document())
CASES = [
    (operation, mode)
    for operation in (found.ok() for found in SCHEMA.get_all_operations())
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    # schemathesis needs 15 s for these; the recorded bodies with one wrong value are such requests
    if not (operation.path == "/create" and mode is GenerationMode.NEGATIVE)
]


@pytest.mark.parametrize(("operation", "mode"), CASES, ids=lambda value: getattr(value, "label", None) or value.name)
def test_requests_of_the_document_have_answers_of_the_document(operation: Any, mode: Any, address: str) -> None:
    seen = []

    @QUICK
    @given(case=operation.as_strategy(mode))
    def run(case: Any) -> None:
        answer = case.call_and_validate(base_url=f"http://{address}", checks=CHECKS, timeout=TIMEOUT)
        _check(answer.text)
        seen.append(answer.status_code)

    run()
    assert seen


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=12),
    st.sampled_from(["..", "/", "a/../../b", "$(X)", "\x00", "\ud7ff", "9e999999", "-1", "1" * 5000, VICTIM, "victim"]),
    st.just([]),
    st.just({}),
    st.lists(st.none() | st.text(max_size=3), max_size=2),
    st.dictionaries(st.text(max_size=3), st.none() | st.integers(), max_size=2),
)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from _paths(inner, (*path, key))


def _replaced(value: Any, path: tuple[Any, ...], leaf: Any) -> Any:
    changed = copy.deepcopy(value)
    holder = changed
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = leaf
    return changed


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/create", "create_hop_a"),
        ("/create", "create_hop_b"),
        ("/status", "status"),
        ("/delete", "delete"),
        ("/getLogs", "logs_tail_follow"),
    ],
)
def test_a_recorded_body_with_one_wrong_value_is_answered(path: str, name: str, address: str) -> None:
    told = body(name)
    client = Client(address)
    client.call("POST", "/create", body("create_hop_b"))
    codes = set()

    @settings(QUICK, max_examples=200)
    @given(where=st.sampled_from(list(_paths(told))), leaf=LEAVES)
    def run(where: tuple[Any, ...], leaf: Any) -> None:
        try:
            data = _replaced(told, where, leaf)
            with client.open("POST", path, data, timeout=TIMEOUT) as answer:
                text = answer.read().decode()
        except UnicodeEncodeError:  # a lone surrogate
            return
        assert answer.status < 500, text
        if leaf not in (VICTIM, "victim"):
            _check(text)
        assert SECRET not in text
        codes.add(answer.status)

    run()
    assert {200, 400} <= codes


def test_a_large_body_is_answered_and_one_above_the_limit_is_refused(address: str) -> None:
    told = body("create_hop_b")
    told["pod"]["metadata"]["uid"] = "00000000-0000-4000-8000-0000000000aa"
    told["container"][1]["configMaps"][0]["data"]["unused"] = "x" * (8 * 2**20)
    assert Client(address).call("POST", "/create", told)[0] == 200
    with Client(address, **{"Content-Length": str(64 * 2**20 + 1)}).open("POST", "/create") as answer:
        assert answer.status == 413
