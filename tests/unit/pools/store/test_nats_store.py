"""The bucket over a link without a network, with every kind of answer."""

import json
from typing import Any

import pytest

from bridge.errors import ConfigError
from bridge.pools.store.nats_store import NatsStore
from bridge.pools.store.synchronizer import StoreError
from bridge.protocol.nats.subjects import BucketSubjects
from tests.fakes.nats_link import FakeLink

OWNER = "c1"
SUBJECTS = BucketSubjects("b", OWNER)
CONFIG = {"config": {"subjects": ["$KV.b.>"]}}
NOT_FOUND = {"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}


class Server:
    def __init__(self) -> None:
        self.link = FakeLink()
        self.asked: list[tuple[str, Any]] = []
        self.answers: dict[str, Any] = {SUBJECTS.info: CONFIG, SUBJECTS.create: CONFIG}
        for subject in (SUBJECTS.info, SUBJECTS.create, SUBJECTS.purge, SUBJECTS.key("pools", "a")):
            self.link.subscribe(subject, self._answer)
        self.store = NatsStore(self.link, "b", "_INBOX.hub", OWNER)  # type: ignore[arg-type]

    def _answer(self, subject: str, data: bytes, respond: Any) -> None:
        self.asked.append((subject, data))
        answer = self.answers.get(subject, {"seq": 1})
        respond(answer if isinstance(answer, bytes) else json.dumps(answer).encode())


def test_a_bucket_is_made_once_if_it_is_not_there() -> None:
    server = Server()
    server.answers[SUBJECTS.info] = NOT_FOUND
    server.store.put("pools", {"a": b"1"})
    server.store.put("pools", {"a": b"2"})
    assert [subject for subject, _ in server.asked] == [
        SUBJECTS.info,
        SUBJECTS.create,
        SUBJECTS.key("pools", "a"),
        SUBJECTS.key("pools", "a"),
    ]
    made = json.loads(server.asked[1][1])
    assert (made["max_msgs_per_subject"], made["subjects"], made["discard"]) == (1, ["$KV.b.>"], "new")


def test_one_that_is_there_stays_as_it_is() -> None:
    server = Server()
    server.store.delete("pools", ["a"])
    assert [subject for subject, _ in server.asked] == [SUBJECTS.info, SUBJECTS.purge]
    assert json.loads(server.asked[1][1]) == {"filter": "$KV.b.c1.pools.a"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            {"error": {"code": 503, "err_code": 10039, "description": "JetStream not enabled for account"}},
            "not enabled",
        ),
        ({"config": {"subjects": ["orders.>"]}}, "is not a key-value bucket"),
        (b"nonsense", "Expecting value"),
        (b"[1]", "not a JSON object"),
        (b"[" * 100_000, "recursion|Stack overflow"),  # the second from Python 3.14 on
        ({"config": 3}, "is not a key-value bucket"),
    ],
)
def test_answers_that_help_nobody(answer: Any, words: str) -> None:
    server = Server()
    server.answers[SUBJECTS.info] = answer
    with pytest.raises(StoreError, match=words):
        server.store.put("pools", {"a": b"1"})


def test_a_full_bucket_is_an_error() -> None:
    server = Server()
    server.answers[SUBJECTS.key("pools", "a")] = {"error": {"err_code": 10047, "description": "maximum bytes exceeded"}}
    with pytest.raises(StoreError, match="NATS bucket b: maximum bytes exceeded"):
        server.store.put("pools", {"a": b"1"})


def test_nobody_answers() -> None:
    store = NatsStore(FakeLink(), "b", "_INBOX.hub", OWNER)  # type: ignore[arg-type]
    with pytest.raises(StoreError) as caught:
        store.load("pools")
    assert "--jetstream" in caught.value.hint


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "x" * 65])
def test_names_that_no_bucket_can_have(name: str) -> None:
    with pytest.raises(ConfigError):
        BucketSubjects(name)
