from __future__ import annotations

import threading
from typing import Any

import pytest
from prometheus_client import REGISTRY

from bridge.core.retries import TokenBucket
from bridge.kube import events
from bridge.kube.events import EventRecorder, reference
from bridge.kube.kube_client import KubeClient
from cluster.polling import eventually
from tests.fakes.clock import FakeClock
from tests.fakes.kube_api import FakeApi, Handler, Request

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "namespace": "ns", "uid": "u-1", "resourceVersion": "7", "labels": {"x": "y"}},
    "spec": {},
}
KEPT = "apis/events.k8s.io/v1/events"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_800_000_000.25)


@pytest.fixture
def recorder(client: KubeClient, clock: FakeClock) -> EventRecorder:
    return EventRecorder(client, clock=clock)


def written(api: FakeApi) -> list[dict[str, Any]]:
    return list(api.objects.get(KEPT, {}).values())


def dropped() -> float:
    return REGISTRY.get_sample_value("podbridge_events_dropped_total") or 0.0


def test_what_is_written(api: FakeApi, recorder: EventRecorder) -> None:
    recorder.event(POD, "BridgeSubmitted", "job 7 in partition p", action="Submitting")
    recorder.event({"kind": "Node", "apiVersion": "v1", "name": "n1", "uid": "n"}, "Drained", "no", warning=True)
    assert api.requests == []
    assert recorder.flush(1)
    pod, node = written(api)
    metadata = pod.pop("metadata")
    assert metadata["namespace"] == "ns"
    assert metadata["name"].startswith("a.")
    assert pod.pop("reportingInstance").startswith("podbridge-")
    assert pod == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "eventTime": "2027-01-15T08:00:00.250000Z",
        "reportingController": "podbridge",
        "action": "Submitting",
        "reason": "BridgeSubmitted",
        "type": "Normal",
        "note": "job 7 in partition p",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": "ns",
            "name": "a",
            "uid": "u-1",
            "resourceVersion": "7",
        },
    }
    assert (node["metadata"]["namespace"], node["type"]) == ("default", "Warning")


def test_repeated_events_become_one_series(api: FakeApi, recorder: EventRecorder, clock: FakeClock) -> None:
    for _ in range(3):
        recorder.event(POD, "BridgeQueued", "Resources")
        assert recorder.flush(1)
        clock.advance(60)
    (only,) = written(api)
    assert only["series"] == {"count": 3, "lastObservedTime": "2027-01-15T08:02:00.250000Z"}
    recorder.event(POD, "BridgeQueued", "Priority")
    clock.advance(601)
    recorder.event(POD, "BridgeQueued", "Resources")
    recorder.flush(1)
    assert [event.get("series", {}).get("count") for event in written(api)] == [3, None, None]


def test_events_of_the_first_moment_are_told_once(api: FakeApi, recorder: EventRecorder) -> None:
    for _ in range(5):
        recorder.event(POD, "BridgeQueued", "Resources")
    recorder.flush(1)
    assert [request.method for request in api.requests] == ["POST"]
    assert written(api)[0]["series"]["count"] == 5


def test_same_name_again_is_another_object(api: FakeApi, recorder: EventRecorder) -> None:
    recorder.event(POD, "BridgeQueued", "Resources")
    recorder.event({**POD, "metadata": {**POD["metadata"], "uid": "u-2"}}, "BridgeQueued", "Resources")  # type: ignore[dict-item]
    recorder.flush(1)
    assert len(written(api)) == 2


def test_loop_writes_a_hot_event_rarely(api: FakeApi, client: KubeClient, clock: FakeClock) -> None:
    recorder = EventRecorder(client, clock=clock)
    stop = threading.Event()
    thread = threading.Thread(target=recorder.run, args=(stop,), daemon=True)
    thread.start()
    recorder.event(POD, "BridgeQueued", "Resources")
    eventually(lambda: all(series.written for series in recorder._series.values()))
    for _ in range(50):
        recorder.event(POD, "BridgeQueued", "Resources")
    recorder.event(POD, "Other", "o")  # written later than a busy series would be
    eventually(lambda: len(written(api)) == 2)
    assert [request.method for request in api.requests] == ["POST", "POST"]
    clock.advance(events.SERIES_PERIOD)
    recorder.event(POD, "Another", "o")
    eventually(lambda: len(api.requests) == 4)
    assert sorted(request.method for request in api.requests[2:]) == ["PATCH", "POST"]
    patch = next(request for request in api.requests if request.method == "PATCH")
    assert patch.body["series"]["count"] == 51
    stop.set()
    recorder.event(POD, "Last", "o")
    thread.join(5)
    assert not thread.is_alive()


def test_notes_are_cut_at_whole_letters(api: FakeApi, recorder: EventRecorder) -> None:
    recorder.event(POD, "R", "é" * 1000)
    recorder.flush(1)
    assert written(api)[0]["note"] == "é" * 512


