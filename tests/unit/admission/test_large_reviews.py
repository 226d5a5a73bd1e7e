"""Reviews of the size that an API server just accepts: they cost the process a bounded memory, and can be answered."""

import json
import threading
from typing import Any

import flask.testing
import pytest

from admission import large_reviews
from admission.admission_app import REVIEW_LIMIT
from admission.large_reviews import LARGE, MOST_VALUES, BusyError, LargeReviews
from admission.review import MalformedReviewError, parse
from tests.unit.admission.test_app import World, client, pod, review

STORED = 3 * 2**19
"""Bytes of an object that etcd stores, at most."""


class BlockedWorld(World):
    """An API server that answers about namespaces only after :attr:`go_on`; counts the reviews that wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = threading.Event()
        self.begun = threading.Semaphore(0)
        self.running = self.most = 0

    def namespace(self, name: str) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.release()
        assert self.go_on.wait(30)
        self.running -= 1
        return super().namespace(name)


def large_pod() -> dict[str, Any]:
    return pod(containers=[{"name": "a", "args": ["x" * LARGE]}])


def test_large_reviews_are_handled_one_at_a_time_and_leave_threads_for_small_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_reviews, "WAIT", 60.0)
    world = BlockedWorld()
    app = client(world)
    statuses: list[int] = []

    def ask(body: dict[str, Any], namespace: str) -> None:
        statuses.append(app.application.test_client().post("/mutate", json=body).status_code)

    threads = [
        threading.Thread(target=ask, args=(review(large_pod(), namespace=f"n{number}"), f"n{number}"), daemon=True)
        for number in range(16)
    ]
    for thread in threads:
        thread.start()
    assert world.begun.acquire(timeout=30)
    for _ in range(3000):  # 4 of 16 threads are taken: one review that is handled, and those that wait for it
        if len(statuses) == 12:
            break
        threading.Event().wait(0.01)
    assert statuses == [503] * 12
    small = threading.Thread(target=ask, args=(review(pod(), namespace="small"), "small"), daemon=True)
    small.start()
    assert world.begun.acquire(timeout=30)
    assert world.most == 2
    world.go_on.set()
    for thread in (*threads, small):
        thread.join(30)
    assert statuses.count(200) == 5


def test_a_single_thread_handles_large_reviews_too() -> None:
    turns = LargeReviews(0)
    with turns.turn(LARGE + 1), pytest.raises(BusyError), turns.turn(LARGE + 1):
        pass
    with turns.turn(LARGE + 1), turns.turn(LARGE):
        pass


def test_a_large_review_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_reviews, "WAIT", 0.01)
    turns = LargeReviews(5)
    with turns.turn(LARGE + 1), pytest.raises(BusyError), turns.turn(LARGE + 1):
        pass
    with turns.turn(LARGE + 1):  # the place was given back
        pass


@pytest.mark.parametrize("value", ["[]", "{}", '""', '{"name":"a"}'])
def test_a_review_of_many_values_is_not_parsed(value: str) -> None:
    body = f'{{"a":[{",".join([value] * (MOST_VALUES + 1))}]}}'.encode()
    with pytest.raises(MalformedReviewError, match="more than 1000000 values"):
        parse(body)


def test_the_update_of_each_pod_that_etcd_stores_can_be_reviewed(app: flask.testing.FlaskClient) -> None:
    # Go's JSON writes < as \u003c; commas in texts are no values
    texts = ["<" * (STORED // 2), '\\",[{' * (STORED // 10)]
    body = json.dumps(review(stored := pod(containers=[{"name": "a", "args": texts}]), "UPDATE", oldObject=stored))
    body = body.replace("<", "\\u003c")
    assert len(body) > 8 * 2**20
    assert len(body) < REVIEW_LIMIT
    assert app.post("/validate", data=body).status_code == 200
    most = review(pod(containers=[{"name": "a", "args": [text := "\x01" * STORED]}]), "UPDATE", oldObject=pod(x=text))
    assert len(json.dumps(most)) < REVIEW_LIMIT


@pytest.fixture
def app() -> flask.testing.FlaskClient:
    return client(World())
