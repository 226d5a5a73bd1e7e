import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.errors import (
    SlurmAuthError,
    SlurmError,
    SlurmNotFoundError,
    SlurmRefusedError,
    SlurmUnavailableError,
    SlurmUnknownOutcomeError,
)
from bridge.slurm.slurm_answers import judge, read_answer, release, warning
from bridge.slurm.versions import VERSIONS
from tests.examples import examples, json_values

META = {"plugin": {"type": "openapi/x"}, "slurm": {"release": "26.05.5"}}
OLD, NEW = VERSIONS["v0.0.38"], VERSIONS["v0.0.45"]


def slurms(*errors: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"meta": META, "errors": list(errors), **more}).encode()


def error(code: int, text: str = "text", key: str = "error_number") -> dict[str, Any]:
    return {key: code, "error": text}


FOREIGN = [
    (404, b"<html>not found</html>"),
    (404, b'{"error": "not found"}'),
    (404, b'{"errors": [{"error_number": 2017}]}'),
    (502, b"Bad Gateway"),
    (200, b""),
    (200, b'{"meta": {}, "errors": [], "jobs": []}'),
    (200, b"[1]"),
    (200, b'{"meta": {"plugin'),
    (302, b""),
    (503, b"\xff\xfe"),
]


@pytest.mark.parametrize(("status", "body"), FOREIGN)
@pytest.mark.parametrize("endpoint", ["job", "jobs", "jobs/state", "ping", "nodes"])
def test_a_proxys_answer_says_nothing_about_jobs(endpoint: str, status: int, body: bytes) -> None:
    with pytest.raises(SlurmUnavailableError, match="not Slurm's own") as told:
        judge(NEW, endpoint, status, body)
    assert type(told.value) is SlurmUnavailableError


@pytest.mark.parametrize(("status", "body"), FOREIGN)
@pytest.mark.parametrize("endpoint", ["submit", "cancel", "set_node", "set_job", "add_node", "delete_node"])
def test_a_write_that_a_proxy_answered_may_have_been_done(endpoint: str, status: int, body: bytes) -> None:
    with pytest.raises(SlurmUnavailableError) as told:
        judge(NEW, endpoint, status, body)
    assert isinstance(told.value, SlurmUnknownOutcomeError) == (status != 404)


@pytest.mark.parametrize(
    ("endpoint", "status", "body", "kind", "code"),
    [
        ("job", 401, b"Authentication failure", SlurmAuthError, 0),
        ("submit", 511, slurms(error(1007)), SlurmAuthError, 1007),
        ("job", 500, slurms(error(2017), jobs=[]), SlurmNotFoundError, 2017),
        ("job", 404, slurms(error(2017), jobs=[]), SlurmNotFoundError, 2017),
        ("set_node", 422, slurms(error(2018)), SlurmNotFoundError, 2018),
        ("submit", 422, slurms(error(2018)), SlurmRefusedError, 2018),
        ("submit", 500, slurms(error(2000, key="error_code")), SlurmRefusedError, 2000),
        ("nodes", 500, slurms(error(2018, key="errno"), nodes=[]), SlurmRefusedError, 2018),
        ("submit", 400, slurms({"error": "Unknown key"}, error(9001, key="error_code")), SlurmRefusedError, 9001),
        ("job", 500, slurms(error(-1), jobs=None), SlurmUnavailableError, -1),
        ("jobs/state", 500, slurms(error(-1), jobs=[]), SlurmUnavailableError, -1),
        ("partitions", 502, slurms(), SlurmUnavailableError, 0),
        ("nodes", 504, slurms(error(5004)), SlurmUnavailableError, 5004),
        ("submit", 502, slurms(error(1800)), SlurmUnavailableError, 1800),
        ("submit", 504, slurms(error(5004)), SlurmUnknownOutcomeError, 5004),
        ("submit", 500, slurms(error(5005, key="error_code")), SlurmUnknownOutcomeError, 5005),
        ("submit", 200, slurms(), SlurmUnknownOutcomeError, 0),
        ("submit", 200, slurms(job_id=0), SlurmUnknownOutcomeError, 0),
        ("cancel", 403, slurms(error(1, "Operation not permitted"), status=[]), SlurmUnknownOutcomeError, 1),
        ("cancel", 500, slurms(error(2002)), SlurmRefusedError, 2002),
        ("cancel", 200, slurms(status=[{"error": {"code": 2002, "message": "no"}}]), SlurmRefusedError, 2002),
        ("set_job", 422, slurms(error(2073)), SlurmRefusedError, 2073),
        ("add_node", 422, slurms(error(2168)), SlurmRefusedError, 2168),
        ("add_node", 500, slurms(error(-1)), SlurmUnknownOutcomeError, -1),
        ("delete_node", 422, slurms(error(2016)), SlurmRefusedError, 2016),
        ("delete_node", 504, slurms(error(5004)), SlurmUnknownOutcomeError, 5004),
        ("jobs", 200, slurms(jobs=None), SlurmUnavailableError, 0),
        ("jobs", 200, slurms(), SlurmUnavailableError, 0),
        ("jobs", 200, slurms({"error": "half of it"}, jobs=[]), SlurmUnavailableError, 0),
        ("nodes", 200, slurms(nodes={}), SlurmUnavailableError, 0),
    ],
)
def test_errors(endpoint: str, status: int, body: bytes, kind: type[SlurmError], code: int) -> None:
    with pytest.raises(kind) as told:
        judge(NEW, endpoint, status, body)
    assert type(told.value) is kind
    assert (told.value.code, told.value.status) == (code, status)


