"""The table of requests: the wire is as it was before the table, and a new row needs only its handler."""

import json
import threading
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from bridge.errors import SiteRefusedError
from bridge.protocol.model.jobs import JobStatus
from bridge.protocol.nats import messages
from bridge.protocol.nats.envelope import parse, parse_body
from bridge.protocol.nats.messages import Empty, Message, Status
from bridge.protocol.nats.nats_server_config import hub_permissions, site_permissions
from bridge.protocol.nats.request_client import PoolClient
from bridge.protocol.nats.request_server import Server
from bridge.protocol.nats.request_table import CONNECT, EXEC, LOGS, REACH, REQUESTS, STATUS, RequestKind
from bridge.protocol.nats.subjects import Subjects, kind_of
from bridge.site.submitter import Submitter
from tests.fakes.clock import FakeClock
from tests.fakes.nats_link import FakeLink

PREFIX, OWNER, FOLDER, START = "bridge.v1", "c1", "f", 1000.0
# Written by podbridge before the table. Never change a line of the file: hubs and sites that were not upgraded send and
# read these bytes.
OLD = [
    pytest.param(line, id=kind_of(PREFIX, line["subject"]))
    for line in map(json.loads, Path(__file__).with_name("old_requests.jsonl").read_text().splitlines())
]
KINDS = ["submit", "cancel", "status", "logs", "files", "grant", "snapshot", "describe"]
NEWER = {"exec", "usage", "connect", "reach"}
"""Requests that older submitters do not know."""


LATER = (
    ',"place":null',
    ',"array":null',
    ',"gangs":false',
    ',"heterogeneous_gangs":false',
    ',"commands":false',
    ',"ports":false',
    ',"reach":false',
    ',"gang":""',
)
"""What later versions have added, with the value that means what a message without it means."""


def without_later(text: str) -> str:
    text = json.dumps(json.loads(text), separators=(",", ":"))
    for part in LATER:
        text = text.replace(part, "")
    return text


class RecordingLink(FakeLink):
    """Records the requests, and answers each with the same bytes."""

    def __init__(self, reply: str) -> None:
        super().__init__()
        self.reply, self.requests = reply.encode(), []

    def request(self, subject: str, data: bytes, timeout: float) -> bytes:
        self.requests.append((subject, data.decode(), timeout))
        return self.reply


@pytest.mark.parametrize("old", OLD)
def test_the_hub_sends_and_reads_the_bytes_from_before_the_table(old: dict[str, Any]) -> None:
    link: Any = RecordingLink(old["reply"])
    client = PoolClient(link, PREFIX, "alpha", OWNER, FakeClock(START), lambda: FOLDER)
    kind, request = REQUESTS[kind_of(PREFIX, old["subject"])], parse(messages.Request, old["request"].encode())
    answer = client.call(kind, request.job, parse_body(kind.body, request.body))
    assert [(at, without_later(text), left) for at, text, left in link.requests] == [
        (old["subject"], old["request"], old["timeout"])
    ]
    assert without_later(answer.model_dump_json()) == without_later(json.dumps(json.loads(old["reply"])["body"]))


@pytest.mark.parametrize("old", OLD)
def test_the_site_reads_and_sends_the_bytes_from_before_the_table(old: dict[str, Any]) -> None:
    kind, request = REQUESTS[kind_of(PREFIX, old["subject"])], json.loads(old["request"])
    seen: list[tuple[str, str, Message]] = []

    class Handlers:
        def __getattr__(self, name: str) -> Any:
            def handle(owner: str, job: str, body: Message) -> Any:
                if name == kind.name:
                    seen.append((owner, job, body))
                if kind is LOGS:
                    return lambda _stream: None
                return parse_body(kind.answer, json.loads(old["reply"])["body"])

            return handle

    link: Any = FakeLink()
    Server(link, PREFIX, "alpha", Handlers(), FakeClock(START), FOLDER)
    answers: list[bytes] = []
    link._handlers(old["subject"])[0](old["subject"], old["request"].encode(), answers.append)
    for thread in [each for each in threading.enumerate() if each.name.startswith("session-")]:
        thread.join(10)
    assert [without_later(answer.decode()) for answer in answers] == [without_later(old["reply"])]
    [(owner, job, body)] = seen
    assert (owner, job) == (OWNER, request["job"])
    assert without_later(body.model_dump_json()) == without_later(json.dumps(request["body"]))


def test_the_old_bytes_have_every_kind() -> None:
    assert {param.id for param in OLD} == set(REQUESTS) - NEWER == set(KINDS)