def test_lost_answer_does_not_double_an_event(api: FakeApi, recorder: EventRecorder) -> None:
    def do_but_break_off(handler: Handler, request: Request) -> bool:
        api.faults.clear()
        api.handle(request)
        handler.close_connection = True
        return True

    api.faults.append(do_but_break_off)
    recorder.event(POD, "R", "m")
    assert not recorder.flush(1)
    assert recorder.flush(1)
    assert len(written(api)) == 1


def test_trouble_is_retried_and_then_forgotten(api: FakeApi, recorder: EventRecorder) -> None:
    before = dropped()
    api.fail(503)
    recorder.event(POD, "R", "m")
    for _ in range(events.TRIES + 5):
        recorder.flush(1)
    assert len(api.requests) == events.TRIES
    assert dropped() - before == 1


@pytest.mark.parametrize("status", [403, 404, 422])
def test_refusal_is_not_retried(api: FakeApi, recorder: EventRecorder, status: int) -> None:
    before = dropped()
    api.fail(status)
    recorder.event(POD, "R", "m")
    recorder.flush(1)
    recorder.flush(1)
    assert len(api.requests) == 1
    assert dropped() - before == 1


def test_event_that_expired_begins_anew(api: FakeApi, recorder: EventRecorder) -> None:
    recorder.event(POD, "R", "m")
    recorder.flush(1)
    api.objects.clear()
    recorder.event(POD, "R", "m")
    recorder.flush(1)
    recorder.event(POD, "R", "m")
    recorder.flush(1)
    assert len(written(api)) == 1


def test_oldest_are_dropped_beyond_the_limit(api: FakeApi, client: KubeClient, clock: FakeClock) -> None:
    before = dropped()
    recorder = EventRecorder(client, clock=clock, limit=3)
    for number in range(5):
        recorder.event(POD, "R", str(number))
    recorder.flush(1)
    assert [event["note"] for event in written(api)] == ["2", "3", "4"]
    assert dropped() - before == 2
    for number in range(5, 8):
        recorder.event(POD, "R", str(number))
    assert dropped() - before == 2  # the forgotten ones had been written


def test_one_object_leaves_room_for_the_events_of_others(
    api: FakeApi, recorder: EventRecorder, clock: FakeClock
) -> None:
    before = dropped()
    for number in range(3 * events.OBJECT_BURST):  # for example of a probe that fails with another text each time
        recorder.event({**reference(POD), "fieldPath": str(number)}, "Unhealthy", str(number))
    recorder.event({**POD, "metadata": {**POD["metadata"], "uid": "u-2"}}, "R", "other")  # type: ignore[dict-item]
    recorder.flush(1)
    assert [each["note"] for each in written(api)] == [*map(str, range(events.OBJECT_BURST)), "other"]
    clock.advance(2 * events.OBJECT_PERIOD)
    for number in range(3):
        recorder.event(POD, "Unhealthy", f"later {number}")
        recorder.event({**reference(POD), "fieldPath": "0"}, "Unhealthy", "0")  # of a series that it has
    recorder.flush(1)
    assert [each["note"] for each in written(api)][-2:] == ["later 0", "later 1"]
    assert dropped() == before  # nobody has to act


def test_a_series_that_is_over_is_forgotten_once_it_is_written(
    api: FakeApi, recorder: EventRecorder, clock: FakeClock
) -> None:
    recorder.event(POD, "R", "first")
    recorder.flush(1)
    recorder.event(POD, "R", "not written")
    clock.advance(events.SERIES_LIFE)
    recorder.event(POD, "R", "last")
    assert [note for _, _, note, _ in recorder._series] == ["not written", "last"]
    recorder.flush(1)
    assert [event["note"] for event in written(api)] == ["first", "not written", "last"]


@pytest.mark.parametrize("odd", [None, "text", {"metadata": None}, {"metadata": {}}, {}, 7])
def test_never_raises(recorder: EventRecorder, odd: Any) -> None:
    recorder.event(odd, "R", "m")
    recorder.event(POD, None, None)  # type: ignore[arg-type]


def test_events_are_written_slowly_while_other_calls_wait(
    api: FakeApi, client: KubeClient, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = True
    recorder = EventRecorder(client, clock=clock, busy=lambda: busy)
    waits: list[float] = []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            return self.is_set()

    stop = Stop()
    for number in range(3):
        recorder.event(POD, "R", str(number))
    thread = threading.Thread(target=recorder.run, args=(stop,), daemon=True)
    thread.start()
    eventually(lambda: len(written(api)) == 3)
    busy = False
    recorder.event(POD, "R", "later")
    eventually(lambda: len(written(api)) == 4)
    assert waits == [events.BUSY_PAUSE] * 3
    stop.set()
    recorder.event(POD, "Last", "o")
    thread.join(5)


def test_bucket() -> None:
    clock = FakeClock(0)
    bucket = TokenBucket(10, 2, clock)
    assert [bucket.take(), bucket.take()] == [0, 0]
    assert bucket.take() == pytest.approx(0.1)
    clock.advance(0.3)
    assert bucket.take() == 0
    clock.advance(100)
    assert [bucket.take() > 0 for _ in range(3)] == [False, False, True]


def test_reference_of_a_reference() -> None:
    ref = reference(POD)
    assert reference(ref) == ref