@pytest.mark.parametrize(
    ("endpoint", "status", "body"),
    [
        ("submit", 200, slurms(error(2015, key="error_code"), job_id=7)),
        ("submit", 500, slurms(error(2068), job_id=7)),
        ("cancel", 500, slurms(error(2017))),
        ("cancel", 500, slurms(error(2021))),
        ("cancel", 200, slurms(status=[{"error": {"code": 2017}}])),
        ("cancel", 200, slurms(status=[{"error": {"code": 0}}])),
        ("cancel", 200, slurms()),
        ("set_job", 422, slurms(error(2015), results=None)),
        ("set_node", 200, slurms()),
        ("add_node", 200, slurms()),
        ("delete_node", 200, slurms()),
        ("delete_node", 422, slurms(error(2018))),
        ("jobs", 304, b""),
        ("jobs", 200, slurms(jobs=[])),
    ],
)
def test_success(endpoint: str, status: int, body: bytes) -> None:
    assert judge(NEW, endpoint, status, body) == (json.loads(body) if body else {})


def test_slurms_words_are_in_the_message() -> None:
    body = slurms({"error": "bad flag", "description": 'Unknown flag "X"', "error_number": 9207})
    with pytest.raises(SlurmRefusedError, match=r'^submit: bad flag: Unknown flag "X" \(Slurm error 9207\)$'):
        judge(NEW, "submit", 500, body)


def test_the_oldest_says_that_the_token_may_be_the_cause() -> None:
    for version, expected in ((OLD, True), (NEW, False)):
        with pytest.raises(SlurmUnavailableError) as told:
            judge(version, "job", 500, slurms(error(-1)))
        assert ("token" in told.value.hint) == expected


def test_warnings_are_told_once() -> None:
    twice = [
        {"description": "Job submission resulted in non-zero return code: not available now"},
        {"description": "not available now"},
    ]
    assert (
        warning({"warnings": twice, "errors": [], "job_submit_user_msg": " be kind "}) == "be kind; not available now"
    )
    assert warning({"errors": [{"error_code": 2015, "error": "later"}]}) == "later"
    assert warning({"errors": [], "warnings": None, "job_submit_user_msg": None}) == ""


def test_the_bulk_of_a_job_is_dropped_while_it_is_read() -> None:
    data = read_answer(slurms(jobs=[{"job_id": 1, "job_state": ["RUNNING"], "job_resources": {"nodes": [1] * 1000}}]))
    assert data is not None
    assert data["jobs"] == [{"job_id": 1, "job_state": ["RUNNING"]}]


def test_a_name_that_is_not_utf8_hides_no_job() -> None:
    body = slurms(jobs=[{"job_id": 7, "job_state": ["RUNNING"], "name": "caf@"}]).replace(b"@", b"\xe9")
    (job,) = judge(None, "job", 200, body)["jobs"]
    assert job == {"job_id": 7, "job_state": ["RUNNING"], "name": "caf\N{REPLACEMENT CHARACTER}"}


def test_the_release() -> None:
    assert release({"meta": META}) == "26.05.5"
    assert release({"meta": {"Slurm": {"release": "22.05.8"}}}) == "22.05.8"
    assert release({"meta": {}}) == ""


JSON = json_values()
KEYS = st.sampled_from(["errors", "warnings", "status", "jobs", "nodes", "job_id", "pings", "error", "error_number"])
ENDPOINTS = "ping diag submit cancel job jobs jobs/state nodes partitions set_node set_job node add_node delete_node"


@settings(max_examples=examples(40, 100))
@given(
    st.sampled_from(ENDPOINTS.split()),
    st.integers(200, 599),
    st.dictionaries(KEYS, JSON | st.lists(st.dictionaries(KEYS, JSON))),
)
def test_any_answer_is_data_or_a_slurm_error(endpoint: str, status: int, content: dict[str, Any]) -> None:
    for body in (json.dumps({"meta": META, "errors": [], **content}).encode(), json.dumps(content).encode()):
        try:
            data = judge(NEW, endpoint, status, body)
        except SlurmError:
            continue
        assert isinstance(data, dict)
        if endpoint in ("job", "jobs") and status != 304:
            assert isinstance(data["jobs"], list)