def test_the_permissions_are_those_from_before_the_table() -> None:
    def patterns(pool: str, owner: str) -> list[str]:
        ends = [".*.*", *[".*"] * 5, "", ""]
        return [f"{PREFIX}.{pool}.{kind}.{owner}{end}" for kind, end in zip(KINDS, ends, strict=True)]

    told = [f"{PREFIX}.alpha.{kind}" for kind in ("announce", "buildconfig", "event.*", "stream.*.*")]
    site = site_permissions(PREFIX, "alpha")
    asked = [f"{pattern} alpha" for pattern in patterns("alpha", "*")] + [
        f"{PREFIX}.alpha.{pattern} alpha" for pattern in ("exec.*.*", "usage.*", "connect.*.*", "reach.*.*")
    ]
    streams = f"{PREFIX}.alpha.input.*.*"
    assert (site.publish, site.subscribe, site.answers) == (told, [*asked, streams], True)
    hub = hub_permissions(PREFIX, owner=OWNER)
    heard = [f"{PREFIX}.*.{kind}" for kind in ("announce", "buildconfig", f"event.{OWNER}", f"stream.{OWNER}.*")]
    kinds = (f"exec.{OWNER}.*", f"usage.{OWNER}", f"connect.{OWNER}.*", f"reach.{OWNER}.*")
    newer = [f"{PREFIX}.*.{kind}" for kind in kinds]
    streams = f"{PREFIX}.alpha.input.*.*"
    assert (site.publish, site.subscribe, site.answers) == (told, [*asked, streams], True)
    hub = hub_permissions(PREFIX, owner=OWNER)
    heard = [f"{PREFIX}.*.{kind}" for kind in ("announce", "buildconfig", f"event.{OWNER}", f"stream.{OWNER}.*")]
    newer = [
        f"{PREFIX}.*.{kind}" for kind in (f"exec.{OWNER}.*", f"usage.{OWNER}", f"connect.{OWNER}.*", f"reach.{OWNER}.*")
    ]
    assert hub.publish == [*patterns("*", OWNER), *newer, f"{PREFIX}.*.input.{OWNER}.*"]
    assert (hub.subscribe, hub.answers) == ([*heard, f"_INBOX.hub.{OWNER}.>"], False)


@pytest.mark.parametrize(
    "kind", [kind for kind in REQUESTS.values() if kind not in (LOGS, EXEC, CONNECT, REACH)], ids=lambda kind: kind.name
)
def test_the_submitter_answers_each_request_with_the_types_of_its_row(kind: RequestKind[Any, Any]) -> None:
    hints = list(get_type_hints(getattr(Submitter, kind.name)).values())
    assert hints == [str, str, kind.body, kind.answer]


def test_a_handler_has_the_name_of_its_request() -> None:
    with pytest.raises(TypeError, match="cannot answer 'status'"):

        class Wrong:
            @STATUS.handler
            def state(self, owner: str, job: str, body: Empty) -> Status:
                return Status()


def test_a_site_without_a_handler_of_a_row_does_not_start() -> None:
    link: Any = FakeLink()
    with pytest.raises(AttributeError, match="submit"):
        Server(link, PREFIX, "alpha", object(), FakeClock())  # type: ignore[arg-type]


@pytest.mark.parametrize("of_job", [True, False])
def test_an_invented_request_needs_a_row_and_a_handler(monkeypatch: pytest.MonkeyPatch, of_job: bool) -> None:
    row = RequestKind("echo", messages.Grant, Status, of_job=of_job)
    monkeypatch.setitem(REQUESTS, row.name, row)
    seen: list[tuple[str, str]] = []

    class Handlers:
        @row.handler
        def echo(self, owner: str, job: str, body: messages.Grant) -> Status:
            seen.append((owner, job))
            if body.ticket == "no":
                raise SiteRefusedError("not this one", reason="Echo")
            named = {"job": body.ticket, "owner": owner, "namespace": "n", "name": "p", "phase": "queued"}
            return Status(status=JobStatus(**named))

        def __getattr__(self, name: str) -> Any:
            return lambda *_: Empty()

    link: Any = FakeLink()
    Server(link, PREFIX, "alpha", Handlers(), FakeClock())
    client = PoolClient(link, PREFIX, "alpha", OWNER, FakeClock())
    job = "u" if of_job else ""
    answer = client.call(row, job, messages.Grant(ticket="t"))
    assert answer.status is not None
    assert answer.status.job == "t"
    with pytest.raises(SiteRefusedError, match="not this one"):
        client.call(row, job, messages.Grant(ticket="no"))
    assert seen == [(OWNER, job)] * 2
    pattern = Subjects(PREFIX, "alpha", OWNER).requests()["echo"]
    assert pattern == f"{PREFIX}.alpha.echo.c1" + (".*" if of_job else "")
    assert pattern.replace(".alpha.", ".*.") in hub_permissions(PREFIX, owner=OWNER).publish
    assert pattern.replace(".c1", ".*") + " alpha" in site_permissions(PREFIX, "alpha").subscribe
