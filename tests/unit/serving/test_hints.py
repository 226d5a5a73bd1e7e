"""The application that receives hints over HTTPS."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from bridge.serving.client_access import Files, ServerAccess
from bridge.serving.hints import BODY_LIMIT, hint_app
from bridge.serving.https import Server

SECRET = "secret"


class Poller:
    """Counts hints."""

    def __init__(self) -> None:
        self.jobs: list[int | None] = []
        self.leads = True

    def hint(self, job_id: int | None) -> bool:
        self.jobs.append(job_id)
        return self.leads


@pytest.fixture
def poller() -> Poller:
    return Poller()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("secret\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def port(run_server: Callable[[Server], Server], poller: Poller, token_file: Path) -> int:
    refusal = ServerAccess(Files(token=token_file)).refusal
    return run_server(
        Server(hint_app(poller.hint, refusal), "127.0.0.1", 0, threads=2, drain=0.0, body_limit=BODY_LIMIT)
    ).port


def counted(result: str) -> float:
    return REGISTRY.get_sample_value("podbridge_slurm_hints_total", {"result": result}) or 0.0


def send(port: int, token: str = SECRET, method: str = "POST", path: str = "/hint", body: Any = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"} if token else {})
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_hint_wakes_and_may_name_its_job(port: int, poller: Poller) -> None:
    before = counted("accepted")
    assert send(port) == 202
    assert send(port, body=b"JobId=1 JobState=COMPLETED") == 202, "the body is not read"
    assert send(port, path="/hint?job=4294967295") == 202
    assert poller.jobs == [None, None, 4294967295]
    assert counted("accepted") == before + 3


def test_a_standby_accepts_and_counts_apart(port: int, poller: Poller) -> None:
    before, poller.leads = counted("standby"), False
    assert send(port) == 202
    assert counted("standby") == before + 1


@pytest.mark.parametrize("token", ["", "wrong", "secre", "secret2", "sécret"])
def test_a_wrong_token_is_refused_and_counted(port: int, poller: Poller, token: str) -> None:
    before = counted("refused")
    assert send(port, token.encode().decode("latin-1")) == 401
    assert poller.jobs == []
    assert counted("refused") == before + 1


def test_a_new_token_counts_at_once(port: int, token_file: Path) -> None:
    token_file.write_text("another\n")
    assert (send(port), send(port, "another")) == (401, 202)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ({"method": "GET"}, 405),
        ({"path": "/"}, 404),
        ({"body": b"x" * (BODY_LIMIT + 1)}, 413),
        *(
            ({"path": f"/hint?{query}"}, 400)
            for query in ("job=", "job=-1", "job=1_[2-5]", "job=12345678901", "job=1&job=2", "other=1")
        ),
    ],
)
def test_other_requests_wake_nothing(port: int, poller: Poller, request_line: dict[str, Any], status: int) -> None:
    assert send(port, **request_line) == status
    assert poller.jobs == []
